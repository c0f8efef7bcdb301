"""Tuning from the chat."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from textual.widgets import SelectionList

from localspec.app.tuning import StopSignal, TuneChoice
from localspec.benchmark.statistics import Interval
from localspec.chat.answer_settings import TunedChoice
from localspec.chat.loading import Closed
from localspec.errors import UserError
from localspec.storage.tuned_settings import TunedTask
from localspec.tuning.events import StageBegan, StageProgress, TuneEvent, TuneProgress
from localspec.tuning.words import verdict_words
from localspec.types.request import EngineSettings, TaskType
from localspec_tui.keys import KeyFooter
from localspec_tui.screens.tune import TuneScreen, drawn
from tests.cli.tuning_script import SSD, cache_chosen, compared, machine, task, whole
from tests.scripted import Gate, says
from tests.tui.desktop import Desktop, desktop

TIMEOUT_S = 20.0


class Script:
    """A tuner that plays events; one that `holds` then continues until it is stopped."""

    def __init__(self, events: Callable[[], Iterator[TuneEvent]] = whole, *, holds: bool = False) -> None:
        self._events = events
        self._holds = holds
        self.choices: list[TuneChoice] = []
        self.models_were_open: bool | None = None
        self.ended = threading.Event()
        self.stopped = threading.Event()
        self.desk: Desktop | None = None

    def __call__(self, choice: TuneChoice, stop: StopSignal) -> Iterator[TuneEvent]:
        assert self.desk is not None
        self.choices.append(choice)
        self.models_were_open = not isinstance(self.desk.loader.state, Closed)
        ask = stop.ask

        def asked() -> None:
            ask()
            self.stopped.set()

        stop.ask = asked  # type: ignore[method-assign]
        try:
            yield from self._events()
            if self._holds:
                assert self.stopped.wait(TIMEOUT_S)
                stop.check()
        finally:
            self.ended.set()


def half() -> Iterator[TuneEvent]:
    yield from machine()
    yield from task("coding")
    yield StageBegan("study", "writing", 10)
    yield StageProgress("study", "writing", 4, 10, 90.0)


def fails() -> Iterator[TuneEvent]:
    yield from machine()
    raise UserError("nothing fits", "close other programs")


@asynccontextmanager
async def tuning(
    folder: Path,
    script: Script,
    size: tuple[int, int] = (80, 24),
    command: str = "/tune coding writing",
    was_stopped: bool = False,
) -> AsyncIterator[Desktop]:
    async with desktop(folder, says("hello"), size=size) as desk:
        script.desk = desk
        desk.chat.tuner, desk.chat.run_was_stopped = script, lambda: was_stopped
        await desk.enter(command)
        await desk.until(lambda: isinstance(desk.app.screen, TuneScreen))
        yield desk


def keys(desk: Desktop) -> list[str]:
    """Return what the row of keys shows."""
    return desk.app.screen.query_one(KeyFooter).render().plain.split("  ")


@pytest.mark.asyncio
async def test_models_that_cannot_be_tuned_from_here_open_nothing(tmp_path: Path) -> None:
    def check() -> None:
        raise UserError("these models are on another machine", "tune them there")

    async with desktop(tmp_path) as desk:
        desk.chat.tuner, desk.chat.check_tuning = Script(), check
        await desk.press("f7")
        await desk.shows("these models are on another machine")
        assert desk.app.screen is desk.chat


async def back_in_the_chat(desk: Desktop, opened: int) -> None:
    await desk.until(lambda: desk.app.screen is desk.chat and desk.loader.ready is not None)
    assert len(desk.opened) == opened
    await desk.answered("and now?")


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_a_run_is_watched_to_its_end_and_the_chat_continues(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    script = Script()
    async with tuning(tmp_path, script, size) as desk:
        await desk.shows("find the fastest settings", "Begin  Enter")
        assert keys(desk) == ["Enter Begin", "q Quick", "Esc Leave"]
        await desk.press("enter")
        await desk.shows(
            "Done. The settings are saved",
            "85.2",
            "SSD is 1.4 times as fast",
            "Enter closes",
            "(out of memory)",
        )
        await desk.shows("speculation stays off: the best of 150 settings")
        await desk.until(lambda: keys(desk) == ["Enter Close", "Esc Close"])
        assert script.choices == [TuneChoice(("coding", "writing"))]
        assert script.models_were_open is False
        assert desk.opened[0].closed
        await desk.press("enter")
        await back_in_the_chat(desk, 2)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_run_is_stopped_by_a_key_and_closed_by_a_second(tmp_path: Path, key: str) -> None:
    script = Script(half, holds=True)
    async with tuning(tmp_path, script) as desk:
        await desk.press("enter")
        await desk.shows(" s left", "4 of 10", "Esc stops", "tuned in")
        assert keys(desk) == ["Esc Stop"]
        await desk.press(key)
        await desk.shows("Stopped. Results so far are saved; /tune coding writing")
        assert script.ended.is_set()
        await desk.shows("SSD is 1.4 times as fast")  # of the task that was done
        await desk.press(key)
        await back_in_the_chat(desk, 2)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("key", "choice"),
    [("q", TuneChoice(("coding",), quick=True)), ("r", TuneChoice(("coding",), resume=True))],
)
async def test_keys_choose_how(tmp_path: Path, key: str, choice: TuneChoice) -> None:
    script = Script()
    async with tuning(tmp_path, script, command="/tune coding", was_stopped=True) as desk:
        await desk.shows("Resume  r")
        await desk.press(key)
        await desk.shows("Done. The settings are saved")
        assert script.choices == [choice]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_without_a_stopped_run_there_is_nothing_to_continue_with(tmp_path: Path) -> None:
    script = Script()
    async with tuning(tmp_path, script) as desk:
        await desk.shows("Quick  q", "Close  Esc")
        assert "Go on" not in desk.screen_text()
        await desk.press("r")
        assert script.choices == []


@pytest.mark.slow
@pytest.mark.asyncio
async def test_tasks_are_chosen_with_the_space_key_and_said_in_words(tmp_path: Path) -> None:
    script = Script()
    async with tuning(tmp_path, script, command="/tune") as desk:
        await desk.shows("tune coding", "tune writing", "tune dialogue")
        await desk.shows("It takes about 3 to 6 minutes, or 1 to 2 when quick")
        assert "tune math" not in desk.screen_text()
        await desk.press("space", "space", "down", "down", "space")
        await desk.shows("tune math", "It takes about 4 to 7 minutes")
        await desk.press("up", "up", "space")
        assert "tune coding" not in desk.screen_text()
        await desk.press("enter")
        await desk.shows("Done. The settings are saved")
        assert script.choices == [TuneChoice(("writing", "math", "dialogue"))]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_nothing_chosen_does_not_begin(tmp_path: Path) -> None:
    script = Script()
    async with tuning(tmp_path, script) as desk:
        desk.app.screen.query_one(SelectionList).deselect_all()
        await desk.press("enter")
        await desk.shows("Choose at least one")
        assert script.choices == []


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["escape", "button"])
async def test_leaving_before_the_run_keeps_the_models_open(tmp_path: Path, way: str) -> None:
    script = Script()
    async with tuning(tmp_path, script) as desk:
        if way == "escape":
            await desk.press("escape")
        else:
            await desk.pilot.click("#tune-leave")
        await back_in_the_chat(desk, 1)
        assert script.choices == []


@pytest.mark.slow
@pytest.mark.asyncio
async def test_buttons_work_by_mouse_and_by_key(tmp_path: Path) -> None:
    script = Script()
    async with tuning(tmp_path, script) as desk:
        await desk.press("tab", "tab", "enter")
        await desk.shows("Done. The settings are saved")
        assert script.choices[0].quick


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_failure_is_reported_and_the_chat_continues(tmp_path: Path) -> None:
    async with tuning(tmp_path, Script(fails)) as desk:
        await desk.press("enter")
        await desk.shows("Tuning ended: nothing fits; close other programs")
        await desk.press("escape")
        await back_in_the_chat(desk, 2)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_leaving_the_program_stops_the_run(tmp_path: Path) -> None:
    script = Script(half, holds=True)
    async with tuning(tmp_path, script) as desk:
        await desk.press("enter")
        await desk.shows("4 of 10")
        await desk.press("ctrl+q")
    assert script.stopped.is_set()
    assert script.ended.wait(TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_f7_tunes_too_but_not_while_an_answer_is_written(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("half of it", gate)) as desk:
        desk.chat.tuner = Script()
        await desk.enter("go on")
        await desk.shows("half of it")
        await desk.press("f7")
        await desk.shows("an answer is being written")
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)
        await desk.press("f7")
        await desk.until(lambda: isinstance(desk.app.screen, TuneScreen))


@pytest.mark.slow
@pytest.mark.asyncio
async def test_tune_reports_untunable_models(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("hello")) as desk:
        await desk.enter("/tune")
        await desk.shows("run `localspec tune` in a shell")
        await desk.enter("/tune cooking")
        await desk.shows("there is no task `cooking`")


@pytest.mark.parametrize("width", [40, 60, 76, 120, 200])
def test_the_board_fits_its_width(width: int) -> None:
    progress = TuneProgress(["coding", "writing", "dialogue"], 0.0)
    for second, event in enumerate([*half()]):
        progress.take(event, float(second))
    lines = drawn(progress, width).split("\n")
    assert max(line.cell_length for line in lines) <= width
    text = drawn(progress, width).plain
    assert "4 of 10" in text
    assert "· waiting" in text


def test_the_board_says_what_a_cache_moves_and_what_neighbours_share() -> None:
    progress = TuneProgress(["coding"], 0.0)
    events = (StageBegan("machine", None, 1), cache_chosen(), StageBegan("costs", None, 1), compared())
    for event in events:
        progress.take(event, 0.0)
    text = " ".join(drawn(progress, 100).plain.split())
    assert "a q8_0 cache moves the target's distribution: KL divergence 0.0012 nats" in text
    assert "passes over 2, 3, 5 neighbouring tokens of answers take 0.95, 0.90, 0.80" in text


def test_the_board_shows_a_task_on_its_way() -> None:
    progress = TuneProgress(["coding"], 0.0)
    for event in [*task("coding")][:30]:
        progress.take(event, 0.0)
    first, settings, speed = drawn(progress, 100).plain.splitlines()
    assert first.startswith("coding     ▸ study")
    assert "simulating settings" in first
    assert settings.strip() == "SSD, draft 6, fan-out 12, temp 0.8, C 0.9"
    assert "simulated  ▁" in speed


def test_what_matters_less_is_fainter_in_every_theme() -> None:
    """A dim style blends with the background; an `auto` colour would be the strongest on the screen."""
    progress = TuneProgress(["coding", "writing"], 0.0)
    for event in half():
        progress.take(event, 0.0)
    board = drawn(progress, 120)
    faint = " ".join(board.plain[span.start : span.end] for span in board.spans if span.style == "dim")
    assert "opened with 1 thread" in faint
    assert "4 of 10" not in faint
    assert not [span for span in board.spans if "muted" in str(span.style)]


@pytest.mark.parametrize("width", [40, 70, 120])
def test_a_result_is_a_sentence_and_two_bars(width: int) -> None:
    progress = TuneProgress(["coding", "writing"], 0.0)
    for event in whole():
        progress.take(event, 0.0)
    lines = drawn(progress, width).split("\n")
    assert max(line.cell_length for line in lines) <= width
    text = " ".join(" ".join(line.plain for line in lines).split())
    assert "SSD is 1.4 times as fast as plain; with 95% certainty between 1.37 and 1.47 times" in text
    plain, chosen = (line.plain for line in lines if "█ " in line.plain and "tokens/s" in line.plain)
    assert (plain.split()[0], plain.split()[-2:]) == ("plain", ["60.0", "tokens/s"])
    assert pytest.approx(plain.count("█") / chosen.count("█"), abs=0.5 / chosen.count("█")) == 60 / 85.2
    assert "writing speculation stays off: the best of 150 settings reached 0.97" in text
    assert "%" not in text.replace("95%", "")  # nothing of what was simulated


@pytest.mark.slow
@pytest.mark.asyncio
async def test_what_was_found_before_is_shown_first_and_can_be_found_again(tmp_path: Path) -> None:
    moment = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    coding = TunedTask("coding", SSD, 1.42, 1.37, 1.47, 85.2, 60.0, moment, "it pays")

    def known(task: TaskType) -> TunedChoice | None:
        return TunedChoice(SSD, "tuned", "", coding) if task == "coding" else None

    script = Script()
    async with desktop(tmp_path, says("hello"), size=(100, 30), tuned_for=known) as desk:
        script.desk = desk
        desk.chat.tuner = script
        await desk.press("f7")
        await desk.shows("Found earlier", "SSD is 1.4 times as fast as plain", "2 days ago", "60.0 tokens/s")
        await desk.press("enter")
        await desk.shows("Done. The settings are saved")
        assert "Found earlier" not in desk.screen_text()


def test_a_gain_that_is_not_reliable_is_not_called_slower() -> None:
    reason = "no reliable gain (1.26 x, could be 0.56 to 2.80)"
    words = verdict_words(EngineSettings(mode="off"), Interval(1.0, 1.0, 1.0), reason)
    assert words == "speculation stays off: no reliable gain (1.26 x, could be 0.56 to 2.80)"
    kept = "drafting runs at 1.26 x plain decoding, between 0.56 and 2.80: no gain beyond doubt"
    assert "fastest" not in verdict_words(EngineSettings(mode="off"), Interval(1.0, 1.0, 1.0), kept)
