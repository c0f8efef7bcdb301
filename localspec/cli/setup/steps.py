"""The questions of `localspec setup`: which comes when, and what a reply means."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from localspec.cli.shared.console import tell
from localspec.errors import UserError

Step = Literal["measure", "choose", "download", "place", "write", "end"]


class Reply(Enum):
    """An answer that every question takes."""

    YES = "yes"
    SKIP = "skip"
    BACK = "back"
    AGAIN = "again"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class Recommended:
    """The recommendation of this number, counted from 1."""

    number: int


@dataclass(frozen=True, slots=True)
class Bundled:
    """The models that came with the program."""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Models that are at hand: paths, or names that `models` lists."""

    target: str
    draft: str | None = None


Pick = Recommended | Bundled | OnDisk


@dataclass(frozen=True, slots=True)
class State:
    """Where the questions stand: the step that waits for a reply, and what was replied before.

    Without a pick, the models of the configuration stay; `sizes` says that the planned context is written.
    """

    step: Step = "measure"
    pick: Pick | None = None
    sizes: bool = False
    writes: bool = False
    before: State | None = None


_WORDS = {
    Reply.YES: ("y", "yes"),
    Reply.SKIP: ("s", "skip", "n", "no"),
    Reply.BACK: ("b", "back"),
    Reply.AGAIN: ("a", "again", "r", "repeat"),
    Reply.QUIT: ("q", "quit", "exit"),
}
_NEXT: dict[Step, Step] = {
    "measure": "choose",
    "choose": "place",
    "download": "place",
    "place": "write",
    "write": "end",
}
_USUAL = "Enter or y: yes; s: skip; a: again; b: back; q: quit"
_QUESTIONS = {
    "measure": "Measure how fast the memory of this machine is, in about 10 seconds",
    "choose": "Which models",
    "download": "Download what is missing",
    "place": "Write the size of the context that was planned",
    "write": "Write this configuration",
}


def question(step: Step, options: int) -> str:
    """Return what to ask at a step, with the replies that it takes."""
    if step != "choose":
        return f"{_QUESTIONS[step]}? ({_USUAL})"
    numbers = f"1 to {options}, Enter for 1; " if options > 1 else "Enter for 1; " if options else ""
    return (
        f"Which models? ({numbers}t: those that came with LocalSpec; f TARGET [DRAFT]: files or names on "
        "this computer; s: keep what is configured; a: again; b: back; q: quit)"
    )


def read(step: Step, text: str, options: int) -> Reply | Pick:
    """Return what was replied at a step with so many options; raises UserError if nobody could know."""
    word = text.strip().lower()
    if not word:
        return usual(step, options)
    if step == "choose" and (pick := _pick(text.strip(), options)) is not None:
        return pick
    for reply, words in _WORDS.items():
        if word in words and not (step == "choose" and reply is Reply.YES):
            return reply
    raise UserError(f"`{text.strip()}` is no reply to this question", question(step, options))


def advance(state: State, reply: Reply | Pick, *, needs_download: bool = False) -> State:
    """Return the state after a reply; `needs_download` if the picked models are not all on disk."""
    if reply is Reply.QUIT:
        return State("end", before=state)
    if reply is Reply.BACK:
        return state.before or state
    if reply is Reply.AGAIN or state.step == "end":
        return state
    yes = reply is Reply.YES
    return State(
        step="download" if needs_download and state.step == "choose" else _NEXT[state.step],
        pick=_picked(state, reply),
        sizes=yes if state.step == "place" else state.sizes,
        writes=yes and state.step == "write",
        before=state,
    )


def _picked(state: State, reply: Reply | Pick) -> Pick | None:
    if state.step == "choose":
        return None if isinstance(reply, Reply) else reply
    return None if state.step == "download" and reply is Reply.SKIP else state.pick


def usual(step: Step, options: int) -> Reply | Pick:
    """Return the reply that is taken where nobody is asked."""
    if step != "choose":
        return Reply.YES
    return Recommended(1) if options else Bundled()


def _pick(text: str, options: int) -> Pick | None:
    if text.isdecimal():
        if not 1 <= int(text) <= options:
            raise UserError(f"there is no number {text}", question("choose", options))
        return Recommended(int(text))
    if text.lower() in ("t", "tiny", "bundled"):
        return Bundled()
    # a backslash is part of a path on Windows, not a sign for the shell
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        first, *rest = lexer
    except ValueError:
        raise UserError("a quotation mark is not closed", 'write for instance: f "my model.gguf"') from None
    if first.lower() not in ("f", "file"):
        return None
    if not 1 <= len(rest) <= 2:
        raise UserError("f wants one or two models", "write for instance: f large.gguf small.gguf")
    return OnDisk(*rest)


Ask = Callable[[str], str | None]
"""Ask a question and return the line that was typed; None at the end of the input."""


class Working:
    """What the questions are about; `work.py` does it on the real machine."""

    options = 0

    def show(self, step: Step, state: State) -> None:
        """Tell what a step is about, before its question."""

    def do(self, state: State, reply: Reply | Pick) -> bool:
        """Do what a reply asks for; return whether models have to be downloaded. Raises UserError."""
        return False


def converse(work: Working, ask: Ask | None, given: Pick | None = None) -> State:
    """Go through the questions to their end; without `ask` the usual replies are taken."""
    state = State()
    while state.step != "end":
        try:
            work.show(state.step, state)
        except UserError as error:
            if ask is None or state.step in ("measure", "choose"):
                raise
            tell(error)
            state = _back_to_choose(state)  # other models may do better
            continue
        reply = _reply(state.step, work.options, ask, given)
        if state.step == "choose":
            given = None  # coming back, one may choose otherwise
        try:
            needs_download = work.do(state, reply)
        except UserError as error:
            if ask is None:
                raise
            tell(error)
            if state.step == "download":
                state = _back_to_choose(state)
            continue
        state = advance(state, reply, needs_download=needs_download)
    return state


def _reply(step: Step, options: int, ask: Ask | None, given: Pick | None) -> Reply | Pick:
    if step == "choose" and given is not None:
        return given
    if ask is None:
        return usual(step, options)
    while True:
        text = ask(question(step, options))
        if text is None:
            return Reply.QUIT
        try:
            return read(step, text, options)
        except UserError as error:
            tell(error)


def _back_to_choose(state: State) -> State:
    while state.step != "choose" and state.before is not None:
        state = state.before
    return state
