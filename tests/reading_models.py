"""Scripted models that read ahead as far as a test lets them."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.types.events import GenerationEvent, ReadAhead
from localspec.types.request import Request
from tests.scripted import Script, ScriptedModels


class ReadingModels(ScriptedModels):
    """They remember what they are to read, None where nothing, and refuse to be told while they answer."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(*scripts)
        self.wishes: list[Request | None] = []
        self.so_far: ReadAhead | None = None
        self.told_while_answering: list[Request] = []

    @property
    def wish(self) -> str | None:
        """What is to be read of the next question; None where nothing is to be read."""
        last = self.wishes[-1] if self.wishes else None
        return None if last is None else self.begun(last)

    @staticmethod
    def begun(request: Request) -> str:
        """Return the question that a request begins."""
        assert not isinstance(request.prompt, str)
        return request.prompt[-1].content

    def read_ahead(self, request: Request | None) -> None:
        """Remember what to read."""
        if request is not None and self._in_use.locked():
            self.told_while_answering.append(request)
        self.wishes.append(request)
        self.so_far = None

    def read_so_far(self) -> ReadAhead | None:
        """Return what a test says."""
        return self.so_far

    def read_all(self, total: int = 100) -> None:
        """Let everything be read."""
        self.so_far = ReadAhead(total, total)

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Answer, which ends what is read."""
        assert self.wish is None, "an answer begins while something is to be read"
        yield from super().generate(request)
