"""Draw the pictures of the README from the real program: `python -m tests.benchmarks.screenshots`.

The bundled pair answers in a worker process; the chats are those of the script.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from textual.pilot import Pilot

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.loading import ModelLoader
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.demo import bundled_pair
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.storage.config import Config
from localspec.storage.profiles import profiles
from localspec.types.models import ModelOptions
from localspec.types.request import Request, Sampling
from localspec_tui.app import LocalSpecApp
from localspec_tui.widgets.composer.composer import Composer

FOLDER = Path(__file__).parent.parent.parent / "tui" / "screenshots"
PATIENCE = 2000
EARLIER = ("What is a prime number?", "Tell me a story about a lighthouse.", "Hello, who are you?")
CODING = (
    "Write a function that checks whether a word is a palindrome.",
    "Write a function that returns the n-th Fibonacci number with a cache.",
)


def main() -> None:
    """Draw all pictures, or those into another folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=FOLDER)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(draw(Path(folder), args.output))


async def draw(folder: Path, output: Path) -> None:
    """Chat a little and draw what there is to see."""
    with Store(folder / "chats.db") as store:
        loader = ModelLoader(open_models)
        wishes = SessionRequest(sampling=asdict(Sampling(temperature=0.0)), answer=Request("", seed=1))
        desk = ChatSession(store, profiles(folder).good, wishes)
        app = LocalSpecApp(desk, loader, Config(), folder, deque())
        try:
            async with app.run_test(size=(120, 36)) as pilot:
                await until(pilot, lambda: loader.ready is not None)
                await pilot.pause(0.3)
                save(app, output / "welcome.svg")
                await chat(pilot, app, output)
        finally:
            loader.close()


async def chat(pilot: Pilot[int], app: LocalSpecApp, output: Path) -> None:
    """Answer the questions of the script and draw each screen."""
    for question in EARLIER:
        await ask(pilot, app, question)
        await enter(pilot, app, "/new")
    await enter(pilot, app, "/profile coding")
    await enter(pilot, app, "/mode ssd")
    for question in CODING:
        await ask(pilot, app, question)
    save(app, output / "chat.svg")
    await pilot.press("f2", "f3")
    await pilot.pause(0.3)
    save(app, output / "speculation.svg")
    await pilot.press("f2", "f3", "f4")
    await until(pilot, lambda: app.screen is not app.chat_screen)
    await until(pilot, lambda: not any(worker.is_running for worker in app.workers))
    await pilot.pause(0.3)
    save(app, output / "compare.svg")
    await pilot.press("escape")
    await enter(pilot, app, "/theme localspec-light")
    await pilot.press("ctrl+k")
    await pilot.press(*"word")
    await pilot.pause(0.5)
    save(app, output / "search.svg")


async def ask(pilot: Pilot[int], app: LocalSpecApp, question: str) -> None:
    """Ask something and wait for the whole answer."""
    before = len(app.chat_screen.session.chat.path)
    await enter(pilot, app, question)
    pane = app.chat_screen.pane
    await until(pilot, lambda: len(app.chat_screen.session.chat.path) == before + 2 and not pane.working)
    await pilot.pause(0.3)


async def enter(pilot: Pilot[int], app: LocalSpecApp, text: str) -> None:
    """Send a prompt or a command."""
    composer = app.chat_screen.query_one(Composer)
    composer.focus()
    composer.text = text
    await pilot.press("enter")
    await pilot.pause(0.2)


async def until(pilot: Pilot[int], condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    for _ in range(PATIENCE):
        await pilot.pause(0.02)
        if condition():
            return
    raise TimeoutError("the program does not come to an end")


def save(app: LocalSpecApp, path: Path) -> None:
    """Write what the screen shows."""
    path.write_text(app.export_screenshot(title="LocalSpec", simplify=True), encoding="utf-8")
    print(path)


def open_models(on_progress: Callable[[float], bool]) -> Worker:
    """Open the bundled pair in a process of its own."""
    target, draft = bundled_pair()
    return Worker.open(OpenPlan(ModelOptions(target), ModelOptions(draft)), on_progress=on_progress)


if __name__ == "__main__":
    main()
