"""Screens start and settle quickly: style sheets are parsed once, and a short rest is a rest."""

from __future__ import annotations

import pytest
from textual import _wait
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.css.types import CSSLocation

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
