"""The slash commands: what they are called, what follows them, and how Tab completes them.

Owns their grammar, on the screen and line by line; what they do is up to these two, but for prompts that a
person keeps as files:
`commands/NAME.md` beside config.toml is the command `/NAME`. Its text is the prompt; `$ARGUMENTS` in it
becomes what follows the command, which else stands at its end. A heading in the first line (`# ...`)
describes the command and is not sent; nor is front matter, whose `description` and `argument-hint` count.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, cast, get_args

from localspec.chat.attachments import Completion, complete_path, read_attachment, reference_at_end
from localspec.chat.thinking import without_thinking
from localspec.errors import UserError
from localspec.storage.paths import config_dir
from localspec.types.request import Mode, Sampling, TaskType
from localspec.values import range_of, read

Kind = Literal["mode", "fixed-mode", "task", "profile", "model", "theme", "branch", "code", "format", "file"]
"""What an argument may be completed from."""
ExportFormat = Literal["md", "json"]
Choices = Callable[[str], Sequence[str]]
"""Gives the names that exist of a kind: `profile`, `model` or `theme`."""

_AUTO = "auto"
_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_CHOICES: dict[str, dict[str, str]] = _DATA["choices"]
_CHOICES["fixed-mode"] = {mode: words for mode, words in _CHOICES["mode"].items() if mode != _AUTO}
_CHOICES["task"] = dict.fromkeys(get_args(TaskType), "")
_TO_THE_END: tuple[Kind, ...] = ("profile", "model", "theme", "file")  # names that may hold spaces
_MODE_ALIASES = {"ar": "off"}
_NAME = re.compile(r"/([A-Za-z-]+)(?=\s|$)")  # `/usr/bin`, `/* comment` and `/ a` are text
_AS_MESSAGE = "a space before the / makes it a message"
_ARGUMENTS = "$ARGUMENTS"
_DEEPEST = 100  # quotations and lists in each other, as the screen shows them
_SHOWN = 60  # characters of a prompt that nobody described
_OWN_NAME = re.compile(r"/([^\s/]+)(?=\s|$)")
_KEY = re.compile(r"([\w-]+)[ \t]*:(?:[ \t]+(.*)|$)")
_FOLDED = re.compile(r"[>|][0-9+-]*(?:[ \t]+#.*)?")  # in YAML: the text is in the lines below
_OF_FRONT_MATTER = re.compile(rf"{_KEY.pattern}|[ \t-]|#|$")


@dataclass(frozen=True, slots=True)
class Command:
    """A command as entered; `name` without the slash, aliases resolved."""

    name: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """What a command is called and takes: `kinds` are those of its words; `repeats` lets the first go on."""

    name: str
    description: str
    argument_hint: str = ""
    kinds: tuple[Kind, ...] = ()
    aliases: tuple[str, ...] = ()
    repeats: bool = False

    @property
    def needs_argument(self) -> bool:
        """Tell whether something has to follow the name."""
        return bool(self.argument_hint) and not self.argument_hint.startswith("[")

    @property
    def usage(self) -> str:
        """Return the command with its argument, as a help page lists it."""
        return f"/{self.name} {self.argument_hint}".rstrip()


COMMANDS = read(tuple[CommandSpec, ...], _DATA["commands"], "commands")
OF_LINES = read(tuple[CommandSpec, ...], _DATA["of_lines"], "of_lines")
"""What only a chat line by line has."""


def specs_of(names: Container[str]) -> dict[str, CommandSpec]:
    """Return the commands of these names, by all that they are called."""
    specs = [spec for spec in (*COMMANDS, *OF_LINES) if spec.name in names]
    return {name: spec for spec in specs for name in (spec.name, *spec.aliases)}


_SPECS = specs_of({spec.name for spec in COMMANDS})
NAMES = frozenset(_SPECS)  # that are taken


def parse(text: str, known: Mapping[str, CommandSpec] = _SPECS) -> Command | None:
    """Return the command that a text is, None for a message; raises UserError for one that makes no sense."""
    found = _NAME.match(text)
    if found is None and text.rstrip() != "/":
        return None
    written = "/" if found is None else found[0]
    spec = None if found is None else known.get(found[1].lower())
    if found is None or spec is None:
        close = get_close_matches(written[1:].lower(), known, n=1)
        meant = f"; did you mean `/{close[0]}`?" if close else ""
        raise UserError(f"there is no command `{written}`{meant}", f"/help lists them; {_AS_MESSAGE}")
    argument = text[found.end() :].strip()
    command = Command(spec.name, unquoted(argument) if spec.kinds[:1] == ("file",) else argument)
    if spec.needs_argument and not command.argument:
        raise UserError(f"/{found[1]} needs more: {spec.usage}")
    if command.argument and not spec.argument_hint:
        raise UserError(f"nothing can follow /{found[1]}", _AS_MESSAGE)
    if command.argument and spec.name in _CHECKS:
        _CHECKS[spec.name](command.argument)
    return command


def as_message(text: str, known: Container[str] = NAMES) -> str:
    """Return a message without what alone keeps it from being a command: a space, or a second slash.

    Two slashes before another word than the name of a command are a comment in a program.
    """
    found = _NAME.match(text, 1)
    if found is None or not text.startswith((" ", "/")):
        return text
    return text[1:] if text[0] == " " or found[1].lower() in known else text


def read_mode(argument: str) -> Mode | None:
    """Return the mode that a word names, None for `auto`; raises UserError."""
    word = argument.lower()
    mode = _MODE_ALIASES.get(word, word)
    if mode in get_args(Mode):
        return cast("Mode", mode)
    if mode == _AUTO:
        return None
    raise UserError(f"there is no mode `{argument}`", f"modes: {', '.join(_CHOICES['mode'])}")


def read_modes(argument: str) -> tuple[Mode, ...]:
    """Return the modes that an argument lists, each once; raises UserError."""
    modes = dict.fromkeys(read_mode(word) for word in argument.replace(",", " ").split())
    if None in modes:
        raise UserError(
            "`auto` cannot be compared: it stands for one of the other modes",
            f"choose from: {', '.join(_CHOICES['fixed-mode'])}",
        )
    return tuple(mode for mode in modes if mode is not None)


def read_temperature(argument: str) -> float:
    """Return the temperature that an argument is; raises UserError."""
    low, high = range_of(Sampling, "temperature")
    try:
        value = float(argument)
    except ValueError:
        value = low - 1
    if not low <= value <= high:  # also when it is not a number
        raise UserError(
            f"`{argument}` is not a temperature", f"use a number from {low:g} to {high:g}; 0 is greedy"
        )
    return value


def read_branch(argument: str) -> int:
    """Return the step that `next` or `previous` is; raises UserError."""
    steps = {"next": 1, "previous": -1}
    if argument.lower() not in steps:
        raise UserError(f"there is no branch `{argument}`", "use /branch next or /branch previous")
    return steps[argument.lower()]


def read_copied(argument: str) -> str:
    """Return which part of an answer `/copy` is to copy; raises UserError."""
    if argument.lower() != "code":
        raise UserError(f"there is no part `{argument}` to copy", "use /copy or /copy code")
    return "code"


def read_export(argument: str) -> tuple[ExportFormat, str]:
    """Return the format and file that `[md|json] [FILE]` asks for; no file leaves its name to the program.

    A file's ending tells the format where no word does.
    """
    first, _, rest = argument.partition(" ")
    for written in get_args(ExportFormat):
        if first.lower() == written:
            return written, unquoted(rest)
    file = unquoted(argument)
    return "json" if file.lower().endswith(".json") else "md", file


def unquoted(argument: str) -> str:
    """Return a file name without the quotes around it."""
    name = argument.strip()
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'" else name


def last_code_block(answer: str) -> str | None:
    """Return what `/copy code` copies of an answer, None if it holds no code; fences may be quoted."""
    from markdown_it import MarkdownIt  # 30 ms that only this command costs

    tokens = MarkdownIt("commonmark", {"maxNesting": _DEEPEST}).parse(without_thinking(answer))
    codes = [token.content for token in tokens if token.type in {"fence", "code_block"}]
    return codes[-1] if codes else None


def complete(text: str, choices: Choices, own: Sequence[CommandSpec] = ()) -> tuple[Completion, ...]:
    """Return how a command up to the cursor can go on; nothing for a message, and for names of files.

    `own` are the commands that the person has made.
    """
    if not text.startswith("/") or "\n" in text:
        return ()
    if " " not in text:
        return tuple(_names(text[1:].lower(), own))
    word = word_at_end(text)
    if word is None or word[0] == "file":
        return ()
    kind, start = word
    known = _CHOICES.get(kind) or dict.fromkeys(choices(kind), "")
    typed = text[start:].lower()
    used = text[:start].lower().split()
    return tuple(
        Completion(name, name, description, start)
        for name, description in known.items()
        if name.lower().startswith(typed) and name not in used
    )


def word_at_end(text: str) -> tuple[Kind, int] | None:
    """Return what the word that a command ends with is chosen from, None if nothing, and where it begins."""
    name, gap, argument = text.removeprefix("/").partition(" ")
    spec = _SPECS.get(name.lower())
    if spec is None or not gap or not spec.kinds or "\n" in text:
        return None
    if spec.kinds[0] in _TO_THE_END:
        return spec.kinds[0], len(text) - len(argument.lstrip())
    words = argument.lstrip().split(" ")
    start = len(text) - len(words[-1])
    if spec.repeats:
        return spec.kinds[0], start
    return (spec.kinds[len(words) - 1], start) if len(words) <= len(spec.kinds) else None


def _names(typed: str, own: Sequence[CommandSpec]) -> Iterator[Completion]:
    for spec in (*COMMANDS, *own):
        for name in (spec.name, *spec.aliases):
            if name.startswith(typed):
                yield Completion(
                    f"/{name} " if spec.argument_hint else f"/{name}",
                    f"/{name} {spec.argument_hint}".rstrip(),
                    spec.description,
                )
                break  # an alias is offered only to who types it


def complete_input(
    text: str, choices: Choices, folder: Path, own: Sequence[CommandSpec] = ()
) -> tuple[Completion, ...]:
    """Return how a text can go on at the cursor, where it ends; reads the folders that it names.

    `own` are the commands that the person has made.
    """
    word = word_at_end(text) if text.startswith("/") else None
    at = word[1] if word is not None and word[0] == "file" else None
    if at is None and (commands := complete(text, choices, own)):
        return commands
    at = reference_at_end(text) if at is None else at
    return () if at is None else tuple(replace(offer, start=at) for offer in complete_path(text[at:], folder))


@dataclass(frozen=True, slots=True)
class Templates:
    """Prompts by the names of their commands, how these are listed, and a line for each file that is none."""

    prompts: dict[str, str] = field(default_factory=dict)
    specs: list[CommandSpec] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def filled_in(self, text: str) -> str:
        """Return the prompt that a text stands for, or the text itself."""
        found = _OWN_NAME.match(text)
        prompt = self.prompts.get(_own_name(found[1])) if found else None
        if found is None or prompt is None:
            return text
        prompt = prompt if _ARGUMENTS in prompt else f"{prompt}\n\n{_ARGUMENTS}"
        prompt = prompt.replace(_ARGUMENTS, text[found.end() :].strip())
        if command := _NAME.match(prompt):  # which it is not
            prompt = f"{'/' if command[1].lower() in NAMES else ' '}{prompt}"
        return prompt.rstrip()


def may_be_own(text: str) -> bool:
    """Tell whether a text begins with a command that LocalSpec does not have."""
    found = _OWN_NAME.match(text)
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
            spec, prompt = _read(path)
            if spec.name in found.prompts:
                raise UserError(f"another file is /{spec.name} already")
        except UserError as error:
            found.problems.append(f"commands/{path.name} is not used: {error.message}")
        else:
            found.prompts[spec.name] = prompt
            found.specs.append(spec)
    return found


def _own_name(written: str) -> str:
    """Return the name of a command of one's own, however its letters are composed on the disk."""
    return unicodedata.normalize("NFC", written).lower()


def _read(path: Path) -> tuple[CommandSpec, str]:
    """Return a command of one's own and its prompt; raises UserError."""
    name = _own_name(path.stem)
    if name in NAMES:
        raise UserError(f"/{name} is a command already")
    if not all(unicodedata.category(sign)[0] in "LMN" or sign in "_-" for sign in name):
        raise UserError("its name may hold nothing but letters, digits, dashes and underscores")
    known, text = _without_front_matter(read_attachment(str(path), path.parent).text.strip())
    first, _, rest = text.partition("\n")
    description = known.get("description", first)
    if first.startswith("# ") and "description" not in known:
        description, text = first[2:], rest.strip()
    if not text:
        raise UserError("it holds no prompt")
    return CommandSpec(name, _shortened(description), _shortened(known.get("argument-hint", "[TEXT]"))), text


def _without_front_matter(text: str) -> tuple[dict[str, str], str]:
    """Return the values between two lines `---` that a text begins with, by their keys, and the text below.

    Other programs read YAML there; of that, texts are understood, which may go on in indented lines.
    """
    lines = text.split("\n")
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    inner = lines[1:end]
    if lines[0].rstrip() != "---" or not end or not all(map(_OF_FRONT_MATTER.match, inner)):
        return {}, text
    found: dict[str, str] = {}
    key = ""
    for line in inner:
        if line[:1].isspace() and key:
            found[key] = f"{found[key]} {line.strip()}".strip()
        elif name := _KEY.match(line):
            key, value = name[1].lower(), (name[2] or "").strip()
            found[key] = "" if _FOLDED.fullmatch(value) else unquoted(value)
    return {key: value for key, value in found.items() if value}, "\n".join(lines[end + 1 :]).strip()


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1].rstrip()}…"


_CHECKS: dict[str, Callable[[str], object]] = {
    "mode": read_mode,
    "regen": read_mode,
    "compare": read_modes,
    "temp": read_temperature,
    "branch": read_branch,
    "copy": read_copied,
}
