"""A server on the bundled pair, which is in this process as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.server import exchange, opening
from localspec.types.models import ModelOptions
from tests.server.running import Served, serving


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with a request sets the status of its stream, however busy the machine is."""
    for module, name in ((exchange, "BEGIN_S"), (opening, "BEGIN_S"), (opening, "PREPARING_S")):
        monkeypatch.setattr(module, name, 20.0)


@pytest.fixture(scope="module")
def served(demo_target: Path, demo_draft: Path) -> Iterator[Served]:
    options = ModelOptions(demo_target, context=1024, threads=1)

    def open_models() -> Runtime:
        return Runtime.open(OpenPlan(options, ModelOptions(demo_draft, context=1024, threads=1)))

    with serving(open_models) as running:
        yield running
