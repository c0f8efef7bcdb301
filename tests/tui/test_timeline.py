from __future__ import annotations

import pytest
from textual import events
from textual.app import App, ComposeResult

from localspec_tui.widgets.timeline import LABELS, Timeline, curve
from tests.tui.answers import PROMPT, plain, sd, ssd
from tests.tui.styled import STYLES


class Host(App[None]):
    CSS_PATH = STYLES

    def __init__(self, height: int = 14) -> None:
        super().__init__()
        self._rows = height

    def compose(self) -> ComposeResult:
        timeline = Timeline()
        timeline.styles.height = self._rows
        yield timeline

    @property
    def timeline(self) -> Timeline:
        return self.query_one(Timeline)

    def picked(self) -> int | None:
        return self.timeline.picked

    @property
    def picture(self) -> str:
        return self.timeline.render().plain


def row(picture: str, name: str) -> str:
    return next(line for line in picture.splitlines() if line.startswith(name))


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [(40, 24), (80, 24), (160, 40), (250, 60)])
@pytest.mark.parametrize("height", [8, 9, 12, 24])
async def test_fits_its_place(size: tuple[int, int], height: int) -> None:
    app = Host(height)
    async with app.run_test(size=size) as pilot:
        app.timeline.show(ssd(300), "SSD answer of 12:31")
        await pilot.pause()
        lines = app.timeline.render().split("\n")
        assert len(lines) <= height - 1
        for name in ("draft", "verify", "rounds", "tokens/s", "length", "accepted", "300 rounds"):
            assert row(app.picture, name)
        assert size[0] < 80 or max(line.cell_length for line in lines) <= size[0] - 2


@pytest.mark.asyncio
async def test_kinds_of_drafts_have_shapes_of_their_own() -> None:
    app = Host()
    async with app.run_test(size=(250, 24)) as pilot:
        app.timeline.show(ssd(60), "SSD")
        await pilot.pause()
        assert set("●○◆") <= set(row(app.picture, "rounds"))
        app.timeline.show(sd(60), "SD")
        assert set(row(app.picture, "rounds")) == set("rounds ○")
        app.timeline.show(plain(60), "Plain")
        assert set(row(app.picture, "rounds")) == set("rounds ·")


@pytest.mark.asyncio
async def test_hidden_drafting_looks_unlike_drafting_that_is_waited_for() -> None:
    app = Host(8)
    async with app.run_test() as pilot:
        app.timeline.show(sd(20), "SD")
        await pilot.pause()
        assert "▄" not in row(app.picture, "draft")
        assert "█" in row(app.picture, "draft")
        assert "╌" in row(app.picture, "verify")
        app.timeline.show([PROMPT, *(mark for mark in ssd(60) if not mark.stats.draft_s)][:20], "SSD")
        assert "█" not in row(app.picture, "draft")
        assert "▄" in row(app.picture, "draft")


@pytest.mark.asyncio
async def test_follows_an_answer_as_it_is_written() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.timeline.clear("SSD")
        assert "No rounds yet" in app.picture
        rounds = ssd(200)
        for start in range(0, len(rounds), 20):
            app.timeline.add(rounds[start : start + 20])
            await pilot.pause()
        assert row(app.picture, "200 rounds")
        live = app.picture
        app.timeline.show(rounds, "SSD")
        assert row(live, "accepted") == row(app.picture, "accepted")


@pytest.mark.asyncio
async def test_keys_walk_through_the_rounds() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.timeline.show(ssd(300), "SSD")
        app.timeline.focus()
        await pilot.press("left")
        assert app.picked() == 299
        await pilot.press("left", "left", "right")
        assert app.picked() == 298
        assert row(app.picture, "round 299:")
        await pilot.press("home", "left")
        assert app.picked() == 0
        assert row(app.picture, " " * LABELS + "╵0")
        await pilot.press("end")
        assert app.picked() is None
        assert row(app.picture, "300 rounds")


@pytest.mark.asyncio
async def test_the_picture_holds_still_while_a_round_is_read() -> None:
    app = Host()
    async with app.run_test() as pilot:
        rounds = ssd(300)
        app.timeline.show(rounds[:200], "SSD")
        app.timeline.focus()
        await pilot.press("left")
        before = row(app.picture, "verify")
        app.timeline.add(rounds[200:])
        assert row(app.picture, "verify") == before
        await pilot.press("end")
        assert row(app.picture, "verify") != before


@pytest.mark.asyncio
async def test_pages_and_zoom_change_the_stretch_of_time() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.timeline.show(ssd(300), "SSD")
        app.timeline.focus()
        end = row(app.picture, "rounds")
        await pilot.press("pageup")
        assert row(app.picture, "rounds") != end
        await pilot.press("pagedown")
        assert row(app.picture, "rounds") == end
        await pilot.press("plus")
        assert row(app.picture, "rounds").count("●") < end.count("●")
        await pilot.press("minus")
        assert row(app.picture, "rounds") == end


@pytest.mark.asyncio
async def test_the_pointer_shows_a_round_and_a_click_keeps_it() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.timeline.show(ssd(300), "SSD")
        await pilot.pause()
        lines = app.picture.splitlines()
        y = next(index for index, line in enumerate(lines) if line.startswith("rounds"))
        x = lines[y].index("●", LABELS + 3)
        await pilot.hover(Timeline, (x + 1, y + 1))
        pointed = app.picked()
        assert pointed is not None
        assert row(app.picture, f"round {pointed + 1}:")
        await pilot.click(Timeline, (x + 1, y + 1))
        await pilot.hover(Timeline, (1, 0))
        assert app.picked() == pointed
        await pilot.click(Timeline, (x + 1, y + 1))
        await pilot.hover(Timeline, (1, 0))
        assert app.picked() is None


@pytest.mark.asyncio
async def test_a_click_on_a_curve_goes_to_that_part_of_the_answer() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.timeline.show(ssd(300), "SSD")
        await pilot.pause()
        y = next(i for i, line in enumerate(app.picture.splitlines()) if line.startswith("tokens/s"))
        await pilot.click(Timeline, (LABELS + 1, y + 1))
        assert app.picked() == 0


@pytest.mark.asyncio
async def test_the_wheel_goes_back_in_time() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.timeline.show(ssd(300), "SSD")
        await pilot.pause()
        before = row(app.picture, "verify")
        await pilot._post_mouse_events([events.MouseScrollUp], Timeline, (20, 3))
        assert row(app.picture, "verify") != before
        await pilot._post_mouse_events([events.MouseScrollDown], Timeline, (20, 3))
        assert row(app.picture, "verify") == before


@pytest.mark.asyncio
async def test_a_title_is_not_a_markup() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.timeline.clear("SSD [b]answer[/b]")
        await pilot.pause()
        assert "[b]answer[/b]" in app.export_screenshot().replace("&#160;", " ")


@pytest.mark.asyncio
@pytest.mark.parametrize("height", [8, 14])
async def test_what_the_shapes_mean_is_always_said(height: int) -> None:
    app = Host(height)
    async with app.run_test(size=(100, 24)) as pilot:
        app.timeline.show(ssd(60), "SSD answer of 12:31")
        await pilot.pause()
        screen = app.export_screenshot().replace("&#160;", " ")
        assert screen.count("prepared ahead") == screen.count("on demand") == 1


def test_curves_rise_from_zero() -> None:
    assert curve([0, 1, 2, 4, 8], 1) == [" ▁▂▄█"]
    assert curve([8, 16], 2) == [" █", "██"]
    assert curve([100, 0.1, 0, 50], 2) == ["█   ", "█▁ █"]  # a little is not nothing
    assert curve([], 1) == [""]
    assert curve([0.0, 0.0], 1) == ["  "]
