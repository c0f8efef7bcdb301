"""What is being read stays in sight and whole, and what is not costs little."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest
from textual.geometry import Offset
from textual.selection import Selection

from localspec.chat.messages import BranchMessage
from localspec.types.drafts import Provenance
from localspec.types.events import TextPiece
from localspec_tui.widgets.markdown.prose import Prose
from localspec_tui.widgets.transcript import message
from localspec_tui.widgets.transcript.message import MessageView, Prepared, prepare
from tests.tui.settled import settled
from tests.tui.transcripts import Host, chat, shown, until


def first_word(host: Host) -> int:
    found = re.search(r"\bw(\d+)", host.text())
    assert found is not None
    return int(found[1])


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_middle_of_a_long_answer_stays_in_sight_in_a_window_of_another_width() -> None:
    words = [f"w{number}" for number in range(3000)]
    text = "\n\n".join(" ".join(words[start : start + 60]) for start in range(0, len(words), 60))
    host = Host()
    async with host.run_test(size=(100, 24)) as pilot:
        await host.transcript.show([shown(1, "count"), shown(2, text)])
        await settled(pilot)
        host.transcript.scroll_relative(y=-host.transcript.max_scroll_y // 2, animate=False)
        await settled(pilot)
        before = first_word(host)
        assert 1000 < before < 2000
        for width in (44, 100):
            await pilot.resize_terminal(width, 24)
            await settled(pilot)
            assert abs(first_word(host) - before) < 150


@pytest.mark.slow
@pytest.mark.asyncio
async def test_messages_far_above_are_put_away_while_others_come() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show(chat(10))
        for item in chat(80)[10:]:
            await host.transcript.add(item)
        await settled(pilot)
        assert len(host.query(MessageView)) <= 70
        assert "message number 80" in host.text()


@pytest.mark.asyncio
async def test_text_that_comes_while_an_answer_is_shown_in_another_way_is_shown_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(item: BranchMessage) -> Prepared:
        asked.set()
        go_on.wait(10)
        return prepare(item)

    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show([shown(1), shown(2, " ", state="writing")])
        host.transcript.stream("alpha ", [TextPiece("alpha ", Provenance.TARGET)])
        host.transcript.origins = True
        await until(pilot, ["alpha", "bonus"])
        monkeypatch.setattr(message, "prepare", slow)
        host.transcript.origins = False
        await asyncio.to_thread(asked.wait, 10)
        host.transcript.stream("beta", [TextPiece("beta", Provenance.TARGET)])
        go_on.set()
        await settled(pilot)
        assert "alpha beta" in host.text()


@pytest.mark.asyncio
async def test_selection_takes_what_lies_between_its_ends() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show([shown(1, "alpha beta\ngamma delta")])
        await settled(pilot)
        prose = host.query_one(Prose)
        assert prose.get_selection(Selection(Offset(6, 0), Offset(5, 1))) == ("beta\ngamma", "\n")
        assert prose.get_selection(Selection(Offset(1, 1), Offset(3, 1))) == ("am", "\n")


@pytest.mark.asyncio
async def test_links_to_programs_are_not_followed() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show([shown(1, "see there")])
        await settled(pilot)
        for address in ("javascript:alert(1)", "file:///etc/passwd", "https://example.org"):
            host.query_one(Prose).action_open_link(address)
        assert host.opened == ["https://example.org"]
