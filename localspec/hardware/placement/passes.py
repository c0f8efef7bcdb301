"""The cost of a pass through a model, wherever its weights are.

A pass reads weights, and the cache of a text, at the rate of their memory. The figures below are
assumptions, which measured costs replace once the models are open; the rules are those of
`localspec.decoding.speed_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf

from localspec.decoding.speed_model import BRANCHES, PredictedSpeed, ssd_speed
from localspec.hardware.bandwidth import PROCESSOR, Rates
from localspec.hardware.memory.needs import LayerSplit, MemoryRequest, experts_at_home, text_bytes
from localspec.models.shape import ExpertWeights, LayerShape, ModelShape

CARD_LAYER_S = 4e-5  # to start a layer's kernels
CORE_LAYER_S = 2e-5  # for the cores to wait for each other
CARD_FURTHER = 0.02  # of a pass, for each further token in it
# the same on the CPU, where arithmetic is soon the limit
FLOAT_FURTHER = 0.15
QUANT_FURTHER = 0.5
# of the time of flash attention on the CPU, measured with heads of 64
WITHOUT_FLASH = 0.4  # a first token
WITHOUT_FLASH_FURTHER = 0.2  # each further one, which the same keys and values serve
CONTENTION = 1.2  # of two that share a memory or a GPU: together they get less than one alone
CACHE_PER_CORE = 2**20  # data in the CPU's caches is not read from memory
# bytes
ACTIVATION = 4
LOGIT = 4
SUMS_PER_LAYER = 2  # of a split by tensor: after the attention, and after the feed-forward part


@dataclass(frozen=True, slots=True)
class Pass:
    """The seconds of one pass, and of the use of each GPU or memory."""

    seconds: float
    busy: dict[str, float]


Experts = Sequence[tuple[int, tuple[ExpertWeights, ...]]]
"""Layers on GPUs, with those of their experts that are on the CPU."""


class Passes:
    """The passes of one model on one machine, wherever its layers are.

    Its cache holds a text as long as the context of `text`, none without. `flash_beside_cards`: whether the
    CPU computes its layers with flash attention while others are on GPUs.
    """

    def __init__(
        self,
        shape: ModelShape,
        rates: Rates,
        cores: int,
        text: MemoryRequest | None = None,
        *,
        flash_beside_cards: bool | None = None,
    ) -> None:
        self._shape = shape
        self._rates = rates
        self._cores = cores
        self._text = text
        self._flash_beside_cards = flash_beside_cards
        cached = [0 if text is None else text_bytes(shape, text, layer) for layer in shape.layers]
        attended = (
            size * self._heads_per_key(layer) for size, layer in zip(cached, shape.layers, strict=True)
        )
        self._cached_up_to = list(accumulate(cached, initial=0))
        self._attended_up_to = list(accumulate(attended, initial=0.0))
        self._used_up_to: dict[int, tuple[list[_Weights], list[_Weights]]] = {}
        self._divided: dict[tuple[float, ...], tuple[Passes, ...]] = {}
        self._is_float = shape.quant.upper() in {"F32", "F16", "BF16"}

    def take(self, split: LayerSplit, tokens: int, threads: int) -> Pass:
        """Return the cost of a pass over `tokens` tokens with `threads` of the CPU."""
        if split.shares:
            return self._take_divided(split, tokens, threads)
        layers = len(self._shape.layers)
        busy: dict[str, float] = {}
        start = layers - split.on_cards
        kept = experts_at_home(self._shape, split)
        seconds = self._on_processor(split, kept, tokens, threads, busy)
        for device, count in zip(split.devices, split.layers, strict=True):
            weights = self._on_device(split, kept, device, (start, start + count), tokens)
            cached = self._cached_up_to[start + count] - self._cached_up_to[start]
            weights += _read(cached, cached, tokens)
            seconds += self._on_card(device, weights, count, busy)
            start += count
        return Pass(seconds + self._crossings(split, kept, tokens), busy)

    def _take_divided(self, split: LayerSplit, tokens: int, threads: int) -> Pass:
        """Return the cost of a pass through a split by tensor: in each layer, all wait for the slowest."""
        if split.shares not in self._divided:
            parts = self._shape.divided(split.shares)
            self._divided[split.shares] = tuple(
                Passes(
                    part,
                    self._rates,
                    self._cores,
                    self._text,
                    flash_beside_cards=self._flash_beside_cards,
                )
                for part in parts
            )
        busy: dict[str, float] = {}
        for device, part in zip(split.devices, self._divided[split.shares], strict=True):
            alone = _on_one(split, device)
            busy[device] = part.take(alone, tokens, threads).busy[device]
        slowest = max(busy.values())
        first = _on_one(split, split.devices[0])
        kept = experts_at_home(self._shape, split)
        here = self._on_processor(first, kept, tokens, threads, busy)
        sum_s = self._rates.sum_s(split.devices, tokens * self._shape.width * ACTIVATION)
        sums_s = SUMS_PER_LAYER * split.on_cards * sum_s
        return Pass(here + slowest + sums_s + self._crossings(first, kept, tokens), busy)

    def _on_processor(
        self, split: LayerSplit, kept: Experts, tokens: int, threads: int, busy: dict[str, float]
    ) -> float:
        layers = len(self._shape.layers) - split.on_cards
        weights = self._on_device(split, (), PROCESSOR, (0, layers), tokens)
        for number, experts in kept:
            size = sum(expert.bytes for expert in experts)
            weights += _read(size, self._shape.layers[number].expert_share * size, tokens)
        read = weights.read + self._cached_up_to[layers]
        if read == 0:
            return 0.0
        rate = self._rates.processor
        used = threads / self._cores
        computed = None if self._is_float else self._rates.measured[PROCESSOR].weights
        # a quarter of the cores reaches half of the memory's rate, three quarters nine tenths
        reads = min(rate * min(1.0, 3 * used / (2 * used + 1)), used * (computed or inf))
        if read > CACHE_PER_CORE * self._cores:
            busy[PROCESSOR] = busy.get(PROCESSOR, 0.0) + read / rate
        further = FLOAT_FURTHER if self._is_float else QUANT_FURTHER
        attended = self._attentions(split, tokens) * self._attended_up_to[layers]
        arithmetic = (further * weights.reused + attended) / (computed or rate)
        return weights.read / reads + arithmetic / used + (layers + len(kept)) * CORE_LAYER_S

    def _heads_per_key(self, layer: LayerShape) -> float:
        """Return the times that the CPU reads a layer's cache for one token: each head does."""
        if not layer.key_values:
            return 0.0
        heads = (self._shape.attention_width or self._shape.width) / layer.key_values
        return max(1.0, heads)

    def _attentions(self, split: LayerSplit, tokens: int) -> float:
        """Return the time of the CPU's attention in a pass, as a multiple of one token's flash attention."""
        here = None if self._text is None else self._text.flash_attention
        is_flash = (self._flash_beside_cards if split.devices else here) is not False
        return tokens if is_flash else WITHOUT_FLASH + (tokens - 1) * WITHOUT_FLASH_FURTHER

    def _on_card(self, device: str, weights: _Weights, layers: int, busy: dict[str, float]) -> float:
        rate = self._rates.of[device].read
        further = self._rates.measured[device].further or CARD_FURTHER
        if self._is_float:
            further = min(further, FLOAT_FURTHER)
        else:
            rate = self._rates.measured[device].weights or rate
        read_s = weights.read / rate
        seconds = read_s + further * weights.reused / rate + layers * CARD_LAYER_S
        busy[device] = seconds
        if self._rates.shares_memory(device):
            busy[PROCESSOR] = busy.get(PROCESSOR, 0.0) + read_s
        return seconds

    def _crossings(self, split: LayerSplit, kept: Experts, tokens: int) -> float:
        """Return the seconds of the ways between devices: there a token is as wide as the model, or a row."""
        state = self._shape.width * ACTIVATION
        back = state if split.output_at_home else self._shape.vocabulary * LOGIT
        devices = (PROCESSOR, *split.devices, PROCESSOR)
        sizes = (*[state] * (len(devices) - 2), back)
        ways = [(*ends, size) for ends, size in zip(pairwise(devices), sizes, strict=True)]
        for device, layers in self._leaving(split, kept):
            ways += [(device, PROCESSOR, state), (PROCESSOR, device, state)] * layers
        seconds = 0.0
        for source, target, size in ways:
            rate = self._rates.link(source, target)
            if rate is not None:
                seconds += self._rates.hand_over_s(source, target) + tokens * size / rate
        return seconds

    def _leaving(self, split: LayerSplit, kept: Experts) -> Iterator[tuple[str, int]]:
        """Yield each GPU with the number of its layers of which the CPU computes a part."""
        numbers = {number for number, _ in kept}
        numbers |= {
            moved.layer
            for moved in self._shape.moved
            if moved.device == PROCESSOR and moved.layer is not None
        }
        start = len(self._shape.layers) - split.on_cards
        for device, count in zip(split.devices, split.layers, strict=True):
            yield device, sum(start <= number < start + count for number in numbers)
            start += count

    def _on_device(
        self, split: LayerSplit, kept: Experts, device: str, span: tuple[int, int], tokens: int
    ) -> _Weights:
        """Return the weights that a pass uses on a device: of its layers, what is moved there, its output."""
        dense, experts = self._up_to(tokens)
        start, end = span
        with_experts = min(max(start, split.experts_at_home), end) if device != PROCESSOR else start
        found = dense[end] - dense[start] + (experts[end] - experts[with_experts])
        for number, parts in kept:
            if start <= number < end and number == split.experts_at_home:  # it has the others
                size = sum(expert.bytes for expert in parts)
                found -= _read(size, self._shape.layers[number].expert_share * size, tokens)
        for moved in self._shape.moved:
            if moved.device == device:
                found += _read(moved.bytes, moved.read_bytes, tokens)
        if device == split.output:
            size = self._shape.output_bytes + self._shape.borrowed_bytes
            found += _read(size, size, tokens)
        return found

    def _up_to(self, tokens: int) -> tuple[list[_Weights], list[_Weights]]:
        """Return the dense weights and the experts that a pass uses of the first layers, by their number."""
        known = self._used_up_to.get(tokens)
        if known is None:
            layers = self._shape.layers
            dense = (_read(layer.dense_bytes, layer.dense_bytes, tokens) for layer in layers)
            experts = (
                _read(layer.expert_bytes, layer.expert_share * layer.expert_bytes, tokens) for layer in layers
            )
            known = _summed(dense), _summed(experts)
            self._used_up_to[tokens] = known
        return known


def _on_one(split: LayerSplit, device: str) -> LayerSplit:
    """Return a split by tensor as one of its devices sees it."""
    return replace(split, devices=(device,), layers=(split.on_cards,), shares=())


@dataclass(frozen=True, slots=True)
class _Weights:
    """Bytes of weights that a pass reads, and of those that its further tokens use again.

    The experts that one token alone uses are read and computed with at the same time.
    """

    read: float = 0.0
    reused: float = 0.0

    def __add__(self, other: _Weights) -> _Weights:
        return _Weights(self.read + other.read, self.reused + other.reused)

    def __sub__(self, other: _Weights) -> _Weights:
        return _Weights(self.read - other.read, self.reused - other.reused)


def _summed(weights: Iterable[_Weights]) -> list[_Weights]:
    return list(accumulate(weights, initial=_Weights()))


def _read(size: float, read_by_one: float, tokens: int) -> _Weights:
    """Return the use of weights by a pass: tokens share them, except experts that only one uses."""
    if not size:
        return _Weights()
    read = size * (1.0 - (1.0 - read_by_one / size) ** tokens)
    return _Weights(read, tokens * read_by_one - read)


def ahead_speed(
    target: Callable[[int], Pass],
    draft: Callable[[int], Pass],
    *,
    take_turns: bool,
    acceptance: float | None = None,
) -> PredictedSpeed:
    """Return the speed of drafting ahead; `take_turns` if the models have too few cores to work at once.

    What both models need at the same time serves one after the other: a GPU, or the way to a memory.
    """
    branches = draft(BRANCHES)

    def overlap(length: int, verify_s: float, prepare_s: float) -> float:
        if take_turns:
            return verify_s + prepare_s
        busy = target(length + 1).busy
        busy_drafting = branches.busy
        shared = [
            CONTENTION * (busy[name] + length * busy_drafting[name]) for name in busy if name in busy_drafting
        ]
        return max(verify_s, *shared, 0.0)

    return ssd_speed(
        lambda tokens: target(tokens).seconds, lambda width: draft(width).seconds, acceptance, overlap
    )
