"""Open workers on the bundled pair, and what is started beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.inference.turns import PARALLEL
from localspec.inference.worker.client import Worker
from localspec.types.models import ModelOptions

Open = Callable[[], Worker]


def pair_options(target: Path, draft: Path) -> tuple[ModelOptions, ModelOptions]:
    options = ModelOptions(target, context=8192, micro_batch=32, threads=1)
    return options, replace(options, path=draft)


@pytest.fixture(scope="module")
def runtime(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with Runtime.open(OpenPlan(*pair_options(demo_target_q8, demo_draft))) as opened:
        yield opened


@pytest.fixture(scope="module")
def worker(demo_target_q8: Path, demo_draft: Path) -> Iterator[Worker]:
    """For tests that leave it alive."""
    with Worker.open(OpenPlan(*pair_options(demo_target_q8, demo_draft))) as opened:
        yield opened


@pytest.fixture
def open_worker(demo_target_q8: Path) -> Iterator[Open]:
    """Opens workers on the bundled target as the screen does, for tests that do not."""
    with ExitStack() as stack:
        options = ModelOptions(demo_target_q8, context=8192, micro_batch=32, threads=1)
        yield lambda: stack.enter_context(Worker.open(OpenPlan(options, seats=PARALLEL)))
