from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from textual.app import App
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.selection import Selection
from textual.widgets import Static

from localspec.chat.answering import AnswerEvent, AnswerSaved, Started
from localspec.chat.messages import StoredMessage
from localspec.errors import EngineError
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, TextDelta, TextPiece
from localspec.types.request import Mode
from localspec_tui.screens import compare
from localspec_tui.screens.compare import AnswerColumn, CompareScreen
from localspec_tui.widgets.markdown.prose import Prose
from tests.tui.answers import plain, record_of, sd, ssd
from tests.tui.settled import settled
from tests.tui.styled import STYLES

ROUNDS = {"off": plain(30), "sd": sd(20), "ssd": ssd(20)}
IDS: dict[Mode, int] = {"off": 11, "sd": 12, "ssd": 13}


class Host(App[None]):
    """Answers each mode from its table; those in `held` wait in the middle until cancelled or released."""

    CSS_PATH = STYLES

    def __init__(self, *modes: Mode, held: tuple[Mode, ...] = (), temperature: float = 0.0) -> None:
        super().__init__()
        self._compared = modes
        self._held = held
        self._temperature = temperature
        self.released = threading.Event()
        self.cancelled = threading.Event()
        self.order: list[str] = []
        self.results: list[int | None] = []
        self.failing: Mode | None = None
        self.texts: dict[str, str] = {}

    def on_mount(self) -> None:
        self.push_screen(
            CompareScreen(self._compared, self.answer, self.cancel, self.end), self.results.append
        )

    def cancel(self) -> None:
        self.end()

    def end(self) -> None:
        self.cancelled.set()
        self.released.set()

    def answer(self, mode: Mode) -> Iterator[AnswerEvent]:
        self.order.append(f"{mode} begins")
        message = StoredMessage(IDS[mode], 1, None, "assistant", "", 0.0, "writing")
        yield Started(message, record_of((), mode))
        if mode == self.failing:
            raise EngineError("the engine is gone")
        yield TextDelta((TextPiece("The answer ", Provenance.TARGET),))
        if mode in self._held:
            assert self.released.wait(20)
        if not self.cancelled.is_set():
            yield TextDelta((TextPiece(self.texts.get(mode, "[b]is 42."), Provenance.ACCEPTED),))
        record = record_of(ROUNDS[mode], mode, self._temperature)
        yield Finished("cancelled" if self.cancelled.is_set() else "stop", record.summary)
        self.order.append(f"{mode} ends")
        yield AnswerSaved(message, record)

    def column(self, mode: Mode) -> AnswerColumn:
        return self.screen.query_one(f"#mode-{mode}", AnswerColumn)

    def said(self, name: str, mode: Mode | None = None) -> str:
        inside = self.screen if mode is None else self.column(mode)
        return str(inside.query_one(name, Static).render())

    def text(self, mode: Mode) -> str:
        found = (prose.get_selection(Selection(None, None)) for prose in self.column(mode).query(Prose))
        return "\n".join(text for text, _ in filter(None, found))

    def shown(self) -> list[str]:
        return [mode for mode in ("off", "sd", "ssd") if self.column(mode).size.width > 0]

    def done(self) -> bool:
        return "Enter keeps the chosen answer" in self.said("#compare-progress")


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await pilot.pause(0.01)
    raise AssertionError("what was waited for did not come")


@pytest.mark.asyncio
async def test_modes_run_one_after_the_other() -> None:
    app = Host("off", "sd", "ssd")
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, app.done)
        assert app.order == [f"{mode} {word}" for mode in ("off", "sd", "ssd") for word in ("begins", "ends")]
        for mode in ("off", "sd", "ssd"):
            await until(pilot, lambda mode=mode: app.text(mode) == "The answer [b]is 42.")  # type: ignore[misc]
            assert "tokens/s" in app.said(".answer-column--figures", mode)
        assert "× plain" in app.said(".answer-column--figures", "ssd")
        assert app.said("#compare-verdict").count("same text as Plain") == 2


@pytest.mark.asyncio
async def test_columns_show_markdown_and_end_at_the_end_of_the_answer() -> None:
    app = Host("off", "sd")
    app.texts["sd"] = "".join(f"- **item {number}**\n" for number in range(60)) + "\nthe `last` line"
    async with app.run_test(size=(120, 24)) as pilot:
        await until(pilot, app.done)
        await until(pilot, lambda: app.text("sd").endswith("the last line"))
        assert "item 59" in app.text("sd")
        assert "**" not in app.text("sd")
        scroll = app.column("sd").query_one(VerticalScroll)
        await until(pilot, lambda: scroll.max_scroll_y > 30 and scroll.is_vertical_scroll_end)
        await settled(pilot)  # a later layout would move the end
        await pilot.press("up", "up")
        await until(pilot, lambda: scroll.scroll_y == scroll.max_scroll_y - 2)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_says_which_mode_runs_while_it_writes() -> None:
    app = Host("off", "sd", held=("sd",))
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, lambda: app.text("sd") == "The answer")
        assert app.said("#compare-progress").startswith("Answering in mode speculative, 2 of 2")
        assert "× plain" not in app.said(".answer-column--figures", "sd")
        app.released.set()
        await until(pilot, app.done)


@pytest.mark.asyncio
async def test_a_difference_is_reported() -> None:
    app = Host("off", "ssd")
    app.texts["ssd"] = "is 43."
    app.texts["off"] = "is 42."
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, app.done)
        assert "from character 16" in app.said("#compare-verdict")


@pytest.mark.asyncio
async def test_escape_stops_what_runs_and_starts_nothing_more() -> None:
    app = Host("off", "sd", "ssd", held=("sd",))
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, lambda: "sd begins" in app.order and bool(app.text("sd")))
        await pilot.press("escape")
        await until(pilot, lambda: bool(app.results))
        assert app.results == [None]
        assert app.order[-1] == "sd ends"


class DeafHost(Host):
    """An engine that hears nothing, until it is ended."""

    def cancel(self) -> None:
        pass


@pytest.mark.asyncio
async def test_second_escape_ends_an_engine_that_does_not_react(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "STUCK_S", 0.0)
    app = DeafHost("off", "sd", held=("off",))
    async with app.run_test() as pilot:
        await until(pilot, lambda: "The answer" in app.text("off"))
        await pilot.press("escape")
        await until(pilot, lambda: "the model process is not responding" in app.said("#compare-progress"))
        assert not app.cancelled.is_set()
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [None])
        assert app.order == ["off begins", "off ends"]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_enter_keeps_the_chosen_answer() -> None:
    app = Host("off", "sd", "ssd")
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, app.done)
        await pilot.press("left", "enter")
        assert app.results == [IDS["sd"]]


@pytest.mark.asyncio
async def test_keeping_an_answer_stops_the_others_first() -> None:
    app = Host("off", "sd", held=("sd",))
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, lambda: bool(app.text("sd")))
        await pilot.press("left", "enter")
        await until(pilot, lambda: bool(app.results))
        assert app.results == [IDS["off"]]
        assert app.cancelled.is_set()


@pytest.mark.asyncio
async def test_a_click_on_the_line_below_keeps_an_answer() -> None:
    app = Host("off", "sd")
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, app.done)
        await pilot.click("#mode-off MessageBody")
        assert app.results == []
        await pilot.click("#mode-off .answer-column--keep")
        assert app.results == [IDS["off"]]


@pytest.mark.asyncio
async def test_a_failure_is_reported_in_its_column_and_the_next_mode_runs() -> None:
    app = Host("off", "sd")
    app.failing = "off"
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, app.done)
        assert app.said(".answer-column--figures", "off") == "the engine is gone"
        assert "× plain" not in app.said(".answer-column--figures", "sd")
        assert "sd ends" in app.order


@pytest.mark.slow
@pytest.mark.asyncio
async def test_narrow_screens_show_one_column_at_a_time() -> None:
    app = Host("off", "sd", "ssd")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, app.done)
        await until(pilot, lambda: app.shown() == ["ssd"])
        await pilot.press("right")
        await until(pilot, lambda: app.shown() == ["off"])
        await pilot.click("#tab-sd")
        await pilot.pause()
        assert app.focused is app.column("sd")
        await pilot.resize_terminal(160, 24)
        await pilot.pause()
        assert all(app.column(mode).size.width > 40 for mode in ("off", "sd", "ssd"))


@pytest.mark.asyncio
async def test_drawn_answers_are_not_expected_to_be_equal() -> None:
    app = Host("off", "sd", temperature=0.7)
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, app.done)
        assert "same distribution" in app.said("#compare-verdict")
