"""What a model takes of each device, from its shape alone: a formula after the graphs that llama.cpp builds.

Bytes of weights and caches follow from the shape. What intermediate results take is derived from the
tensors that live at the same time in the widest places of a graph, and calibrated against llama.cpp's plans.
"""

from __future__ import annotations

from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.device_info import DeviceNeed
from localspec.hardware.placement.constraints import MemoryRequest
from localspec.models.shape import LayerShape, ModelShape
from localspec.types import KvType

ROWS = 128  # rows of logits that one call may give
CELLS_PER_BRANCH = 32  # of the cache, for what a branch holds beside the trunk
_CELLS_MULTIPLE = 256
_FLOAT, _HALF = 4, 2
_PER_TOKEN = 32  # positions, ids and the like

# bytes of 32 numbers
_KV_BYTES: dict[KvType, int] = {
    "f32": 128, "f16": 64, "bf16": 64, "q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18,
}  # fmt: skip


def estimate(
    shape: ModelShape, request: MemoryRequest, *, whole_windows: bool = True
) -> tuple[DeviceNeed, ...]:
    """Return what a model takes of each device that it sits on, the processor last.

    `whole_windows` keeps all tokens also for layers that look back only so far, which a rewind needs.
    """
    assignments = _assignments(shape, request)
    last = request.split.devices[-1] if request.split.devices else PROCESSOR
    graph = _Graph(shape, request)
    needs = []
    for device, layers in assignments.items():
        has_output, on_processor = device == last, device == PROCESSOR
        weights = sum(layer.weight_bytes for layer in layers)
        if has_output:
            weights += shape.output_bytes
        if on_processor:
            weights += 0 if has_output and shape.tied else shape.input_bytes
        cache = sum(_cache_bytes(layer, shape, request, whole_windows=whole_windows) for layer in layers)
        compute = graph.bytes(has_layers=bool(layers), has_output=has_output, on_processor=on_processor)
        needs.append(DeviceNeed(device, weights, cache, compute))
    return tuple(needs)


def cells(request: MemoryRequest) -> int:
    """Return how many tokens the cache has room for, the branches' included."""
    wanted = request.context + (request.sequences - 1) * CELLS_PER_BRANCH
    return -(-wanted // _CELLS_MULTIPLE) * _CELLS_MULTIPLE


def logits_bytes(vocabulary: int, sequences: int) -> int:
    """Return the bytes of the rows of logits that llama.cpp hands out, which the processor holds."""
    return max(ROWS, sequences) * vocabulary * _FLOAT


def _assignments(shape: ModelShape, request: MemoryRequest) -> dict[str, tuple[LayerShape, ...]]:
    """Return the layers on each device: the last ones on the cards, in order."""
    split = request.split
    at = max(0, len(shape.layers) - split.on_cards)
    first = shape.layers[:at]
    assignments: dict[str, tuple[LayerShape, ...]] = {}
    for device, count in zip(split.devices, split.layers, strict=True):
        assignments[device] = shape.layers[at : at + count]
        at += count
    assignments[PROCESSOR] = first
    return assignments


def _cache_bytes(layer: LayerShape, shape: ModelShape, request: MemoryRequest, *, whole_windows: bool) -> int:
    held, values = cells(request), layer.value_values
    if values and request.flash_attention is False:  # values lie transposed then, as wide as the widest
        values = max(other.value_values for other in shape.layers)
    if layer.window is not None and not whole_windows:
        wanted = layer.window * request.sequences + request.micro_batch
        held = min(held, -(-wanted // _CELLS_MULTIPLE) * _CELLS_MULTIPLE)
    per_cell = (
        layer.key_values * _KV_BYTES[request.cache.keys] // 32
        + values * _KV_BYTES[request.cache.values] // 32
    )
    return held * per_cell + request.sequences * layer.state_bytes


class _Graph:
    """The widest places of a graph that reads one micro-batch; widths are floats per token."""

    def __init__(self, shape: ModelShape, request: MemoryRequest) -> None:
        self._shape = shape
        self._flash = request.flash_attention is not False
        self._outputs = max(ROWS, request.sequences)
        self._cells = cells(request)
        sequences = request.sequences
        # llama.cpp plans with as many tokens for one sequence as for another
        self._tokens = -(-min(request.micro_batch, self._cells) // sequences) * sequences
        kinds = {layer.window is not None for layer in shape.layers if layer.key_values}
        self._mask = len(kinds) * self._cells * (_HALF if self._flash else _FLOAT)  # per token

    def bytes(self, *, has_layers: bool, has_output: bool, on_processor: bool) -> int:
        """Return what a device sets aside; the processor also for the inputs and logits of all others."""
        shape, tokens = self._shape, self._tokens
        inputs = tokens * (self._mask + _FLOAT * shape.width + _PER_TOKEN)
        size = inputs if on_processor else 0
        if has_layers:
            size = max(size, self._attention(), self._feed_forward())
        if has_output:
            size = max(size, self._output())
        return size + (logits_bytes(shape.vocabulary, self._outputs) if on_processor else 0)

    def _attention(self) -> int:
        shape = self._shape
        cached = max((layer.key_values + layer.value_values for layer in shape.layers), default=0)
        queries = shape.attention_width or shape.width
        if self._flash:
            return self._layer(2 * queries + cached + 2.5 * shape.width)
        scores = shape.heads * self._cells if cached else 0
        return self._layer(scores + 3 * queries + cached + 2 * shape.width)

    def _feed_forward(self) -> int:
        shape = self._shape
        dense = 0 if shape.experts_used else shape.feed_forward
        inner = max(dense, shape.experts_used * shape.expert_feed_forward)
        queries = shape.attention_width or shape.width
        return self._layer(3 * inner + 3 * shape.width + queries)

    def _layer(self, width: float) -> int:
        return self._tokens * int(self._mask + _FLOAT * width + _PER_TOKEN)

    def _output(self) -> int:
        shape, rows = self._shape, min(self._tokens, self._outputs)
        size = rows * _FLOAT * (shape.vocabulary + shape.width) + self._tokens * _FLOAT * shape.width
        if shape.experts_used:  # what the last layer's experts leave is too scattered to hold the logits
            size += self._tokens * self._mask + rows * _FLOAT * shape.experts_used * shape.width
        return size
