"""Screens start and settle quickly: style sheets are parsed once, and a short rest is a rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from textual import _wait
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.css.types import CSSLocation

from localspec.app import fetching
from localspec.hardware import machine as machine_module
from localspec_tui.screens import dialogs
from tests.cli.choosing import pair
from tests.hardware.machines import machine
from tests.llama import tiny
from tests.models.hub_server import Hub, Repository, in_place_of_the_hub
from tests.tui.pairs import BIG, SMALL, put_in_catalogue

_REST_S = 0.005
_parsed: dict[object, list[RuleSet]] = {}


@pytest.fixture(autouse=True)
def screens_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what was parsed for the next screen, and look more often whether the program rests."""
    parse = Stylesheet._parse_rules

    def remembered(
        self: Stylesheet,
        css: str,
        read_from: CSSLocation,
        is_default_rules: bool = False,
        tie_breaker: int = 0,
        scope: str = "",
    ) -> list[RuleSet]:
        source = css, read_from, is_default_rules, tie_breaker, scope
        key = (frozenset(self._variables.items()), source)
        if key not in _parsed:
            _parsed[key] = parse(self, *source)
        return _parsed[key]

    monkeypatch.setattr(Stylesheet, "_parse_rules", remembered)
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", _REST_S)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", _REST_S / 20)


@pytest.fixture(autouse=True)
def questions_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a letter answer a question that has just come up."""
    monkeypatch.setattr(dialogs, "READING_S", 0.0)


@pytest.fixture(autouse=True)
def no_tmux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what tests copy out of the buffers of the client that runs them."""
    monkeypatch.delenv("TMUX", raising=False)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model that is a pair with itself."""
    return tiny.llama(tmp_path_factory.mktemp("weights") / "tiny.gguf").read_bytes()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, weights: bytes) -> Iterator[Hub]:
    """The hub has a pair of two tiny models, which is the best one for an invented machine."""
    monkeypatch.setattr(fetching, "_LEAVING_S", 0.0)
    monkeypatch.setattr(machine_module, "known_machine", lambda **_: machine())
    put_in_catalogue(monkeypatch, pair(BIG, SMALL))
    with in_place_of_the_hub(monkeypatch) as running:
        for model in (BIG, SMALL):
            running.repositories[model.source] = Repository({f"{model.key}-Q4_K_M.gguf": weights})
        yield running
