"""Every abbreviation among the figures on the screen is explained, under the pointer and in the help."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat import figures
from localspec.chat.figures import Figures, in_words
from localspec.tuning.events import TuneProgress
from localspec.tuning.words import result_lines
from localspec.types.events import Summary
from localspec.types.request import EngineSettings
from localspec.units import MODE_NAMES
from localspec_tui.screens.tune import drawn
from localspec_tui.widgets.explained import ExplainedWidget, explained
from localspec_tui.widgets.origins import OriginLegend
from localspec_tui.widgets.status import FigureRow, context_part, speed_parts
from localspec_tui.widgets.timeline import Timeline
from tests.cli.tuning_script import result, whole
from tests.scripted import says
from tests.tui.desktop import Desktop, desktop

SHORT = re.compile(r"(?<![\w.×])(?:tokens/s|[A-Za-z](?:[A-Za-z-]{0,3}))(?![\w'])")
ORDINARY = frozenset(
    """a about an and as at auto best both by call card crash each far fast for from full had here how in is
    it its just less list load mean mode more ms no not now of off on once one only open or out own pays per
    rate read run s same so task than that the them then they this time to tune turn two used wait ways was
    were what when who why with you your max""".split()
)
"""Short words that everybody knows."""
ALL = Figures("SSD", 58.3, 1.9, 0.71, 3.4, 0.82)
SUMMARY = Summary(
    9, tokens=9, rounds=3, drafted=9, accepted=6, hits=2, misses=1, accepted_at=(1,), drafted_at=(2,)
)


def unexplained(text: str) -> set[str]:
    """Return the short words that are not ordinary and that the glossary lacks."""
    known = [place for place, _ in explained(text)]
    shorts = [found for found in SHORT.finditer(text) if found[0].lower() not in ORDINARY]
    return {found[0] for found in shorts if not any(found.start() in place for place in known)}


def test_such_a_word_would_be_noticed() -> None:
    assert unexplained("acc 71%  len 3.4  TTFT 0.2 s  K 4") == set()
    assert unexplained("TBT 30 ms, wps 12") == {"TBT", "wps"}


@pytest.mark.parametrize("mode", MODE_NAMES.values())
def test_the_status_line_and_the_line_under_an_answer(mode: str) -> None:
    parts = speed_parts(replace(ALL, mode=mode), "measured")
    meter = context_part(5234, 32768, estimated=True)
    assert not unexplained("  ".join([*(part.text for part in (*parts, meter)), *in_words(ALL).values()]))
    assert all(part.explanation for part in (*parts, meter))


def test_the_tuner_and_the_figures_of_an_answer() -> None:
    progress = TuneProgress(["coding", "writing"], 0.0)
    texts = [*result_lines([result()], 200), *figures.table(EngineSettings("ssd"), "asked for", SUMMARY)]
    for event in whole():
        progress.take(event, 0.0)
        texts.append(drawn(progress, 160).plain)
    assert not unexplained("\n".join(texts))


async def hover(desk: Desktop, kind: type[ExplainedWidget], word: str) -> str:
    """Point at a word in a widget of this kind, and return what is reported of it."""
    rows = desk.screen_text().splitlines()
    for widget in desk.app.screen.query(kind):
        for y in range(widget.region.y, widget.region.bottom):
            if word in rows[y]:
                await desk.pilot.hover(offset=(rows[y].index(word) + 1, y))
                return str(widget.tooltip)
    raise AssertionError(f"{word} is not there")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_timeline_and_the_message_explain_their_words_under_the_pointer(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("word " * 60), size=(120, 40)) as desk:
        await desk.answered("go")
        assert "processes the question" in await hover(desk, FigureRow, "first token after")
        await desk.press("f3")
        await desk.pilot.pause()
        timeline = desk.chat.query_one(Timeline)
        rows = desk.screen_text().splitlines()[timeline.region.y : timeline.region.bottom]
        assert not unexplained("\n".join(rows))
        assert "pass over a draft" in await hover(desk, Timeline, "verify")
        assert "without" not in await hover(desk, Timeline, "tokens/s")
        await desk.press("f2")
        await desk.shows("bonus")
        assert "for free" in await hover(desk, OriginLegend, "bonus")
