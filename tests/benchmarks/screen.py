"""How smooth the whole screen is: 200 tokens a second into a chat of 50,000, saved as they come.

Run it with `python -m tests.benchmarks.screen`; the models are scripted, everything else is real.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from textual.pilot import Pilot

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.loading import ModelLoader
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.storage.config import Config
from localspec.storage.profiles import profiles
from localspec.types.events import GenerationEvent, RoundDone
from localspec.types.request import Request
from localspec_tui.app import LocalSpecApp, collect_rarely
from localspec_tui.widgets.composer.composer import Composer
from tests.benchmarks.screen_stream import ANSWER, LONG_CODE, LONG_PARAGRAPH, summary, tick
from tests.scripted import Script, ScriptedModels

TOKENS_PER_S = 200
SIZE = (120, 40)
TEXT = f"{ANSWER}\n```python\ndef total(values):\n{LONG_CODE}    return total\n```\n\n{LONG_PARAGRAPH}\n\n"


class PacedModels(ScriptedModels):
    """Scripted models that take their time."""

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Yield what the script says, N tokens a second."""
        due = time.perf_counter()
        for event in super().generate(request):
            if isinstance(event, RoundDone):
                due += event.tokens / TOKENS_PER_S
                time.sleep(max(0.0, due - time.perf_counter()))
            yield event


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), args.seconds))


async def measure(folder: Path, seconds: float) -> None:
    """Open a long chat, stream into it, stop, and open the longest."""
    with Store(folder / "chats.db") as store:
        longest, long = fill(store, 2_000, 150), fill(store, 100, len(TEXT) // 6)
        loader = ModelLoader(lambda _on_progress: PacedModels(Script(itertools.cycle([TEXT])), context=10**6))
        app = LocalSpecApp(
            ChatSession(store, profiles(folder).good, SessionRequest()), loader, Config(), folder, deque()
        )
        try:
            async with app.run_test(size=SIZE) as pilot:
                await until(pilot, lambda: loader.ready is not None)
                collect_rarely()
                await opened(pilot, app, long, "100 messages, 50,000 tokens")
                for panels in ((), ("f3",), ("f2",)):
                    await pilot.press(*panels)
                    await streamed(pilot, app, seconds, " and ".join(panels) or "plain")
                await opened(pilot, app, longest, "2,000 messages")
        finally:
            loader.close()


def fill(store: Store, messages: int, characters: int) -> int:
    """Keep a chat of N messages of about N characters; return its id."""
    info, parent = store.new_chat(), None
    for number in range(messages):
        role, text = ("assistant", TEXT[:characters]) if number % 2 else ("user", f"And number {number}?")
        parent = store.add(info.id, parent, role, text).id  # type: ignore[arg-type]
    return info.id


async def opened(pilot: Pilot[int], app: LocalSpecApp, chat: int, name: str) -> None:
    """Print how long it takes to open a chat, until it is drawn."""
    started = time.perf_counter()
    await app.chat_screen.pane.open_chat(chat)
    await pilot.pause()
    print(f"opening a chat of {name}: {time.perf_counter() - started:.2f} s")


async def streamed(pilot: Pilot[int], app: LocalSpecApp, seconds: float, name: str) -> None:
    """Print the lag of the event loop while an answer streams, and how soon Escape ends it."""
    pane = app.chat_screen.pane
    app.chat_screen.query_one(Composer).text = "Go on"
    await pilot.press("enter")
    await until(pilot, lambda: pane.answering)
    lags: list[float] = []
    ticker = asyncio.create_task(tick(lags))
    cpu = time.process_time()
    await asyncio.sleep(seconds)
    cpu = time.process_time() - cpu
    ticker.cancel()
    print(summary(f"streaming, {name}", lags), f" processor {cpu / seconds:.0%}")
    chat = app.chat_screen.session.chat
    kept = asyncio.create_task(moment(lambda: chat.path[-1].state == "stopped"))
    started = time.perf_counter()
    await pilot.press("escape")
    stopped = await kept
    await until(pilot, lambda: not pane.answering)
    kept_ms, drawn_ms = 1000 * (stopped - started), 1000 * (time.perf_counter() - started)
    print(f"  Escape: kept after {kept_ms:.0f} ms, drawn anew after {drawn_ms:.0f}")
    await until(pilot, lambda: not pane.working)


async def moment(condition: Callable[[], object]) -> float:
    """Return when something came to be so; unlike `until` it leaves the screen alone."""
    while not condition():  # noqa: ASYNC110 - nobody could set an event
        await asyncio.sleep(0.001)
    return time.perf_counter()


async def until(pilot: Pilot[int], condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    while not condition():
        await pilot.pause(0.002)


if __name__ == "__main__":
    main()
