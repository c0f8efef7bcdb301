"""Whatever the engine's process logs or prints arrives as log lines, and nowhere else."""

from __future__ import annotations

import io
import logging
import threading
from pathlib import Path

import pytest

from localspec.errors import EngineError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.child import LogSender, Outbox
from localspec.inference.worker.client import Output, Worker
from localspec.inference.worker.wire import LogLine, Told
from localspec.types.models import ModelOptions
from localspec.types.request import Message
from tests.inference.runtimes import end_of, greedy
from tests.inference.worker.processes import patience
from tests.llama import tiny

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


@pytest.mark.slow
def test_nothing_reaches_the_terminal(
    model: ModelOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOISY, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    lines = list[LogLine]()
    with Worker.open(OpenPlan(model), on_log=lines.append) as worker:
        assert end_of(list(worker.generate(greedy(prompt="abc", max_tokens=3)))).summary.tokens <= 3
    assert capfd.readouterr() == ("", "")
    printed = [line.text for line in lines if line.name == "output"]
    assert printed[0] == "printed before anything else"
    assert {"printed by a library", "complained about é by a library", "printed by Python"} <= set(printed)
    assert any("a warning" in line.text for line in lines if line.name == "py.warnings")


@pytest.mark.slow
def test_logs_arrive_line_by_line_with_level_and_name(model: ModelOptions) -> None:
    lines = list[LogLine]()
    nonsense: tuple[Message, ...] = (42,)  # type: ignore[assignment]
    with Worker.open(OpenPlan(model), on_log=lines.append) as worker, pytest.raises(EngineError):
        worker.count_tokens(nonsense)
    native = [line for line in lines if line.name == "localspec.llama.cpp"]
    assert {logging.DEBUG, logging.INFO} <= {line.level for line in native}
    failure = [line.text for line in lines if line.level == logging.ERROR]
    assert failure[1].startswith("Traceback")
    assert "AttributeError" in failure[-1]
    assert not any("\n" in line.text for line in lines)


@pytest.mark.slow
def test_a_listener_that_dawdles_or_fails_holds_nothing_up(model: ModelOptions) -> None:
    may_go_on, heard = threading.Event(), list[str]()

    def dawdle(line: LogLine) -> None:
        may_go_on.wait()
        heard.append(line.text)
        raise ValueError("a mistake of the listener")

    with Worker.open(OpenPlan(model), on_log=dawdle) as worker:
        assert end_of(list(worker.generate(greedy(prompt="abc", max_tokens=3)))).summary.rounds > 0
        assert heard == []
        may_go_on.set()
    assert len(heard) > 10


def test_of_much_that_is_printed_the_last_is_kept_in_pieces_of_a_sensible_size() -> None:
    told = list[LogLine]()
    printed = b"x" * 2**18 + b"\n" + b"".join(b"line %d\n" % number for number in range(1000))
    output = Output(io.BytesIO(printed), told.append)
    output.reader.join()
    output.end()
    output.relay.join()
    assert max(len(line.text) for line in told) <= 2**16
    assert [line.text for line in told][-1000:] == [f"line {number}" for number in range(1000)]
    assert list(output.last_lines) == [f"line {number}" for number in range(900, 1000)]


def test_an_error_is_sent_before_native_code_can_end_the_process() -> None:
    class Recording(Outbox):
        """Keeps what it was told to do."""

        def __init__(self) -> None:
            self.done: list[str] = []

        def put(self, item: Told | threading.Event, *, can_wait: bool = False) -> None:
            assert isinstance(item, LogLine)
            assert not can_wait
            self.done.append(item.text)

        def flush(self, timeout_s: float) -> None:
            self.done.append("flush")

    outbox = Recording()
    for level in (logging.WARNING, logging.ERROR):
        LogSender(outbox).emit(logging.LogRecord("a", level, "", 0, "one\ntwo", None, None))
    assert outbox.done == ["one", "two", "one", "two", "flush"]


@pytest.mark.slow
def test_events_need_no_listener(model: ModelOptions, capfd: pytest.CaptureFixture[str]) -> None:
    with Worker.open(OpenPlan(model)) as worker:
        assert worker.target.name
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_what_is_printed_without_an_end_of_line_hides_nothing(
    model: ModelOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.stdout.write('no end')", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with Worker.open(OpenPlan(model), on_progress=patience()) as worker:
        assert worker.target.name
