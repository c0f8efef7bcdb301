"""Find the command in the arguments and run it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli.shared.console import SIMPLER, at_fence, exit_code, is_terminal, sanitised_output
from localspec.cli.shared.unknown_verbs import as_question, refuse_unknown_verb
from localspec.errors import UserError
from localspec.version import __version__

if TYPE_CHECKING:
    from localspec.storage.config import Config

Verb = Callable[[Sequence[str]], int]
GetReady = Callable[[Sequence[str]], None]
VERBS = (
    "run", "chat", "serve", "share", "history", "profiles", "mcp", "verify", "bench",
    "setup", "tune", "recommend", "models", "show", "pair", "pull", "rm", "plan", "devices", "doctor",
)  # fmt: skip
ANSWERING = ("run", "chat", "serve", "verify")  # these open the models of their flags in a child process
LOCAL_ONLY = ("serve", "share", "history", "profiles", "mcp")  # whatever --host says: this machine's
LOCAL_BY_DEFAULT = ("setup", "doctor")  # whatever config.toml says
_HELP = ("-h", "--help")
ALIASES = {"ls": "models", "list": "models"}


def main(argv: Sequence[str], open_screen: Verb | None = None, preload: GetReady = lambda _argv: None) -> int:
    """Run the command line and return its exit code; where a chat is wanted without a command, `open_screen`.

    `preload` is called before the imports of a command that answers: 0.1 s.
    """
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=SIMPLER)
    with sanitised_output():
        return exit_code(lambda: _dispatch(argv, open_screen or _verb("chat"), preload), argv)


def _open_missing_streams() -> None:
    """Discard output to a closed stream; otherwise the next opened file would get it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _dispatch(argv: Sequence[str], open_screen: Verb, preload: GetReady) -> int:
    host = None
    if argv[:1] not in (["serve"], ["share"]):  # which have an address to listen at
        host, argv = _split_flag("--host", "USER@MACHINE, as with ssh", argv)
    servers, argv = _split_flag("--rpc", "HOST:PORT,HOST:PORT", argv)
    from_there = () if servers is None else ("--rpc", servers)  # as another machine sees them
    if argv[:1] == ["help"] and len(argv) == 2 and ALIASES.get(argv[1], argv[1]) in VERBS:
        argv = [argv[1], "--help"]
    first = argv[0] if argv else ""
    if first in (*_HELP, "help"):
        sys.stdout.write(Path(__file__).with_name("usage.txt").read_text(encoding="utf-8"))
        return 0
    if first in ("-V", "--version"):
        sys.stdout.write(f"localspec {__version__}\n")
        return 0
    if first == "--list-devices":  # llama.cpp's word
        first = "devices"
        argv = ["devices", "--no-measure"]
    name = ALIASES.get(first, first)
    if name in VERBS:
        argv = argv[1:]
    elif first and not first.startswith("-"):
        refuse_unknown_verb(argv, VERBS, _foreign_flags(argv))
        name = "run"
    elif not (name := _without_verb(argv)):
        _use_servers(servers)
        return open_screen([*argv, *from_there, *(() if host is None else ("--host", host))])
    if host := _host_of(name, host):
        return _run_there(host, [name, *argv, *from_there])
    _use_servers(servers)
    if name in ANSWERING and not set(_HELP) & set(argv):
        preload(argv)
    try:
        return _verb(name)(argv)
    except UserError as error:
        if name not in ANSWERING and (asked := as_question((first, *argv))):
            error.hint += f'{error.hint and "; "}to ask the model: `localspec run "{asked}"`'
        raise


def _use_servers(servers: str | None) -> None:
    """Set the RPC servers of every process of this program, or `none`; raises UserError."""
    if servers is not None:
        from localspec.llama import rpc

        rpc.use("" if servers == "none" else servers)


def _split_flag(flag: str, what: str, argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of a flag of all commands, None if it is missing, and the other arguments.

    It is before `--`, and is neither the value of another flag nor the beginning of a quoted text.
    """
    words, _ = at_fence(argv)
    at = next((at for at, word in enumerate(words) if word == flag or _sets(word, flag)), None)
    if at is None or (at and _takes_value(argv[0], argv[at - 1])):
        return None, [*argv]
    _, given, value = argv[at].partition("=")
    values = [value] if given else words[at + 1 : at + 2]
    if not values or not values[0] or values[0].startswith("-"):
        raise UserError(f"{flag} names another machine", f"use {flag} {what}")
    return values[0], [*argv[:at], *argv[at + (1 if given else 2) :]]


def _sets(word: str, flag: str) -> bool:
    """Return whether a word is a flag with its value; one with blanks that no comma explains is a text."""
    return word.startswith(f"{flag}=") and not re.search(r"[^,]\s", word)


def _takes_value(first: str, before: str) -> bool:
    """Return whether the word before a flag expects a value; the command then reports the error."""
    if not before.startswith("-") or "=" in before:
        return False
    name = ALIASES.get(first, first)
    parser = import_module(f"localspec.cli.{name if name in VERBS else 'run'}").parser()
    action = parser._option_string_actions.get(before)  # noqa: SLF001 - argparse has no other way to ask
    return action is not None and action.nargs != 0


def _host_of(name: str, host: str | None) -> str:
    """Return the machine on which a command is to run, empty for this one; raises UserError."""
    if name in LOCAL_ONLY and host:
        raise UserError(f"`localspec {name}` works on this machine only", "leave out --host")
    if host is None and name not in (*LOCAL_ONLY, *LOCAL_BY_DEFAULT):
        host = _config().host
    return "" if host in (None, "none") else host


def _run_there(host: str, words: Sequence[str]) -> int:
    from localspec.inference.remote import run_there

    if "--no-stdin" in at_fence(words)[0]:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # ssh, too, would read what is left for others
    has_terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    return run_there(host, words, _config().remote_program, has_terminal=has_terminal)


def _config() -> Config:
    from localspec.storage.config import read_config  # which `--help` need not wait for
    from localspec.storage.paths import config_dir

    return read_config(config_dir() / "config.toml")


def _without_verb(argv: Sequence[str]) -> str:
    """Return the command that flags alone mean: a chat on a terminal, none for the screen, else `run`."""
    flags, _ = at_fence(argv)
    if "--plain" in flags:
        return "chat"
    attaches = any(word.partition("=")[0] == "--attach" for word in flags)  # which the screen alone can
    if not attaches and not _wants_to_talk(argv):
        return "run"
    can_draw = is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"
    return "" if can_draw or attaches else "chat"


def _verb(name: str) -> Verb:
    verb: Verb = import_module(f"localspec.cli.{name}").main  # `--help` needs none
    return verb


def _foreign_flags(argv: Sequence[str]) -> list[str]:
    """Return the flags among the arguments of a question that it cannot have."""
    if not any(word.startswith("-") for word in at_fence(argv)[0]):
        return []
    from localspec.cli.run import parser

    try:
        _, unknown = parser().parse_known_args([word for word in at_fence(argv)[0] if word not in _HELP])
    except UserError:  # of a flag that it has, which `run` complains of
        return []
    return [word for word in unknown if word.startswith("-") and word != "--"]


def _wants_to_talk(argv: Sequence[str]) -> bool:
    """Return whether flags without a command mean a chat: on a terminal, without a question."""
    if not is_terminal(sys.stdin):
        return False
    from localspec.cli.run import arguments

    args = arguments(argv)
    return not args.prompt and args.flag_prompt is None
