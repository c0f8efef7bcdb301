"""Neither process outlives the other, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from localspec import gguf
from localspec.errors import EngineDied, EngineError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker import client
from localspec.inference.worker.client import Worker
from localspec.types.models import ModelOptions
from localspec.types.request import Message
from tests.inference.worker.conftest import Open
from tests.inference.worker.processes import (
    ENDLESS,
    ROOT,
    TIMEOUT_S,
    children,
    ends,
    run_script,
    start_script,
)
from tests.llama import tiny

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are watched by pidfd")

ANSWERING = """
worker = Worker.open(OpenPlan(options))
answer = worker.generate(ENDLESS)
next(answer)
print(worker.pid, flush=True)
"""


def test_the_parent_imports_neither_numpy_nor_llama_cpp() -> None:
    code = (
        "import sys, localspec.inference.worker.client; "
        "sys.exit(bool({'numpy', 'llama_cpp', 'localspec.inference.runtime'} & {*sys.modules}))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-P", "-c", code], check=True, env=environment)


@pytest.mark.slow
def test_a_process_that_was_started_early_holds_the_models_of_the_first_worker(demo_target: Path) -> None:
    code = """
from localspec.inference.worker import start_early
from tests.inference.worker.processes import children
start_early(tells_log=False)
early = children()
with Worker.open(OpenPlan(options)) as worker, Worker.open(OpenPlan(options)) as other:
    print(early == {worker.pid}, other.pid in early)
"""
    assert run_script(code, demo_target) == "True False\n"


@pytest.mark.slow
def test_a_process_that_was_started_early_in_vain_ends_with_its_program(demo_target: Path) -> None:
    code = """
from localspec.inference.worker import start_early
from tests.inference.worker.processes import children
start_early(tells_log=True)
print(*children(), flush=True)
"""
    with start_script(code, demo_target) as script:
        assert script.stdout is not None
        assert ends(int(script.stdout.readline()))


@pytest.mark.slow
def test_the_engine_does_not_read_a_header_again_that_its_parent_has_read(tmp_path: Path) -> None:
    model = tiny.llama(tmp_path / "model.gguf")
    header = gguf.read_header(model)
    header.values["general.name"] = "As the parent has read it"
    with Worker.open(OpenPlan(ModelOptions(model, threads=1))) as worker:
        assert worker.target.name == "As the parent has read it"


@pytest.mark.slow
def test_the_engine_ends_with_a_killed_parent(demo_target: Path) -> None:
    with start_script(ANSWERING + "for _ in answer: pass", demo_target) as script:
        assert script.stdout is not None
        pid = int(script.stdout.readline())
        script.kill()
    assert ends(pid)


@pytest.mark.slow
def test_a_forgotten_worker_ends_with_its_program(demo_target: Path) -> None:
    assert ends(int(run_script(ANSWERING, demo_target)))


@pytest.mark.slow
def test_a_lost_worker_is_closed(demo_target: Path) -> None:
    worker = Worker.open(OpenPlan(ModelOptions(demo_target, threads=1)))
    pid = worker.pid
    del worker
    assert ends(pid)


@pytest.mark.slow
def test_an_interrupt_in_the_terminal_does_not_end_the_engine(demo_target: Path) -> None:
    code = """
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append("interrupt"))
with Worker.open(OpenPlan(options)) as worker:
    answer = worker.generate(greedy(max_tokens=40))
    next(answer)
    os.killpg(0, signal.SIGINT)
    os.kill(worker.pid, signal.SIGINT)
    *_, last = answer
    print(*heard, last.reason, os.getsid(worker.pid) == worker.pid)
"""
    assert run_script(code, demo_target) == "interrupt length True\n"


@pytest.mark.slow
def test_the_engine_does_not_get_the_tokens_of_an_account(
    monkeypatch: pytest.MonkeyPatch, open_worker: Open
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, "hf_secret")
    assert "hf_secret" not in psutil.Process(open_worker().pid).environ().values()


@pytest.mark.slow
def test_memory_that_cannot_be_had_is_an_error_in_words(tmp_path: Path) -> None:
    code = """
from localspec.errors import UserError
from dataclasses import replace
resource.setrlimit(resource.RLIMIT_AS, (2**31, resource.RLIM_INFINITY))
try:
    Worker.open(OpenPlan(replace(options, context=2**22)))
except UserError as error:
    print(error.message)
"""
    model = tiny.llama(tmp_path / "model.gguf")
    assert "not enough memory for 4,194,304 tokens of context" in run_script(code, model)


@pytest.mark.slow
def test_opening_and_closing_leaves_nothing_after(tmp_path: Path) -> None:
    model = ModelOptions(tiny.llama(tmp_path / "model.gguf"), threads=1)
    us = psutil.Process()
    files, threads, processes = us.num_fds(), set(threading.enumerate()), children()
    for _ in range(10):
        with Worker.open(OpenPlan(model), on_log=lambda line: None) as worker:
            assert worker.target.context
        # What an earlier test left may end meanwhile, so there may be less of each.
        assert us.num_fds() <= files
        assert set(threading.enumerate()) <= threads
        assert children() <= processes


@pytest.mark.slow
def test_a_process_that_does_not_listen_is_ended_by_force(open_worker: Open) -> None:
    worker = open_worker()
    events = worker.generate(ENDLESS)
    next(events)
    os.kill(worker.pid, signal.SIGSTOP)
    worker.close()
    assert ends(worker.pid)


@pytest.mark.slow
def test_close_does_not_block_on_a_stopped_process(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = open_worker()
    events = worker.generate(ENDLESS)
    next(events)
    os.kill(worker.pid, signal.SIGSTOP)
    monkeypatch.setattr(client, "_ASIDE_S", 0.1)
    monkeypatch.setattr(client, "_LEAVING_S", 0.1)
    with pytest.raises(EngineError, match="not responding"):
        worker.count_tokens((Message("user", "more than a pipe holds " * 2**16),))
    worker.cancel()
    events.close()
    under_way = worker._process.call("choose_settings")
    worker.close()
    with pytest.raises(EngineDied, match="the model process was ended"):
        under_way.next(TIMEOUT_S)
    assert ends(worker.pid)
