"""Weights that go to another device than their layer: llama.cpp's tensor overrides (`-ot`, `-ncmoe`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from localspec.errors import UserError
from localspec.gguf import Header
from localspec.types.models import ModelOptions, TensorOverride

CPU = "CPU"
EXPERTS = re.compile(r"(ffn_(?:up|down|gate|gate_up)_(?:ch)?exps)\.")
"""Names of the weights of all experts, within their layer (llama-arch.cpp)."""
_UNKNOWN_GROUP = re.compile(r"(?<!\\)(?:\\\\)*(\(\?(?![:=!]).?)")
"""The beginning of a group that only Python has: llama.cpp's patterns are those of ECMAScript."""
_OUTPUT = TensorOverride(r"^(output|token_embd)\.", CPU)  # the table is the output's where there is no other


def experts_override(layers: Iterable[int], names: Sequence[str] = ()) -> TensorOverride:
    """Return the override that keeps experts of some layers in RAM, or only their weights of some names.

    One pattern for all layers: llama.cpp compiles each pattern again for every tensor.
    """
    numbers = "|".join(map(str, layers))
    parts = "|".join(names) or "ffn_(up|down|gate|gate_up)_(ch|)exps"
    return TensorOverride(rf"^blk\.({numbers})\.({parts})\.", CPU)


def all_overrides(options: ModelOptions) -> tuple[TensorOverride, ...]:
    """Return the overrides of a model in llama.cpp's order: the first that matches counts."""
    output = (_OUTPUT,) if options.output_at_home else ()
    experts = (experts_override(range(options.experts_at_home)),) if options.experts_at_home else ()
    return (*output, *options.overrides, *experts)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    unknown = _UNKNOWN_GROUP.search(pattern)
    problem = f"llama.cpp does not know `{unknown[1]}`" if unknown else ""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        problem = str(error)
    if problem:
        raise UserError(
            f"-ot: `{pattern}` is not a regular expression: {problem}",
            r"for instance -ot 'blk\.[0-9]\.ffn_.*_exps=CPU'",
        )
    return compiled


def device_of(name: str, overrides: Sequence[TensorOverride]) -> str | None:
    """Return the device on which overrides put a tensor, None where they do not; raises UserError."""
    return next((each.device for each in overrides if _compiled(each.pattern).search(name)), None)


def check_overrides(
    header: Header,
    overrides: Sequence[TensorOverride],
    experts_at_home: int | None,
    devices: Sequence[str],
    flags: tuple[str, str] = ("-ot", "-ncmoe"),
) -> None:
    """Raise UserError for overrides that change nothing, or name a device that a model does not use.

    `flags` are what the user calls them.
    """
    on_tensors, on_experts = flags
    names = [tensor.name for tensor in header.tensors]
    for override in overrides:
        if override.device not in (CPU, *devices):
            there = ", ".join((CPU, *devices))
            raise UserError(
                f"{on_tensors}: {header.name} is not on a device called {override.device!r}",
                f"devices: {there}",
            )
        if not any(map(_compiled(override.pattern).search, names)):
            raise UserError(
                f"{on_tensors}: no tensor of {header.name} has a name that matches `{override.pattern}`",
                f"its first tensors are {', '.join(names[:3])}",
            )
    if not experts_at_home:
        return
    layers = header.integer("{arch}.block_count")
    if not any(map(EXPERTS.search, names)):
        raise UserError(f"{on_experts}: {header.name} is not a mixture of experts", f"leave out {on_experts}")
    if experts_at_home > layers:
        raise UserError(
            f"{on_experts} {experts_at_home}: {header.name} has {layers} layers",
            f"-c{on_experts.removeprefix('-nc')} keeps the experts of all layers in RAM",
        )


def check_order(header: Header, overrides: Sequence[TensorOverride], flag: str) -> None:
    """Raise UserError for an override whose tensors all match others before it."""
    left = [tensor.name for tensor in header.tensors]
    for override in overrides:
        matches = _compiled(override.pattern).search
        if not any(map(matches, left)):
            raise UserError(
                f"{flag}: `{override.pattern}` has no effect, because patterns before it match the same",
                "put it first: the first pattern that matches counts",
            )
        left = [name for name in left if not matches(name)]
