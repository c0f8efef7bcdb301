"""Questions that a target answers itself: composed from templates, or taken from the packed text."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.types.request import Message
from training.documents import Document

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TURNS = re.compile(r"<\|im_start\|>(system|user|assistant)\n(.*?)<\|im_end\|>", re.DOTALL)
SLOT = re.compile(r"\{(\w+)\}")
DOCUMENTED = re.compile(
    r'^(?:from|import) .*?(?=^def )|^def \w+\([^\n]*\).*:\n    (?:"""|r""").*?"""\n', re.DOTALL | re.MULTILINE
)
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful, honest assistant. Keep your answers short.",
    "You are an experienced programmer.",
    "You are a writer with a clear, lively voice.",
)
SYSTEM_SHARE = 0.3  # of the conversations bring their own; the template has one for the others
COMPLETIONS = (
    "Complete the following Python function:\n\n```python\n{0}```",
    "Complete this function.\n\n```python\n{0}```",
    "Complete the following code:\n\n{0}",
    "{0}",
    "Write the body of this Python function:\n\n```python\n{0}```",
)
PASSAGES = (
    "Summarize the following text:\n\n{0}",
    "What is this text about?\n\n{0}",
    "Rewrite the following text in simpler words:\n\n{0}",
    "Give me the key points of this text as a list:\n\n{0}",
    "Ask three questions about this text and answer them:\n\n{0}",
    "Continue this text:\n\n{0}",
)
SHORTEST_PASSAGE, LONGEST_PASSAGE = 200, 900  # characters


@dataclass(frozen=True, slots=True)
class Request:
    """A conversation up to where the assistant answers."""

    kind: str
    messages: tuple[Message, ...]

    def followed(self, answer: str, rng: random.Random) -> Request:
        """Return the same conversation with its answer, and one more question."""
        more = Message("user", rng.choice(TABLES["followups"]))
        return Request(self.kind, (*self.messages, Message("assistant", answer), more))


class Requests:
    """An endless supply of different requests."""

    def __init__(self, documents: Sequence[Document], rng: random.Random) -> None:
        self._rng = rng
        by_kind: dict[str, list[str]] = {}
        for document in documents:
            by_kind.setdefault(document.kind, []).append(document.text)
        sources: Mapping[str, tuple[float, Sequence[str], Callable[[Sequence[str]], str | None]]] = {
            "composed": (0.38, TABLES["templates"], self._composed),
            "sums": (0.17, by_kind.get("gsm8k", []), self._first_question),
            "completion": (
                0.15,
                [*by_kind.get("algorithms", []), *by_kind.get("stdlib", [])],
                self._completion,
            ),
            "code": (
                0.1,
                [text for kind in ("algorithms-chat", "made-coding") for text in by_kind.get(kind, [])],
                self._first_question,
            ),
            "passage": (
                0.08,
                [text for kind in ("openstax", "python-docs", "books") for text in by_kind.get(kind, [])],
                self._passage,
            ),
            "talk": (
                0.12,
                [
                    text
                    for kind in ("seed-tasks", "smalltalk", "trivia", "topical-chat", "made-stories")
                    for text in rng.sample(by_kind.get(kind, []), min(2000, len(by_kind.get(kind, []))))
                ],
                self._first_question,
            ),
        }
        self._sources = {name: each for name, each in sources.items() if each[1]}
        self._weights = [weight for weight, _, _ in self._sources.values()]

    def take(self) -> Request:
        """Return the next request."""
        while True:
            kind = self._rng.choices(list(self._sources), self._weights)[0]
            _, texts, make = self._sources[kind]
            question = make(texts)
            if question:
                system = (
                    (Message("system", self._rng.choice(SYSTEMS)),)
                    if self._rng.random() < SYSTEM_SHARE
                    else ()
                )
                return Request(kind, (*system, Message("user", question)))

    def _composed(self, templates: Sequence[str]) -> str:
        words = TABLES["words"]
        return SLOT.sub(lambda slot: str(self._rng.choice(words[slot[1]])), self._rng.choice(templates))

    def _first_question(self, texts: Sequence[str]) -> str | None:
        turns = TURNS.findall(self._rng.choice(texts))
        questions = [content for role, content in turns if role == "user"]
        return questions[0] if questions and len(questions[0]) < LONGEST_PASSAGE else None

    def _completion(self, texts: Sequence[str]) -> str | None:
        found = [
            each.group()
            for each in DOCUMENTED.finditer(self._rng.choice(texts))
            if each.group().startswith("def")
        ]
        code = self._rng.choice(found) if found else ""
        if not SHORTEST_PASSAGE / 3 < len(code) < LONGEST_PASSAGE:
            return None
        return self._rng.choice(COMPLETIONS).format(code)

    def _passage(self, texts: Sequence[str]) -> str | None:
        text = self._rng.choice(texts)[:LONGEST_PASSAGE]
        passage = text[: text.rfind(".") + 1]
        return self._rng.choice(PASSAGES).format(passage) if len(passage) > SHORTEST_PASSAGE else None
