"""Candidate placements: devices, memory and expected speed.

A pass reads weights at the rate of their memory. The figures below are assumptions, which measured costs
replace once the models are open; the rules are those of `localspec.decoding.speed_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from math import inf

from localspec.decoding.speed_model import (
    BRANCHES,
    PredictedSpeed,
    plain_speed,
    ranked,
    sd_speed,
    shared_cores,
    ssd_speed,
)
from localspec.errors import UserError
from localspec.hardware.bandwidth import PROCESSOR, Rates
from localspec.hardware.device_info import Machine
from localspec.hardware.memory.budget import LayerSizes, MemoryBudget, Shortage
from localspec.hardware.memory.needs import (
    DEFAULT_CONTEXT,
    ROWS,
    CacheTypes,
    DeviceNeed,
    LayerSplit,
    MemoryRequest,
    by_shares,
    context_size,
    draft_flash_attention,
    estimate,
)
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape
from localspec.types.request import Mode


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """The placement of one model: `layers` on each of `devices` in order, the rest on the CPU.

    Without devices, all layers are on the CPU. Field names are those of `ModelOptions` where it has them.
    """

    devices: tuple[str, ...]
    layers: tuple[int, ...]
    threads: int
    context: int
    needs: tuple[DeviceNeed, ...]
    output_at_home: bool = False
    prediction_layers: int = 0  # which llama.cpp counts after the last layer


@dataclass(frozen=True, slots=True)
class Alternative:
    """A rejected placement: its description, the reason, and its expected speed."""

    description: str
    reason: str
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of both models; `reasons` are shown to the user word for word."""

    target: DeviceAssignment
    draft: DeviceAssignment | None
    mode: Mode
    tokens_per_s: float | None  # expected from rates and sizes
    reasons: tuple[str, ...]
    rejected: tuple[Alternative, ...] = ()


COMFORTABLE_CONTEXT = 4096  # less is not taken for speed alone
MIN_CONTEXT = 512
WORTH_A_SMALLER_CONTEXT = 1.2
_CORRECTIONS = 4
CARD_LAYER_S = 4e-5  # to start a layer's kernels
CORE_LAYER_S = 2e-5  # for the cores to wait for each other
CARD_FURTHER = 0.02  # of a pass, for each further token in it
FLOAT_FURTHER, QUANT_FURTHER = 0.15, 0.5  # the same on the CPU, where arithmetic is soon the limit
CONTENTION = 1.2  # of two that share a memory or a GPU: together they get less than one alone
CACHE_PER_CORE = 2**20  # data in the CPU's caches is not read from memory
ACTIVATION, LOGIT = 4, 4  # bytes


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """One placement: splits, needs, what is too much, and the expected speeds, the best first."""

    context: int
    target: LayerSplit
    draft: LayerSplit | None
    target_needs: tuple[DeviceNeed, ...]
    draft_needs: tuple[DeviceNeed, ...]
    shortages: tuple[Shortage, ...]
    speeds: tuple[PredictedSpeed, ...]
    slack: float  # smallest share of free memory on a GPU in use

    @property
    def best(self) -> PredictedSpeed:
        """Return the way of decoding that this placement would use."""
        return self.speeds[0]

    @property
    def preference(self) -> tuple[float, float, int, float]:
        """Return the sort key of candidates: speed, then chances, then free memory."""
        speculative = max((speed.tokens_per_s for speed in self.speeds if speed.mode != "off"), default=0.0)
        return (
            float(f"{self.best.tokens_per_s:.4g}"),
            float(f"{speculative:.4g}"),
            -len(self.target.devices),
            self.slack,
        )


@dataclass(frozen=True, slots=True)
class Threads:
    """Cores of the CPU that each model gets, alone and while the other works."""

    alone: tuple[int, int]
    together: tuple[int, int]
    take_turns: bool = False  # because there are too few cores for both


class PlacementSearch:
    """Looks for placements of one pair on one machine."""

    def __init__(
        self,
        machine: Machine,
        models: tuple[ModelShape, ModelShape | None],
        request: PairRequest,
    ) -> None:
        self.target, self.draft = models
        self.contexts = _contexts(self.target, request.context or 0)
        self._at: dict[int, tuple[PlacementCandidate, ...]] = {}
        self.request = request
        self.rates = Rates(machine)
        self.budget = MemoryBudget(machine, request.reserve)
        self.cores = max(1, self.budget.devices[PROCESSOR].cores)
        self._passes = Passes(self.target, self.rates, self.cores)
        self._draft_passes = Passes(self.draft, self.rates, self.cores) if self.draft else None
        for names in (request.target.devices or (), request.draft.devices or ()):
            self._check(names)

    def _check(self, names: tuple[str, ...]) -> None:
        unknown = [name for name in names if name not in self.budget.devices]
        if unknown:
            raise UserError(
                f"no device is called {unknown[0]!r}", f"devices: {', '.join(self.budget.devices)}"
            )
        if len(set(names)) != len(names):
            raise UserError(f"a device is named twice: {', '.join(names)}", "name each device once")

    def at(self, context: int) -> tuple[PlacementCandidate, ...]:
        """Return every placement worth a look with a context, also those that do not fit."""
        if context not in self._at:
            self._at[context] = tuple(self._candidates(context))
        return self._at[context]

    def fitting(self, context: int) -> PlacementCandidate | None:
        """Return the best candidate that fits with a context."""
        fits = [found for found in self.at(context) if not found.shortages]
        return max(fits, key=lambda found: found.preference, default=None)

    def chosen(self) -> PlacementCandidate | None:
        """Return the best candidate, with a smaller context only where that is worth it."""
        fits = (self.fitting(context) for context in self.contexts)
        first = next((found for found in fits if found is not None), None)
        if first is not None and first.context > COMFORTABLE_CONTEXT in self.contexts:
            smaller = self.fitting(COMFORTABLE_CONTEXT)
            gain = WORTH_A_SMALLER_CONTEXT * first.best.tokens_per_s
            if smaller is not None and smaller.best.tokens_per_s >= gain:
                return smaller
        return first

    def nearest(self) -> PlacementCandidate:
        """Return the candidate that lacks least, with the smallest context."""
        candidates = self.at(self.contexts[-1])
        return min(candidates, key=lambda found: sum(short.missing for short in found.shortages))

    def _candidates(self, context: int) -> Iterator[PlacementCandidate]:
        sizes = self._sizes(self.target, context)
        for draft in self._draft_splits(context):
            taken = () if draft is None or self.draft is None else self._needs(self.draft, draft, context)
            seen = set()
            for split in self._with_outputs(self._target_splits(sizes, taken, context)):
                if split not in seen and self._may_draft(split, draft):
                    seen.add(split)
                    yield self._candidate(context, split, draft, taken)

    def _may_draft(self, target: LayerSplit, draft: LayerSplit | None) -> bool:
        """Return whether the draft can be placed so: a head must be with its target's last layer."""
        asked = (self.request.draft.devices, self.request.draft.gpu_layers)
        if self.draft is None or draft is None or not self.draft.is_head or asked != (None, None):
            return True
        return draft.devices[-1:] == target.devices[-1:]

    def _candidate(
        self, context: int, target: LayerSplit, draft: LayerSplit | None, taken: tuple[DeviceNeed, ...]
    ) -> PlacementCandidate:
        needs = self._needs(self.target, target, context)
        left = self.budget.left((*needs, *taken))
        used = {need.device for need in (*needs, *taken)} & set(self.budget.cards)
        return PlacementCandidate(
            context=context,
            target=target,
            draft=draft,
            target_needs=needs,
            draft_needs=taken,
            shortages=self.budget.shortages((*needs, *taken)),
            speeds=self._speeds(target, draft),
            slack=min((left[name] / max(1, self.budget.free[name]) for name in used), default=1.0),
        )

    def memory_request(self, shape: ModelShape, split: LayerSplit, context: int) -> MemoryRequest:
        """Return the memory request of one of the two models with the requested cache."""
        asked = self.request
        flash, batch = asked.flash, asked.micro_batch_size
        if shape is not self.draft:
            cache = CacheTypes(*asked.target.kv_types)
            return MemoryRequest(split, context, cache, flash, batch, swa_full=asked.swa_full)
        held, here = CacheTypes(*asked.draft.kv_types), self.uses_processor(shape, split)
        if shape.is_head:
            return MemoryRequest(split, context, held, flash, min(batch, ROWS), swa_full=True)
        flash = draft_flash_attention(flash, held.values, on_processor=here)
        return MemoryRequest(split, context, held, flash, batch, shape.branches(asked.max_fan_out) + 1)

    def _needs(self, shape: ModelShape, split: LayerSplit, context: int) -> tuple[DeviceNeed, ...]:
        return estimate(shape, self.memory_request(shape, split, context))

    def _sizes(self, shape: ModelShape, context: int) -> LayerSizes | None:
        if not self.budget.cards:
            return None
        card = self.budget.cards[0]
        whole = LayerSplit((card,), (len(shape.layers),))
        return LayerSizes(shape, self.memory_request(shape, whole, context), card)

    # --- possible placements

    def _draft_splits(self, context: int) -> list[LayerSplit | None]:
        shape, request = self.draft, self.request
        if shape is None or request.mode in {"off", "ngram"}:
            return [None]
        given, asked, layers = request.draft.devices, request.draft.gpu_layers, len(shape.layers)
        names = tuple(name for name in (self.budget.cards if given is None else given) if name != PROCESSOR)
        if asked == 0 or (given is not None and not names):
            return [LayerSplit()]
        most = layers if asked is None else min(layers, max(0, asked - shape.prediction_layers - 1))
        sizes = self._sizes(shape, context)
        if given is not None and len(names) > 1 and sizes is not None:
            return [sizes.fill(names, dict(self.budget.free), most)]
        found: list[LayerSplit | None] = [LayerSplit((name,), (most,)) for name in names]
        if given is None and (asked is None or not names):
            found.append(LayerSplit())
            if request.mode is None:
                found.append(None)
        return found

    def _target_splits(
        self, sizes: LayerSizes | None, taken: Sequence[DeviceNeed], context: int
    ) -> Iterator[LayerSplit]:
        request, layers, predicting = self.request, len(self.target.layers), self.target.prediction_layers
        every, names = layers + predicting + 1, self._cards
        if sizes is None or not names or request.target.gpu_layers == 0:
            yield LayerSplit()
            return
        asked = request.target.gpu_layers
        shares = (*request.tensor_split, *(0.0 for _ in names))[: len(names)]
        if any(shares):
            yield by_shares(names, shares, every if asked is None else asked, layers, predicting)
            return
        most = layers if asked is None else min(layers, max(0, asked - predicting - 1))
        for order in self._orders(names):
            split = self._filled(sizes, order, taken, most, context)
            if asked is None or split.on_cards == most:
                yield split
            if self.is_remote(order[-1]) and asked is None:  # without the output, more layers may fit
                yield self._filled(sizes, order, taken, most, context, at_home=True)
        left = self.budget.left(taken)
        shares = tuple(max(1.0, left[name]) for name in names)
        yield by_shares(names, shares, most + predicting + 1, layers, predicting)
        if asked is None and request.target.devices is None:
            yield LayerSplit()

    @property
    def _cards(self) -> tuple[str, ...]:
        """Return the devices that the target may use in addition to the CPU."""
        given = self.request.target.devices
        return tuple(name for name in (self.budget.cards if given is None else given) if name != PROCESSOR)

    def _with_outputs(self, splits: Iterable[LayerSplit]) -> Iterator[LayerSplit]:
        """Yield splits, and those that end on another machine also with the output layer here."""
        for split in splits:
            yield split
            if not any(map(self.is_remote, split.devices[-1:])):
                continue
            yield replace(split, output_at_home=True)
            layers = dict(zip(split.devices, split.layers, strict=True))
            for card in self._cards if not self.request.tensor_split else ():
                if not self.is_remote(card):  # the last one has the output
                    count = layers.get(card, 0)
                    others = {name: number for name, number in layers.items() if name != card}
                    yield LayerSplit((*others, card), (*others.values(), count))

    def is_remote(self, name: str) -> bool:
        """Return whether a device is another machine's."""
        return self.budget.devices[name].kind == "remote"

    def _orders(self, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield groups of GPUs, the fastest last: that is where layers go first."""
        order = tuple(sorted(names, key=lambda name: self.rates.of[name].read))
        for start in range(len(order)):
            yield order[start:]
        for at in range(len(order) if len(order) > 1 else 0):  # without the only one it would be no GPU
            yield order[:at] + order[at + 1 :]
            yield (order[at],)

    def _filled(
        self,
        sizes: LayerSizes,
        order: tuple[str, ...],
        taken: Sequence[DeviceNeed],
        most: int,
        context: int,
        *,
        at_home: bool = False,
    ) -> LayerSplit:
        """Fill GPUs, and take back what the exact need shows to be too much."""
        left = self.budget.left(taken)
        split = sizes.fill(order, left, most, at_home=at_home)
        for _ in range(_CORRECTIONS):
            short = self.budget.shortages((*self._needs(self.target, split, context), *taken))
            cards = [shortage for shortage in short if shortage.device in split.devices]
            if not cards:
                break
            for shortage in cards:
                left[shortage.device] -= shortage.missing
            split = sizes.fill(order, left, most, at_home=at_home)
        return split

    # --- how fast they would be

    def _speeds(self, target: LayerSplit, draft: LayerSplit | None) -> tuple[PredictedSpeed, ...]:
        threads, passes, draft_passes = self.threads(target, draft), self._passes, self._draft_passes

        @cache
        def verify(tokens: int) -> Pass:
            return passes.take(target, tokens, threads.alone[0])

        plain = plain_speed(lambda tokens: verify(tokens).seconds)
        if draft is None or draft_passes is None:
            return (plain,)
        known = self.draft.acceptance if self.draft else None
        ahead = ahead_speed(
            cache(lambda tokens: passes.take(target, tokens, threads.together[0])),
            cache(lambda width: draft_passes.take(draft, width, threads.together[1])),
            take_turns=threads.take_turns,
            acceptance=known,
        )
        waiting = sd_speed(
            lambda tokens: verify(tokens).seconds,
            lambda width: draft_passes.take(draft, width, threads.alone[1]).seconds,
            known,
        )
        is_head = self.draft is not None and self.draft.is_head
        shared = {*draft.devices} & {*target.devices}  # see `Contexts`
        waits = is_head or any(map(self.is_remote, shared))
        speeds = tuple(ranked([plain, waiting] if waits else [plain, waiting, ahead]))
        if self.request.mode in {"sd", "ssd"}:
            wanted = "sd" if waits else self.request.mode
            asked = next(speed for speed in speeds if speed.mode == wanted)
            speeds = (asked, *(speed for speed in speeds if speed is not asked))
        return speeds

    def uses_processor(self, shape: ModelShape | None, split: LayerSplit | None) -> bool:
        """Return whether the CPU computes a part of a model, if it is open."""
        if shape is None or split is None:
            return False
        return split.output == PROCESSOR or split.on_cards < len(shape.layers)

    def threads(self, target: LayerSplit, draft: LayerSplit | None) -> Threads:
        """Return the cores of each model; a model on GPUs needs one to feed them."""
        asked, asked_draft = self.request.target.threads or 0, self.request.draft.threads or None
        wanted = asked or self.cores
        target_works = self.uses_processor(self.target, target)
        draft_works = self.uses_processor(self.draft, draft)
        if target_works and draft_works:
            together = shared_cores(wanted, asked_draft, evenly=target.output_at_home)
            alone = (wanted, asked_draft or wanted)
            return Threads(alone, together, take_turns=sum(together) > self.cores)
        for_target = wanted if target_works else asked or 1
        for_draft = asked_draft or (max(1, self.cores - 1) if draft_works else 1)
        return Threads((for_target, for_draft), (for_target, for_draft))


def _contexts(target: ModelShape, asked: int) -> tuple[int, ...]:
    """Return the sizes to try, the wanted one first."""
    if asked:
        return (asked,)
    most = context_size(0, target.training_context or DEFAULT_CONTEXT)
    halves = (DEFAULT_CONTEXT >> number for number in range(1, DEFAULT_CONTEXT.bit_length()))
    return (most, *(size for size in halves if MIN_CONTEXT <= size < most))


@dataclass(frozen=True, slots=True)
class Pass:
    """The seconds of one pass, and of the use of each GPU or memory."""

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
        """Return the cost of a pass over `tokens` tokens with `threads` of the CPU."""
        layers = len(self._shape.layers)
        busy: dict[str, float] = {}
        start = layers - split.on_cards
        seconds = self._on_processor(start, split.output == PROCESSOR, tokens, threads, busy)
        for device, count in zip(split.devices, split.layers, strict=True):
            has_output = device == split.output
            seconds += self._on_card(device, (start, start + count), has_output, tokens, busy)
            start += count
        return Pass(seconds + self._crossings(split, tokens), busy)

    def _on_processor(
        self, layers: int, has_output: bool, tokens: int, threads: int, busy: dict[str, float]
    ) -> float:
        size = self._read(0, layers, has_output, tokens)
        if size == 0:
            return 0.0
        rate, used = self._rates.processor, threads / self._cores
        computed = None if self._is_float else self._rates.measured[PROCESSOR].weights
        # a quarter of the cores reaches half of the memory's rate, three quarters nine tenths
        reads = min(rate * min(1.0, 3 * used / (2 * used + 1)), used * (computed or inf))
        if size > CACHE_PER_CORE * self._cores:
            busy[PROCESSOR] = busy.get(PROCESSOR, 0.0) + size / rate
        further = FLOAT_FURTHER if self._is_float else QUANT_FURTHER
        arithmetic = further * self._reused(0, layers, has_output, tokens) / (computed or rate)
        return size / reads + arithmetic / used + layers * CORE_LAYER_S

    def _on_card(
        self, device: str, span: tuple[int, int], has_output: bool, tokens: int, busy: dict[str, float]
    ) -> float:
        rate, further = self._rates.of[device].read, self._rates.measured[device].further or CARD_FURTHER
        if self._is_float:
            further = min(further, FLOAT_FURTHER)
        else:
            rate = self._rates.measured[device].weights or rate
        read_s = self._read(*span, has_output, tokens) / rate
        further_s = further * self._reused(*span, has_output, tokens) / rate
        seconds = read_s + further_s + (span[1] - span[0]) * CARD_LAYER_S
        busy[device] = seconds
        if self._rates.shares_memory(device):
            busy[PROCESSOR] = busy.get(PROCESSOR, 0.0) + read_s
        return seconds

    def _crossings(self, split: LayerSplit, tokens: int) -> float:
        """Return the seconds of the ways between devices: there a token is as wide as the model, or a row."""
        seconds, state = 0.0, self._shape.width * ACTIVATION
        back = state if split.output_at_home else self._shape.vocabulary * LOGIT
        ways = list(pairwise((PROCESSOR, *split.devices, PROCESSOR)))
        for (source, target), size in zip(ways, (*[state] * (len(ways) - 1), back), strict=True):
            rate = self._rates.link(source, target)
            if rate is not None:
                seconds += self._rates.hand_over_s(source, target) + tokens * size / rate
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

    def _reused(self, start: int, end: int, has_output: bool, tokens: int) -> float:
        """Return the bytes that further tokens use of weights which another token has read already.

        Those of an expert that one token alone uses are read and computed with at the same time.
        """
        return tokens * self._read(start, end, has_output, 1) - self._read(start, end, has_output, tokens)


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
        busy, busy_drafting = target(length + 1).busy, branches.busy
        shared = [
            CONTENTION * (busy[name] + length * busy_drafting[name]) for name in busy if name in busy_drafting
        ]
        return max(verify_s, *shared, 0.0)

    return ssd_speed(
        lambda tokens: target(tokens).seconds, lambda width: draft(width).seconds, acceptance, overlap
    )
