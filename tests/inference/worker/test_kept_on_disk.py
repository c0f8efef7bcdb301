"""What a process that holds models leaves on disk, however it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import EngineDied
from localspec.inference.interface import KeepsOnDisk
from localspec.inference.worker.client import Worker
from localspec.storage.kept_caches import caches_dir, figures
from localspec.types.request import Message, Request
from tests.inference.runtimes import LONG_STORY, OFF, end_of, greedy, text_of
from tests.inference.worker.conftest import Open
from tests.inference.worker.processes import ends, start_script

pytestmark = pytest.mark.slow

TALK = (Message("user", LONG_STORY[:2000]),)
THEN = (*TALK, Message("assistant", "Well."), Message("user", "And then?"))


@pytest.fixture
def opened(open_worker: Open) -> Callable[[], Worker]:
    """Opens workers that keep conversations on disk."""

    def opened() -> Worker:
        worker = open_worker()
        worker.keep_conversations(2**30, 2**30)
        return worker

    return opened


def read(worker: Worker, request: Request) -> tuple[str, int]:
    """Return an answer, and the tokens of its prompt that were read."""
    events = list(worker.generate(request))
    summary = end_of(events).summary
    return text_of(events), summary.prompt_tokens - summary.cached_tokens


def test_a_conversation_is_written_as_the_models_close(opened: Callable[[], Worker]) -> None:
    worker = opened()
    read(worker, greedy(OFF, TALK, 20))
    assert figures().count == 0, "it has not rested"
    worker.close()
    worker = opened()
    text, new = read(worker, greedy(OFF, THEN, 20))
    assert new < 60
    on_disk = worker.saved().on_disk
    assert on_disk is not None
    assert (on_disk.count, on_disk.limit) == (1, 2**30)
    assert text == read(worker, replace(greedy(OFF, THEN, 20), reuses_cache=False))[0]


def test_an_answer_that_is_cut_off_by_the_end_is_written_as_far_as_it_came(
    opened: Callable[[], Worker],
) -> None:
    worker = opened()
    events = worker.generate(greedy(OFF, TALK, None))
    for _ in range(8):
        next(events)
    worker.close()
    assert figures().count == 1
    assert read(opened(), greedy(OFF, THEN, 4))[1] < 60


def test_a_process_that_is_killed_leaves_what_had_rested(opened: Callable[[], Worker]) -> None:
    worker = opened()
    read(worker, greedy(OFF, TALK, 20))
    worker.close()
    worker = opened()
    text, _ = read(worker, greedy(OFF, THEN, 20))
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        read(worker, greedy(OFF, THEN, 20))
    found, new = read(opened(), greedy(OFF, THEN, 20))
    assert new < 60
    assert found == text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are watched by pidfd")
def test_a_program_that_is_killed_leaves_its_conversations(
    opened: Callable[[], Worker], demo_target_q8: Path
) -> None:
    code = f"""
options = ModelOptions(Path(sys.argv[1]), context=8192, micro_batch=32, threads=1)
worker = Worker.open(OpenPlan(options))
worker.keep_conversations(2**30, 2**30)
list(worker.generate(greedy(EngineSettings(mode="off"), (Message("user", {TALK[0].content!r}),), 20)))
print(worker.pid, flush=True)
signal.pause()
"""
    with start_script(code, demo_target_q8) as script:
        assert script.stdout is not None
        pid = int(script.stdout.readline())
        assert not list(caches_dir().glob("*"))
        script.kill()
        assert ends(pid)
    assert [path.suffix for path in caches_dir().iterdir()] == [".kv"]
    assert read(opened(), greedy(OFF, THEN, 4))[1] < 60


def test_a_chat_that_was_deleted_is_not_written_at_the_end(opened: Callable[[], Worker]) -> None:
    worker = opened()
    assert isinstance(worker, KeepsOnDisk)
    read(worker, replace(greedy(OFF, TALK, 4), kept_as="chat1"))
    worker.forget_conversation("chat1")
    worker.close()
    assert figures().count == 0
