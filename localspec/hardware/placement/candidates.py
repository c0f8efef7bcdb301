"""Candidate placements: devices, memory and expected speed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, permutations
from math import ceil

from localspec.decoding.speed_model import PredictedSpeed, plain_speed, ranked, sd_speed, shared_cores
from localspec.errors import UserError
from localspec.hardware.bandwidth import PROCESSOR, Rates
from localspec.hardware.device_info import Machine
from localspec.hardware.memory.budget import LayerSizes, MemoryBudget, Shortage
from localspec.hardware.memory.needs import (
    DEFAULT_CONTEXT,
    ROWS,
    Attention,
    CacheTypes,
    DeviceNeed,
    LayerSplit,
    MemoryRequest,
    by_shares,
    context_size,
    draft_flash_attention,
    experts_at_home,
    target_attention,
)
from localspec.hardware.placement.measured import MeasuredCompute
from localspec.hardware.placement.passes import Pass, Passes, ahead_speed
from localspec.llama.library import OFFLOADED_ROWS
from localspec.llama.overrides import experts_override
from localspec.llama.tensor_split import full_shares
from localspec.models.pair_request import USUAL_MICRO_BATCH, ModelRequest, PairRequest
from localspec.models.shape import ModelShape
from localspec.types.models import TensorOverride
from localspec.types.request import Mode


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """The placement of one model: `layers` on each of `devices` in order, the rest on the CPU.

    Without devices, all layers are on the CPU. Of the layer after those with all `experts_at_home`, the CPU
    has `parts_at_home`, names of weights. Other names are those of `ModelOptions` where it has them.
    """

    devices: tuple[str, ...]
    layers: tuple[int, ...]
    threads: int
    context: int
    needs: tuple[DeviceNeed, ...]
    output_at_home: bool = False
    prediction_layers: int = 0  # which llama.cpp counts after the last layer
    experts_at_home: int = 0
    parts_at_home: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()  # of the devices in a split by tensor

    @property
    def split(self) -> LayerSplit:
        """Return the layers on each device."""
        return LayerSplit(
            self.devices,
            self.layers,
            self.output_at_home,
            self.experts_at_home,
            len(self.parts_at_home),
            self.shares,
        )

    @property
    def part_override(self) -> TensorOverride | None:
        """Return the override that keeps a part of a layer's experts in RAM, None without such a layer."""
        if not self.parts_at_home:
            return None
        return experts_override([self.experts_at_home], self.parts_at_home)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A rejected placement: its description, the reason, and its expected speed."""

    description: str
    reason: str
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of both models; `reasons` are shown to the user word for word.

    `mmap` False reads weights into memory that GPUs can copy from directly. `flash_attention` is the
    target's, None where llama.cpp chooses.
    """

    target: DeviceAssignment
    draft: DeviceAssignment | None
    mode: Mode
    tokens_per_s: float | None  # expected from rates and sizes
    reasons: tuple[str, ...]
    rejected: tuple[Alternative, ...] = ()
    micro_batch: int = USUAL_MICRO_BATCH
    draft_cache: CacheTypes = field(default_factory=CacheTypes)
    mmap: bool = True
    flash_attention: bool | None = None


COMFORTABLE_CONTEXT = 4096  # less is not taken for speed alone
MIN_CONTEXT = 512
WORTH_A_SMALLER_CONTEXT = 1.2
_CORRECTIONS = 6
_FEW_GPUS = 3
TEXT_SHARE = 0.25  # of the context, filled on average by conversations that end half-way
# tokens of a turn by which placements are compared
TURN_READ = 2000
TURN_WRITTEN = 400


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
        measured: MeasuredCompute | None = None,
    ) -> None:
        self.target, self.draft = models
        self.contexts = _contexts(self.target, request.context or 0)
        self._at: dict[int, tuple[PlacementCandidate, ...]] = {}
        self.request = request
        self.measured = measured or MeasuredCompute()
        self.machine = machine
        self.rates = Rates(machine)
        self.budget = MemoryBudget(machine, request.reserve)
        self.cores = max(1, self.budget.devices[PROCESSOR].cores)
        self._passes = self._passes_of(self.target)
        self._draft_passes = self._passes_of(self.draft) if self.draft else None
        for names in (request.target.devices or (), request.draft.devices or ()):
            self._check(names)

    def _passes_of(self, shape: ModelShape) -> Passes:
        """Return the passes of a model in the middle of a conversation."""
        text = self.memory_request(shape, LayerSplit(), int(TEXT_SHARE * self.contexts[0]))
        in_reach = replace(text, sequences=1, micro_batch=0)  # of a token's attention
        cards = tuple(self.budget.cards[:1])
        shared = self.memory_request(shape, LayerSplit(cards, (0,) * len(cards)), text.context)
        flash = shared.flash_attention
        return Passes(shape, self.rates, self.cores, in_reach, flash_beside_cards=flash)

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
        if shape is not self.draft:
            attention = self.attention(split, context)
            return MemoryRequest(
                split,
                context,
                CacheTypes(*asked.target.kv_types),
                attention.flash,
                attention.micro_batch,
                swa_full=asked.swa_full,
                longest_draft=asked.longest_draft,
            )
        flash = asked.flash
        # the target's; beside GPUs, before it is known where that is, the larger one
        batch = asked.micro_batch_size if self._cards else self.attention(LayerSplit(), context).micro_batch
        held = CacheTypes(*asked.draft.kv_types)
        here = self.uses_processor(shape, split)
        if shape.is_head:
            return MemoryRequest(split, context, held, flash, min(batch, ROWS), swa_full=True)
        flash = draft_flash_attention(flash, held.values, on_processor=here)
        return MemoryRequest(split, context, held, flash, batch, shape.branches(asked.max_fan_out) + 1)

    def attention(self, split: LayerSplit, context: int) -> Attention:
        """Return the target's attention for a placement."""
        moved = any(each.device != PROCESSOR for each in self.target.moved)
        on_processor = not split.devices and not moved
        return target_attention(self.target, self.request, context, on_processor=on_processor)

    def _needs(self, shape: ModelShape, split: LayerSplit, context: int) -> tuple[DeviceNeed, ...]:
        request = self.memory_request(shape, split, context)
        return self.measured.needs(shape, request, is_draft=shape is self.draft)

    def _sizes(self, shape: ModelShape, context: int) -> LayerSizes | None:
        if not self.budget.cards:
            return None
        card = self.budget.cards[0]
        whole = LayerSplit((card,), (len(shape.layers),))
        return LayerSizes(shape, self.memory_request(shape, whole, context), card)

    # --- possible placements

    def _draft_splits(self, context: int) -> list[LayerSplit | None]:
        shape = self.draft
        request = self.request
        if shape is None or request.mode in {"off", "ngram"}:
            return [None]
        given = request.draft.devices
        asked = request.draft.gpu_layers
        layers = len(shape.layers)
        names = tuple(name for name in (self.budget.cards if given is None else given) if name != PROCESSOR)
        if asked == 0 or (given is not None and not names):
            return [LayerSplit()]
        most = layers if asked is None else min(layers, max(0, asked - shape.prediction_layers - 1))
        sizes = self._sizes(shape, context)
        at_home = _requested_experts(request.draft, shape)
        if given is not None and len(names) > 1 and sizes is not None:
            return [sizes.fill(names, dict(self.budget.free), most, experts_at_home=at_home or 0)]
        choices = (0, layers) if at_home is None and shape.is_head and shape.expert_bytes else (at_home or 0,)
        found: list[LayerSplit | None] = [
            LayerSplit((name,), (most,), experts_at_home=choice) for name in names for choice in choices
        ]
        if given is None and (asked is None or not names):
            found.append(LayerSplit())
            if request.mode is None:
                found.append(None)
        return found

    def _target_splits(
        self, sizes: LayerSizes | None, taken: Sequence[DeviceNeed], context: int
    ) -> Iterator[LayerSplit]:
        request = self.request
        layers = len(self.target.layers)
        predicting = self.target.prediction_layers
        every = layers + predicting + 1
        names = self._cards
        if sizes is None or not names or request.target.gpu_layers == 0:
            yield LayerSplit()
            return
        asked = request.target.gpu_layers
        at_home = _requested_experts(request.target, self.target)
        shares = (*request.tensor_split, *(0.0 for _ in names))[: len(names)]
        most = layers if asked is None else min(layers, max(0, asked - predicting - 1))
        if request.split_mode == "tensor":
            yield from self._divided(names, most, taken, context)
            return
        if any(shares):
            split = by_shares(names, shares, every if asked is None else asked, layers, predicting)
            yield self._with_experts(split, taken, context)
            return
        fills: list[Callable[..., LayerSplit]] = [partial(sizes.fill, experts_at_home=at_home or 0)]
        if at_home is None and self.target.expert_bytes:
            fills.append(sizes.fill_experts)
        for order in self._orders(names):
            for fill in fills:
                split = self._filled(sizes, partial(fill, order, most=most), taken, context)
                if asked is None or split.on_cards == most:
                    yield self._with_a_part(split, taken, context) if at_home is None else split
                if self.is_remote(order[-1]) and asked is None:  # without the output, more layers may fit
                    there = partial(fill, order, most=most, at_home=True)
                    yield self._filled(sizes, there, taken, context)
        left = self.budget.left(taken)
        shares = tuple(max(1.0, left[name]) for name in names)
        split = by_shares(names, shares, most + predicting + 1, layers, predicting)
        yield self._with_experts(split, taken, context)
        yield from self._divided_unasked(names)
        if asked is None and request.target.devices is None:
            yield LayerSplit()

    def _divided(
        self, names: tuple[str, ...], most: int, taken: Sequence[DeviceNeed], context: int
    ) -> Iterator[LayerSplit]:
        """Yield splits by tensor: with experts in RAM where that helps, and of as many layers as fit.

        If not even the output layer fits, the last one is that of `most`: an error then has its numbers.
        """
        shares = full_shares(self.request.tensor_split, len(names))
        at_home = _requested_experts(self.request.target, self.target) or 0
        whole = LayerSplit(names, (most,) * len(names), experts_at_home=at_home, shares=shares)
        if self.target.expert_bytes:
            yield self._with_experts(whole, taken, context)
        if self.request.target.gpu_layers is not None:
            yield whole
            return
        fewer = [replace(whole, layers=(most - rest,) * len(names)) for rest in range(most + 1)]
        left_out = bisect_left(fewer, True, key=lambda split: self._fits_cards(split, taken, context))
        yield fewer[left_out] if left_out < len(fewer) else whole

    def _divided_unasked(self, names: tuple[str, ...]) -> Iterator[LayerSplit]:
        """Yield splits by tensor over equal GPUs, if sums over them were measured and nothing forbids it."""
        request = self.request
        target = self.target
        asked = request.target
        is_left_open = request.split_mode is None and (asked.gpu_layers, asked.experts_at_home) == (
            None,
            None,
        )
        is_usual = not target.state_bytes and not target.moved  # others were never seen at work
        takes_head = self.draft is not None and self.draft.is_head
        if not is_left_open or not is_usual or takes_head or request.flash is False:
            return
        for group in self.rates.equal_groups(names):
            shares = (1.0,) * len(group)
            if self.rates.knows_sums(group) and target.is_divisible(shares):
                yield LayerSplit(group, (len(target.layers),) * len(group), shares=shares)

    def _with_experts(self, split: LayerSplit, taken: Sequence[DeviceNeed], context: int) -> LayerSplit:
        """Keep the experts of as few layers as possible on the CPU, where layers are where they are."""
        at_home = _requested_experts(self.request.target, self.target)
        if at_home is not None or not self.target.expert_bytes:
            return replace(split, experts_at_home=at_home or 0)

        def fits(count: int) -> bool:
            return self._fits_cards(replace(split, experts_at_home=count), taken, context)

        fewest = bisect_left(range(len(self.target.layers)), True, key=fits)
        return self._with_a_part(replace(split, experts_at_home=fewest), taken, context)

    def _with_a_part(self, split: LayerSplit, taken: Sequence[DeviceNeed], context: int) -> LayerSplit:
        """Put some experts of the last layer without them on its GPU, if they fit."""
        layer = split.experts_at_home - 1
        if layer < len(self.target.layers) - split.on_cards or layer < 0:
            return split
        for parts in range(1, len(self.target.layers[layer].experts)):
            more = replace(split, experts_at_home=layer, parts_at_home=parts)
            if self._fits_cards(more, taken, context):
                return more
        return split

    def _fits_cards(self, split: LayerSplit, taken: Sequence[DeviceNeed], context: int) -> bool:
        short = self.budget.shortages((*self._needs(self.target, split, context), *taken))
        return all(shortage.device not in split.devices for shortage in short)

    @property
    def _cards(self) -> tuple[str, ...]:
        """Return the devices that the target may use in addition to the CPU."""
        given = self.request.target.devices
        return tuple(name for name in (self.budget.cards if given is None else given) if name != PROCESSOR)

    def _with_outputs(self, splits: Iterable[LayerSplit]) -> Iterator[LayerSplit]:
        """Yield splits, and those that end on another machine also with the output layer here."""
        for split in splits:
            yield split
            if split.shares or not any(map(self.is_remote, split.devices[-1:])):
                continue
            yield replace(split, output_at_home=True)
            layers = dict(zip(split.devices, split.layers, strict=True))
            for card in self._cards if not self.request.tensor_split else ():
                if not self.is_remote(card):  # the last one has the output
                    count = layers.get(card, 0)
                    others = {name: number for name, number in layers.items() if name != card}
                    yield replace(split, devices=(*others, card), layers=(*others.values(), count))

    def is_remote(self, name: str) -> bool:
        """Return whether a device is another machine's."""
        return self.budget.devices[name].kind == "remote"

    def _orders(self, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield groups of GPUs in order: layers go to the last one first, which is mostly the fastest.

        Of few GPUs, these are all orders of all groups.
        """
        order = tuple(sorted(names, key=lambda name: self.rates.of[name].read))
        if len(order) <= _FEW_GPUS:
            for count in range(len(order), 0, -1):
                yield from permutations(order, count)
            return
        for start in range(len(order)):
            yield order[start:]
        for at in range(len(order)):
            yield order[:at] + order[at + 1 :]
            yield (order[at],)

    def _filled(
        self,
        sizes: LayerSizes,
        fill: Callable[[Mapping[str, int]], LayerSplit],
        taken: Sequence[DeviceNeed],
        context: int,
    ) -> LayerSplit:
        """Fill GPUs, and again with what the exact need has more or less than the sizes of layers."""
        free = self.budget.left(taken)
        split = fill(free)
        tried = list[LayerSplit]()
        while split not in tried and len(tried) < _CORRECTIONS:
            tried.append(split)
            counted = sizes.counted(split)
            left = dict(free)
            for need in self._needs(self.target, split, context):
                if need.device in counted:
                    left[need.device] += counted[need.device] - need.total
            split = fill(left)
        fitting = [found for found in tried if self._fits_cards(found, taken, context)]
        return max(fitting, key=lambda found: (found.on_cards, -found.experts_at_home), default=split)

    # --- how fast they would be

    def _speeds(self, target: LayerSplit, draft: LayerSplit | None) -> tuple[PredictedSpeed, ...]:
        threads = self.threads(target, draft)
        passes = self._passes
        draft_passes = self._draft_passes

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

    def copies_weights(self, found: PlacementCandidate) -> bool:
        """Return whether a GPU copies weights from RAM to read a prompt.

        Another machine's never does, nor do those of a split by tensor, nor any for a small micro-batch.
        """
        if self.request.micro_batch_size < OFFLOADED_ROWS:
            return False
        first = next(iter(found.target.devices), PROCESSOR)
        is_apart = self.rates.link(PROCESSOR, first) is not None and not self.is_remote(first)
        return is_apart and not found.target.shares and self.uses_processor(self.target, found.target)

    def pins_weights(self, found: PlacementCandidate) -> bool:
        """Return whether what is apart from its layers belongs in memory that a GPU copies from directly.

        Mapped files are not such memory.
        """
        apart = bool(experts_at_home(self.target, found.target)) or self.target.moved_to(PROCESSOR) > 0
        return apart and self.copies_weights(found)

    def turn_s(self, found: PlacementCandidate) -> float:
        """Return the seconds of a turn, without what all placements of a model take alike.

        A GPU that reads a prompt is given the weights in RAM once for each micro-batch.
        """
        written = TURN_WRITTEN / found.best.tokens_per_s
        link = self.rates.link(PROCESSOR, next(iter(found.target.devices), PROCESSOR))
        if link is None or not self.copies_weights(found):
            return written
        layers = self.target.layers[: len(self.target.layers) - found.target.on_cards]
        experts = chain.from_iterable(experts for _, experts in experts_at_home(self.target, found.target))
        copied = sum(layer.weight_bytes for layer in layers) + sum(expert.bytes for expert in experts)
        copied += self.target.moved_to(PROCESSOR)
        return written + ceil(TURN_READ / self.request.micro_batch_size) * copied / link

    def uses_processor(self, shape: ModelShape | None, split: LayerSplit | None) -> bool:
        """Return whether the CPU computes a part of a model, if it is open."""
        if shape is None or split is None:
            return False
        moved = any(each.device == PROCESSOR and each.read_bytes for each in shape.moved)
        experts = bool(experts_at_home(shape, split))
        return split.output == PROCESSOR or split.on_cards < len(shape.layers) or experts or moved

    def threads(self, target: LayerSplit, draft: LayerSplit | None) -> Threads:
        """Return the cores of each model; a model on GPUs needs one to feed them."""
        asked = self.request.target.threads or 0
        asked_draft = self.request.draft.threads or None
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


def _requested_experts(asked: ModelRequest, shape: ModelShape) -> int | None:
    """Return the number of layers whose experts the user wants in RAM, None if that is left to the plan."""
    return len(shape.layers) if asked.experts_at_home == "all" else asked.experts_at_home


def _contexts(target: ModelShape, asked: int) -> tuple[int, ...]:
    """Return the sizes to try, the wanted one first."""
    if asked:
        return (asked,)
    most = context_size(0, target.training_context or DEFAULT_CONTEXT)
    halves = (DEFAULT_CONTEXT >> number for number in range(1, DEFAULT_CONTEXT.bit_length()))
    return (most, *(size for size in halves if MIN_CONTEXT <= size < most))
