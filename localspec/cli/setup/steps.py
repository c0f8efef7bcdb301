"""The questions of `localspec setup`: which comes when, and what a reply means."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import Enum
from typing import Literal

from localspec.cli.shared.console import tell
from localspec.errors import UnavailableError, UserError

Step = Literal["measure", "choose", "download", "place", "write"]


class Reply(Enum):
    """An answer in one word; the models that came with the program are one to the choice of models alone."""

    YES = ("y", "yes")
    BUNDLED = ("t", "tiny", "bundled")
    SKIP = ("s", "skip", "n", "no")
    BACK = ("b", "back")
    AGAIN = ("a", "again", "r", "repeat")
    QUIT = ("q", "quit", "exit")


Answer = Reply | int | tuple[str, ...]
"""One word, the number of a recommendation, from 1, or models at hand: paths, or names from `models`."""

_NEXT: dict[Step, Step] = {
    "measure": "choose",
    "choose": "place",
    "download": "place",
    "place": "write",
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
    """Return the question of a step, with its possible replies."""
    if step != "choose":
        return f"{_QUESTIONS[step]}? ({_USUAL})"
    numbers = f"1 to {options}, Enter for 1; " if options > 1 else "Enter for 1; " if options else ""
    return (
        f"Which models? ({numbers}t: those that came with LocalSpec; f TARGET [DRAFT]: files or names on "
        "this computer; s: keep the configured models; a: again; b: back; q: quit)"
    )


def read(step: Step, text: str, options: int) -> Answer:
    """Parse the answer to a step with `options` options; raises UserError if it is unclear."""
    word = text.strip().lower()
    if not word:
        return usual(step, options)
    meant = next((reply for reply in Reply if word in reply.value), None)
    if meant and meant is not (Reply.YES if step == "choose" else Reply.BUNDLED):
        return meant
    if step == "choose" and (pick := _pick(text.strip(), options)) is not None:
        return pick
    raise UserError(f"`{text.strip()}` is not an answer to this question", question(step, options))


def usual(step: Step, options: int) -> Answer:
    """Return the default answer of a step."""
    if step != "choose":
        return Reply.YES
    return 1 if options else Reply.BUNDLED


def _pick(text: str, options: int) -> Answer | None:
    if text.isdecimal():
        if not 1 <= int(text) <= options:
            raise UserError(f"there is no number {text}", question("choose", options))
        return int(text)
    # a backslash is part of a path on Windows, not a sign for the shell
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.escape = ""
    lexer.commenters = ""
    try:
        first, *rest = lexer
    except ValueError:
        raise UserError("a quotation mark is not closed", 'write for instance: f "my model.gguf"') from None
    if first.lower() not in ("f", "file"):
        return None
    if not 1 <= len(rest) <= 2:
        raise UserError("f needs one or two models", "write for instance: f large.gguf small.gguf")
    return tuple(rest)


Ask = Callable[[str], str | None]
"""Ask a question and return the line that was typed; None at the end of the input."""


def converse(
    show: Callable[[Step], int],
    do: Callable[[Step, Answer], bool],
    ask: Ask | None,
    given: Answer | None = None,
) -> None:
    """Ask all questions. Without `ask` the default answers are taken,
    and a pair that cannot be downloaded is replaced by the next.

    `show` prints a step and returns the number of recommendations; `do` acts on an answer and returns whether
    models have to be downloaded. Both may raise UserError.
    """
    step: Step = "measure"
    before: list[Step] = []
    refused = False
    while True:
        answer = None
        needs_download = False
        try:
            options = show(step)
            if ask is None and refused and not options:
                raise UserError("no pair that fits this machine could be downloaded", "run it again later")
            answer = _answer(step, options, ask, given)
            if step == "choose":
                given = None  # coming back, one may choose otherwise
            if answer not in (Reply.BACK, Reply.QUIT):
                needs_download = do(step, answer)
        except UserError as error:
            may_choose_anew = step not in ("measure", "choose")
            goes_on = ask is not None or step == "download"  # with what is second best
            refused = refused or not isinstance(error, UnavailableError)
            if not goes_on or (answer is None and not may_choose_anew):
                raise
            tell(error)
            if may_choose_anew:
                step = "choose"
                before = ["measure"]
            continue
        if answer is Reply.QUIT or (step == "write" and answer not in (Reply.BACK, Reply.AGAIN)):
            return
        if answer is Reply.BACK:
            step = before.pop() if before else step
        elif answer is not Reply.AGAIN:
            before.append(step)
            step = "download" if needs_download else _NEXT[step]


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
