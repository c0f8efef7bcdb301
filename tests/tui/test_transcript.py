"""Opening chats of any length, moving through them, and following what is written."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from textual.events import Click, MouseScrollUp
from textual.pilot import Pilot

from localspec.chat.messages import BranchMessage
from localspec.storage.config import Config
from localspec_tui.widgets.transcript.message import DisplayOptions, MessageView, prepare
from localspec_tui.widgets.transcript.transcript import MoreHint, MoreLine, Transcript
from tests.scripted import Script
from tests.tui import settled
from tests.tui.desktop import desktop
from tests.tui.transcripts import Host, chat, said, selected, shown, until

LINE = "one more line of text\n\n"


def mounted(transcript: Transcript) -> list[int]:
    return [view.item.message.id for view in transcript.query(MessageView)]


def follows(host: Host) -> bool:
    return host.transcript.following


async def writing(pilot: Pilot[None], host: Host, messages: int = 40) -> BranchMessage:
    item = shown(messages + 2, " ", role="assistant", state="writing")
    await host.transcript.show(chat(messages))
    await host.transcript.add(item)
    await pilot.pause()
    return item


@pytest.mark.asyncio
async def test_text_that_comes_before_its_message_is_laid_out_is_shown() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        item = shown(2, " ", state="writing")
        empty = said(item, "", "writing")
        view = MessageView(empty, prepare(empty), DisplayOptions())
        view.append_missing(said(item, "early words", "writing"))
        await host.mount(view)
        await until(pilot, "early words")


@pytest.mark.asyncio
async def test_long_chat_opens_at_its_end_with_few_widgets() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show(chat(2_000))
        await until(pilot, "message number 2000")
        assert host.transcript.following
        assert len(mounted(host.transcript)) < 60
        assert mounted(host.transcript)[-1] == 2_000


@pytest.mark.slow
@pytest.mark.asyncio
async def test_scrolling_up_brings_earlier_messages_and_keeps_the_text_in_place() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show(chat(200))
        await until(pilot, "message number 200")
        first = mounted(host.transcript)[0]
        seen = []
        for _ in range(20):
            host.transcript.scroll_page_up(animate=False)
            await pilot.pause()
            seen.append(min(int(row.split()[-1]) for row in host.rows() if "message number" in row))
            if mounted(host.transcript)[0] < first:
                break
        assert await settled.until(pilot, lambda: mounted(host.transcript)[0] < first)
        assert seen == sorted(seen, reverse=True)
        assert all(before - after < 12 for before, after in pairwise(seen))


@pytest.mark.slow
@pytest.mark.asyncio
async def test_reading_through_a_whole_chat_upwards_misses_no_message() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show(chat(90))
        await until(pilot, "message number 90")
        seen: set[str] = set()
        for _ in range(1_000):
            seen |= {row.split()[-1] for row in host.rows() if "message number" in row}
            if "1" in seen:
                break
            host.transcript.action_page_up()
            await pilot.pause()
            await asyncio.sleep(0.005)  # earlier messages are prepared in a thread
        assert seen == {str(number) for number in range(1, 91)}
        assert len(mounted(host.transcript)) <= 70


@pytest.mark.slow
@pytest.mark.asyncio
async def test_home_and_end_go_to_the_very_first_and_last_message() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show(chat(2_000))
        await until(pilot, "message number 2000")
        host.transcript.focus_last()
        await pilot.press("home")
        await until(pilot, "message number 1\n")
        assert not host.transcript.following
        assert mounted(host.transcript)[0] == 1
        await pilot.press("end")
        await until(pilot, "message number 2000")
        assert host.transcript.following


@pytest.mark.slow
@pytest.mark.asyncio
async def test_line_at_the_top_counts_earlier_messages_and_downloads_them_on_a_click() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show(chat(500))
        await until(pilot, "message number 500")
        first = mounted(host.transcript)[0]
        earlier = host.transcript.query(MoreLine).first()
        assert f"{first - 1} earlier messages" in str(earlier.render())
        earlier.post_message(Click(earlier, 0, 0, 0, 0, 1, shift=False, meta=False, ctrl=False))
        assert await settled.until(pilot, lambda: mounted(host.transcript)[0] < first)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_search_hit_opens_around_its_message_and_marks_it() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show(chat(1_000), at=400)
        await until(pilot, "message number 400")
        assert "message number 400" in host.text()
        assert not host.transcript.following
        marked = [
            view.item.message.id for view in host.transcript.query(MessageView) if view.has_class("-found")
        ]
        assert marked == [400]

        def goes_down() -> bool:
            host.transcript.action_page_down()
            return "message number 415" in host.text()

        assert await settled.until(pilot, goes_down)
        assert not host.transcript.following


@pytest.mark.slow
@pytest.mark.asyncio
async def test_view_follows_the_end_while_text_comes() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await writing(pilot, host)
        for number in range(30):
            host.transcript.stream(f"line {number}\n\n", [])
            await pilot.pause()
        await until(pilot, "line 29")
        assert host.transcript.following


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["pageup", "k", "g"])
async def test_reader_who_goes_up_is_left_there(key: str) -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await writing(pilot, host)
        host.transcript.focus_last()
        host.transcript.stream(LINE * 20, [])
        await pilot.pause()
        await pilot.press(key)
        for _ in range(5):
            await pilot.pause()
        assert not host.transcript.following
        before = host.rows()
        for _ in range(10):
            host.transcript.stream(LINE, [])
            await pilot.pause()
        assert host.rows()[:-1] == before[:-1]
        assert "more" in host.rows()[-1]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_wheel_leaves_the_end_and_finds_it_again() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await writing(pilot, host)
        host.transcript.stream(LINE * 20, [])
        await pilot.pause()
        await pilot._post_mouse_events([MouseScrollUp], Transcript, button=0)
        await pilot.pause()
        assert not follows(host)
        while host.transcript.scroll_y < host.transcript.max_scroll_y:
            host.transcript.scroll_down(animate=False, immediate=True)
            await pilot.pause()
        await pilot.pause()
        assert follows(host)
        host.transcript.stream("the last words", [])
        await until(pilot, "the last words")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_text_that_comes_in_sight_is_not_reported_to_be_below() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        items = [shown(1), said(shown(2), "short", "writing")]
        await host.transcript.show(items, at=1)
        await pilot.pause()
        host.transcript.stream(" and more", [])
        await until(pilot, "and more")
        await pilot.pause()
        assert not host.query_one(MoreHint).display
        host.transcript.stream(LINE * 30 + "the last words", [])
        await until(pilot, "the last words")  # the end was in sight and stays there


@pytest.mark.slow
@pytest.mark.asyncio
async def test_end_resumes_following_and_takes_the_hint_away() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await writing(pilot, host)
        host.transcript.stream(LINE * 20, [])
        await pilot.pause()
        host.transcript.action_page_up()
        await pilot.pause()
        host.transcript.stream(LINE, [])
        await pilot.pause()
        assert host.query_one(MoreHint).display
        await pilot.click(MoreHint)
        host.transcript.stream("and the end", [])
        await until(pilot, "and the end")
        assert host.transcript.following
        assert not host.query_one(MoreHint).display


@pytest.mark.slow
@pytest.mark.asyncio
async def test_text_that_comes_while_the_message_is_out_of_reach_is_there_later() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        item = await writing(pilot, host, 600)
        host.transcript.action_scroll_home()
        await until(pilot, "message number 1\n")
        assert item.message.id not in mounted(host.transcript)
        host.transcript.stream("unseen words", [])
        host.transcript.follow()
        await until(pilot, "unseen words")
        host.transcript.stream(" and seen ones", [])
        await until(pilot, "unseen words and seen ones")
        await host.transcript.replace(said(item, " unseen words and seen ones."))
        await until(pilot, "unseen words and seen ones.")


@pytest.mark.asyncio
async def test_end_of_stream_shows_the_whole_text_once() -> None:
    host = Host()
    text = "# Title\n\nSome words.\n\n```python\nprint('open')\n"
    async with host.run_test(size=(80, 24)) as pilot:
        item = await writing(pilot, host, 4)
        for character in text:
            host.transcript.stream(character, [])
        await host.transcript.replace(said(item, text + "last = 1"))
        await until(pilot, ["Title", "Some words.", "print('open')", "last = 1"])
        assert host.text().count("Some words.") == 1


@pytest.mark.slow
@pytest.mark.asyncio
async def test_resize_while_streaming_keeps_the_end_and_the_reader() -> None:
    host = Host()
    async with host.run_test(size=(120, 30)) as pilot:
        await writing(pilot, host)
        for width, height in ((60, 20), (200, 50), (20, 8), (80, 24)):
            host.transcript.stream(f"words at {width}\n\n", [])
            await pilot.resize_terminal(width, height)
            await until(pilot, f"words at {width}")
            assert host.transcript.following
        host.transcript.scroll_relative(y=-60, animate=False)
        await pilot.pause()
        top = next(row for row in host.rows() if "message number" in row)
        await pilot.resize_terminal(100, 24)
        await pilot.pause()
        assert top.strip() in host.text()


@pytest.mark.asyncio
async def test_empty_chat_and_change_of_chat() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show([])
        host.transcript.stream("nobody", [])
        host.transcript.focus_last()
        assert selected(host.transcript) is None
        await host.transcript.show(chat(3))
        await until(pilot, "message number 3")
        await host.transcript.show([shown(7, "another chat")])
        await until(pilot, "another chat")
        assert mounted(host.transcript) == [7]
        assert "message number" not in host.text()


@pytest.mark.asyncio
async def test_last_message_is_asked_for_while_another_chat_is_being_opened() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show(chat(12))
        await pilot.pause()
        others = [shown(number, f"another {number}") for number in range(101, 109)]
        opening = asyncio.create_task(host.transcript.show(others))
        await asyncio.sleep(0)
        host.transcript.focus_last()
        await opening
        await until(pilot, "another 108")
        await pilot.pause()
        assert selected(host.transcript) == 108


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(("wanted", "width"), [(100, 100), (60, 60), (0, 159)])
async def test_messages_and_prompt_are_as_wide_as_one_likes_to_read(
    tmp_path: Path, wanted: int, width: int
) -> None:
    config = Config(sidebar=False, width=wanted)
    async with desktop(tmp_path, Script("word " * 100), size=(160, 30), config=config) as screen:
        await screen.answered("ask")
        views = [*screen.chat.query(MessageView), screen.chat.query_one("Composer > Vertical")]
        assert [view.outer_size.width for view in views] == [width, width, max(width, 160 * (not wanted))]
        left = views[0].region.x
        assert abs((158 - width) // 2 - left) <= 1
        await screen.pilot.resize_terminal(50, 20)
        await screen.until(lambda: views[-1].outer_size.width == 50)
