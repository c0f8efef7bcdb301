"""Lists that narrow while one types, as a user types: in one burst, with Enter right behind."""

from __future__ import annotations

from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import OptionList

from localspec.chat.chat_filter import is_found
from localspec_tui.widgets.filtered_list import FilteredList, ListRow, narrowed
from tests.tui.styled import STYLES

ROWS = (
    ListRow("", "On this machine"),
    ListRow("qwen", "Qwen2.5 1.5B", "Qwen2.5 1.5B instruct coder"),
    ListRow("smol", "SmolLM2 135M", "SmolLM2 135M"),
    ListRow("", "To fetch"),
    ListRow("large", "Qwen3 8B", "Qwen3 8B 4.7 GiB"),
)


class Host(App[None]):
    CSS_PATH = STYLES
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Leave"), ("q", "leave", "Leave")]

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def compose(self) -> ComposeResult:
        yield FilteredList("Type to filter")

    def on_mount(self) -> None:
        self.rows.show(ROWS)

    @property
    def rows(self) -> FilteredList:
        return self.query_one(FilteredList)

    @property
    def seen(self) -> list[str]:
        return [str(option.prompt) for option in self.query_one(OptionList).options]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.told.append(str(event.option_id))

    def action_leave(self) -> None:
        self.told.append("left")


def test_every_word_is_found_whatever_its_case_and_place() -> None:
    assert is_found("8b QWEN", "Qwen3 8B")
    assert is_found("  ", "anything")
    assert not is_found("qwen 135M", "Qwen3 8B")


def test_headings_of_nothing_go() -> None:
    assert [row.look for row in narrowed(ROWS, "8b")] == ["To fetch", "Qwen3 8B"]
    assert narrowed(ROWS, "nothing") == []
    assert narrowed(ROWS, "") == list(ROWS)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_burst_with_enter_after_it_chooses_what_it_names() -> None:
    app = Host()
    async with app.run_test(size=(60, 12)) as pilot:
        await pilot.pause()
        assert app.rows.highlighted == "qwen"
        await pilot.press(*"qwen", "down", "enter")
        await pilot.pause()
        assert app.seen == ["On this machine", "Qwen2.5 1.5B", "To fetch", "Qwen3 8B"]
        assert app.told == ["large"]  # the heading between is no row, and q is a letter here
        await pilot.press(*"x", "enter")
        await pilot.pause()
        assert (app.seen, app.told) == ([], ["large"])  # nothing to choose
        await pilot.press("escape")
        await pilot.pause()
        assert (len(app.seen), app.told) == (5, ["large"])
        await pilot.press("escape")
        await pilot.pause()
        assert app.told == ["large", "left"]


@pytest.mark.asyncio
async def test_rows_that_come_later_leave_the_cursor_on_its_row_and_a_click_chooses() -> None:
    app = Host()
    async with app.run_test(size=(60, 12)) as pilot:
        await pilot.press("down")
        app.rows.show((ListRow("new", "New", "new"), *ROWS))
        await pilot.pause()
        assert app.rows.highlighted == "smol"
        await pilot.click(OptionList, (3, 2))
        await pilot.pause()
        assert app.told == ["qwen"]
        await pilot.press("pagedown", *"3 8")
        await pilot.pause()
        assert app.rows.highlighted == "large"  # what is typed after a click narrows
