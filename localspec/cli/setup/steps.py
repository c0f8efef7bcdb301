"""The questions of `localspec setup`: which comes when, and what a reply means."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from localspec.cli.shared.console import tell
from localspec.errors import UnavailableError, UserError

Step = Literal["measure", "choose", "download", "place", "write", "end"]


class Reply(Enum):
    """An answer in one word; the models that came with the program are one to the choice of models alone."""

    YES = ("y", "yes")
    BUNDLED = ("t", "tiny", "bundled")
    SKIP = ("s", "skip", "n", "no")
    BACK = ("b", "back")
    AGAIN = ("a", "again", "r", "repeat")
    QUIT = ("q", "quit", "exit")


@dataclass(frozen=True, slots=True)
class Recommended:
    """The recommendation of this number, counted from 1."""

    number: int


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Models that are at hand: paths, or names that `models` lists."""

    target: str
    draft: str | None = None


Answer = Reply | Recommended | OnDisk


@dataclass(frozen=True, slots=True)
class State:
    """Where the questions stand: the step that waits for an answer, and how it came there.

    `sizes` says that the planned context is written, `writes` that anything is.
    """

    step: Step = "measure"
    sizes: bool = False
    writes: bool = False
    before: State | None = None


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


def read(step: Step, text: str, options: int) -> Answer:
    """Return what was answered at a step with so many options; raises UserError if nobody could know."""
    word = text.strip().lower()
    if not word:
        return usual(step, options)
    meant = next((reply for reply in Reply if word in reply.value), None)
    if meant and meant is not (Reply.YES if step == "choose" else Reply.BUNDLED):
        return meant
    if step == "choose" and (pick := _pick(text.strip(), options)) is not None:
        return pick
    raise UserError(f"`{text.strip()}` is no reply to this question", question(step, options))


def advance(state: State, answer: Answer, *, needs_download: bool = False) -> State:
    """Return the state after an answer; `needs_download` if the chosen models are not all on disk."""
    if answer is Reply.QUIT:
        return State("end", before=state)
    if answer is Reply.BACK:
        return state.before or state
    if answer is Reply.AGAIN or state.step == "end":
        return state
    yes = answer is Reply.YES
    return State(
        step="download" if needs_download and state.step == "choose" else _NEXT[state.step],
        sizes=yes if state.step == "place" else state.sizes,
        writes=yes and state.step == "write",
        before=state,
    )


def usual(step: Step, options: int) -> Answer:
    """Return the answer that is taken where nobody is asked."""
    if step != "choose":
        return Reply.YES
    return Recommended(1) if options else Reply.BUNDLED


def _pick(text: str, options: int) -> Recommended | OnDisk | None:
    if text.isdecimal():
        if not 1 <= int(text) <= options:
            raise UserError(f"there is no number {text}", question("choose", options))
        return Recommended(int(text))
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

    def show(self, state: State) -> None:
        """Tell what a step is about, before its question."""

    def do(self, step: Step, answer: Answer) -> bool:
        """Do what an answer asks for; return whether models have to be downloaded. Raises UserError."""
        return False


def converse(work: Working, ask: Ask | None, given: Answer | None = None) -> State:
    """Go through the questions to their end; without `ask` the usual answers are taken."""
    state = State()
    while state.step != "end":
        answer = None
        may_choose_anew = state.step not in ("measure", "choose")
        try:
            work.show(state)
            answer = _answer(state.step, work.options, ask, given)
            if state.step == "choose":
                given = None  # coming back, one may choose otherwise
            state = advance(state, answer, needs_download=work.do(state.step, answer))
        except UserError as error:
            goes_on = ask is not None or isinstance(error, UnavailableError)  # with what is second best
            if not goes_on or (answer is None and not may_choose_anew):
                raise
            tell(error)
            while may_choose_anew and state.step != "choose" and state.before is not None:
                state = state.before
    return state


def _answer(step: Step, options: int, ask: Ask | None, given: Answer | None) -> Answer:
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
