"""What open models really hold, beside what was expected of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from localspec.machine.memory import logits_bytes
from localspec.machine.memory_fit import size
from localspec.machine.rates import PROCESSOR
from localspec.machine.records import DeviceNeed

if TYPE_CHECKING:
    from localspec.llama import Context


def needs_of(context: Context) -> tuple[DeviceNeed, ...]:
    """Return what an open context and its model hold on each device; `EngineError` where nobody can tell."""
    from localspec.llama.breakdown import breakdown

    rows = logits_bytes(context.vocabulary_size, context.max_sequences)
    return tuple(
        DeviceNeed(row.device, row.weights, row.cache, row.compute + (rows if row.device == PROCESSOR else 0))
        for row in breakdown(context)
    )


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
