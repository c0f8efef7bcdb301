"""How smooth the transcript is: the event loop's lag while 200 tokens a second stream into a long chat.

Run it with `python -m tests.benchmarks.screen_stream`; `--seconds 5` is a short look.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from textual.app import App, ComposeResult

from localspec.chat.messages import BranchMessage, Role, State, StoredMessage
from localspec.types.drafts import Provenance
from localspec.types.events import TextPiece
from localspec_tui.app import collect_rarely
from localspec_tui.widgets.transcript.transcript import Transcript
from tests.tui.styled import STYLES

TOKENS_PER_S = 200
UPDATE_S = 0.08
TICK_S = 0.005
CHARACTERS = 4  # of a token
SIZE = (120, 40)
PARAGRAPH = (
    "Speculation pays where the **draft** agrees with the target: `accepted` tokens are free, "
    "and a [rejected one](https://example.org/why) costs what was drafted after it. "
)
ROWS = "\n".join(f"| row {number} | {number * 17 % 101} | {number}.5 tokens/s |" for number in range(12))
CODE = "".join(
    f"def cost_{number}(size: int) -> float:  # seconds\n    return {number} * size / 1e9\n"
    for number in range(12)
)
ANSWER = f"""## What was measured

{PARAGRAPH * 4}

- first the *costs* of both models
- then a **trace** of every task
  - with the profile's own prompts
  - and `nothing` else
- then a simulation

```python
{CODE}```

| name | count | rate |
|---|--:|--:|
{ROWS}

{PARAGRAPH * 3}
"""
LONG_CODE = "".join(f"    total += values[{number}] * 0.{number}  # term {number}\n" for number in range(300))
LONG_PARAGRAPH = PARAGRAPH * 30


def message(number: int, content: str, state: State = "complete") -> BranchMessage:
    """Return one message of a chat of questions and answers."""
    role: Role = "assistant" if number % 2 == 0 else "user"
    return BranchMessage(StoredMessage(number, 1, number - 1 or None, role, content, 0.0, state))


def chat(messages: int, tokens: int) -> list[BranchMessage]:
    """Return a chat of about N tokens, four characters each."""
    answer = max(40, tokens * CHARACTERS * 2 // messages)
    text = (ANSWER * (answer // len(ANSWER) + 1))[:answer]
    return [message(number, "And then?" if number % 2 else text) for number in range(1, messages + 1)]


def deltas() -> Iterator[str]:
    """Yield what comes with each update, without end: paragraphs, lists, tables, and code of 300 lines."""
    code = f"```python\ndef total(values):\n    total = 0\n{LONG_CODE}    return total\n```"
    text = f"{ANSWER}\n{code}\n\n{LONG_PARAGRAPH}\n\n"
    size = round(TOKENS_PER_S * UPDATE_S * CHARACTERS)
    characters = itertools.cycle(text)
    while True:
        yield "".join(itertools.islice(characters, size))


class Screen(App[None]):
    """A transcript and nothing else."""

    CSS_PATH = STYLES

    def compose(self) -> ComposeResult:
        """Lay it out."""
        yield Transcript()


async def tick(lags: list[float]) -> None:
    """Note by how much every short sleep is late."""
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lags.append(time.perf_counter() - due)


def summary(name: str, lags: list[float]) -> str:
    """Return a line of figures in milliseconds."""
    figures = sorted(lag * 1000 for lag in lags)
    p99 = figures[min(len(figures) - 1, len(figures) * 99 // 100)]
    return f"{name:28}  p50 {statistics.median(figures):6.1f}  p99 {p99:6.1f}  max {figures[-1]:6.1f} ms"


async def stream(transcript: Transcript, seconds: float, origins: bool) -> str:
    """Stream an answer, and return all of it."""
    origin = itertools.cycle(Provenance)
    text, start = "", time.perf_counter()
    for number, delta in enumerate(deltas()):
        if number * UPDATE_S >= seconds:
            return text
        pieces = [TextPiece(delta[at : at + 8], next(origin)) for at in range(0, len(delta), 8)]
        transcript.stream(delta, pieces if origins else [])
        text += delta
        await asyncio.sleep(max(0.0, start + (number + 1) * UPDATE_S - time.perf_counter()))
    return text


async def measured_stream(
    transcript: Transcript, seconds: float, messages: int, *, origins: bool = False
) -> None:
    """Stream an answer into a chat of 50,000 tokens, and print the lag and what the end costs."""
    await transcript.show(chat(messages, 50_000))
    transcript.origins = origins
    item = message(messages + 2, "", "writing")
    await transcript.add(item)
    await asyncio.sleep(0.5)
    during: list[float] = []
    ticker = asyncio.create_task(tick(during))
    cpu = time.process_time()
    text = await stream(transcript, seconds, origins)
    cpu = time.process_time() - cpu
    ticker.cancel()
    name = f"{'origins, ' if origins else ''}{messages} messages"
    print(summary(name, during), f" processor {cpu / seconds:.0%}")
    after: list[float] = []
    ticker = asyncio.create_task(tick(after))
    start = time.perf_counter()
    await transcript.replace(replace(item, message=replace(item.message, content=text, state="complete")))
    took = time.perf_counter() - start
    await asyncio.sleep(0.5)
    ticker.cancel()
    print(summary("  the full render at the end", after), f" took {took:.2f} s for {len(text):,} characters")


async def measured_show(transcript: Transcript, messages: int, tokens: int) -> None:
    """Print how long it takes to open a chat, until it is drawn."""
    items = chat(messages, tokens)
    drawn = asyncio.Event()
    start, cpu = time.perf_counter(), time.process_time()
    await transcript.show(items)
    transcript.call_after_refresh(drawn.set)
    await drawn.wait()
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"open {messages:,} messages, {tokens:,} tokens: {took:.3f} s, processor {cpu:.3f} s")


async def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--plain-garbage", action="store_true", help="leave Python's garbage collector as it is"
    )
    arguments = parser.parse_args()
    seconds = arguments.seconds
    app = Screen()
    async with app.run_test(size=SIZE):
        if not arguments.plain_garbage:
            collect_rarely()
        transcript = app.query_one(Transcript)
        await measured_show(transcript, 2_000, 50_000)
        await measured_show(transcript, 2_000, 1_000_000)
        await measured_show(transcript, 20, 50_000)
        await measured_stream(transcript, seconds, 100)
        await measured_stream(transcript, seconds, 2)
        await measured_stream(transcript, seconds, 100, origins=True)


if __name__ == "__main__":
    asyncio.run(main())
