"""A placement as bars: what each device's memory holds, and what other caches would take of it. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.device_info import DeviceInfo
from localspec.hardware.memory.budget import MemoryBudget, Models
from localspec.hardware.memory.needs import CacheTypes, DeviceNeed, estimate
from localspec.hardware.placement.candidates import Placement
from localspec.units import memory

WIDTH = 80  # columns
_INDENT = "  "
_BAR = WIDTH - 2 * len(_INDENT)
_UNBROKEN = "\N{NO-BREAK SPACE}"  # keeps an entry of a legend in one line
_SMALLER_CACHE = CacheTypes("q8_0", "q8_0")


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of what a model takes: its character in a bar, its name, and its bytes on a device."""

    character: str
    name: str
    of: Callable[[DeviceNeed], int]


TARGET_PARTS = (
    _Part("█", "weights", lambda need: need.weights - need.experts),
    _Part("◆", "experts", attrgetter("experts")),
    _Part("▓", "cache", attrgetter("cache")),
    _Part("▒", "intermediate results", attrgetter("compute")),
)
_DRAFT = _Part("■", "draft", attrgetter("total"))


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a bar."""

    character: str
    name: str
    size: int


def bars(placement: Placement, budget: MemoryBudget) -> list[str]:
    """Return the memory of each device as a bar with its legend, in lines of at most 80 columns."""
    target = placement.target.needs
    draft = () if placement.draft is None else placement.draft.needs
    left = budget.left((*target, *draft))
    lines = ["memory:"]
    for name, device in budget.devices.items():
        segments = [
            *(segment for part in TARGET_PARTS for segment in _of_model(part, target, name)),
            *_of_model(_DRAFT, draft, name),
            *(_lent(budget, (*target, *draft)) if name == PROCESSOR else ()),
            Segment("░", "reserve", budget.reserve[name]),
            Segment("·", "free", max(0, left[name])),
            Segment("×", "in use already", max(0, device.memory_total - device.memory_free)),
        ]
        lines += [f"{_INDENT}{_title(device)}", *_drawn([each for each in segments if each.size > 0])]
    return lines


def outlook(models: Models, budget: MemoryBudget, *, may_quantise: bool = True) -> list[str]:
    """Return the effects of twice the context and of a q8_0 cache on the fullest GPU: a sentence for each.

    The placement stays that of `models`. Without a model on a GPU, the sentences are about the CPU. The
    second one is left out unless it `may_quantise`.
    """
    (shape, request), *others = models
    device = _fullest(models, budget)
    lines = []
    context = 2 * request.context
    if shape.training_context and context > shape.training_context:
        lines.append(f"twice the context: the model was trained for {shape.training_context:,} tokens only")
    else:
        larger = tuple((each, replace(asked, context=context)) for each, asked in models)
        more = _taken(larger, device) - _taken(models, device)
        verdict = "does not fit" if budget.shortages(_needs(larger)) else "fits"
        lines.append(f"-c {context} (twice the context) takes {memory(more)} more of {device}, and {verdict}")
    if may_quantise:
        # values of such a type need flash attention
        smaller = ((shape, replace(request, cache=_SMALLER_CACHE, flash_attention=None)), *others)
        saved = _taken(models, device) - _taken(smaller, device)
        if saved > 0:
            lines.append(f"-ctk q8_0 -ctv q8_0 (a q8_0 cache) saves {memory(saved)} of {device}")
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, WIDTH, initial_indent=_INDENT, subsequent_indent=2 * _INDENT)
    ]


def _of_model(part: _Part, needs: Sequence[DeviceNeed], device: str) -> Iterator[Segment]:
    yield Segment(part.character, part.name, sum(part.of(need) for need in needs if need.device == device))


def _lent(budget: MemoryBudget, needs: Sequence[DeviceNeed]) -> Iterator[Segment]:
    """Yield what GPUs without memory of their own take of the CPU's."""
    for name, device in budget.devices.items():
        if device.kind == "integrated":
            taken = sum(need.total for need in needs if need.device == name)
            yield Segment("▚", f"used by {name}", taken)


def _title(device: DeviceInfo) -> str:
    known = f" ({device.name})" if device.name else ""
    size = memory(device.memory_total)
    named = textwrap.shorten(f"{device.id}{known}", WIDTH - len(f"{_INDENT}: {size}"), placeholder="…")
    return f"{named}: {size}"


def _drawn(segments: Sequence[Segment]) -> Iterator[str]:
    """Yield a bar and its legend."""
    cells = _cells([segment.size for segment in segments])
    bar = "".join(segment.character * count for segment, count in zip(segments, cells, strict=True))
    yield f"{_INDENT}{_INDENT}{bar}"
    entries = (f"{segment.character} {segment.name} {memory(segment.size)}" for segment in segments)
    whole = "  ".join(entry.replace(" ", _UNBROKEN) for entry in entries)
    for line in textwrap.wrap(whole, _BAR):
        yield _INDENT + _INDENT + line.replace(_UNBROKEN, " ")


def _cells(sizes: Sequence[int]) -> list[int]:
    """Divide the cells of a bar in proportion to sizes; each gets at least one."""
    spare = _BAR - len(sizes)
    whole = sum(sizes)
    shares = [spare * size / whole for size in sizes]
    cells = [1 + int(share) for share in shares]
    by_rest = sorted(range(len(sizes)), key=lambda at: shares[at] % 1, reverse=True)
    for at in by_rest[: _BAR - sum(cells)]:
        cells[at] += 1
    return cells


def _fullest(models: Models, budget: MemoryBudget) -> str:
    """Return the GPU in use with the smallest share of its memory left; the CPU if none is in use."""
    needs = _needs(models)
    left = budget.left(needs)
    used = [name for name in budget.cards if any(need.device == name for need in needs)]
    return min(used, key=lambda name: left[name] / max(1, budget.free[name]), default=PROCESSOR)


def _needs(models: Models) -> tuple[DeviceNeed, ...]:
    return tuple(need for shape, request in models for need in estimate(shape, request))


def _taken(models: Models, device: str) -> int:
    return sum(need.total for need in _needs(models) if need.device == device)
