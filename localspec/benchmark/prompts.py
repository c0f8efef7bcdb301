"""The prompts for contenders: any JSON Lines file, or the held-out prompts of profiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from localspec.benchmark.harness import Prompt
from localspec.errors import UserError
from localspec.storage.paths import config_dir
from localspec.storage.profiles import profile
from localspec.values import read

_ALL = "all"  # what tables call all tasks together
_EXAMPLE = 'a line looks like {"prompt": "..."}'


@dataclass(frozen=True, slots=True)
class _Line:
    """The fields of a line: the first text that is present, and its task."""

    prompt: str | None = None
    question: str | None = None
    turns: tuple[str, ...] | None = None
    task: str | None = None
    category: str | None = None


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read the prompts of a JSON Lines file; raises `UserError` naming file and line.

    The first of several `turns` is asked. Without a `task` or `category`, the task is the file's name.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read prompts from {path}: {error.strerror}", "check the name") from None
    found = tuple(
        _prompt(line, f"{path}, line {number}", path.stem)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if not found:
        raise UserError(f"{path} contains no prompts", 'write one to a line: {"prompt": "..."}')
    return found


def profile_prompts(names: Sequence[str]) -> tuple[Prompt, ...]:
    """Return the held-out prompts of profiles with their system prompts; raises `UserError`."""
    chosen = [profile(name, config_dir() / "profiles") for name in dict.fromkeys(names)]
    return tuple(
        Prompt(each.task, text, each.system_prompt)
        for each in chosen
        for text in each.tuning_prompts().held_out
    )


def spread(prompts: Sequence[Prompt], most: int) -> tuple[Prompt, ...]:
    """Return at most `count` prompts of each task, spread over its prompts, the tasks alternating."""
    by_task: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    kept = [
        [of_task[place * len(of_task) // most] for place in range(most)] if len(of_task) > most else of_task
        for of_task in by_task.values()
    ]
    return tuple(prompt for prompt in chain.from_iterable(zip_longest(*kept)) if prompt is not None)


def _prompt(line: bytes, place: str, file: str) -> Prompt:
    try:
        asked = read(_Line, json.loads(line), "the prompt")
        text = asked.prompt or asked.question or next(iter(asked.turns or ()), "")
        text.encode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{place}: this is not UTF-8 text", "save it as UTF-8") from None
    except UnicodeEncodeError:
        raise UserError(f"{place}: there is half of a character (a lone surrogate)", _EXAMPLE) from None
    except json.JSONDecodeError as error:
        what = f"this is not JSON: {error.msg} (column {error.colno})"
        raise UserError(f"{place}: {what}", _EXAMPLE) from None
    except RecursionError:
        raise UserError(f"{place}: this is nested too deeply", _EXAMPLE) from None
    except ValueError as error:  # of another kind, or too large to read
        raise UserError(f"{place}: {error}", _EXAMPLE) from None
    if not text.strip():
        raise UserError(f"{place}: there is none of `prompt`, `question`, `turns` with a text", _EXAMPLE)
    task = asked.task or asked.category or file
    if task == _ALL:
        raise UserError(
            f"{place}: a task cannot be called `{_ALL}`: that name means all tasks together", _EXAMPLE
        )
    return Prompt(task, text)
