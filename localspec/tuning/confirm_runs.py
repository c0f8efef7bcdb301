"""The finished runs of a confirmation on disk: a line each, so that a killed program loses one at most."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from localspec.errors import StoreError
from localspec.storage.json_file import checked
from localspec.storage.paths import PRIVATE_FILE, write_atomically
from localspec.tuning.events import Dropped
from localspec.tuning.verdict import Run


@dataclass(frozen=True, slots=True)
class _Line:
    """What one line holds: a run, how long the answers are, or who takes part no more."""

    key: str
    run: Run | None = None
    tokens: int | None = None
    dropped: Dropped | None = None


class Notebook:
    """The runs under one key; a context manager. Without a file they are kept in memory alone."""

    def __init__(self, file: Path | None, key: str) -> None:
        """Read what is there; damaged lines, and those of another key, are gone from then on."""
        self._path, self._key = file, key
        self._open_file: TextIO | None = None
        self.runs: dict[tuple[str, int, int], Run] = {}
        self.tokens: int | None = None
        self.dropped: dict[str, Dropped] = {}
        for line in [] if file is None else _read(file):
            if line.key == key:
                self._take(line)

    def __enter__(self) -> Self:
        if self._path is not None:
            lines = [_Line(self._key, run=run) for run in self.runs.values()]
            lines += [_Line(self._key, dropped=dropped) for dropped in self.dropped.values()]
            if self.tokens is not None:
                lines.insert(0, _Line(self._key, tokens=self.tokens))
            write_atomically(self._path, "".join(map(_text, lines)), PRIVATE_FILE)
            self._open_file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open_file is not None:
            self._open_file.close()

    def all(self) -> list[Run]:
        """Return every run in its order."""
        return list(self.runs.values())

    def of(self, name: str) -> list[Run]:
        """Return the runs of one contender in their order."""
        return [run for run in self.runs.values() if run.name == name]

    def add(self, run: Run) -> None:
        """Keep a finished run."""
        self._keep(_Line(self._key, run=run))

    def set_tokens(self, tokens: int) -> None:
        """Keep how long the answers are."""
        self._keep(_Line(self._key, tokens=tokens))

    def drop(self, name: str, reason: str) -> None:
        """Keep that a contender takes part no more."""
        self._keep(_Line(self._key, dropped=Dropped(name, reason)))

    def _keep(self, line: _Line) -> None:
        if self._open_file is not None:
            try:
                self._open_file.write(_text(line))
                self._open_file.flush()
            except OSError as error:
                raise StoreError(f"cannot write `{self._path}`: {error.strerror or error}") from error
        self._take(line)

    def _take(self, line: _Line) -> None:
        if line.run is not None:
            self.runs[line.run.name, line.run.prompt, line.run.turn] = line.run
        if line.tokens is not None:
            self.tokens = line.tokens
        if line.dropped is not None:
            self.dropped[line.dropped.name] = line.dropped


def _read(path: Path) -> Iterable[_Line]:
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return
    for text in texts:
        try:
            yield checked(_Line, json.loads(text), "line")
        except (ValueError, RecursionError):
            continue


def _text(line: _Line) -> str:
    return json.dumps({name: value for name, value in asdict(line).items() if value is not None}) + "\n"
