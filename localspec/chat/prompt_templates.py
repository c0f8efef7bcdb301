"""Prompts that a person keeps as files: `commands/NAME.md` beside config.toml is the command `/NAME`.

The text is the prompt; `$ARGUMENTS` in it becomes what follows the command, which else stands at its end.
A heading in the first line (`# ...`) describes the command and is not sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from localspec.chat.attachments import read_attachment
from localspec.chat.commands import NAMES, CommandSpec
from localspec.errors import UserError
from localspec.storage.paths import config_dir

ARGUMENTS = "$ARGUMENTS"
_COMMAND = re.compile(r"/([A-Za-z-]+)(?=\s|$)")
_SHOWN = 60  # characters of a prompt that nobody described


@dataclass(frozen=True, slots=True)
class Templates:
    """Prompts by the names of their commands, how these are listed, and a line for each file that is none."""

    prompts: dict[str, str] = field(default_factory=dict)
    specs: list[CommandSpec] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def filled_in(self, text: str) -> str:
        """Return the prompt that a text stands for, or the text itself."""
        found = _COMMAND.match(text)
        prompt = self.prompts.get(found[1].lower()) if found else None
        if found is None or prompt is None:
            return text
        argument = text[found.end() :].strip()
        prompt = (prompt if ARGUMENTS in prompt else f"{prompt}\n\n{ARGUMENTS}").replace(ARGUMENTS, argument)
        return f"/{prompt}".rstrip() if prompt.startswith("/") else prompt.rstrip()  # which is no command


def may_be_own(text: str) -> bool:
    """Tell whether a text begins with a command that LocalSpec does not have."""
    found = _COMMAND.match(text)
    return found is not None and found[1].lower() not in NAMES


def own_templates() -> Templates:
    """Read the person's templates."""
    folder, found = config_dir() / "commands", Templates()
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".md")
    except FileNotFoundError:  # most people have none
        return found
    except OSError as error:
        found.problems.append(f"cannot read the folder of commands {folder}: {error.strerror}")
        return found
    for path in files:
        try:
            name, description, prompt = _read(path)
        except UserError as error:
            found.problems.append(f"commands/{path.name} is not used: {error.message}")
        else:
            found.prompts[name] = prompt
            found.specs.append(CommandSpec(name, description, "[TEXT]"))
    return found


def _read(path: Path) -> tuple[str, str, str]:
    """Return the name of a command, what describes it, and its prompt; raises UserError."""
    name = path.stem.lower()
    if name in NAMES:
        raise UserError(f"/{name} is a command already")
    if not _COMMAND.fullmatch(f"/{name}"):
        raise UserError("its name may hold nothing but letters and dashes")
    text = read_attachment(str(path), path.parent).text.strip()
    first, _, rest = text.partition("\n")
    if first.startswith("# "):
        first, text = first[2:], rest.strip()
    return name, first if len(first) <= _SHOWN else f"{first[: _SHOWN - 1].rstrip()}…", text
