"""Turn the text of a flag into a checked value; each complaint names the range."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from localspec.storage.config import LARGEST_CONTEXT, SMALLEST_CONTEXT

TemplateVariables = tuple[tuple[str, bool | int | float | str], ...]
LARGEST_SEED = 2**32 - 1


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from {low} to {high}")
        return value

    return read


def decimal(low: float, high: float) -> Callable[[str], float]:
    """Return a reader of numbers from `low` to `high`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"`{text}` is not a number from {low:g} to {high:g}")
        return value

    return read


def seed(text: str) -> int | None:
    """Read a seed; -1 stands for a fresh one, as in llama.cpp."""
    return None if text == "-1" else whole(0, LARGEST_SEED)(text)


def token_limit(text: str) -> int | None:
    """Read a number of tokens; -1 stands for no limit, as in llama.cpp."""
    return None if text == "-1" else whole(1, 2**31 - 1)(text)


def context_size(text: str) -> int:
    """Read a context size in tokens; 0 stands for the model's own."""
    value = whole(0, LARGEST_CONTEXT)(text)
    if 0 < value < SMALLEST_CONTEXT:
        raise argparse.ArgumentTypeError(
            f"`{text}` is too small: use 0 (the model's own) or {SMALLEST_CONTEXT} to {LARGEST_CONTEXT}"
        )
    return value


def gpu_layers(text: str) -> int | None:
    """Read how many layers go to the GPU; `auto` and `all` stand for every layer there is room for."""
    if text in ("auto", "all", "-1"):
        return None
    try:
        return whole(0, 10_000)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a whole number from 0 to 10000, `auto` or `all`"
        ) from None


def tensor_split(text: str) -> tuple[float, ...]:
    """Read shares such as `3,1`: how much of a model each device holds."""
    try:
        shares = tuple(decimal(0, 1e6)(part) for part in text.replace("/", ",").split(","))
    except argparse.ArgumentTypeError:
        shares = ()
    if not shares or sum(shares) == 0:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a list of shares such as `3,1`, at least one above 0"
        )
    return shares


def device_names(text: str) -> tuple[str, ...]:
    """Read device names such as `CUDA0,CUDA1`; `none` and `cpu` stand for the CPU alone."""
    if text.lower() in ("none", "cpu"):
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"`{text}` is not a list of device names such as `CUDA0,CUDA1`")
    return names


def on_off_auto(text: str) -> bool | None:
    """Read a switch that may decide for itself."""
    values = {"on": True, "off": False, "auto": None}
    if text not in values:
        raise argparse.ArgumentTypeError(f"`{text}` is not one of on, off, auto")
    return values[text]


def template_variables(text: str) -> TemplateVariables:
    """Read the variables of a chat template from a JSON object of plain values."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or not all(
        isinstance(v, bool | int | float | str) for v in value.values()
    ):
        raise argparse.ArgumentTypeError(
            'not a JSON object of plain values such as {"enable_thinking": false}'
        )
    return tuple(value.items())
