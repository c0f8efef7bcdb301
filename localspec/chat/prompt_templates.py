"""Prompts that a person keeps as files: `commands/NAME.md` beside config.toml is the command `/NAME`.

The text is the prompt; `$ARGUMENTS` in it becomes what follows the command, which else stands at its end.
A heading in the first line (`# ...`) describes the command and is not sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec.chat.attachments import read_attachment
from localspec.chat.commands import NAMES, CommandSpec
from localspec.errors import UserError
from localspec.storage.paths import config_dir

ARGUMENTS = "$ARGUMENTS"
_COMMAND = re.compile(r"/([A-Za-z-]+)(?=\s|$)")
_SHOWN = 60  # characters of a prompt that nobody described


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt to be filled in, and what its command is called."""

    spec: CommandSpec
    text: str

    def prompt(self, argument: str) -> str:
        """Return the prompt with what follows the command."""
        if ARGUMENTS in self.text:
            return self.text.replace(ARGUMENTS, argument)
        return f"{self.text}\n\n{argument}" if argument else self.text


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates of a folder by name, and a line for each file that is none."""

    by_name: Mapping[str, Template]
    problems: tuple[str, ...] = ()

    @property
    def specs(self) -> tuple[CommandSpec, ...]:
        """Return what the commands are called."""
        return tuple(template.spec for template in self.by_name.values())

    def filled_in(self, text: str) -> str:
        """Return the prompt that a text stands for, or the text itself."""
        found = _COMMAND.match(text)
        template = self.by_name.get(found[1].lower()) if found else None
        if found is None or template is None:
            return text
        prompt = template.prompt(text[found.end() :].strip())
        return f"/{prompt}" if prompt.startswith("/") else prompt  # which is no command


def own_templates() -> Templates:
    """Read the person's templates."""
    folder, found, problems = config_dir() / "commands", {}, []
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".md")
    except FileNotFoundError:  # most people have none
        return Templates({})
    except OSError as error:
        return Templates({}, (f"cannot read the folder of commands {folder}: {error.strerror}",))
    for path in files:
        try:
            found[path.stem.lower()] = _read(path)
        except UserError as error:
            problems.append(f"commands/{path.name} is not used: {error.message}")
    return Templates(found, tuple(problems))


def _read(path: Path) -> Template:
    name = path.stem.lower()
    if name in NAMES:
        raise UserError(f"/{name} is a command already")
    if not _COMMAND.fullmatch(f"/{name}"):
        raise UserError("its name may hold nothing but letters and dashes")
    text = read_attachment(str(path), path.parent).text.strip()
    first, _, rest = text.partition("\n")
    if first.startswith("# "):
        first, text = first[2:], rest.strip()
    described = first.strip() if len(first) <= _SHOWN else f"{first[: _SHOWN - 1].rstrip()}…"
    return Template(CommandSpec(name, described, "[TEXT]"), text)
