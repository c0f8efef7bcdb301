from __future__ import annotations

import threading
from datetime import date, datetime

import pytest
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.content import Content
from textual.widgets import OptionList, Static

from localspec.chat.messages import ChatInfo, SearchHit
from localspec.errors import StoreError
from localspec_tui.screens.search import Search, SearchScreen
from localspec_tui.widgets.sidebar import ChatPicked
from tests.tui.settled import settled
from tests.tui.styled import STYLES

NOON = datetime(2026, 11, 20, 12).astimezone().timestamp()
LONG = "The draft model guesses a few tokens ahead, and the\ntarget verifies them all at once."


def hit(number: int, title: str, message: int | None = None, excerpt: str = "", word: str = "") -> SearchHit:
    chat = ChatInfo(number, title, NOON, NOON)
    start = (excerpt or title).find(word)
    marks = ((start, start + len(word)),) if word else ()
    return SearchHit(chat, message, excerpt or title, marks)


def found(words: str) -> tuple[SearchHit, ...]:
    if not words:
        return (hit(1, "Recent"), hit(2, "Before"))
    if words == "target":
        return (
            hit(1, "On target", word="target"),
            hit(2, "Other", 7, LONG, "target"),
            hit(3, "Third", 9, LONG),
        )
    return ()


class Host(App[None]):
    CSS_PATH = STYLES

    def __init__(self, search: Search = found, words: str = "") -> None:
        super().__init__()
        self.search = search
        self.words = words
        self.results: list[ChatPicked | None] = []

    def on_mount(self) -> None:
        self.push_screen(
            SearchScreen(self.search, self.words, today=lambda: date(2026, 11, 20)), self.results.append
        )

    @property
    def hits(self) -> OptionList:
        return self.screen.query_one(OptionList)

    @property
    def lines(self) -> list[str]:
        return [str(option.prompt) for option in self.hits.options]

    @property
    def note(self) -> str:
        return str(self.screen.query_one("#note", Static).content)


@pytest.mark.asyncio
async def test_it_opens_with_what_is_found_for_nothing() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await settled(pilot)
        assert [line.split()[0] for line in app.lines] == ["Recent", "Before"]
        await pilot.press("enter")
        assert app.results == [ChatPicked(1, None)]


@pytest.mark.asyncio
async def test_hits_of_a_chat_stand_together_below_its_title() -> None:
    def many(_words: str) -> tuple[SearchHit, ...]:
        return (
            hit(1, "One", 5, "first target", "target"),
            hit(2, "Two", 7, "second target", "target"),
            hit(1, "One", 6, "third target", "target"),
        )

    app = Host(many, "target")
    async with app.run_test() as pilot:
        await settled(pilot)
        assert [line.split("\n")[-1] for line in app.lines] == [
            "first target",
            "third target",
            "second target",
        ]
        assert [line.split()[0] for line in app.lines] == ["One", "third", "Two"]
        await pilot.press("down", "enter")
        assert app.results == [ChatPicked(1, 6, "target")]


@pytest.mark.asyncio
async def test_it_can_open_with_words() -> None:
    app = Host(words="target")
    async with app.run_test() as pilot:
        await settled(pilot)
        assert len(app.lines) == 3
        await pilot.press("end", "backspace")
        await settled(pilot)
        assert app.note == "Nothing found for “targe”."


@pytest.mark.slow
@pytest.mark.asyncio
async def test_typing_searches_and_enter_opens_the_message_under_the_cursor() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press(*"target")
        await settled(pilot)
        assert len(app.lines) == 3
        await pilot.press("down", "down", "up", "enter")
        assert app.results == [ChatPicked(2, 7, "target")]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_hits_show_title_date_and_the_words_found() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press(*"target")
        await settled(pilot)
        prompt = app.hits.options[1].prompt
        assert isinstance(prompt, Content)
        title, excerpt = prompt.plain.split("\n")
        assert title.startswith("Other ")
        assert title.endswith("  Today")
        assert excerpt.startswith("…")
        assert "target verifies" in excerpt
        underlined = [span for span in prompt.spans if "underline" in str(span.style)]
        assert [prompt.plain[span.start : span.end] for span in underlined] == ["target"]
        assert len(app.lines[0].splitlines()) == 1


@pytest.mark.slow
@pytest.mark.asyncio
async def test_enter_before_the_hits_opens_the_first_when_it_comes() -> None:
    go_on = threading.Event()

    def slow(words: str) -> tuple[SearchHit, ...]:
        if words:
            go_on.wait(10)
        return found(words)

    app = Host(slow)
    async with app.run_test() as pilot:
        await settled(pilot)
        await pilot.press(*"target", "enter")
        assert app.results == []
        go_on.set()
        await settled(pilot)
        assert app.results == [ChatPicked(1, None, "target")]


@pytest.mark.asyncio
async def test_words_typed_ahead_are_searched_for_whole() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await settled(pilot)
        for event in XTermParser().feed("target\x1b[B\r"):
            app.post_message(event)
        await settled(pilot)
        assert app.results == [ChatPicked(1, None, "target")]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_old_answers_are_dropped() -> None:
    first_asked = threading.Event()
    go_on = threading.Event()

    def slow(words: str) -> tuple[SearchHit, ...]:
        if not words:
            first_asked.set()
            go_on.wait(10)
        return found(words)

    app = Host(slow)
    async with app.run_test() as pilot:
        while not first_asked.is_set():
            await pilot.pause()
        await pilot.press(*"nowhere")
        go_on.set()
        await settled(pilot)
        assert app.lines == []
        assert app.note == "Nothing found for “nowhere”."


@pytest.mark.slow
@pytest.mark.asyncio
async def test_nothing_found_is_reported_and_enter_does_nothing() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press(*"nowhere", "enter")
        await settled(pilot)
        assert "nowhere" in app.note
        assert not app.hits.display
        await pilot.press("enter", "down", "pagedown")
        assert app.results == []


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["escape", "ctrl+k"])
async def test_it_closes_without_a_choice(key: str) -> None:
    app = Host()
    async with app.run_test() as pilot:
        await settled(pilot)
        await pilot.press(key)
        assert app.results == [None]


@pytest.mark.asyncio
async def test_a_click_opens() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await settled(pilot)
        await pilot.click(OptionList, offset=(5, 1))
        await pilot.pause()
        assert app.results == [ChatPicked(2, None)]


@pytest.mark.asyncio
async def test_pages_are_walked() -> None:
    app = Host(lambda words: tuple(hit(number, f"Chat {number}") for number in range(100)))
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("pagedown")
        below = app.hits.highlighted
        assert below is not None
        assert below > 3
        await pilot.press("pageup")
        assert app.hits.highlighted == 0


@pytest.mark.slow
@pytest.mark.asyncio
async def test_an_error_of_the_store_is_shown() -> None:
    def broken(words: str) -> tuple[SearchHit, ...]:
        raise StoreError(f"the conversations cannot be read ({words})")

    app = Host(broken)
    async with app.run_test() as pilot:
        await settled(pilot)
        assert app.note.startswith("the conversations cannot be read")
