"""A hub on this machine, and where its models land."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.hub_server import Hub, in_place_of_the_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with in_place_of_the_hub(monkeypatch) as running:
        yield running


@pytest.fixture
def cache(empty_home: Path) -> Path:
    return empty_home / "cache" / "huggingface" / "hub"
