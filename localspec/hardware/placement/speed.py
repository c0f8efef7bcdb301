"""What passes through a model should take on given devices, and the speed that follows; pure.

A pass reads weights at the rate of the memory that they lie in. The figures below are assumptions that
measured costs replace once the models are open; the rules are those of `localspec.decoding.speed_model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from localspec.decoding.speed_model import BRANCHES, PredictedSpeed, ssd_speed
from localspec.hardware.bandwidth import PROCESSOR, Rates
from localspec.hardware.memory.needs import LayerSplit
from localspec.models.shape import ModelShape

CARD_LAYER_S = 4e-5  # to start a layer's kernels
CORE_LAYER_S = 2e-5  # for the cores to wait for each other
CARD_FURTHER = 0.02  # of a pass, for each further token in it
FLOAT_FURTHER, QUANT_FURTHER = 0.15, 0.5  # the same on the processor, whose arithmetic soon is the limit
CONTENTION = 1.2  # of two that share a memory or a card: together they get less than one alone
CROSSING_S = 3e-5  # to hand over from one device to another
CACHE_PER_CORE = 2**20  # what stays in the processor's own caches is not read from memory
ACTIVATION, LOGIT = 4, 4  # bytes

PassAt = Callable[[int], "Pass"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Seconds of one pass, and how long it keeps each card or memory busy."""

    seconds: float
    busy: dict[str, float]


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


def ahead_speed(
    target: PassAt, draft: PassAt, *, take_turns: bool, acceptance: float | None = None
) -> PredictedSpeed:
    """Return the speed of drafting ahead; `take_turns` if the models have too few cores to work at once.

    What both models need at the same time serves one after the other: a card, or the way to a memory.
    """
    branches = draft(BRANCHES)

    def overlap(length: int, verify_s: float, prepare_s: float) -> float:
        if take_turns:
            return verify_s + prepare_s
        busy, busy_drafting = target(length + 1).busy, branches.busy
        shared = [
            CONTENTION * (busy[name] + length * busy_drafting[name]) for name in busy if name in busy_drafting
        ]
        return max(verify_s, *shared, 0.0)

    return ssd_speed(
        lambda tokens: target(tokens).seconds, lambda width: draft(width).seconds, acceptance, overlap
    )
