"""A small catalogue in place of the one that comes along."""

from __future__ import annotations

import pytest

from localspec.app import recommendation
from localspec.models import catalogue
from localspec.models.catalogue import Catalogue, CataloguePair
from tests.cli.choosing import entry

BIG, SMALL = entry("big", 3, bytes=40_000), entry("small", 0.3, bytes=20_000)


def put_in_catalogue(monkeypatch: pytest.MonkeyPatch, *pairs: CataloguePair) -> None:
    models = tuple({model.key: model for known in pairs for model in known.models}.values())
    for module in (catalogue, recommendation):
        monkeypatch.setattr(module, "shipped", lambda: Catalogue("2026-01-01", models, pairs))
