"""Whatever the engine's process logs or prints arrives as log lines, and nowhere else."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from localspec.errors import EngineError
from localspec.types import Message, ModelOptions
from localspec.worker import LogLine, Worker
from tests.llama import tiny
from tests.runtimes import end_of, greedy

NOISY = """
import os, sys, warnings

print("printed before anything else")

def hear(event, arguments):
    if event == "ctypes.dlopen":
        os.write(1, b"printed by a library\\n")
        os.write(2, "complained about é by a library\\n".encode())
        print("printed by Python")
        warnings.warn("a warning", stacklevel=1)

sys.addaudithook(hear)
"""


@pytest.fixture
def model(tmp_path: Path) -> ModelOptions:
    return ModelOptions(tiny.llama(tmp_path / "model.gguf"), threads=1)


def test_nothing_reaches_the_terminal(
    model: ModelOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOISY, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    lines = list[LogLine]()
    with Worker.open(model, on_log=lines.append) as worker:
        assert end_of(list(worker.generate(greedy(prompt="abc", max_tokens=3)))).summary.tokens <= 3
    assert capfd.readouterr() == ("", "")
    printed = [line.text for line in lines if line.name == "output"]
    assert printed[0] == "printed before anything else"
    assert {"printed by a library", "complained about é by a library", "printed by Python"} <= set(printed)
    assert any("a warning" in line.text for line in lines if line.name == "py.warnings")


def test_logs_arrive_line_by_line_with_level_and_name(model: ModelOptions) -> None:
    lines = list[LogLine]()
    nonsense: tuple[Message, ...] = (42,)  # type: ignore[assignment]
    with Worker.open(model, on_log=lines.append) as worker, pytest.raises(EngineError):
        worker.count_tokens(nonsense)
    native = [line for line in lines if line.name == "localspec.llama.cpp"]
    assert {logging.DEBUG, logging.INFO} <= {line.level for line in native}
    failure = [line.text for line in lines if line.level == logging.ERROR]
    assert failure[1].startswith("Traceback")
    assert "AttributeError" in failure[-1]
    assert not any("\n" in line.text for line in lines)


def test_a_listener_that_dawdles_or_fails_holds_nothing_up(model: ModelOptions) -> None:
    may_go_on, heard = threading.Event(), list[str]()

    def dawdle(line: LogLine) -> None:
        may_go_on.wait()
        heard.append(line.text)
        raise ValueError("a mistake of the listener")

    with Worker.open(model, on_log=dawdle) as worker:
        assert end_of(list(worker.generate(greedy(prompt="abc", max_tokens=3)))).summary.rounds > 0
        assert heard == []
        may_go_on.set()
    assert len(heard) > 10


def test_nobody_need_listen(model: ModelOptions, capfd: pytest.CaptureFixture[str]) -> None:
    with Worker.open(model) as worker:
        assert worker.target.name
    assert capfd.readouterr() == ("", "")
