"""Which messages of a long chat are at hand."""

from __future__ import annotations

from localspec_tui.widgets.transcript.transcript import Window

HUGE = [200_000] * 3


def test_what_is_seen_stays_however_large_it_is() -> None:
    assert Window(0, 3).without_end(HUGE, 1) == Window(0, 2)
    assert Window(0, 3).without_start(HUGE, 1) == Window(1, 3)


def test_what_is_small_stays_altogether() -> None:
    assert Window(0, 3).without_end([10] * 3, 0) == Window(0, 3)
    assert Window(0, 3).without_start([10] * 3, 2) == Window(0, 3)
