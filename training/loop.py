"""The training loop: batches in, a checkpoint out; its length is a time, a number of tokens, or both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.losses import Loss, autocast, evaluate, make_optimizers, schedule
from training.model import Checkpoint, Model
from training.progress import log
from training.workers import Workers, own_seed

SMOOTHING = 0.95  # of the loss that is reported


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How one model is trained; whichever of minutes and tokens ends first ends the run, 0 is no limit."""

    name: str
    data: Path
    out: Path
    seq: int  # tokens of a window, for most of the run
    long_fraction: float  # last part of the run, at full context, so that late positions are seen
    batch_tokens: int
    accumulate: int
    lr: float
    weight_decay: float
    minutes: float
    tokens: float
    decay_from: float  # progress at which the rate starts to fall
    seed: int
    device: str
    amp: bool
    log_every: int  # steps
    eval_minutes: float


class Windowed(Protocol):
    """Where a run's batches come from."""

    def take(self, rows: int, seq: int) -> NDArray[np.int64]:
        """Return the next windows, int64 (rows, seq + 1): read without the last, wanted without the first."""
        ...


Judge = Callable[[Model], dict[str, float]]
"""Say how good a model is, in figures with a name."""


class HeldOutLosses:
    """The loss in nats per token on the held-out documents of each kind."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._held_out: Mapping[str, NDArray[np.uint16]] = np.load(settings.data / "heldout.npz")

    def __call__(self, model: Model) -> dict[str, float]:
        """Return the losses."""
        return evaluate(model, self._held_out, self._settings.device, self._settings.amp)


class Windows:
    """Random windows of a stream, as positions; every pass visits each window once."""

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._rng = length, np.random.default_rng(seed)
        self._starts: list[int] = []
        self._seq = 0

    def take(self, rows: int, seq: int) -> NDArray[np.int64]:
        """Return the positions of the next windows, int64 (rows, seq + 1)."""
        if seq != self._seq:
            self._seq, self._starts = seq, []
        starts = np.array([self._start() for _ in range(rows)], np.int64)
        return starts[:, None] + np.arange(seq + 1)

    def _start(self) -> int:
        if not self._starts:
            shift = int(self._rng.integers(0, self._seq))  # a new alignment on every pass
            windows = (self._length - 1 - shift) // self._seq
            self._starts = (self._rng.permutation(windows) * self._seq + shift).tolist()
        return self._starts.pop()


class Batches:
    """Random windows of `train.bin`."""

    def __init__(self, path: Path, seed: int) -> None:
        self._ids: NDArray[np.uint16] = np.memmap(path, dtype=np.uint16, mode="r")
        self._windows = Windows(len(self._ids), seed)

    def take(self, rows: int, seq: int) -> NDArray[np.int64]:
        """Return the next windows, int64 (rows, seq + 1)."""
        return self._ids[self._windows.take(rows, seq)].astype(np.int64)


class TrainingRun:
    """One model on its way from its first step to its checkpoint."""

    def __init__(
        self,
        settings: RunSettings,
        model: Model,
        loss: Loss,
        tokens_before: int,
        batches: Windowed | None = None,
        judge: Judge | None = None,
    ) -> None:
        """Take windows of `train.bin` and the losses on `heldout.npz`, unless others are given."""
        self._settings, self._model, self._loss = settings, model, loss
        self._workers = Workers.join(settings.device)
        seed = own_seed(settings.seed)
        self._batches = batches or Batches(settings.data / "train.bin", seed)
        self._optimizers = make_optimizers(model, settings.lr, settings.weight_decay)
        self._judge = judge or HeldOutLosses(settings)
        self._tokens_before, self._tokens, self._steps = tokens_before, 0, 0
        self._smooth_loss: float | None = None
        self._start = self._last_evaluation = time.time()

    def run(self) -> None:
        """Train until time or tokens are used up, and save."""
        settings = self._settings
        settings.out.mkdir(parents=True, exist_ok=True)
        if self._workers.is_first:
            parameters = sum(weight.numel() for weight in self._model.parameters())
            shape = asdict(self._model.cfg)
            log.info("%s: %.2f M parameters, config %s", settings.name, parameters / 1e6, shape)
        if settings.device == "cuda":
            torch.set_float32_matmul_precision("high")
        while (progress := self._workers.agree(self._progress())) < 1:
            loss = self._step(progress)
            if self._workers.is_first:
                self._report(progress, loss)
        if self._workers.is_first:
            self._finish()

    def _progress(self) -> float:
        settings = self._settings
        by_time = (time.time() - self._start) / (60 * settings.minutes) if settings.minutes else 0.0
        by_tokens = self._tokens / settings.tokens if settings.tokens else 0.0
        return max(by_time, by_tokens)

    def _step(self, progress: float) -> float:
        settings = self._settings
        is_long = progress >= 1 - settings.long_fraction
        seq = self._model.cfg.context if is_long else settings.seq
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self._rate(progress)
        total = 0.0
        for _ in range(settings.accumulate):
            x, y = self._next_batch(seq)
            with autocast(settings.device, settings.amp):
                loss = self._loss(x, y)
            (loss / settings.accumulate).backward()
            total += loss.item() / settings.accumulate
        self._workers.average_gradients(self._model)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._tokens += settings.batch_tokens
        self._steps += 1
        return total

    def _rate(self, progress: float) -> float:
        return self._settings.lr * schedule(progress, self._settings.decay_from)

    def _next_batch(self, seq: int) -> tuple[Tensor, Tensor]:
        tokens = self._settings.batch_tokens // self._settings.accumulate // self._workers.world
        rows = torch.from_numpy(self._batches.take(tokens // seq, seq))
        rows = rows.to(self._settings.device, non_blocking=True)
        return rows[:, :-1], rows[:, 1:]

    def _report(self, progress: float, loss: float) -> None:
        settings = self._settings
        smooth = self._smooth_loss
        self._smooth_loss = loss if smooth is None else SMOOTHING * smooth + (1 - SMOOTHING) * loss
        if self._steps % settings.log_every == 0 or self._steps <= 3:
            speed = self._tokens / (time.time() - self._start)
            line = (
                f"{settings.name} step {self._steps} tokens {self._tokens / 1e6:.2f}M "
                f"loss {self._smooth_loss:.3f} progress {progress:.3f} "
                f"lr {self._rate(progress):.5f} {speed:.0f} tokens/s"
            )
            log.info(line)
            with (settings.out / f"{settings.name}.log").open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        if time.time() - self._last_evaluation > 60 * settings.eval_minutes:
            self._save({})
            self._evaluate()
            self._last_evaluation = time.time()

    def _evaluate(self) -> dict[str, float]:
        losses = self._judge(self._model)
        log.info("held-out %s", {kind: round(loss, 3) for kind, loss in losses.items()})
        return losses

    def _save(self, held_out: dict[str, float]) -> None:
        tokens = self._tokens_before + self._tokens
        checkpoint = Checkpoint(self._model, tokens, time.time() - self._start, held_out)
        checkpoint.save(self._settings.out / f"{self._settings.name}.pt")

    def _finish(self) -> None:
        self._save(self._evaluate())
        seconds = time.time() - self._start
        log.info(
            "%s done: %d tokens, %.0f s", self._settings.name, self._tokens_before + self._tokens, seconds
        )
