"""Ordinary text in a target's tokens: what a draft reads beside the target's answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from training.documents import Corpus, Document
from training.progress import log
from training.teacher_text import CANDIDATES

KINDS = {  # what resembles an assistant's answers, and its share
    "gsm8k": 0.25, "algorithms-chat": 0.12, "algorithms": 0.1, "openstax": 0.1, "python-docs": 0.15,
    "topical-chat": 0.1, "books-chat": 0.08, "stdlib-chat": 0.07, "seed-tasks": 0.03,
}  # fmt: skip


def choose(documents: Sequence[Document], characters: int, rng: random.Random) -> list[str]:
    """Return texts of the useful kinds, in random order, about so many characters in all."""
    chosen: list[str] = []
    for kind, share in KINDS.items():
        left = characters * share
        texts = [document.text for document in documents if document.kind == kind]
        rng.shuffle(texts)
        for text in texts:
            if left <= 0:
                break
            chosen.append(text)
            left -= len(text)
    rng.shuffle(chosen)
    return chosen


def write_plain_text(path: Path, target: Path, characters: int, seed: int) -> None:
    """Write a file in the form of an answers' shard, nothing of which the target wrote."""
    model = Model.open(ModelOptions(target, devices=()))
    end = model.vocabulary.tokenize("<|endoftext|>", special=True)
    texts = choose(Corpus(path.parent).training(), characters, random.Random(seed))
    ids = np.concatenate([[*model.vocabulary.tokenize(text, special=True), *end] for text in texts])
    model.close()
    np.savez(
        path,
        ids=ids.astype(np.uint16),
        written=np.zeros(len(ids), bool),
        top=np.empty((0, CANDIDATES), np.uint16),
        log_chances=np.empty((0, CANDIDATES), np.float16),
    )
    log.info("%d tokens of ordinary text", len(ids))
