"""What open models really hold, beside what was expected of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from localspec.hardware.device_info import DeviceNeed
from localspec.hardware.memory.estimate import estimate, logits_bytes
from localspec.hardware.memory.fit import size
from localspec.hardware.placement.constraints import CacheTypes, Sitting, Spread
from localspec.hardware.rates import PROCESSOR
from localspec.models.gguf import read_shape
from localspec.types import ModelOptions

if TYPE_CHECKING:
    from localspec.llama import Context


def needs_of(context: Context) -> tuple[DeviceNeed, ...]:
    """Return what an open context and its model hold on each device; `EngineError` where nobody can tell."""
    from localspec.llama.memory import breakdown

    rows = logits_bytes(context.vocabulary_size, context.max_sequences)
    return tuple(
        DeviceNeed(row.device, row.weights, row.cache, row.compute + (rows if row.device == PROCESSOR else 0))
        for row in breakdown(context)
    )


def expected_of(context: Context, options: ModelOptions) -> tuple[DeviceNeed, ...]:
    """Return what the formula expects of a context opened so; raises UserError for a file without shape."""
    shape = read_shape(options.path)
    sitting = Sitting(
        _spread(options, len(shape.layers)),
        context.context_size,
        CacheTypes(options.kv_type_k, options.kv_type_v),
        options.flash_attention,
        options.micro_batch,
        context.max_sequences,
    )
    return estimate(shape, sitting)


def _spread(options: ModelOptions, layers: int) -> Spread:
    """Return the seats that options give; where they leave it to llama.cpp, the processor."""
    if not options.devices or not options.gpu_layers:
        return Spread()
    shares = options.tensor_split or (options.gpu_layers,)
    counts = [int(share) for share in shares]
    counts[-1] -= 1  # what follows the layers counts as one
    return Spread(options.devices, tuple(min(count, layers) for count in counts))


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
