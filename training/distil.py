r"""Distil a draft from what a GGUF target wrote (see `answers`).

    python -m training.distil DATA --target target.gguf --out RUN --minutes 60

The draft has the target's vocabulary. Its embedding starts as the target's, projected onto few directions.
The softmax of training runs over the frequent tokens, the batch's own, and a random sample of the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from localspec.errors import UserError
from training.import_gguf import read_gguf
from training.loop import RunSettings, TrainingRun, Windows
from training.losses import autocast
from training.model import Checkpoint, Config, Model
from training.plain_text import write_plain_text
from training.progress import show_progress
from training.rounding import as_q4_0
from training.teacher_text import TeacherText, split_shards
from training.workers import own_seed

EMBEDDING_SPREAD = 0.04
READ_WEIGHT = 0.15  # of a token that was only read, beside 1 for one that the target wrote
SHARPENED = 0.5  # part of the wanted distribution that is squared: greedy and cool sampling judge the top
EVALUATION_TOKENS, EVALUATION_WINDOWS = 384, 64
Ids = NDArray[np.int64]
HEAD = 64  # dimensions of an attention head


def projected_embedding(target: Path, dim: int) -> Tensor:
    """Return the target's embedding (vocabulary, dim) along its main directions."""
    tensor = next(t for t in gguf.GGUFReader(target).tensors if t.name == "token_embd.weight")
    whole = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    _, directions = torch.linalg.eigh(whole.T @ whole)  # in ascending order
    small = whole @ directions[:, -dim:].flip(1)
    small = small / small.std(0).clamp_min(1e-6) ** 0.5  # between the raw spread and an even one
    return small * (EMBEDDING_SPREAD / small.square().mean().sqrt())


class AnswerLoss:
    """The cross-entropy to the target's candidates, at positions that windows give."""

    def __init__(self, model: Model, text: TeacherText, frequent: int, sampled: int, seed: int) -> None:
        self._model, self._text, self._sampled = model, text, sampled
        self._frequent = text.frequent(model.cfg.vocab, frequent)
        self._rng = np.random.default_rng(seed)

    def __call__(self, before: Tensor, at: Tensor) -> Tensor:
        """Return the loss of predicting the tokens at positions `at` from those `before` them."""
        text = self._text
        positions = at.numpy().ravel()
        written = text.written[positions]
        rows = text.row[positions[written]]
        tops, chances = text.top[rows], text.chances[rows]
        place, chosen, standing = self._softmax(np.concatenate((text.ids[positions], tops[:, :4].ravel())))
        hidden = self._model.hidden(torch.from_numpy(text.ids[before.numpy()])).flatten(0, 1)
        output = self._model.rounding(self._model.token_embd.weight[torch.from_numpy(chosen)])
        logits = functional.linear(hidden, output).float()
        logs = functional.log_softmax(logits + torch.from_numpy(standing), -1)
        is_read = torch.from_numpy(np.flatnonzero(~written))
        next_read = torch.from_numpy(place[text.ids[positions[~written]]])
        hard = functional.nll_loss(logs[is_read], next_read, reduction="sum")
        known = place[tops] >= 0
        wanted = torch.from_numpy(sharpened(np.where(known, chances, 0)))
        at_top = torch.from_numpy(np.where(known, place[tops], 0))
        soft = -(wanted * logs[torch.from_numpy(np.flatnonzero(written))].gather(1, at_top)).sum()
        return (soft + READ_WEIGHT * hard) / (len(rows) + READ_WEIGHT * len(is_read))

    def _softmax(self, present: Ids) -> tuple[Ids, Ids, NDArray[np.float32]]:
        """Return each token's place among the chosen ones or -1, the chosen, and what to add to their logits.

        A token drawn at random stands for many that were not: its logit grows by the log of their number.
        """
        size = self._model.cfg.vocab
        place = np.full(size, -1)
        place[self._frequent] = place[present] = 0
        others = np.flatnonzero(place < 0)
        drawn = self._rng.choice(others, min(self._sampled, len(others)), replace=False)
        standing = np.zeros(size, np.float32)
        if len(drawn):
            standing[drawn] = np.log(len(others) / len(drawn))
        place[drawn] = 0
        chosen = np.flatnonzero(place == 0)
        place[chosen] = np.arange(len(chosen))
        return place, chosen, standing[chosen]


def sharpened(chances: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a distribution (n, candidates) between the given one and its square."""
    squares = chances**2
    plain = chances / np.maximum(chances.sum(axis=1, keepdims=True), 1e-9)
    squared = squares / np.maximum(squares.sum(axis=1, keepdims=True), 1e-9)
    mixed: NDArray[np.float32] = ((1 - SHARPENED) * plain + SHARPENED * squared).astype(np.float32)
    return mixed


class Agreement:
    """How often the draft's best token of all is the target's, on answers kept from training."""

    def __init__(self, text: TeacherText, context: int) -> None:
        """Take the windows' length from the context of the models to come, where that is short."""
        length = min(EVALUATION_TOKENS, context)
        starts = np.arange(min(EVALUATION_WINDOWS, (len(text.ids) - 1) // length))[:, None] * length
        self._text, self._positions = text, starts + np.arange(length + 1)

    def __call__(self, model: Model) -> dict[str, float]:
        """Return the share of equal best tokens, and the overlap of both distributions."""
        equal = overlap = total = 0.0
        text = self._text
        for window in self._positions:
            at = window[1:]
            written = text.written[at]
            with torch.no_grad(), autocast("cpu", True):
                logits = model(torch.from_numpy(text.ids[window[:-1]])[None])[0]
            chances = logits.float()[torch.from_numpy(written)].softmax(-1)
            rows = text.row[at[written]]
            top = torch.from_numpy(text.top[rows])
            equal += (chances.argmax(-1) == top[:, 0]).sum().item()
            theirs = torch.from_numpy(text.chances[rows])
            overlap += torch.minimum(chances.gather(1, top), theirs).sum().item()
            total += len(rows)
        return {"agreement": equal / total, "overlap": overlap / total}


def main(argv: Sequence[str] | None = None) -> None:
    """Distil a draft from the command line."""
    show_progress()
    given = parser().parse_args(argv)
    torch.manual_seed(given.seed)
    torch.set_num_threads(given.threads)
    try:
        train, judge = split_shards(given.data / "answers")
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
    train *= given.passes
    if given.plain:
        plain = given.data / "plain.npz"
        if not plain.exists():
            write_plain_text(plain, given.target, given.plain, given.seed)
        train.append(plain)
    text = TeacherText.read(train)
    checkpoint = first_checkpoint(given)
    if given.embedding == "q4_0":
        checkpoint.model.rounding = as_q4_0
    seed = own_seed(given.seed)
    loss = AnswerLoss(checkpoint.model, text, given.frequent, given.sampled, seed)
    windows, agreement = Windows(len(text.ids), seed), Agreement(TeacherText.read(judge), given.context)
    TrainingRun(run_settings(given), checkpoint.model, loss, checkpoint.tokens, windows, agreement).run()


def first_checkpoint(given: argparse.Namespace) -> Checkpoint:
    """Return the draft that the run starts from: an earlier one, or one with the target's embedding."""
    if given.init:
        return read_gguf(given.init) if given.init.suffix == ".gguf" else Checkpoint.load(given.init)
    embedding = projected_embedding(given.target, given.dim)
    heads = given.dim // HEAD
    checkpoint = Checkpoint(
        Model(Config(len(embedding), given.dim, given.layers, heads, given.ffn, given.context)), 0, 0.0
    )
    with torch.no_grad():
        checkpoint.model.token_embd.weight.copy_(embedding)
    return checkpoint


def run_settings(given: argparse.Namespace) -> RunSettings:
    """Return what the command line says about the run."""
    return RunSettings(
        name="draft",
        data=given.data,
        out=given.out,
        seq=given.seq,
        long_fraction=given.long_fraction,
        batch_tokens=given.batch_tokens,
        accumulate=1,
        lr=given.lr,
        weight_decay=0.05,
        minutes=given.minutes,
        tokens=given.tokens,
        decay_from=given.decay_from,
        seed=given.seed,
        device="cpu",
        amp=not given.fp32,
        log_every=20,
        eval_minutes=4,
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(
        prog="distil", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = top.add_argument
    add("data", type=Path)
    add("--target", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--dim", type=int, default=192)
    add("--layers", type=int, default=3)
    add("--ffn", type=int, default=512)
    add("--context", type=int, default=1024)
    add("--seq", type=int, default=256)
    add("--long-fraction", type=float, default=0.1, help="last part run at full context")
    add("--batch-tokens", type=int, default=4096)
    add("--lr", type=float, default=5e-3)
    add("--decay-from", type=float, default=0.3)
    add("--minutes", type=float, default=0)
    add("--tokens", type=float, default=0)
    add("--frequent", type=int, default=4096, help="tokens that every softmax of the training contains")
    add("--sampled", type=int, default=1024, help="other tokens drawn for each batch")
    add("--passes", type=int, default=1, help="times that the answers occur in one pass of all text")
    add("--plain", type=int, default=0, help="characters of ordinary text to read beside the answers")
    add("--embedding", choices=("float", "q4_0"), default="float", help="train it as this type rounds it")
    add("--init", type=Path, help="continue from this checkpoint or GGUF of ours (weights only)")
    add("--threads", type=int, default=1)
    add("--fp32", action="store_true")
    add("--seed", type=int, default=1)
    return top


if __name__ == "__main__":
    main()
