"""What a pair of models really takes of each device: llama.cpp plans it all, and allocates nothing.

llama.cpp runs in a process of its own. A model file that brings it down cannot harm more than that, and on a
card its driver's own memory is given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.child_process import values_of
from localspec.errors import EngineDied, EngineError
from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.device_info import DeviceNeed
from localspec.hardware.memory.estimate import estimate, logits_bytes
from localspec.hardware.memory.fit import size
from localspec.hardware.placement.constraints import (
    CacheTypes,
    LayerSplit,
    MemoryRequest,
    context_size,
    draft_options,
)
from localspec.models.shape import read_shape
from localspec.types import ModelOptions

if TYPE_CHECKING:
    from localspec.llama.context import Context
    from localspec.llama.model import Model


Needs = tuple[DeviceNeed, ...]

_MAX_FAN_OUT = 16
_TIMEOUT_S = 120.0  # a header on a slow disk, a driver that starts


def exact(
    target: ModelOptions,
    draft: ModelOptions | None = None,
    *,
    max_fan_out: int = _MAX_FAN_OUT,
    timeout_s: float = _TIMEOUT_S,
) -> tuple[Needs, ...]:
    """Return what the target takes of each device, and what the draft model takes.

    Contexts are those that LocalSpec opens, the draft model's with its branches.
    Raises `UserError` for what cannot be opened, `EngineError` where llama.cpp fails or cannot tell.
    """
    options = [each for each in (target, draft) if each is not None]
    try:
        return tuple(values_of(_needs_of_all, timeout_s, options, max_fan_out))
    except EngineDied as died:
        raise EngineError(f"llama.cpp ended while it worked out its memory needs: {died}") from None


def _needs_of_all(models: Sequence[ModelOptions], max_fan_out: int) -> Iterator[Needs]:
    """Yield what the target takes, then the draft model; for a child process."""
    from localspec.llama.context import Context
    from localspec.llama.model import Model

    size = 0
    for number, options in enumerate(models):
        with closing(Model.open(options, allocate=False)) as model:
            if number:
                opened = draft_options(options, size, on_processor=_on_processor(model))
            else:
                size = context_size(options.context, model.training_context)
                opened = replace(options, context=size)
            yield needs_of(Context(model, opened, sequences=max_fan_out + 1 if number else 1))


def _on_processor(model: Model) -> bool:
    """Tell whether the processor computes at least a part of a model."""
    layers = model.options.gpu_layers
    return not model.cards or (layers is not None and layers < model.layers)


def needs_of(context: Context) -> tuple[DeviceNeed, ...]:
    """Return what an open context and its model hold on each device; `EngineError` where nobody can tell."""
    from localspec.llama.backends import breakdown

    rows = logits_bytes(context.vocabulary_size, context.max_sequences)
    return tuple(
        DeviceNeed(row.device, row.weights, row.cache, row.compute + (rows if row.device == PROCESSOR else 0))
        for row in breakdown(context.pointer)
    )


def expected_of(context: Context, options: ModelOptions) -> tuple[DeviceNeed, ...]:
    """Return what the formula expects of a context opened so; raises UserError for a file without shape."""
    shape = read_shape(options.path)
    request = MemoryRequest(
        _split(options, len(shape.layers)),
        context.context_size,
        CacheTypes(options.kv_type_k, options.kv_type_v),
        options.flash_attention,
        options.micro_batch,
        context.max_sequences,
    )
    return estimate(shape, request)


def _split(options: ModelOptions, layers: int) -> LayerSplit:
    """Return the seats that options give; where they leave it to llama.cpp, the processor."""
    if not options.devices or not options.gpu_layers:
        return LayerSplit()
    shares = options.tensor_split or (options.gpu_layers,)
    counts = [int(share) for share in shares]
    counts[-1] -= 1  # what follows the layers counts as one
    return LayerSplit(options.devices, tuple(min(count, layers) for count in counts))


def compare(name: str, actual: Iterable[DeviceNeed], expected: Iterable[DeviceNeed]) -> str:
    """Return a line for the log: what a model took of each device, and what was expected."""
    foreseen = {need.device: need.total for need in expected}
    words = []
    for need in actual:
        guess = foreseen.pop(need.device, 0)
        if need.total or guess:
            error = f" ({100 * (guess - need.total) / need.total:+.1f} %)" if need.total else ""
            words.append(f"{need.device} {size(need.total)}, expected {size(guess)}{error}")
    words += [f"{device} nothing, expected {size(guess)}" for device, guess in foreseen.items() if guess]
    return f"memory of {name}: " + "; ".join(words)
