"""What contenders are asked: any JSON Lines file, or the held-out prompts of profiles."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import NoReturn

from localspec.benchmark.harness import Prompt
from localspec.errors import UserError
from localspec.storage.paths import config_dir
from localspec.storage.profiles import profile

TEXT_FIELDS = ("prompt", "question", "turns")
"""Where the text stands: under the first of these names that a line has."""
TASK_FIELDS = ("task", "category")
_ALL = "all"  # what tables call all tasks together


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read the prompts of a JSON Lines file, or of a JSON list; raises `UserError` naming file and line.

    The first of several `turns` is asked. Without a `task` or `category`, the task is the file's name.
    """
    found = tuple(_prompt(item, place, path.stem) for place, item in _items(path, _text(path)))
    if not found:
        raise UserError(f"{path} holds no prompts", 'write one to a line: {"prompt": "..."}')
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
    """Return at most so many prompts of each task, from all over its prompts, the tasks in turn."""
    by_task: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    kept = [
        [of_task[place * len(of_task) // most] for place in range(most)] if len(of_task) > most else of_task
        for of_task in by_task.values()
    ]
    return tuple(prompt for prompt in chain.from_iterable(zip_longest(*kept)) if prompt is not None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: this is not UTF-8 text", "save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read prompts from {path}: {error.strerror}", "check the name") from None


def _items(path: Path, text: str) -> Iterator[tuple[str, object]]:
    """Yield every record and where it stands."""
    if text.lstrip().startswith("["):
        records = _parsed(text, str(path))
        assert isinstance(records, list)
        for number, record in enumerate(records, start=1):
            yield f"{path}, item {number}", record
        return
    for number, line in enumerate(text.split("\n"), start=1):  # other line ends may stand inside JSON texts
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _parsed(line, place)


def _parsed(text: str, place: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{place}, line {error.lineno}" if error.lineno > 1 else place
        _complain(where, f"this is not JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists in lists
        _complain(place, "this JSON is too large to read")


def _prompt(record: object, place: str, file: str) -> Prompt:
    if not isinstance(record, dict):
        _complain(place, f"a prompt has to be an object with one of {_words(TEXT_FIELDS)}")
    name = next((name for name in TEXT_FIELDS if record.get(name) is not None), None)
    if name is None:
        _complain(place, f"there is none of {_words(TEXT_FIELDS)}")
    asked = record[name]
    if name == "turns":
        if not isinstance(asked, list) or not asked:
            _complain(place, "`turns` has to be a list of texts, with one at least")
        asked = asked[0]
    task_name = next((name for name in TASK_FIELDS if record.get(name) is not None), None)
    task = file if task_name is None else _checked(record[task_name], task_name, place)
    if task == _ALL:
        _complain(place, f"a task cannot be called `{_ALL}`: it stands for all tasks together")
    return Prompt(task, _checked(asked, name, place))


def _checked(value: object, name: str, place: str) -> str:
    """Return a text that a model can read."""
    if not isinstance(value, str):
        _complain(place, f"`{name}` has to be a text")
    if not value.strip():
        _complain(place, f"`{name}` is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        _complain(place, f"`{name}` has half of a character (a lone surrogate)")
    return value


def _words(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _complain(place: str, what: str) -> NoReturn:
    raise UserError(f"{place}: {what}", 'a line looks like {"prompt": "..."}')
