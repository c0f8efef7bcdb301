from __future__ import annotations

import pytest
from textual.app import App
from textual.geometry import Region
from textual.widgets import SelectionList, Static

from localspec.chat.prompting import ContextBudget, Exchange
from localspec_tui.screens import dialogs
from localspec_tui.screens.dialogs import MakeRoomScreen
from tests.tui.styled import STYLES

EXCHANGES = (
    Exchange((1, 2), "an old one\nwith more lines", 1000, True),
    Exchange((3, 4), "[b]a long one", 3000, False),
    Exchange((5, 6), "one in the middle", 2000, False),
    Exchange((7, 8), "the present one", 2500, False),
)


class Host(App[None]):
    CSS_PATH = STYLES

    def __init__(self, room: ContextBudget | None = None) -> None:
        super().__init__()
        self.room = room or ContextBudget(EXCHANGES, 8000)
        self.results: list[tuple[int, ...] | str | None] = []

    def on_mount(self) -> None:
        self.push_screen(MakeRoomScreen(self.room), self.results.append)

    @property
    def sum(self) -> str:
        return str(self.screen.query_one("#make-room-sum", Static).render())

    def prompts(self) -> list[str]:
        options = self.screen.query_one(SelectionList).options
        return [str(option.prompt) for option in options]


@pytest.mark.asyncio
async def test_enter_leaves_the_proposal_out() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.sum == "Frees 3,000 tokens: 4,500 of 8,000 used, 3,500 free."
        await pilot.press("enter")
        assert app.results == [(1, 2, 3, 4)]


@pytest.mark.asyncio
async def test_enter_that_comes_before_anybody_can_have_read_leaves_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialogs, "READING_S", 3600.0)
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("enter")
        assert app.results == []
        monkeypatch.setattr(dialogs, "READING_S", 0.0)
        await pilot.press("enter")
        assert app.results == [(1, 2, 3, 4)]


@pytest.mark.asyncio
async def test_enter_that_ends_a_text_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(dialogs, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(dialogs, "READING_S", 0.5)
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        for now_s[0] in (2.0, 2.2, 2.4):
            await pilot.press("x")
        await pilot.press("enter")
        assert app.results == []
        now_s[0] = 3.0
        await pilot.press("enter")
        assert app.results == [(1, 2, 3, 4)]


@pytest.mark.asyncio
@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
async def test_boxes_that_are_off_look_off_without_colours(theme: str) -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.theme = theme
        await pilot.pause()
        rows = app.screen.query_one(SelectionList).render_lines(Region(0, 0, 60, 4))
        assert [row.text[:3] for row in rows] == ["▐X▌", "▐X▌", "▐ ▌", "▐ ▌"]


@pytest.mark.asyncio
async def test_boxes_can_be_changed_and_the_sum_follows() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("space", "down", "down", "space")
        await pilot.pause()
        assert app.sum == "Frees 4,000 tokens: 3,500 of 8,000 used, 4,500 free."
        words = [prompt.split("  ")[0].strip() for prompt in app.prompts()]
        assert words == ["include", "leave out", "leave out", "keep"]
        await pilot.press("enter")
        assert app.results == [(3, 4, 5, 6)]


@pytest.mark.asyncio
async def test_taking_back_more_than_leaving_out_is_reported() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("space", "down", "space")
        await pilot.pause()
        assert app.sum == "Includes 1,000 tokens: still too long by 501."


@pytest.mark.asyncio
async def test_queued_prompts_are_answered_only_if_they_fit() -> None:
    app = Host(ContextBudget(EXCHANGES, 8000, fixed=1500, waits=True))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "Too long by 1,001 tokens: it takes 9,000 of 8,000." in str(
            app.screen.query(Static)[0].render()
        )
        assert app.sum == "Frees 5,000 tokens: 4,000 of 8,000 used, 4,000 free."
        await pilot.press("down", "space", "down", "space", "enter")
        assert app.sum == "Frees 0 tokens: still too long by 1,001."
        assert app.results == []
        await pilot.press("space", "enter")
        assert app.results == [(1, 2, 5, 6)]


@pytest.mark.asyncio
@pytest.mark.parametrize("keys", [["escape"], ["tab", "tab", "enter"]])
async def test_nothing_changes_on_escape(keys: list[str]) -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*keys)
        assert app.results == [None]


@pytest.mark.asyncio
@pytest.mark.parametrize(("button", "result"), [("apply", (1, 2, 3, 4)), ("leave", None)])
async def test_the_mouse_can_do_it(button: str, result: tuple[int, ...] | None) -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.click(f"#make-room-{button}")
        assert app.results == [result]


@pytest.mark.asyncio
async def test_questions_are_one_line_and_no_markup() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.prompts()[0].endswith("an old one")
        assert app.prompts()[1].endswith("[b]a long one")
