"""Text to token ids: train the byte-level BPE tokenizer, mix the kinds of text, encode."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.documents import SPECIALS, Corpus, Document
from training.progress import log

END_OF_TEXT = 0
CHUNK = 4096  # documents that are encoded at once

# How often each kind occurs in one pass: small but important kinds are repeated, bulky ones thinned out
# for a run that sees only some 40 M tokens.
REPEATS: Mapping[str, float] = {
    "african-stories": 5,
    "algorithms": 1,
    "algorithms-chat": 3,
    "books": 0.35,
    "books-chat": 1,
    "gsm8k": 1,
    "identity": 3,
    "made-coding": 1.6,
    "made-stories": 0.7,
    "openstax": 2,
    "python-docs": 0.5,
    "seed-tasks": 4,
    "sgd": 0.7,
    "smalltalk": 1,
    "stdlib": 0.6,
    "stdlib-chat": 1.5,
    "topical-chat": 1,
    "trivia": 0.4,
}

Ids = NDArray[np.uint16]


@dataclass(slots=True)
class KindCount:
    """How much of one kind there is, and how much of it one pass over the mix contains."""

    documents: int = 0
    tokens: int = 0
    tokens_mixed: int = 0


def load_tokenizer(data: Path) -> Tokenizer:
    """Open the tokenizer of a data folder."""
    return Tokenizer.from_file(str(data / "tokenizer.json"))


def train_tokenizer(data: Path, vocabulary: int, sample_mb: float, seed: int) -> None:
    """Learn a byte-level BPE with GPT-2's pre-tokenizer (llama.cpp: model gpt2, pre gpt-2)."""
    documents = Corpus(data).training()
    random.Random(seed).shuffle(documents)
    sample, budget = [], int(sample_mb * 1e6)
    special = re.compile("|".join(map(re.escape, SPECIALS)))
    for document in documents:
        sample.append(special.sub("", document.text))
        budget -= len(sample[-1])
        if budget < 0:
            break
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(sample, trainer)
    data.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(data / "tokenizer.json"))
    log.info("vocabulary %d", tokenizer.get_vocab_size())


def encode(tokenizer: Tokenizer, documents: Sequence[Document]) -> list[Ids]:
    """Return the ids of every document, each with the end of text behind it."""
    ids: list[Ids] = []
    for start in range(0, len(documents), CHUNK):
        texts = [document.text for document in documents[start : start + CHUNK]]
        encodings = tokenizer.encode_batch(texts)
        ids += [np.array([*encoding.ids, END_OF_TEXT], dtype=np.uint16) for encoding in encodings]
    return ids


def mix(
    documents: Sequence[Document], lengths: Sequence[int], repeats: Mapping[str, float], rng: random.Random
) -> tuple[list[int], dict[str, KindCount]]:
    """Return the indices of one pass in random order, and what it is made of; 2.3 is two or three times."""
    order: list[int] = []
    counts: dict[str, KindCount] = {}
    for index, (kind, _) in enumerate(documents):
        times = repeats.get(kind, 1.0)
        copies = int(times) + (rng.random() < times - int(times))
        order += [index] * copies
        count = counts.setdefault(kind, KindCount())
        count.documents += 1
        count.tokens += lengths[index]
        count.tokens_mixed += copies * lengths[index]
    rng.shuffle(order)
    return order, counts


def encode_corpus(data: Path, repeats: Mapping[str, float], seed: int) -> None:
    """Write `train.bin`, `heldout.npz` and `mix.json` into the data folder."""
    tokenizer, corpus = load_tokenizer(data), Corpus(data)
    documents = corpus.training()
    ids = encode(tokenizer, documents)
    order, counts = mix(documents, [len(each) for each in ids], repeats, random.Random(seed))
    np.concatenate([ids[index] for index in order]).tofile(data / "train.bin")

    groups: dict[str, list[Ids]] = {}
    held_out = corpus.held_out()
    for document, each in zip(held_out, encode(tokenizer, held_out), strict=True):
        groups.setdefault(document.kind, []).append(each)
    with (data / "heldout.npz").open("wb") as file:
        np.savez(file, allow_pickle=False, **{kind: np.concatenate(each) for kind, each in groups.items()})
    summary = {kind: asdict(count) for kind, count in counts.items()}
    (data / "mix.json").write_text(json.dumps(summary, indent=1, sort_keys=True), encoding="utf-8")
    for kind, count in sorted(counts.items()):
        log.info(
            "%-20s %8d docs %10d tokens %10d mixed", kind, count.documents, count.tokens, count.tokens_mixed
        )
    log.info("total mixed tokens %d", sum(count.tokens_mixed for count in counts.values()))
