"""A pair that takes no time: it invents what it would have measured, the same for the same question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import numpy as np

from localspec.decoding.measurements import CallCosts, CostRequest, TraceSegment
from localspec.errors import EngineDied
from localspec.inference.interface import TunableModels
from localspec.tuning.costs import call_costs
from localspec.tuning.distribution_shift import ReadAnswer, RecordedAnswer, read_answer
from localspec.tuning.plan import ReopenedModels
from localspec.tuning.trace import trace
from localspec.types.candidates import Ids
from localspec.types.drafts import DraftOrigin
from localspec.types.events import Finished, GenerationEvent, RoundDone, RoundStats, Summary
from localspec.types.models import DeviceMemory, ModelInfo, PlainRate
from localspec.types.request import EngineSettings, Message, Request

T = TypeVar("T")
WIDTH = 8  # candidates of a trace
TRACED = 24  # tokens of its answers
VERIFY_S = 0.01
PYTHON_S = 0.0001


def info(name: str) -> ModelInfo:
    return ModelInfo(Path(f"{name}.gguf"), name, "llama", 1000, 2000, 2048, 2048, 64, ("the processor",))


GONE = EngineDied("gone")


def open_once(models: object, error: Exception = GONE) -> ReopenedModels:
    """Return models that are open; to open them again raises the error."""
    left = [cast(TunableModels, models)]

    def open_models() -> nullcontext[TunableModels]:
        if not left:
            raise error
        return nullcontext(left.pop())

    opened = ReopenedModels(open_models)
    opened.again()
    return opened


@dataclass
class FakeModels:
    """Answers in no time; `step_s` is what a draft token costs, `acceptance` how often it is accepted."""

    step_s: float = 0.001
    acceptance: float = 0.8
    asked: list[Request] = field(default_factory=list)
    traced: int = 0
    measured: int = 0
    second: float = 0.3
    slowness: float = 1.0  # times what an answer takes
    is_open: bool = True
    notes: tuple[str, ...] = ()
    target: ModelInfo = field(default_factory=lambda: info("target"))
    draft: ModelInfo | None = field(default_factory=lambda: info("draft"))

    def __enter__(self) -> Self:
        self.is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False

    def close(self) -> None:
        self.is_open = False

    def cancel(self) -> None:
        """Nothing runs for long."""

    def first_call_s(self) -> float | None:
        """Return None: it runs on no GPU."""
        return None

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return sum(len(message.content.split()) for message in messages)

    def memory(self) -> tuple[DeviceMemory, ...]:
        return ()

    def measure_plain(self) -> PlainRate | None:
        return None

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        return settings or EngineSettings(), "asked for"

    def perform(self, task: Callable[..., T], *arguments: object) -> T:
        works: dict[object, Callable[..., Any]] = {
            trace: self.trace,
            call_costs: self.measure_costs,
            read_answer: self.read,
        }
        return cast(T, works[task](*arguments))

    def measure_costs(self, wish: CostRequest) -> CallCosts:
        self.measured += 1
        verify = tuple((size, VERIFY_S * (1 + 0.02 * (size - 1))) for size in wish.verify_sizes)
        step = tuple((width, self.step_s * (1 + 0.01 * width)) for width in wish.step_widths)
        return CallCosts(wish.depth, wish.together, verify, step)

    def read(self, answer: RecordedAnswer, candidates: Ids | None = None) -> ReadAnswer:
        """Return the same two candidates everywhere, the second as likely as `second` says."""
        count = len(answer.tokens)
        ids = np.tile(np.arange(2), (count, 1)) if candidates is None else candidates
        probs = np.tile([0.9 - self.second, self.second], (count, 1))
        return ReadAnswer(np.full(count, int(self.second > 0.45)), ids, probs)

    def trace(self, request: Request) -> TraceSegment:
        self.traced += 1
        random = np.random.default_rng(request.seed or 0)
        n = TRACED
        target = random.dirichlet([0.2] * WIDTH, size=n)
        ids = np.tile(np.arange(WIDTH, dtype=np.int32), (n, 1))
        agree = self.acceptance * target + (1 - self.acceptance) / WIDTH
        tokens = np.array([random.choice(WIDTH, p=row / row.sum()) for row in target], dtype=np.int32)
        by_target, by_draft = np.argsort(-target, axis=1), np.argsort(-agree, axis=1)
        logits = np.log(np.take_along_axis(agree, by_draft, axis=1))
        return TraceSegment(
            prompt=(1, 2, 3),
            tokens=tokens,
            target_ids=np.take_along_axis(ids, by_target, axis=1),
            target_probs=np.take_along_axis(target, by_target, axis=1).astype(np.float32),
            target_of_token=target[np.arange(n), tokens].astype(np.float32),
            draft_ids=np.take_along_axis(ids, by_draft, axis=1),
            draft_logits=(logits - logits[:, :1]).astype(np.float32),
            target_of_draft=np.take_along_axis(target, by_draft, axis=1).astype(np.float32),
            decode_s=n * VERIFY_S,
            ended=False,
        )

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self.asked.append(request)
        settings = request.settings
        random = np.random.default_rng(request.seed or 0)
        drafts = 0 if settings.mode in {"off", "ngram"} else min(settings.draft_length, 4)
        left, rounds, hits, decode_s = request.max_tokens or 32, 0, 0, 0.0
        tokens = left
        while left > 0:
            accepted = min(int(random.geometric(1 - self.acceptance)) - 1, drafts, left - 1)
            ahead = settings.mode == "ssd" and bool(random.random() < 0.8)
            stats = RoundStats(
                drafted=drafts,
                accepted=accepted,
                origin=(DraftOrigin.AHEAD if ahead else DraftOrigin.FRESH) if drafts else DraftOrigin.NONE,
                verify_s=VERIFY_S * (1 + 0.02 * drafts),
                draft_s=0.0 if ahead else self.step_s * drafts,
                wait_s=0.0,
                python_s=PYTHON_S,
            )
            decode_s += stats.verify_s + stats.draft_s + stats.python_s
            left, rounds, hits = left - accepted - 1, rounds + 1, hits + ahead
            yield RoundDone(stats, accepted + 1)
        misses = rounds - hits if settings.mode == "ssd" else 0
        summary = Summary(prompt_tokens=8, tokens=tokens, rounds=rounds, hits=hits, misses=misses)
        decode_s *= self.slowness
        yield Finished("length", replace(summary, decode_s=decode_s, first_token_s=VERIFY_S))
