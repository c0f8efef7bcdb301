"""The command line on a fake runtime."""

from __future__ import annotations

from typing import Protocol

import pytest

from localspec.__main__ import main
from localspec.app import opening as app_opening
from tests.cli.fake_runtime import FakeInput, FakeRuntime, Outcome
from tests.cli.requests import left_as_asked


class Invoke(Protocol):
    """Calls the command line; `typed` comes from a terminal, `piped` from a pipe."""

    def __call__(self, *arguments: str, piped: bytes = b"", typed: str | None = None) -> Outcome: ...


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    runtime = FakeRuntime()
    runtime.install(monkeypatch.setattr)
    monkeypatch.setattr(app_opening, "computes_on_cpu", lambda _via: True)
    monkeypatch.setattr(app_opening, "placed", left_as_asked)  # there are no model files
    return runtime


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    monkeypatch.delenv("NO_COLOR", raising=False)

    def call(*arguments: str, piped: bytes = b"", typed: str | None = None) -> Outcome:
        data = piped if typed is None else typed.encode()
        monkeypatch.setattr("sys.stdin", FakeInput(data, terminal=typed is not None))
        try:
            code = main(arguments)
        except SystemExit as leaving:  # argparse leaves this way after `--help`
            code = int(leaving.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
