"""Time searches in 10,000 messages, and the opening of a chat of 2,000.

python -m tests.benchmarks.history [--messages 10000]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from localspec.chat.messages import AnswerRecord, ChatInfo, Span, StoredMessage
from localspec.chat.store import Store
from localspec.demo import prompts
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import RoundDone, RoundStats, Summary
from localspec.types.request import EngineSettings, Sampling

LONG_CHAT = 2_000
PER_CHAT = 20
CHARACTERS = 500
QUERIES = 50


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000)
    args = parser.parse_args()
    chance = random.Random(1)
    words = vocabulary(chance)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.db"
        with Store(path) as store:
            started = time.perf_counter()
            long_chat = fill(store, chance, words, args.messages)
            print(f"filled in {time.perf_counter() - started:.1f} s, {path.stat().st_size / 2**20:.1f} MiB")
        print(f"{'':34} median ms  worst ms")
        report("open the store", [timed(lambda: Store(path).close()) for _ in range(10)])
        with Store(path) as store:
            report("list the chats", [timed(store.chats) for _ in range(10)])
            for name, kind in (("search a word", words), ("search a beginning", beginnings(words))):
                asked = [kind[i * len(kind) // QUERIES] for i in range(QUERIES)]
                report(name, [timed(store.search, query) for query in asked])
            pairs = [f"{chance.choice(words[:50])} {chance.choice(words)[:3]}" for _ in range(QUERIES)]
            report("search two words", [timed(store.search, query) for query in pairs])
            report("earlier prompts", [timed(store.prompts) for _ in range(10)])
            report("messages of the long chat", [timed(store.messages, long_chat) for _ in range(10)])
            report("outlines of the long chat", [timed(store.outlines, long_chat) for _ in range(10)])
            report("save 20,000 characters", list(saves(store, long_chat)))


def timed(action: Callable[..., object], *arguments: object) -> float:
    """Return how many milliseconds something takes."""
    started = time.perf_counter()
    action(*arguments)
    return (time.perf_counter() - started) * 1e3


def report(name: str, times: list[float]) -> None:
    """Print the median and the worst of some times."""
    print(f"{name:34} {median(times):9.2f} {max(times):9.2f}")


def vocabulary(chance: random.Random) -> list[str]:
    """Return words, the most frequent ones first: those of the bundled prompts, and made ones."""
    known = {word.lower() for item in prompts() for word in item.prompt.split() if word.isalpha()}
    letters = "etaoinshrdlucmfwypvbgk"
    made = {"".join(chance.choices(letters, k=chance.randint(4, 11))) for _ in range(8_000)}
    return [*sorted(known), *sorted(made)]


def beginnings(words: list[str]) -> list[str]:
    """Return what a user has typed of each word after one, two or three letters."""
    return [word[: 1 + i % 3] for i, word in enumerate(words)]


def text(chance: random.Random, words: list[str]) -> str:
    """Return some prose whose words are as unevenly frequent as those of a language."""
    chosen = [words[int(len(words) ** chance.random()) - 1] for _ in range(CHARACTERS // 6)]
    return " ".join(chosen)


def fill(store: Store, chance: random.Random, words: list[str], messages: int) -> int:
    """Fill the store, and return its long chat."""
    long_chat = add_chat(store, chance, words, LONG_CHAT)
    for _ in range((messages - LONG_CHAT) // PER_CHAT):
        add_chat(store, chance, words, PER_CHAT)
    return long_chat


def add_chat(store: Store, chance: random.Random, words: list[str], messages: int) -> int:
    """Add a chat whose every second message is an answer with its record."""
    now = time.time()
    turns = [
        StoredMessage(
            i, 0, i - 1 or None, "user" if i % 2 else "assistant", text(chance, words), now, "complete"
        )
        for i in range(1, messages + 1)
    ]
    records = {m.id: record(chance, len(m.content)) for m in turns if m.role == "assistant"}
    title = text(chance, words)[:40]
    return store.add_chat(ChatInfo(0, title, now, now, leaf=messages), turns, records).id


def record(chance: random.Random, characters: int) -> AnswerRecord:
    """Return the record of an answer of rounds with about three tokens."""
    rounds = characters // 12
    stats = RoundStats(4, 2, DraftOrigin.AHEAD, *(chance.random() / 40 for _ in range(5)))
    spans = [Span(8, Provenance.PREPARED), Span(4, Provenance.TARGET)] * rounds
    return AnswerRecord(
        "ssd", "measured", EngineSettings(), Sampling(), 1, "general", "target", "draft",
        Summary(tokens=3 * rounds, rounds=rounds), (RoundDone(stats, 3),) * rounds, tuple(spans),
    )  # fmt: skip


def saves(store: Store, chat: int) -> Iterator[float]:
    """Yield what it takes to save a growing answer."""
    message = store.add(chat, None, "assistant", "", state="writing")
    content = "All work and no play. " * 900
    for more in range(50):
        yield timed(store.write, message.id, content + "x" * more, "writing")


if __name__ == "__main__":
    main()
