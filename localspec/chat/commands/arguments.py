"""How the arguments of commands are read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Literal, cast, get_args

from localspec.chat.commands.command import Argument
from localspec.errors import UserError
from localspec.types.request import NO_LIMIT, Mode, Request, Sampling, TaskType
from localspec.values import range_of

ExportFormat = Literal["md", "html", "json"]
AutoMode = Mode | Literal["auto"]
_SUFFIXES: dict[str, ExportFormat] = {
    "": "md",
    ".md": "md",
    ".markdown": "md",
    ".txt": "md",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
}  # of exported chats
_THINKING_WORDS = {"on": str(NO_LIMIT), "off": "0"}
_MODE_ALIASES = {"ar": "off"}
_MODES = {
    "auto": "the fastest mode on this machine",
    "off": "plain: no drafts",
    "ngram": "n-gram: drafts copied from earlier text",
    "sd": "speculative: the draft model drafts, the target verifies",
    "ssd": "SSD: the draft model drafts ahead while the target verifies",
}
CHOICES: dict[str, dict[str, str]] = {
    "mode": _MODES,
    "fixed-mode": {mode: words for mode, words in _MODES.items() if mode != "auto"},
    "task": dict.fromkeys(get_args(TaskType), ""),
    "branch": {"next": "the answer after this one", "previous": "the answer before this one"},
    "thinking": {"on": "no limit", "off": "no thinking"},
    "compact": {"undo": "take the latest summary back"},
    "code": {"code": "the last code block alone"},
    "beside": {"fork": "this chat so far, to continue it in another way"},
    "format": {
        "md": "Markdown, the branch that is shown",
        "html": "a page to read and print, the branch that is shown",
        "json": "everything; can be imported",
    },
}
"""The words that an argument of a kind can be, and what they mean; other kinds name what exists here."""


def _read_nothing(argument: str) -> None:
    if argument:
        raise UserError("nothing can follow this command")


def _read_mode(argument: str) -> AutoMode | None:
    """Return the mode that a word names, None for no word; raises UserError."""
    word = argument.lower()
    mode = _MODE_ALIASES.get(word, word)
    if mode and mode not in CHOICES["mode"]:
        raise UserError(f"there is no mode `{argument}`", f"modes: {_listed(CHOICES['mode'])}")
    return cast("AutoMode", mode) if mode else None


def _read_modes(argument: str) -> tuple[Mode, ...]:
    """Return the modes that an argument lists, each once; raises UserError."""
    modes = dict.fromkeys(_read_mode(word) for word in argument.replace(",", " ").split())
    if "auto" in modes:
        raise UserError(
            "`auto` cannot be compared: it means one of the other modes",
            f"choose from: {_listed(CHOICES['fixed-mode'])}",
        )
    return tuple(cast("Mode", mode) for mode in modes)


def _read_temperature(argument: str) -> float | None:
    """Return the temperature that an argument is, None for no argument; raises UserError."""
    if not argument:
        return None
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


def _read_thinking(argument: str) -> int | None:
    """Return the most tokens of thinking, None for no argument; raises UserError."""
    if not argument:
        return None
    word = _THINKING_WORDS.get(argument.lower(), argument.replace(",", "").replace("_", ""))
    low, high = range_of(Request, "thinking_budget")
    try:
        value = int(word)
    except ValueError:
        value = int(low) - 1
    if not low <= value <= high:  # also when it is not a number
        raise UserError(
            f"`{argument}` is not a number of tokens", "use /thinking 1024, /thinking off or /thinking on"
        )
    return value


def _takes_back(argument: str) -> bool:
    """Return whether a summary is to be taken back; raises UserError."""
    if argument and argument.lower() != "undo":
        raise UserError(f"`{argument}` does not follow this command", "use /compact or /compact undo")
    return bool(argument)


def _read_branch(argument: str) -> Literal["next", "previous"]:
    """Return the direction that a word names, `next` for no word; raises UserError."""
    word = argument.lower() or "next"
    if word not in CHOICES["branch"]:
        raise UserError(f"there is no branch `{argument}`", "use /branch next or /branch previous")
    return "next" if word == "next" else "previous"


def _reads_code(argument: str) -> bool:
    """Return whether only the code is asked for; raises UserError."""
    if argument and argument.lower() != "code":
        raise UserError(f"there is no part `{argument}` to copy", "use /copy or /copy code")
    return bool(argument)


def _read_beside(argument: str) -> str:
    """Return the word that names a chat to open beside, or none; raises UserError."""
    if argument and argument.lower() not in CHOICES["beside"]:
        raise UserError(f"`{argument}` does not follow this command", "use /beside or /beside fork")
    return argument.lower()


def _read_export(argument: str) -> tuple[ExportFormat, str]:
    """Return the format and the file that `[md|html|json] [FILE]` asks for; the file may be empty.

    Without a word, the file's suffix decides the format; raises UserError for what may be meant as another.
    """
    first, _, rest = argument.partition(" ")
    for written in get_args(ExportFormat):
        if first.lower() == written:
            return written, unquoted(rest)
    file = unquoted(argument)
    suffix = PurePath(file).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UserError(
            f"a chat cannot be written as {suffix}", f"/export md {argument} writes Markdown there"
        )
    if rest and not suffix and file == argument:
        hint = "formats: md, html, json; a name with spaces needs quotes"
        raise UserError(f"there is no format `{first}`", hint)
    return _SUFFIXES[suffix], file


def unquoted(argument: str) -> str:
    """Return a file name without the quotes around it."""
    name = argument.strip()
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'" else name


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


NOTHING = Argument("", _read_nothing)
MODE = Argument("[MODE]", _read_mode, ("mode",))
MODES = Argument("[MODES]", _read_modes, ("fixed-mode",), repeats=True)
TEMPERATURE = Argument("[NUMBER]", _read_temperature)
THINKING = Argument("[TOKENS|on|off]", _read_thinking, ("thinking",))
BRANCH = Argument("[next|previous]", _read_branch, ("branch",))
COMPACT = Argument("[undo]", _takes_back, ("compact",))
BESIDE = Argument("[fork]", _read_beside, ("beside",))
CODE = Argument("[code]", _reads_code, ("code",))
EXPORT = Argument("[md|html|json] [FILE]", _read_export, ("format", "file"))
FILE = Argument("FILE", unquoted, ("file",))
REFERENCE = Argument("FILE", unquoted, ("reference",))
PROFILE = Argument("[NAME]", str, ("profile",))
MODEL = Argument("[NAME]", unquoted, ("model",))
THEME = Argument("[NAME]", str, ("theme",))
TASKS = Argument("[TASKS]", str, ("task",), repeats=True)
TEXT = Argument("[TEXT]", str)
TITLE = Argument("TITLE", str)
TAGS = Argument("NAME", str, ("tag",), repeats=True)
FOLDER = Argument("[NAME]", unquoted, ("folder",))
WORDS = Argument("[WORDS]", str)
