"""Write one answer to standard output while it comes."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from localspec.cli.shared.console import StatusLine, say, show
from localspec.cli.shared.streaming import stream
from localspec.types import Finished, ModeChanged, PromptProgress, Request, RoundDone, TextDelta

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime

LONG_PROMPT = 512  # tokens; reading fewer is not worth a progress line


@dataclass(slots=True)
class Answer:
    """What has come of an answer so far."""

    pieces: list[str] = field(default_factory=list)
    changes: list[ModeChanged] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def text(self) -> str:
        """Return the answer as far as it has come."""
        return "".join(self.pieces)


def write_answer(runtime: Runtime, request: Request, *, silent: bool, colours: bool) -> Answer:
    """Print the answer while it comes, unless `silent`, and return it."""
    answer, status = Answer(), StatusLine()
    with closing(stream(runtime, request)) as events:
        for event in events:
            if not isinstance(event, PromptProgress):
                status.clear()
            match event:
                case PromptProgress():
                    if event.total >= LONG_PROMPT:
                        status.update(f"reading the prompt: {event.done / event.total:.0%}")
                case TextDelta():
                    answer.pieces.append(event.text)
                    if not silent:
                        show(event, colours=colours)
                case RoundDone():
                    pass
                case ModeChanged():
                    answer.changes.append(event)
                case Finished():
                    answer.finished = event
                case _:
                    assert_never(event)
    if not silent and answer.text and not answer.text.endswith("\n"):
        sys.stdout.write("\n")
    if answer.finished is not None and answer.finished.reason == "circles":
        say("note: the answer was ended because it repeats itself; with -n N it goes on to N tokens")
    return answer
