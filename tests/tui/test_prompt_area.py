from __future__ import annotations

import pytest
from rich.cells import cell_len
from textual import events
from textual._xterm_parser import XTermParser

from localspec_tui.widgets.composer.prompt_area import FOLD_FROM, PastedTexts, PromptArea
from tests.tui.composer_host import ComposerHost
from tests.tui.settled import until


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["shift+enter", "ctrl+j", "alt+enter"])
async def test_a_line_can_be_broken(key: str) -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press("a", key, "b", "enter")
        assert app.sent == ["a\nb"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sent_by_terminal", "expected"),
    [
        ("\x1b\r", "a\nb"),  # Alt+Enter of old terminals
        ("\x1b[13;3u", "a\nb"),
        ("\x1b[13;2u", "a\nb"),
        ("\x1b[27;2;13~", "a\nb"),  # Shift+Enter with xterm's modifyOtherKeys
        ("\n", "a\nb"),
        ("\r", "b"),
    ],
)
async def test_what_terminals_send_for_a_line_break(sent_by_terminal: str, expected: str) -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press("a")
        for event in XTermParser().feed(sent_by_terminal):
            app.post_message(event)
        await pilot.pause()
        await pilot.press("b")
        assert app.composer.text == expected


@pytest.mark.asyncio
async def test_a_paste_of_many_lines_stays_one_message() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.post_message(events.Paste("one\rtwo\r\nthree\n"))
        await pilot.pause()
        assert app.sent == []
        assert app.composer.text == "one\ntwo\nthree\n"
        await pilot.press("enter")
        assert app.sent == ["one\ntwo\nthree\n"]


@pytest.mark.asyncio
@pytest.mark.parametrize("pasted", ["one line\n", "one line\r\n", "one line\r"])
async def test_a_pasted_line_brings_no_break_behind_it(pasted: str) -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press("a", "b")
        app.post_message(events.Paste(pasted))
        await pilot.press(*" c", "enter")
        await pilot.pause()
        assert app.sent == ["abone line c"]
        await pilot.press(*"after", "home")
        app.post_message(events.Paste(pasted))
        await pilot.pause()
        assert app.composer.text == "one line\nafter"


@pytest.mark.asyncio
async def test_a_key_clears_the_prompt_and_undo_brings_it_back() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.composer.text = "one\ntwo"
        app.post_message(events.Paste("y" * FOLD_FROM))
        await pilot.press("left", "ctrl+u", *"new", "enter")
        assert app.sent == ["new"]
        app.composer.text = "one\ntwo"
        await pilot.press("up", "ctrl+u")
        assert app.composer.text == ""
        await pilot.press("ctrl+z")
        assert app.composer.text == "one\ntwo"


@pytest.mark.asyncio
async def test_a_huge_paste_is_folded_and_sent_whole() -> None:
    huge = "x" * 80 + "\n" + "word " * 200_000
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press("a")
        app.post_message(events.Paste(huge))
        await pilot.pause()
        await pilot.press("b")
        assert app.area.text == "a[pasted text 1: 2 lines]b"
        assert app.composer.text == f"a{huge}b"
        assert app.drafts[-1] == f"a{huge}b"
        await pilot.press("enter")
        assert app.sent == [f"a{huge}b"]


def test_a_long_text_that_comes_again_has_the_same_mark() -> None:
    pasted, text = PastedTexts(), "a line\n" * (FOLD_FROM // 7 + 1)
    mark = pasted.fold(text)
    assert pasted.fold(text) == mark
    assert pasted.fold(f"{text}more") != mark
    assert pasted.unfold(f"{mark} {mark}") == f"{text} {text}"


@pytest.mark.asyncio
async def test_backspace_takes_a_folded_text_as_one() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press("a")
        app.post_message(events.Paste("y" * FOLD_FROM))
        await pilot.pause()
        await pilot.press("backspace")
        assert app.composer.text == "a"
        await pilot.press("ctrl+z")
        assert app.composer.text == "a" + "y" * FOLD_FROM


@pytest.mark.asyncio
async def test_the_clipboard_is_pasted_with_plain_line_ends() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.copy_to_clipboard("a\r\nb")
        await pilot.press("ctrl+v")
        assert app.composer.text == "a\nb"


@pytest.mark.asyncio
async def test_up_within_the_text_moves_the_cursor_also_over_wrapped_lines() -> None:
    app = ComposerHost()
    async with app.run_test(size=(40, 24)) as pilot:
        app.composer.set_history(["before"])
        app.composer.text = "word " * 15 + "\nlast"
        await pilot.pause()
        await pilot.press("up")
        assert app.area.cursor_location[0] == 0
        await pilot.press("up")
        assert app.composer.text.startswith("word")
        await pilot.press("up", "up")
        assert app.composer.text.startswith("word")  # only prompts that begin as the draft does are visited


@pytest.mark.asyncio
async def test_the_prompt_grows_up_to_a_third_of_the_screen() -> None:
    app = ComposerHost()
    async with app.run_test(size=(80, 60)) as pilot:
        assert app.area.size.height == 1
        app.composer.text = "\n".join("x" * 4)
        assert await until(pilot, lambda: app.area.size.height == 4)
        app.composer.text = "\n".join("x" * 30)
        assert await until(pilot, lambda: app.area.size.height == 10)
        await pilot.resize_terminal(80, 24)
        assert await until(pilot, lambda: app.area.outer_size.height + 2 == 8)


@pytest.mark.asyncio
async def test_page_keys_go_to_the_screen_while_all_of_the_text_is_seen() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press("pageup", "pagedown")
        assert app.did == ["page", "page"]
        app.composer.text = "\n" * 40
        await pilot.pause()
        await pilot.press("pageup")
        assert app.did == ["page", "page"]
        assert app.area.cursor_location[0] < 40


@pytest.mark.asyncio
async def test_joined_emoji_take_the_columns_of_one_and_are_sent_whole() -> None:
    app, text = ComposerHost(), "Hi 👩\u200d👩\u200d👧 and 👍🏽 end"
    async with app.run_test() as pilot:
        app.post_message(events.Paste(text))
        await pilot.pause()
        row = app.composer.query_one(PromptArea).render_line(0).text
        assert row.replace("\u200b", "").rstrip() == "Hi 👩 and 👍 end"
        assert cell_len(row) == sum(map(cell_len, row))  # for terminals that join and for those that do not
        await pilot.press("enter")
        assert app.sent == [text]
