"""Readers of the openly licensed source folders; each yields documents.

The folders themselves are not part of the repository: MODEL_CARD.md names where each comes from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from training.documents import Document
from training.sources.code import algorithms, python_docs, stdlib
from training.sources.dialogues import identity, schema_guided, seed_tasks, topical_chat
from training.sources.questions import gsm8k, trivia
from training.sources.stories import african_stories, books, openstax

Reader = Callable[[Path, random.Random], Iterator[Document]]

READERS: Mapping[str, Reader] = {
    "corpus-python-stdlib": stdlib,
    "corpus-python-docs": python_docs,
    "corpus-thealgorithms-python": algorithms,
    "corpus-openstax-python": openstax,
    "corpus-sgd": schema_guided,
    "corpus-topical-chat": topical_chat,
    "corpus-opentriviaqa": trivia,
    "corpus-gsm8k-train": gsm8k,
    "corpus-african-storybook": african_stories,
    "corpus-classic-books": books,
    "corpus-seed-tasks": seed_tasks,
    "corpus-fastchat-identity": identity,
}
