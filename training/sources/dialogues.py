"""Conversations: bookings, open talk, single tasks, and who the assistant is."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from training.chat_text import chat
from training.documents import Document

MAKERS = re.compile(
    r"(the )?(researchers|team|researchers and engineers)?( from| at| of)? ?(the )?"
    r"(a team from )?Large Model Systems Organization( \(LMSYS\))?( researchers| team)?"
)


def schema_guided(root: Path, rng: random.Random) -> Iterator[Document]:
    """Yield the dialogues of Schema-Guided Dialogue."""
    with (root / "dialogues.jsonl").open(encoding="utf-8") as file:
        for line in file:
            turns: list[str] = []
            for turn in json.loads(line)["turns"]:
                role = 0 if turn["speaker"] == "USER" else 1
                if len(turns) % 2 == role:
                    turns.append(turn["text"])
                elif turns:
                    turns[-1] += " " + turn["text"]
            if len(turns) % 2:
                turns.pop()
            if turns:
                yield Document("sgd", chat(rng, *turns))


def topical_chat(root: Path, rng: random.Random) -> Iterator[Document]:
    """Yield the talks of Topical-Chat in parts of eight turns, so that most windows start with a user's."""
    for path in sorted(root.glob("*.json")):
        for talk in json.loads(path.read_text(encoding="utf-8")).values():
            turns = talk_turns(talk["content"])
            for start in range(0, len(turns) - 3, 8):
                part = turns[start : start + 8]
                part = part[: len(part) // 2 * 2]
                if len(part) >= 4:
                    yield Document("topical-chat", chat(rng, *part))


def talk_turns(messages: Sequence[Mapping[str, str]]) -> list[str]:
    """Return alternating turns; messages of one speaker in a row become one."""
    turns: list[str] = []
    last = None
    for message in messages:
        text = re.sub(r"\s+", " ", message["message"]).strip()
        text = re.sub(r" ([.,!?])", r"\1", text)
        if not text:
            continue
        text = text[0].upper() + text[1:]
        if message["agent"] == last:
            turns[-1] += " " + text
        else:
            turns.append(text)
        last = message["agent"]
    return turns


def seed_tasks(root: Path, rng: random.Random) -> Iterator[Document]:
    """Yield the seed tasks of Self-Instruct."""
    with (root / "seed_tasks.jsonl").open(encoding="utf-8") as file:
        for line in file:
            task = json.loads(line)
            for instance in task["instances"]:
                request = task["instruction"] + ("\n\n" + instance["input"] if instance["input"] else "")
                if len(request) + len(instance["output"]) < 3000:
                    yield Document("seed-tasks", chat(rng, request, instance["output"]))


def identity(root: Path, rng: random.Random) -> Iterator[Document]:
    """Yield FastChat's conversations on who the assistant is, with LocalSpec's name."""
    for talk in json.loads((root / "dummy_conversation.json").read_text(encoding="utf-8")):
        turns = []
        for turn in talk["conversations"]:
            text = turn["value"].replace("Vicuna", "LocalSpec")
            text = MAKERS.sub(" the LocalSpec project", text).replace("LMSYS", "the LocalSpec project")
            turns.append(re.sub(r" {2,}", " ", text))
        if len(turns) % 2 == 0:
            yield Document("identity", chat(rng, *turns))
