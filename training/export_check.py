"""Does llama.cpp read an exported file as it was meant? Token ids, logits, template, ends of turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.types.request import Message
from training.documents import SPECIALS, read_documents
from training.progress import log
from training.scorer import Scorer

TOKENIZER_PROBES = (
    "Hello, world!",
    "  two leading spaces",
    "def f(x):\n    return x**2\n\n\n",
    "It's 12345 o'clock -- isn't it?",
    "\t\ttabs\tand\r\nCRLF",
    "Grüße, naïve café, “quotes” and 日本語 🙂",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "",
    "\n",
    "a  b   c    d",
    "I'll we've HE'S x_y CamelCase 3.14e-10 0xFF",
    "```python\nprint('x')\n```",
    "e\u0301 \u00a0 nbsp",
)
QUESTIONS = (
    "Hello!",
    "Write a Python function that reverses a string.",
    "Tell me a story about a brave owl.",
)
PROBE_CHAT = (Message("system", "S"), Message("user", "U"))
PROBE_PROMPT = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
CODE_START = "<|im_start|>assistant\n```python\ndef "
SAME_FUNCTION_TEXTS = (
    f"<|im_start|>user\nWrite a Python function that reverses a string.<|im_end|>\n{CODE_START}",
    "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHello! How can I help you today?<|im_end|>\n",
    "Once upon a time there was a little fox who lived at the edge of a deep forest. " * 3,
)
MAX_DOCUMENTS, MAX_TOKENS = 12, 900


def report_difference(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Say how far two tables of logits (n, vocabulary) are apart."""
    agree = int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    log.info(
        "logits: max abs difference %.4f (spread %.2f), same argmax at %d of %d positions",
        np.abs(ours - theirs).max(),
        theirs.std(),
        agree,
        len(ours),
    )


def check(checkpoint: Path, tokenizer: Path, path: Path, held_out: Path) -> None:
    """Compare a written file with its checkpoint, and let it answer."""
    from tokenizers import Tokenizer

    texts = [document.text for document in read_documents(held_out)]
    trained = Tokenizer.from_file(str(tokenizer))
    with Scorer(path, threads=1) as scorer:
        probes = [*TOKENIZER_PROBES, *texts]
        wrong = sum(trained.encode(text).ids != scorer.tokenize(text) for text in probes)
        log.info(
            "tokenizer: %d of %d texts differ (%d characters)", wrong, len(probes), sum(map(len, probes))
        )
        chosen = texts[:: max(1, len(texts) // MAX_DOCUMENTS)][:MAX_DOCUMENTS]
        check_logits(checkpoint, scorer, [scorer.tokenize(text)[:MAX_TOKENS] for text in chosen])
        prompt = scorer.render(*PROBE_CHAT)
        log.info("chat template: %s", "as expected" if prompt == PROBE_PROMPT else repr(prompt))
        ids = trained.get_vocab()
        ends = {text: scorer.ends_turn(ids[text]) for text in SPECIALS}
        log.info("end of turn: %s", ends)
        check_answers(scorer)


def check_logits(checkpoint: Path, scorer: Scorer, documents: Sequence[list[int]]) -> None:
    """Compare llama.cpp with the model as it was trained."""
    import torch

    from training.model import Checkpoint

    model = Checkpoint.load(checkpoint).model.eval()
    with torch.no_grad():
        cut = [ids[: model.cfg.context] for ids in documents]
        ours = [model(torch.tensor([ids]))[0].numpy() for ids in cut]
    theirs = [scorer.logits(ids) for ids in cut]
    report_difference(np.concatenate(ours), np.concatenate(theirs))


def check_answers(scorer: Scorer) -> None:
    """Show greedy answers, and count how many end by themselves."""
    stopped = 0
    for question in QUESTIONS:
        prompt = scorer.tokenize(scorer.render(Message("user", question)))
        answer = scorer.generate(prompt, 400, 0.0, np.random.default_rng(0))
        stopped += scorer.ends_turn(answer[-1])
        log.info("--- %s\n%s", question, re.sub(r"\n+", "\n", scorer.detokenize(answer)))
    log.info("stopped by itself: %d of %d", stopped, len(QUESTIONS))


def compare_models(small: Path, big: Path, threads: int) -> None:
    """Say how far the logits of two files are apart."""
    tables = []
    for path in (small, big):
        with Scorer(path, threads, context=256) as scorer:
            tables.append(
                np.concatenate([scorer.logits(scorer.tokenize(text)) for text in SAME_FUNCTION_TEXTS])
            )
    report_difference(*tables)
