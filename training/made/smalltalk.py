"""Greetings, moods, topics, tips, and what the assistant says about itself."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from pathlib import Path

from training.chat_text import chat
from training.documents import Document

LINES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ASK_TOPIC = (
    "Can we talk about {}?",
    "Let us talk about {}.",
    "Tell me something about {}.",
    "What do you think about {}?",
)
NUMBER_WORDS = {2: "two", 3: "three", 4: "four"}


def smalltalk(rng: random.Random, count: int = 6000) -> Iterator[Document]:
    """Yield small-talk chats."""
    for _ in range(count):
        yield Document("smalltalk", chat(rng, *conversation(rng)))


def conversation(rng: random.Random) -> list[str]:
    """Return the turns of one chat: perhaps a greeting, one subject, perhaps thanks and a goodbye."""
    roll = rng.random()
    turns = exchange(rng, "greetings", "greeting_answers") if rng.random() < 0.6 else []
    if roll < 0.25:
        turns += mood(rng)
    elif roll < 0.5:
        topic = rng.choice(list(LINES["topics"]))
        turns += [rng.choice(ASK_TOPIC).format(topic), rng.choice(LINES["topics"][topic])]
    elif roll < 0.75:
        turns += tips(rng)
    elif roll < 0.88:
        turns += exchange(rng, "abilities_asked", "abilities")
    else:
        turns += exchange(rng, "speed_asked", "speed_answers")
    if rng.random() < 0.35:
        turns += exchange(rng, "thanks", "thanks_answers")
    if rng.random() < 0.3:
        turns += exchange(rng, "goodbyes", "goodbye_answers")
    return turns


def exchange(rng: random.Random, said: str, answered: str) -> list[str]:
    """Return any line of one list and any of another."""
    return [rng.choice(LINES[said]), rng.choice(LINES[answered])]


def mood(rng: random.Random) -> list[str]:
    """Return four turns on how both feel."""
    feeling = rng.choice(list(LINES["replies"]))
    return [*exchange(rng, "moods_asked", "mood_answers"), feeling, rng.choice(LINES["replies"][feeling])]


def tips(rng: random.Random) -> list[str]:
    """Return a request for a number of tips, and a list of as many."""
    topic = rng.choice(list(LINES["tips"]))
    number = rng.choice([2, 3, 3, 4])
    word = NUMBER_WORDS[number]
    chosen = rng.sample(LINES["tips"][topic], number)
    items = "\n".join(f"{place}. {tip}" for place, tip in enumerate(chosen, start=1))
    ask = rng.choice(
        [
            f"Give me {word} tips to {topic}.",
            f"How can I {topic}? Give me {word} ideas.",
            f"I want to {topic}. Do you have {word} tips for me?",
        ]
    )
    lead = rng.choice([f"Here are {word} tips:\n\n", f"Of course! Here are {word} ideas to {topic}:\n\n", ""])
    return [ask, lead + items]
