"""When the engine's process dies, what it wrote stands, and everybody hears why."""

from __future__ import annotations

import os
import signal
from itertools import islice
from pathlib import Path

import pytest

from localspec.errors import EngineDied, ModelFileError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker, explain
from localspec.inference.worker.wire import LogLine
from localspec.types.events import TextDelta
from localspec.types.models import ModelOptions
from tests.inference.runtimes import QUESTION, end_of, greedy
from tests.inference.worker.conftest import Open
from tests.inference.worker.processes import ENDLESS, children, ends, kill_children_except, patience
from tests.llama import tiny

ABORT = "/build/llama.cpp/src/llama-vocab.cpp:25: GGML_ASSERT(size == 3) failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "probably for lack of memory"),
        (signal.SIGABRT, "stopped itself"),
        (signal.SIGSEGV, "crashed"),
    ],
)
def test_a_death_in_the_middle_of_an_answer(open_worker: Open, number: signal.Signals, words: str) -> None:
    worker = open_worker()
    rest = (event.text for event in worker.generate(ENDLESS) if isinstance(event, TextDelta))
    texts = list(islice(rest, 5))
    os.kill(worker.pid, number)
    with pytest.raises(EngineDied, match=words) as caught:
        texts.extend(rest)
    assert len(texts) >= 5
    assert number.name in str(caught.value)
    assert "\n" not in str(caught.value)
    for call in (
        worker.memory,
        lambda: worker.count_tokens(QUESTION),
        lambda: list(worker.generate(ENDLESS)),
    ):
        with pytest.raises(EngineDied, match=words):
            call()
    worker.cancel()
    worker.close()
    again = open_worker()
    assert end_of(list(again.generate(greedy()))).reason == "length"


@pytest.mark.slow
def test_a_death_while_no_one_waits_is_heard_of_by_the_next(open_worker: Open) -> None:
    worker = open_worker()
    os.kill(worker.pid, signal.SIGKILL)
    assert ends(worker.pid)
    for _ in range(3):
        with pytest.raises(EngineDied, match="SIGKILL"):
            worker.count_tokens(QUESTION)
        worker.close()  # which is not why there is no answer


def test_a_death_while_loading(demo_target: Path) -> None:
    before = children()

    def kill(_fraction: float) -> bool:
        kill_children_except(before)
        return True

    with pytest.raises(EngineDied, match="SIGKILL"):
        Worker.open(OpenPlan(ModelOptions(demo_target)), on_progress=kill)
    assert children() <= before


@pytest.mark.slow
def test_an_assertion_of_llama_cpp_is_the_reason_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = tiny.byte_texts()
    monkeypatch.setattr(tiny, "byte_texts", lambda: [*texts[:-1], texts[0]])
    model = tiny.llama(tmp_path / "twice.gguf")
    lines = list[LogLine]()
    with pytest.raises(ModelFileError, match="GGML_ASSERT") as caught:
        Worker.open(OpenPlan(ModelOptions(model)), on_log=lines.append)
    assert caught.value.message.startswith(f"{model} cannot be opened: ")
    assert " llama-vocab.cpp:" in caught.value.message
    assert any("GGML_ASSERT" in line.text for line in lines)
    assert capfd.readouterr() == ("", "")


FAILING = """
import pickle

def failing(value, *more, dumps=pickle.dumps):
    if any(type(item).__name__ == "Result" for item in value):
        raise MemoryError("no room for an answer")
    return dumps(value, *more)

pickle.dumps = failing
"""


@pytest.mark.slow
@pytest.mark.parametrize("colours", ["", "1"])
def test_a_thread_that_fails_keeps_no_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], colours: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", colours)
    (tmp_path / "sitecustomize.py").write_text(FAILING, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    model = ModelOptions(tiny.llama(tmp_path / "model.gguf"), threads=1)
    with pytest.raises(EngineDied, match="exit code 1: MemoryError: no room for an answer"):
        Worker.open(OpenPlan(model), on_progress=patience())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (
            -6,
            [ABORT],
            "the model process stopped itself: llama-vocab.cpp:25: GGML_ASSERT(size == 3) failed (SIGABRT)",
        ),
        (-6, ["CUDA error: out of memory", "  current device: 0"], "CUDA error: out of memory"),
        (-6, [ABORT, "Fatal Python error: Aborted", "Current thread"], "GGML_ASSERT(size == 3) failed"),
        (-6, [ABORT, "Fatal Python error:", "Aborted"], "GGML_ASSERT(size == 3) failed"),
        (-6, ["terminate called", "  what():  std::bad_alloc"], "what():  std::bad_alloc"),
        (-6, [], "it gave no reason"),
        (
            -9,
            ["anything"],
            "the model process was ended by the system, probably for lack of memory (SIGKILL)",
        ),
        (-4, [], "built for another CPU"),
        (-7, [], "crashed"),
        (-1, [], "was ended (SIGHUP)"),
        (-250, [], "was ended (signal 250)"),
        (0xC0000005, [], "reached for memory"),
        (
            1,
            ["Traceback", "ModuleNotFoundError: No module named 'numpy'"],
            "exit code 1: ModuleNotFoundError",
        ),
        (3, [], "the model process ended with exit code 3"),
    ],
)
def test_an_end_is_reported_in_plain_words(code: int, output: list[str], expected: str) -> None:
    assert expected in str(explain(code, output))
