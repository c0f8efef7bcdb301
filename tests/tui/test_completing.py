from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Button, Static

from localspec.chat.attachments import Completion
from localspec.chat.commands.completion import complete_command
from localspec.errors import UserError
from localspec_tui.widgets.composer.composer import Completions, Composer, PromptEntered
from localspec_tui.widgets.composer.prompt_area import PromptArea
from tests.tui.settled import settled
from tests.tui.styled import STYLES


def commands_and_files(text: str) -> Sequence[Completion]:
    at = text.rfind("@")
    if at >= 0:
        names = ("notes.md", "notes.txt", "plan.md")
        typed = text[at + 1 :]
        return [Completion(f"@{name} ", name, "", at) for name in names if name.startswith(typed)]
    return complete_command(text, lambda kind: ("general", "coding", "writing"))


class Host(App[None]):
    CSS_PATH = STYLES
    CSS = "Static { height: 1fr; }"

    def __init__(self, function: Callable[[str], Sequence[Completion]] = commands_and_files) -> None:
        super().__init__()
        self.function = function
        self.sent: list[str] = []

    def compose(self) -> ComposeResult:
        yield Static("conversation")
        yield Composer(self.function)
        yield Button("next")

    def on_mount(self) -> None:
        self.composer.focus()

    def on_prompt_entered(self, message: PromptEntered) -> None:
        self.sent.append(message.text)

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def offered(self) -> list[str]:
        completions = self.query_one(Completions)
        shown = completions.options if completions.display else ()
        return [str(option.prompt).split("  ")[0] for option in shown]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_slash_offers_commands_and_typing_filters_them() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press("slash")
        await settled(pilot)
        assert "/help" in app.offered
        assert len(app.offered) > 5
        await pilot.press(*"pr")
        await settled(pilot)
        assert app.offered == ["/profile [NAME]"]
        await pilot.press("backspace", "backspace", "backspace")
        await settled(pilot)
        assert app.offered == []


@pytest.mark.asyncio
async def test_the_list_floats_over_the_conversation() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        before = app.query_one(Static).size
        await pilot.press("slash")
        await settled(pilot)
        popup = app.query_one(Completions).region
        assert app.query_one(Static).size == before
        assert popup.bottom == app.query_one("#frame").region.y
        assert popup.y >= 0


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["tab", "enter"])
async def test_a_completion_is_chosen_by_key(key: str) -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press(*"/pro")
        await settled(pilot)
        await pilot.press(key)
        await settled(pilot)
        assert app.composer.text == "/profile "
        assert app.offered == ["general", "coding", "writing"]
        await pilot.press("down", key)
        await settled(pilot)
        assert app.composer.text == "/profile coding"
        assert app.offered == []
        await pilot.press("enter")
        assert app.sent == ["/profile coding"]


@pytest.mark.asyncio
async def test_up_and_down_go_round_the_list() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.composer.set_history(["/earlier"])
        await pilot.press("at")
        await settled(pilot)
        await pilot.press("up", "enter")
        assert app.composer.text == "@plan.md "
        app.composer.text = ""
        await pilot.press("at")
        await settled(pilot)
        await pilot.press("up", "down", "down", "enter")
        assert app.composer.text == "@notes.txt "


@pytest.mark.slow
@pytest.mark.asyncio
async def test_enter_sends_a_whole_command_and_one_whose_argument_was_not_begun() -> None:
    app = Host()
    async with app.run_test() as pilot:
        for text in ("/mode", "/mode ", "/help"):
            await pilot.press(*text)
            await settled(pilot)
            await pilot.press("enter")
        assert app.sent == ["/mode", "/mode ", "/help"]


@pytest.mark.asyncio
async def test_escape_closes_the_list_and_tab_opens_it_again() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press("at", "n")
        await settled(pilot)
        await pilot.press("escape")
        assert app.offered == []
        assert app.composer.text == "@n"
        await pilot.press("tab")
        assert app.offered == ["notes.md", "notes.txt"]


@pytest.mark.asyncio
async def test_a_click_chooses_and_leaves_the_cursor_in_the_text() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press(*"see @")
        await settled(pilot)
        await pilot.click(Completions, offset=(4, 2))
        await pilot.pause()
        assert app.composer.text == "see @notes.txt "
        assert app.query_one(PromptArea).has_focus


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_completion_in_the_middle_keeps_what_follows() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.composer.text = "first\nread  please"
        await pilot.press(*["left"] * 7, "at", "p")
        await settled(pilot)
        await pilot.press("tab")
        assert app.composer.text == "first\nread @plan.md  please"


@pytest.mark.slow
@pytest.mark.asyncio
async def test_tab_with_nothing_to_complete_moves_the_focus_from_an_empty_prompt_alone() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press(*"plain", "tab", *" text")
        await settled(pilot)
        assert app.composer.text == "plain text"
        app.composer.text = ""
        await pilot.press("tab")
        await settled(pilot)
        assert app.query_one(Button).has_focus


@pytest.mark.asyncio
async def test_moving_the_cursor_away_closes_the_list() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press("at")
        await settled(pilot)
        await pilot.press("left")
        assert app.offered == []


@pytest.mark.asyncio
async def test_going_elsewhere_closes_the_list() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press("at")
        await settled(pilot)
        app.query_one(Button).focus()
        await pilot.pause()
        assert app.offered == []


@pytest.mark.asyncio
async def test_text_that_was_put_there_opens_no_list() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.composer.set_history(["/mode", "/help"])
        await pilot.press("up")
        await settled(pilot)
        assert app.offered == []
        await pilot.press("up")
        assert app.composer.text == "/help"


@pytest.mark.asyncio
async def test_a_slow_function_holds_up_no_one_and_its_old_answers_are_dropped() -> None:
    asked: list[str] = []
    go_on = threading.Event()

    def slow(text: str) -> Sequence[Completion]:
        asked.append(text)
        go_on.wait(10)
        return [Completion(f"{text}!", f"{text}!")]

    app = Host(slow)
    async with app.run_test() as pilot:
        await pilot.press(*"abc")
        assert app.composer.text == "abc"
        assert app.offered == []
        go_on.set()
        await settled(pilot)
        assert asked[-1] == "abc"
        assert len(asked) == 2
        assert app.offered == ["abc!"]


@pytest.mark.asyncio
async def test_a_list_that_comes_after_enter_chooses_nothing() -> None:
    go_on = threading.Event()

    def slow(text: str) -> Sequence[Completion]:
        go_on.wait(10)
        return [Completion(f"{text} more", "more")]

    app = Host(slow)
    async with app.run_test() as pilot:
        await pilot.press(*"ab", "enter")
        go_on.set()
        await settled(pilot)
        assert app.sent == ["ab"]
        assert app.offered == []


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [UserError, PermissionError])
async def test_an_error_of_the_function_offers_nothing(error: type[Exception]) -> None:
    def broken(text: str) -> Sequence[Completion]:
        raise error(f"cannot list {text}")

    app = Host(broken)
    async with app.run_test() as pilot:
        await pilot.press("at")
        await settled(pilot)
        assert app.offered == []
        await pilot.press("tab", "t")
        await settled(pilot)
        assert app.composer.text == "@t"


@pytest.mark.asyncio
async def test_enter_sends_a_name_that_is_whole_and_the_beginning_of_another() -> None:
    names = [Completion(name, name, "", 1) for name in ("plan", "plan.md")]
    app = Host(lambda text: names if text.startswith("@") else [])
    async with app.run_test() as pilot:
        await pilot.press(*"@plan")
        await settled(pilot)
        assert app.offered == ["plan", "plan.md"]
        await pilot.press("enter")
        await settled(pilot)
        assert app.sent == ["@plan"]
