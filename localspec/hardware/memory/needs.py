"""The memory of a model on each device: by a formula, and by llama.cpp's own plan.

Bytes of weights and caches follow from the shape. The size of
intermediate results is derived from the tensors alive at the widest places of a graph, and calibrated
against llama.cpp's plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from localspec.errors import EngineDied, EngineError
from localspec.gguf import CHECKPOINT_BYTES, CHECKPOINTS, facts, kept_states, kv_types
from localspec.hardware.bandwidth import PROCESSOR
from localspec.llama.tensor_split import full_shares
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ExpertWeights, LayerShape, ModelShape, read_shape
from localspec.types.models import FLOAT_TYPES, KvType, ModelOptions

if TYPE_CHECKING:
    from localspec.child_process import ValuesOf
    from localspec.llama.context import Context
    from localspec.llama.model import Model

ROWS = 128  # rows of logits that one call may give
CELLS_PER_BRANCH = 32  # cells for a branch in addition to the main sequence
_CELLS_MULTIPLE = 256
_ROWS_WITHOUT_FLASH = 128  # of a micro-batch: its scores are few, and mostly in the CPU's caches
_MOST_SCORES = 512 * 2**20  # bytes
_SMALL_HEAD = 64  # numbers; with 128, writing gains nothing that reading prompts does not lose
_FLOAT = 4
_HALF = 2
_PER_TOKEN = 32  # positions, ids and the like
DEFAULT_CONTEXT = 8192  # models trained on 128k tokens would ask for many GiB of cache
_COPIES = 4  # copies of its inputs in a pipeline of GPUs: ggml's GGML_SCHED_MAX_COPIES


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """What one model takes of one device; `experts` are a part of its weights."""

    device: str
    weights: int
    cache: int
    compute: int
    experts: int = 0

    @property
    def total(self) -> int:
        """Return all of it."""
        return self.weights + self.cache + self.compute


Needs = tuple[DeviceNeed, ...]


@dataclass(frozen=True, slots=True)
class CacheTypes:
    """The number types of a model's cache."""

    keys: KvType = "f16"
    values: KvType = "f16"


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """The last layers of a model on devices in order, the layers before them on the CPU.

    The output layer is on the last device, or on the CPU if `output_at_home`;
    without devices everything is on the CPU.
    Of the model's first `experts_at_home` layers the experts are on the CPU, wherever the layers are; of the
    layer after them, the largest `parts_at_home` weights of experts.
    With `shares`, which are those of a split by tensor, every device holds a part of the same layers.
    """

    devices: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    output_at_home: bool = False
    experts_at_home: int = 0
    parts_at_home: int = 0
    shares: tuple[float, ...] = ()

    @property
    def output(self) -> str:
        """Return the device of the weights after the last layer."""
        return PROCESSOR if self.output_at_home or not self.devices else self.devices[-1]

    @property
    def on_cards(self) -> int:
        """Return the number of layers that are not on the CPU."""
        return self.layers[0] if self.shares else sum(self.layers)


def by_shares(
    devices: tuple[str, ...], shares: Sequence[float], gpu_layers: int, layers: int, predicting: int = 0
) -> LayerSplit:
    """Divide layers as llama.cpp does.

    `gpu_layers` also counts `predicting` prediction layers after the last one, and the output layer.
    """
    after = predicting + 1
    taken = min(gpu_layers, layers + after)
    if taken == 0 or not devices:
        return LayerSplit()
    ends = list(accumulate(shares))
    counts = [0] * len(devices)
    for index in range(taken):
        at = next(i for i, end in enumerate(ends) if end * taken > index * ends[-1])
        counts[at] += index < taken - after
    used = [i for i, count in enumerate(counts) if count or i == at]
    return LayerSplit(tuple(devices[i] for i in used), tuple(counts[i] for i in used))


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """One model on its devices with its context: what its need of memory follows from."""

    split: LayerSplit
    context: int
    cache: CacheTypes = CacheTypes()
    flash_attention: bool | None = None
    micro_batch: int = 512
    sequences: int = 1
    swa_full: bool = False
    longest_draft: int | None = None  # of a target with recurrent state: see `kept_states`


def request_of(
    options: ModelOptions, *, split: LayerSplit = LayerSplit(), sequences: int = 1
) -> MemoryRequest:
    """Return the memory request of a context with these options."""
    return MemoryRequest(
        split,
        options.context,
        CacheTypes(options.kv_type_k, options.kv_type_v),
        options.flash_attention,
        options.micro_batch,
        sequences,
        swa_full=options.swa_full,
        longest_draft=options.longest_draft,
    )


def estimate(shape: ModelShape, request: MemoryRequest) -> tuple[DeviceNeed, ...]:
    """Return the memory of a model on each of its devices, the CPU last."""
    if request.split.shares:
        return _divided(shape, request)
    cached = partial(cache_bytes, shape, request)
    split = request.split
    assignments = _assignments(shape, request.split)
    kept = [expert for _, experts in experts_at_home(shape, split) for expert in experts]
    needs = []
    for device, layers in assignments.items():
        has_output = device == split.output
        on_processor = device == PROCESSOR
        experts = sum(layer.expert_bytes for layer in layers)
        weights = sum(layer.weight_bytes for layer in layers)
        weights += sum(moved.bytes for moved in shape.moved if moved.device == device)
        if has_output:
            weights += shape.output_bytes
        if on_processor:
            weights += shape.layer_table_bytes
            weights += 0 if has_output and shape.tied else shape.input_bytes
            weights += sum(expert.bytes for expert in kept)
            experts += sum(expert.bytes for expert in kept)
        cache = sum(map(cached, layers)) + on_processor * checkpoint_bytes(shape, request)
        compute = _compute(shape, request, device, layers)
        if device in split.devices[:1]:  # which reads prompts for the CPU: a matrix, a cache
            lent = [layer.weight_bytes // 3 + cached(layer) for layer in assignments[PROCESSOR]]
            compute += max((*lent, *(expert.bytes for expert in kept)), default=0)
        if on_processor:  # it also holds the logits of all others
            compute += logits_bytes(shape.vocabulary, request.sequences)
        needs.append(DeviceNeed(device, weights, cache, compute, experts))
    return tuple(needs)


def _divided(shape: ModelShape, request: MemoryRequest) -> tuple[DeviceNeed, ...]:
    """Return the memory of a split by tensor: of intermediate results, every device needs all.

    Such devices read no prompts for the CPU (ggml-backend-meta.cpp has no `offload_op`).
    """
    split = request.split
    start = len(shape.layers) - split.on_cards
    alone = [
        replace(request, split=replace(split, devices=(device,), layers=(layers,), shares=()))
        for device, layers in zip(split.devices, split.layers, strict=True)
    ]
    compute = _compute(shape, alone[0], split.devices[0], shape.layers[start:])
    held = (estimate(part, asked)[0] for part, asked in zip(shape.divided(split.shares), alone, strict=True))
    here = estimate(shape, alone[0])[-1]
    if start or experts_at_home(shape, split):
        computed = _compute(shape, replace(request, split=LayerSplit()), PROCESSOR, shape.layers)
        here = replace(here, compute=computed + logits_bytes(shape.vocabulary, request.sequences))
    return (*(replace(need, compute=compute) for need in held), here)


def experts_at_home(shape: ModelShape, split: LayerSplit) -> list[tuple[int, tuple[ExpertWeights, ...]]]:
    """Return the layers on GPUs whose experts are on the CPU, with those experts."""
    first = len(shape.layers) - split.on_cards
    last = min(len(shape.layers), split.experts_at_home + 1)
    found = []
    for number in range(first, last):
        experts = shape.layers[number].experts
        kept = experts if number < split.experts_at_home else experts[: split.parts_at_home]
        if kept:
            found.append((number, kept))
    return found


def cells(request: MemoryRequest, window: int | None = None) -> int:
    """Return the cache's size in tokens, including the branches; of a layer with a window if given.

    A window-sized cache has room for a micro-batch besides (llama-kv-cache-iswa.cpp).
    """
    wanted = request.context + (request.sequences - 1) * CELLS_PER_BRANCH
    if window is not None and request.sequences == 1 and not request.swa_full:
        wanted = min(wanted, window + request.micro_batch)
    return -(-wanted // _CELLS_MULTIPLE) * _CELLS_MULTIPLE


def checkpoint_bytes(shape: ModelShape, request: MemoryRequest) -> int:
    """Return the most that copies of recurrent states, or of windows, take of the CPU's memory."""
    if shape.state_bytes:
        return CHECKPOINTS * shape.state_bytes
    if request.sequences > 1:
        return 0
    one = sum(layer.window * _per_cell(shape, request, layer) for layer in shape.layers if layer.window)
    return max(one, min(CHECKPOINT_BYTES, CHECKPOINTS * one))


def logits_bytes(vocabulary: int, sequences: int) -> int:
    """Return the bytes of llama.cpp's output rows of logits, in the CPU's memory."""
    return max(ROWS, sequences) * vocabulary * _FLOAT


def _assignments(shape: ModelShape, split: LayerSplit) -> dict[str, tuple[LayerShape, ...]]:
    """Return the layers on each device: the last ones on the GPUs, in order, without experts at home."""
    layers = list(shape.layers)
    for number, experts in experts_at_home(shape, split):
        layer = layers[number]
        without = layer.weight_bytes - sum(expert.bytes for expert in experts)
        layers[number] = replace(layer, weight_bytes=without, experts=layer.experts[len(experts) :])
    at = max(0, len(layers) - split.on_cards)
    first = tuple(layers[:at])
    assignments: dict[str, tuple[LayerShape, ...]] = {}
    for device, count in zip(split.devices, split.layers, strict=True):
        assignments[device] = tuple(layers[at : at + count])
        at += count
    assignments[PROCESSOR] = first
    return assignments


def cache_bytes(shape: ModelShape, request: MemoryRequest, layer: LayerShape) -> int:
    """Return the bytes of the cache and of the recurrent states of a layer."""
    snapshots, spare = kept_states(shape.architecture, request.sequences, request.longest_draft)
    states = (request.sequences + spare) * (1 + snapshots) * layer.state_bytes
    return text_bytes(shape, request, layer) + states


def text_bytes(shape: ModelShape, request: MemoryRequest, layer: LayerShape) -> int:
    """Return the bytes of a layer's cache for as much text as the context holds, without states."""
    window = None if shape.state_bytes else layer.window  # a hybrid's windows keep all tokens
    return cells(request, window) * _per_cell(shape, request, layer)


def _per_cell(shape: ModelShape, request: MemoryRequest, layer: LayerShape) -> int:
    """Return the bytes of a token in the cache of a layer."""
    values = layer.value_values
    if values and request.flash_attention is False:  # values are transposed then, as wide as the widest
        values = max(other.value_values for other in shape.layers)
    keys = kv_types()[request.cache.keys][1]
    type_v = kv_types()[request.cache.values][1]
    return layer.key_values * keys // 32 + values * type_v // 32


def _compute(shape: ModelShape, request: MemoryRequest, device: str, layers: tuple[LayerShape, ...]) -> int:
    """Return the size of intermediate results on a device, without work that a GPU does for the CPU.

    If a model is wholly on several GPUs, including its output, llama.cpp makes a pipeline: each keeps several
    copies of its inputs, and none shares its memory with the output.
    """
    cards = request.split.devices
    output_at = request.split.output
    # a GPU is given the masks that its own layers read
    inputs, inside, output = _graph(replace(shape, layers=layers) if device in cards else shape, request)
    is_pipeline = len(cards) > 1 and request.split.on_cards >= len(shape.layers) and output_at in cards
    held = (_COPIES if is_pipeline else 1) * inputs
    if is_pipeline and device in cards[1:]:  # two results of the GPU before, not one
        held += _COPIES * min(request.micro_batch, request.context) * _FLOAT * shape.width
    if device == PROCESSOR and cards:
        return max(held, output * (output_at == PROCESSOR))  # its layers read prompts on a GPU
    inside = held - inputs + inside if layers else held
    if device != output_at:
        return inside
    # the freed memory of the last layer's experts is too fragmented for the logits
    return max(inside, output + (held if is_pipeline or shape.experts_used else 0))


def _graph(shape: ModelShape, request: MemoryRequest) -> tuple[int, int, int]:
    """Return the memory of a micro-batch: its inputs, and the widest places inside and after the layers.

    Widths are floats per token.
    """
    flash = request.flash_attention is not False
    kept = cells(request)
    sequences = request.sequences
    if shape.state_bytes:
        sequences += kept_states(shape.architecture, sequences, request.longest_draft)[1]
    # llama.cpp plans with as many tokens for one sequence as for another
    tokens = -(-min(request.micro_batch, kept) // sequences) * sequences
    windows = {layer.window for layer in shape.layers if layer.key_values}
    masked = sum(cells(request, None if shape.state_bytes else window) for window in windows)
    mask = masked * (_HALF if flash else _FLOAT)  # per token
    cached = max((layer.key_values + layer.value_values for layer in shape.layers), default=0)
    queries = shape.attention_width or shape.width
    if flash:
        attention = 2 * queries + cached + 2.5 * shape.width
    else:
        attention = (shape.heads * kept if cached else 0) + 3 * queries + cached + 2 * shape.width
    dense = 0 if shape.experts_used else shape.feed_forward
    inner = max(dense, shape.experts_used * shape.expert_feed_forward)
    feed_forward = 3 * inner + 3 * shape.width + queries
    rows = min(tokens, max(ROWS, sequences))
    output = rows * _FLOAT * (shape.vocabulary + shape.width) + tokens * _FLOAT * shape.width
    if shape.experts_used:
        output += rows * _FLOAT * shape.experts_used * shape.width
    inputs = tokens * (mask + _FLOAT * shape.width + _PER_TOKEN)
    return inputs, tokens * int(mask + _FLOAT * max(attention, feed_forward) + _PER_TOKEN), output


def context_size(asked: int, trained: int) -> int:
    """Return the context in tokens; 0 means the default."""
    return asked or min(trained, DEFAULT_CONTEXT)


@dataclass(frozen=True, slots=True)
class Attention:
    """How a context computes attention; `flash` None leaves that to llama.cpp."""

    flash: bool | None
    micro_batch: int


def target_attention(
    shape: ModelShape, request: PairRequest, context: int, *, on_processor: bool
) -> Attention:
    """Return a target's attention: without flash attention for small heads on the CPU.

    There, llama.cpp's kernel goes through the cache again for every head of every row. But it skips cells of
    other conversations, which count where several share them in the same calls, and it keeps no scores.
    """
    rows = request.micro_batch or min(_ROWS_WITHOUT_FLASH, request.batch_size)
    is_free = request.flash_attention is None and request.target.kv_types[1] in FLOAT_TYPES
    shares_cells = request.in_company and request.kv_unified and shape.shares_calls
    suits = shape.architecture not in facts()["needs_flash"]
    has_small_heads = 0 < (shape.attention_width or shape.width) <= _SMALL_HEAD * shape.heads
    fits = shape.heads * context * rows * _FLOAT <= _MOST_SCORES
    if on_processor and is_free and not shares_cells and suits and has_small_heads and fits:
        return Attention(False, rows)
    return Attention(request.flash, request.micro_batch_size)


def draft_flash_attention(asked: bool | None, cached: KvType, *, on_processor: bool) -> bool | None:
    """Return whether a draft model uses flash attention: without it, a branch on small heads costs half."""
    return False if asked is None and cached in FLOAT_TYPES and on_processor else asked


def draft_options(options: ModelOptions, size: int, *, on_processor: bool) -> ModelOptions:
    """Return the options of a draft model's context next to a target's of `size` tokens."""
    flash = draft_flash_attention(options.flash_attention, options.kv_type_v, on_processor=on_processor)
    return replace(options, context=size, flash_attention=flash)


def exact(
    target: ModelOptions,
    draft: ModelOptions | None = None,
    *,
    max_fan_out: int = 16,
    timeout_s: float = 120.0,  # a header on a slow disk, a driver that starts
    via: ValuesOf | None = None,
) -> tuple[Needs, ...]:
    """Return the memory of the target on each device, and of the draft model.

    Contexts are as LocalSpec opens them, the draft model's with its branches. `via` asks in a process that
    is there already.
    Raises `UserError` for unusable files, `EngineError` if llama.cpp fails or does not know.
    """
    from localspec.child_process import values_of  # 10 ms

    options = [each for each in (target, draft) if each is not None]
    try:
        if via is not None:
            return tuple(via(_needs_of_all, options, max_fan_out))
        return tuple(values_of(_needs_of_all, timeout_s, options, max_fan_out))
    except EngineDied as died:
        raise EngineError(f"llama.cpp ended while it worked out its memory needs: {died}") from None


def _needs_of_all(models: Sequence[ModelOptions], max_fan_out: int) -> Iterator[Needs]:
    """Yield what the target takes, then the draft model; for a child process."""
    from localspec.llama.model import Model
    from localspec.llama.recurrent import open_context

    size = 0
    for number, options in enumerate(models):
        with closing(Model.open(options, allocate=False, vocabulary=False)) as model:
            if number:
                opened = draft_options(options, size, on_processor=uses_processor(model))
            else:
                size = context_size(options.context, model.training_context)
                opened = replace(options, context=size)
            branches = read_shape(options.path).branches(max_fan_out) if number else 0
            yield needs_of(open_context(model, opened, sequences=1 + branches))


def uses_processor(model: Model) -> bool:
    """Return whether the CPU computes at least a part of a model."""
    return model.layers_at_home or model.options.output_at_home


def needs_of(context: Context) -> tuple[DeviceNeed, ...]:
    """Return the memory of an open context and its model on each device; raises `EngineError` if unknown."""
    from localspec.llama.backends import breakdown
    from localspec.llama.checkpoints import CheckpointedContext

    rows = logits_bytes(context.vocabulary_size, context.max_sequences)
    kept = 0
    if isinstance(context, CheckpointedContext):
        options = context.model.options
        kept = checkpoint_bytes(read_shape(options.path), request_of(options))
    account = breakdown(context.pointer)
    divided = _divided_by_formula(context, account) if context.model.options.split_mode == "tensor" else ()
    return divided + tuple(
        DeviceNeed(device, weights, cache + kept * here, compute + rows * here)
        for device, (weights, cache, compute) in account.items()
        if device == PROCESSOR or not divided
        for here in (device == PROCESSOR,)
    )


def _divided_by_formula(context: Context, account: Mapping[str, tuple[int, int, int]]) -> Needs:
    """Return the memory of a split by tensor on each of its devices.

    llama.cpp's account has one device for all of them. It tells the largest part of the weights and the
    cache, or their sum where nothing is allocated, so the formula divides these. Its intermediate results
    are those that every device has.
    """
    options = context.model.options
    shape = read_shape(context.model.options.path)
    devices = options.devices or ()
    most = len(shape.layers)
    counted = most if options.gpu_layers is None else options.gpu_layers - shape.prediction_layers - 1
    split = LayerSplit(
        devices,
        (max(0, min(most, counted)),) * len(devices),
        experts_at_home=options.experts_at_home,
        shares=full_shares(options.tensor_split, len(devices)),
    )
    request = request_of(replace(options, context=context.context_size), split=split)
    [compute] = (sizes[2] for device, sizes in account.items() if device != PROCESSOR)
    return tuple(replace(need, compute=compute) for need in estimate(shape, request)[:-1])
