"""What passes through a model should take on given devices, and the speed that follows; pure.

A pass reads weights at the rate of the memory that they lie in. The figures below are assumptions that
measured costs replace once the models are open; the rules are those of `localspec.decoding.speed_model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from localspec.hardware.bandwidth import PROCESSOR, Rates
from localspec.hardware.placement.constraints import LayerSplit
from localspec.models.shape import ModelShape

ACCEPTANCE = 0.7  # of a draft token
HIT_RATE = 0.7  # of prepared outcomes
BRANCHES = 4  # of a draft call that prepares outcomes
LEAST_GAIN = 1.05  # below it speculation is not worth its memory and its noise
LENGTHS = range(1, 9)
PYTHON_S = 2e-4  # around each native call that the target waits for
HANDOFF_S = 3e-4  # per round, for two threads to take turns

CARD_LAYER_S = 4e-5  # to start a layer's kernels
CORE_LAYER_S = 2e-5  # for the cores to wait for each other
CARD_FURTHER = 0.02  # of a pass, for each further token in it
FLOAT_FURTHER, QUANT_FURTHER = 0.15, 0.5  # the same on the processor, whose arithmetic soon is the limit
CONTENTION = 1.2  # of two that share a memory or a card: together they get less than one alone
CROSSING_S = 3e-5  # to hand over from one device to another
CACHE_PER_CORE = 2**20  # what stays in the processor's own caches is not read from memory
ACTIVATION, LOGIT = 4, 4  # bytes

PlanMode = Literal["off", "sd", "ssd"]
PassAt = Callable[[int], "Pass"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Seconds of one pass, and how long it keeps each card or memory busy."""

    seconds: float
    busy: dict[str, float]


@dataclass(frozen=True, slots=True)
class Speed:
    """The expected speed of one way of decoding, at its best draft length."""

    mode: PlanMode
    tokens_per_s: float
    draft_length: int = 0


class Passes:
    """The passes of one model on one machine, wherever its layers are."""

    def __init__(self, shape: ModelShape, rates: Rates, cores: int) -> None:
        self._shape = shape
        self._rates = rates
        self._cores = cores
        self._read_up_to: dict[int, list[float]] = {}
        self._is_float = shape.quant.upper() in {"F32", "F16", "BF16"}

    def take(self, split: LayerSplit, tokens: int, threads: int) -> Pass:
        """Return the cost of a pass over `tokens` tokens with `threads` of the processor."""
        layers = len(self._shape.layers)
        busy: dict[str, float] = {}
        start = layers - split.on_cards
        seconds = self._on_processor(start, not split.devices, tokens, threads, busy)
        for device, count in zip(split.devices, split.layers, strict=True):
            is_last = device == split.devices[-1]
            seconds += self._on_card(device, (start, start + count), is_last, tokens, busy)
            start += count
        return Pass(seconds + self._crossings(split.devices, tokens), busy)

    def _on_processor(
        self, layers: int, has_output: bool, tokens: int, threads: int, busy: dict[str, float]
    ) -> float:
        size = self._read(0, layers, has_output, tokens)
        if size == 0:
            return 0.0
        rate = self._rates.processor
        # a quarter of the cores reaches half of the memory's rate, three quarters nine tenths
        share = min(1.0, 3 * threads / (2 * threads + self._cores))
        if size > CACHE_PER_CORE * self._cores:
            busy[PROCESSOR] = busy.get(PROCESSOR, 0.0) + size / rate
        further = FLOAT_FURTHER if self._is_float else QUANT_FURTHER
        arithmetic = (tokens - 1) * further * self._read(0, layers, has_output, 1) / rate
        return size / rate / share + arithmetic * self._cores / threads + layers * CORE_LAYER_S

    def _on_card(
        self, device: str, span: tuple[int, int], is_last: bool, tokens: int, busy: dict[str, float]
    ) -> float:
        read_s = self._read(*span, is_last, tokens) / self._rates.of[device].read
        seconds = read_s * (1.0 + CARD_FURTHER * (tokens - 1)) + (span[1] - span[0]) * CARD_LAYER_S
        busy[device] = seconds
        if self._rates.shares_memory(device):
            busy[PROCESSOR] = busy.get(PROCESSOR, 0.0) + read_s
        return seconds

    def _crossings(self, devices: tuple[str, ...], tokens: int) -> float:
        if not devices:
            return 0.0
        seconds = 0.0
        for source, target in pairwise((PROCESSOR, *devices)):
            rate = self._rates.link(source, target)
            if rate is not None:
                seconds += CROSSING_S + tokens * self._shape.width * ACTIVATION / rate
        rate = self._rates.link(devices[-1], PROCESSOR)
        if rate is not None:
            seconds += CROSSING_S + tokens * self._shape.vocabulary * LOGIT / rate
        return seconds

    def _read(self, start: int, end: int, has_output: bool, tokens: int) -> float:
        """Return the bytes that some layers read: tokens share weights, except experts that only one uses."""
        known = self._read_up_to.get(tokens)
        if known is None:
            sizes = (
                layer.weight_bytes * (1.0 - (1.0 - layer.read_bytes / layer.weight_bytes) ** tokens)
                if layer.weight_bytes
                else 0.0
                for layer in self._shape.layers
            )
            known = self._read_up_to[tokens] = list(accumulate(sizes, initial=0.0))
        return known[end] - known[start] + (self._shape.output_bytes if has_output else 0)


def plain_speed(target: PassAt) -> Speed:
    """Return the speed of plain decoding."""
    return Speed("off", 1.0 / (target(1).seconds + PYTHON_S))


def waiting_speed(target: PassAt, draft: PassAt, *, acceptance: float | None = None) -> Speed:
    """Return the speed of speculative decoding, where the models take turns."""
    step_s = draft(1).seconds

    def speed(length: int) -> Speed:
        seconds = target(length + 1).seconds + length * step_s + (length + 1) * PYTHON_S
        return Speed("sd", _tokens(length, acceptance) / seconds, length)

    return max(map(speed, LENGTHS), key=_rate)


def ahead_speed(target: PassAt, draft: PassAt, *, take_turns: bool, acceptance: float | None = None) -> Speed:
    """Return the speed of drafting ahead; `take_turns` if the models have too few cores to work at once.

    What both models need at the same time serves one after the other: a card, or the way to a memory.
    Prepared outcomes are thought to hit as often as a draft's tokens are known to be accepted.
    """
    step_s, branches = draft(1).seconds, draft(BRANCHES)
    hits = HIT_RATE if acceptance is None else acceptance

    def speed(length: int) -> Speed:
        verify = target(length + 1)
        verify_s = verify.seconds + PYTHON_S + HANDOFF_S
        prepare_s = length * (branches.seconds + PYTHON_S)
        shared = [
            CONTENTION * (seconds + length * branches.busy[name])
            for name, seconds in verify.busy.items()
            if name in branches.busy
        ]
        work_s = verify_s + prepare_s if take_turns else max(verify_s, *shared, 0.0)
        hit_s = max(work_s, prepare_s)
        miss_s = work_s + length * (step_s + PYTHON_S)
        seconds = hits * hit_s + (1.0 - hits) * miss_s
        return Speed("ssd", _tokens(length, acceptance) / seconds, length)

    return max(map(speed, LENGTHS), key=_rate)


def ranked(speeds: list[Speed]) -> tuple[Speed, ...]:
    """Return speeds, the best first; plain decoding stays first where speculation gains next to nothing."""
    order = sorted(speeds, key=_rate, reverse=True)
    plain = next(speed for speed in speeds if speed.mode == "off")
    if order[0].tokens_per_s < LEAST_GAIN * plain.tokens_per_s:
        order.remove(plain)
        order.insert(0, plain)
    return tuple(order)


def _rate(speed: Speed) -> float:
    return speed.tokens_per_s


def _tokens(length: int, acceptance: float | None) -> float:
    rate = ACCEPTANCE if acceptance is None else acceptance
    return sum(rate**accepted for accepted in range(length + 1))
