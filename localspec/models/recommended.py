"""The sampling that a model's maker recommends: in its file or, for SmolLM2, in its model card.

The keys are those that llama.cpp reads (b11312, `common_init_sampler_from_model`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from localspec import smollm2
from localspec.errors import ModelFileError
from localspec.gguf import Header, Scalar, read_header
from localspec.safe_text import safe_line
from localspec.storage.profiles import Profile
from localspec.types.request import Recommendation, Sampling, SamplingChoice
from localspec.values import range_of

_PREFIX = "general.sampling."
_FIELDS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "penalty_window",
}
_MAX_TOLD = 20  # a file may have thousands of keys
_LONGEST_VALUE = 60  # characters


def recommended(header: Header) -> Recommendation:
    """Return the recommendation for a model; invalid values are skipped with a warning."""
    if smollm2.is_target(header.path):
        return smollm2.RECOMMENDED
    found: dict[str, Any] = {}
    unused: list[str] = []
    wrong: list[str] = []
    for name, value in _entries(header):
        field = _FIELDS.get(name)
        if field is None:
            unused.append(f"{name} {_shown(value)}")
            continue
        checked = _checked(field, value)
        if checked is None:
            wrong.append(
                f"the model's file recommends {_PREFIX}{name} {_shown(value)}, which is not used: "
                f"it is not {_wanted(field)}"
            )
        else:
            found[field] = checked
    return Recommendation(
        SamplingChoice(**found),
        unused=tuple(unused[:_MAX_TOLD]),
        wrong=tuple(wrong),
    )


def recommended_for(path: Path) -> Recommendation:
    """Return the recommendation in a file; none if it cannot be read."""
    if smollm2.is_target(path):
        return smollm2.RECOMMENDED
    with suppress(ModelFileError):  # opening it reports the error
        return recommended(read_header(path))
    return Recommendation()


def said_by(profile: Profile, recommendation: Recommendation) -> dict[str, Any]:
    """Return the names of the sampling fields that a profile sets for a model."""
    gives_way = {*recommendation.firm}.difference(profile.own_sampling)
    return {name: getattr(profile.sampling, name) for name in profile.settles if name not in gives_way}


def suited(profile: Profile, recommendation: Recommendation) -> Profile:
    """Return a profile with what it leaves open as a model's maker recommends it."""
    stated = said_by(profile, recommendation)
    more = {name: value for name, value in recommendation.sampling.settled.items() if name not in stated}
    return replace(profile, sampling=replace(profile.sampling, **more)) if more else profile


def _entries(header: Header) -> Iterator[tuple[str, Scalar | None]]:
    """Yield the recommendations of a header by their names there; None for a list."""
    for key, value in header.values.items():
        if key.startswith(_PREFIX):
            yield key.removeprefix(_PREFIX), value
    for key in header.counts:
        if key.startswith(_PREFIX):
            yield key.removeprefix(_PREFIX), None


def _checked(field: str, value: Scalar | None) -> int | float | None:
    """Return a value as its field of `Sampling` takes it; None where it makes no sense."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    low, high = range_of(Sampling, field)
    if _is_whole(field):
        return int(value) if low <= value <= high and value == int(value) else None
    number = float(f"{value:.7g}") + 0.0  # 0.95 in 32 bits is 0.949999988; -0.0 is 0.0
    return number if low <= number <= high else None


def _is_whole(field: str) -> bool:
    return isinstance(getattr(Sampling(), field), int)


def _wanted(field: str) -> str:
    low, high = range_of(Sampling, field)
    return f"a {'whole ' * _is_whole(field)}number from {low:g} to {high:,.9g}"


def _shown(value: Scalar | None) -> str:
    """Return a value in one line of plain text."""
    if value is None:
        return "(a list)"
    text = f"{value:.7g}" if isinstance(value, float) else safe_line(str(value))
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
