from __future__ import annotations

import pkgutil
import string
import tomllib
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest
from textual._keyboard_protocol import FUNCTIONAL_KEYS
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.keys import Keys, _character_to_key
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static, TextArea

import localspec.storage.config
import localspec_tui
from localspec.chat.commands.registry import ON_SCREEN
from localspec_tui.keys import (
    HelpEntry,
    collect,
    key_of,
    written,
)
from localspec_tui.screens.dialogs import AskScreen, EditScreen
from localspec_tui.screens.help import HelpScreen
from localspec_tui.screens.search import SearchScreen
from localspec_tui.widgets.composer.composer import Composer, QueueStrip
from localspec_tui.widgets.sidebar import ChatList, TitleInput
from tests.tui.settled import until
from tests.tui.styled import STYLES

KEYS = Path(localspec.storage.config.__file__).with_name("keys.toml")


class Reader(Static, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,c", "copy", "Copy the message", id="message.copy", show=False),
        Binding("left_square_bracket", "previous", "Branch before", id="message.previous"),
        Binding("z", "secret", "", id="message.secret"),
    ]


class Main(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+n", "new", "New chat", id="chat.new")]

    def compose(self) -> ComposeResult:
        yield Reader("one")
        yield Reader("two")
        yield TextArea()


class Host(App[None]):
    CSS_PATH = STYLES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Keys and commands", id="app.help"),
        Binding("f12", "unnamed", "Something without an id"),
    ]

    def on_mount(self) -> None:
        self.push_screen(Main())

    def entry(self, description: str) -> HelpEntry:
        (found,) = [entry for entry in collect(self.screen) if entry.description == description]
        return found

    def action_help(self) -> None:
        self.push_screen(HelpScreen(collect(self.screen)))


@pytest.mark.asyncio
async def test_bindings_of_app_screen_and_widgets_are_found_once_whatever_has_the_focus() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.entry("Keys and commands") == HelpEntry("app.help", ("F1",), "Keys and commands")
        assert app.entry("Something without an id").area == "app"
        assert app.entry("New chat") == HelpEntry("chat.new", ("Ctrl+N",), "New chat")
        assert app.entry("Copy the message") == HelpEntry("message.copy", ("y", "c"), "Copy the message")
        assert app.entry("Branch before").keys == ("[",)
        descriptions = {entry.description for entry in collect(app.screen)}
        assert "" not in descriptions
        assert "Cursor word left" not in descriptions  # what any text area does


@pytest.mark.asyncio
async def test_a_binding_made_later_is_found() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.pause()
        app.bind("f8", "extra", description="Made later")
        assert app.entry("Made later").keys == ("F8",)


@pytest.mark.asyncio
async def test_a_remapped_key_is_found_under_its_new_name() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.pause()
        app.set_keymap({"message.copy": "ctrl+y,f7", "chat.new": "ctrl+t"})
        assert app.entry("Copy the message").keys == ("Ctrl+Y", "F7")
        assert app.entry("New chat").keys == ("Ctrl+T",)
        assert key_of(app.screen, "chat.new") == "Ctrl+T"
        assert key_of(app.screen, "chat.unknown") == ""


@pytest.mark.parametrize(
    "kind", [AskScreen, ChatList, Composer, EditScreen, HelpScreen, QueueStrip, SearchScreen, TitleInput]
)
def test_all_bindings_can_be_remapped_and_say_what_they_do(kind: type[Widget]) -> None:
    bindings = list(Binding.make_bindings(kind.BINDINGS))
    assert bindings
    assert all(binding.id and binding.description for binding in bindings)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("ctrl+j", "Ctrl+J"),
        ("alt+enter", "Alt+Enter"),
        ("escape", "Esc"),
        ("pageup", "Page Up"),
        ("G", "G"),
        ("j", "j"),
        ("right_square_bracket", "]"),
        ("shift+f1", "Shift+F1"),
        ("question_mark", "?"),
    ],
)
def test_keys_are_written_in_words(key: str, words: str) -> None:
    assert written(Binding(key, "act")) == words


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["escape", "f1", "q"])
@pytest.mark.parametrize("width", [40, 80, 200])
async def test_help_lists_keys_and_commands_and_closes(key: str, width: int) -> None:
    app = Host()
    async with app.run_test(size=(width, 24)) as pilot:
        await pilot.press("f1")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, HelpScreen)
        titles = [str(title.content) for title in screen.query(".title").results(Static)]
        assert titles[:3] == ["Everywhere", "Chat", "A message"]
        assert "Other keys" in titles
        assert "Commands" in titles
        assert screen.query_one(VerticalScroll).virtual_size.width <= width
        await pilot.press(*(["tab"] if key == "q" else []), key)  # in the line on top it is a letter
        assert isinstance(app.screen, Main)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_all_of_the_help_can_be_reached() -> None:
    app = Host()
    async with app.run_test(size=(80, 200)) as pilot:
        await pilot.press("f1")
        await pilot.pause()
        text = app.export_screenshot().replace("&#160;", " ")
        assert all(f"/{spec.name}" in text for spec in ON_SCREEN)
        assert "Copy the message" in text
        assert "message.copy" not in text
        assert "Super+C" not in text
        assert "tokens/s" in text
        await pilot.press("f2")
        await pilot.pause()
        assert "message.copy" in app.export_screenshot()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_keys_scroll_the_help() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f1")
        await pilot.pause()
        scroll = app.screen.query_one(VerticalScroll)
        await pilot.press("pagedown", "pageup", "tab")

        def is_at(place: int) -> bool:
            return round(scroll.scroll_target_y) == place

        for key, place in (("j", 1), ("down", 2), ("k", 1), ("up", 0)):
            await pilot.press(key)
            assert await until(pilot, partial(is_at, place))
        await pilot.press("end")
        await pilot.pause()
        assert scroll.scroll_target_y == scroll.max_scroll_y > 0


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_burst_narrows_the_help_and_escape_widens_it_again() -> None:
    app = Host()
    async with app.run_test(size=(80, 40)) as pilot:
        await pilot.press("f1", *"jk COPY")
        await pilot.pause()
        assert not any(title.is_on_screen for title in app.screen.query(".title"))
        await pilot.press("escape", *"copy mess")
        await pilot.pause()
        text = app.export_screenshot().replace("&#160;", " ")
        assert "Copy the message" in text
        assert "Branch before" not in text
        await pilot.press("escape", "escape")
        assert isinstance(app.screen, Main)


def binding_ids() -> frozenset[str]:
    """Return every name that a keymap can speak of, of all screens and widgets that are imported."""
    found: set[str] = set()
    kinds: list[type[DOMNode]] = [App, Widget]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("localspec_tui."):
            found |= {each.id for each in kind.BINDINGS if isinstance(each, Binding) and each.id}
    return frozenset(found)


def key_names() -> frozenset[str]:
    """Return the name of every key of which a terminal can tell."""
    named = (key.value.rpartition("+")[2] for key in Keys)
    signs = map(_character_to_key, string.printable)
    return frozenset((*named, *signs, *FUNCTIONAL_KEYS.values()))


def test_the_configuration_knows_every_name_of_a_binding_and_each_belongs_to_an_area() -> None:
    for module in pkgutil.walk_packages(localspec_tui.__path__, "localspec_tui."):
        import_module(module.name)
    known = tomllib.loads(KEYS.read_text(encoding="utf-8"))
    assert known["bindings"] == sorted(binding_ids())
    assert all(name.count(".") == 1 for name in known["bindings"])


def test_the_configuration_knows_every_name_of_a_key() -> None:
    known = tomllib.loads(KEYS.read_text(encoding="utf-8"))
    assert {"pageup", "question_mark", "f12", "escape", "left_square_bracket"} <= set(known["keys"])
    assert {name for name in key_names() if len(name) > 1 and name[0] != "<"} == set(known["keys"])
