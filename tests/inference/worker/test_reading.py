"""Models in another process read ahead, until something else is asked of them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from localspec.errors import EngineDied
from localspec.types.events import Finished
from localspec.types.request import Message
from tests.inference.runtimes import LONG_STORY, greedy
from tests.inference.worker.conftest import Open
from tests.waiting import until

pytestmark = pytest.mark.slow

VERY_LONG = greedy(prompt=(Message("user", LONG_STORY * 5),), max_tokens=4)


def test_what_idle_models_have_read_ahead_is_in_the_cache_of_the_next_answer(open_worker: Open) -> None:
    worker = open_worker()
    asked = greedy(prompt=(Message("user", LONG_STORY[:100]),), max_tokens=4)  # two pieces: at most one rest
    worker.read_ahead(asked)
    until(lambda: (so_far := worker.read_so_far()) is not None and so_far.tokens == so_far.total)
    so_far = worker.read_so_far()
    assert so_far is not None
    *_, end = worker.generate(asked)
    assert isinstance(end, Finished)
    assert end.summary.cached_tokens == so_far.total
    worker.read_ahead(None)
    assert worker.read_so_far() is None


def test_an_answer_comes_at_once_while_models_read_ahead(open_worker: Open) -> None:
    worker = open_worker()
    worker.read_ahead(VERY_LONG)
    until(lambda: worker.read_so_far() is not None)
    *_, end = worker.generate(replace(VERY_LONG, prompt="Hello"))
    assert isinstance(end, Finished)
    assert end.reason == "length"
    assert end.summary.cached_tokens < 64


def test_a_process_that_dies_while_it_reads_is_reported_by_the_next_call(open_worker: Open) -> None:
    worker = open_worker()
    worker.read_ahead(VERY_LONG)
    until(lambda: worker.read_so_far() is not None)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        list(worker.generate(replace(VERY_LONG, prompt="Hello")))
    assert worker.read_so_far() is None
    worker.read_ahead(replace(VERY_LONG, prompt="Hello"))
