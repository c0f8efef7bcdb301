"""The search space of the study: settings with different effects, as Optuna parameters; pure.

A parameter is only suggested where it matters; elsewhere it has its default, so settings with the same
behaviour are equal. Fractions have two digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from localspec.decoding.measurements import Costs
from localspec.types.request import Acceptance, EngineSettings, Fallback, FanOutShape, Mode, Sampling

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

STOPS = ("automatic", "confidence")  # what ends a draft before its full length
TEMPERATURES = (0.3, 2.0)
SAGUARO = (0.1, 1.0)
CONFIDENCES = (0.0, 0.9)
LLAMA_CPP = EngineSettings(
    mode="sd", draft_length=3, acceptance="match", min_confidence=0.0, draft_temperature=1.0
)
"""llama.cpp's defaults for a draft model."""


@dataclass(frozen=True, slots=True)
class Space:
    """What a pair, its machine and a sampling allow; `draws` says that the temperature is above 0."""

    modes: tuple[Mode, ...] = get_args(Mode)
    draws: bool = True
    max_draft_length: int = 16
    max_fan_out: int = 16


def space_of(
    sampling: Sampling, costs: Costs, *, has_draft: bool, max_draft_length: int = 16, max_fan_out: int = 16
) -> Space:
    """Return the modes to search: one that failed when costs were measured cannot run."""
    failed = {mode for mode, _ in costs.left_out}
    if not has_draft:
        failed |= {"sd", "ssd"}
    if all(overhead.mode != "ssd" for overhead in costs.overheads):  # this draft model cannot branch
        failed.add("ssd")
    modes = tuple(mode for mode in get_args(Mode) if mode not in failed)
    return Space(modes, not sampling.is_greedy, max_draft_length, max_fan_out)


def starting_points(space: Space) -> tuple[EngineSettings, ...]:
    """Return the settings to try first: plain decoding, llama.cpp's default, and common values."""
    usual = [
        replace(base, mode=mode, acceptance=rule)
        for base in (
            EngineSettings(),
            EngineSettings(draft_length=4, min_confidence=0.4),
            EngineSettings(fallback="ngram"),
        )
        for mode in get_args(Mode)
        for rule in get_args(Acceptance)
    ]
    return fitting([EngineSettings(mode="off"), LLAMA_CPP, *usual], space)


def fitting(wanted: Iterable[EngineSettings], space: Space) -> tuple[EngineSettings, ...]:
    """Return the settings with an allowed mode, normalised for the search, each once."""
    return tuple(dict.fromkeys(canonical(each, space) for each in wanted if each.mode in space.modes))


def canonical(settings: EngineSettings, space: Space) -> EngineSettings:
    """Return the searched settings that do the same, or the nearest; the mode must be one of the space's."""
    return suggest(_Known(settings), space)


def suggest(trial: BaseTrial | _Known, space: Space) -> EngineSettings:
    """Ask a trial for settings."""
    found: dict[str, Any] = {"mode": trial.suggest_categorical("mode", space.modes)}
    mode = found["mode"]
    if mode == "off":
        return EngineSettings(mode=mode)
    found["draft_length"] = trial.suggest_int("draft_length", 1, space.max_draft_length)
    if trial.suggest_categorical("stop", STOPS) == "confidence":
        found["min_confidence"] = _fraction(trial, "min_confidence", CONFIDENCES)
    if mode == "ngram":
        return EngineSettings(**found)
    found["fallback"] = trial.suggest_categorical("fallback", get_args(Fallback))
    if space.draws:
        found["acceptance"] = trial.suggest_categorical("acceptance", get_args(Acceptance))
    if mode == "ssd":
        found["fan_out_budget"] = trial.suggest_int("fan_out_budget", 1, space.max_fan_out, log=True)
        found["fan_out_shape"] = trial.suggest_categorical("fan_out_shape", get_args(FanOutShape))
    if found.get("acceptance") == "rejection":  # drafts are sampled, so their temperature matters
        found["draft_temperature"] = _fraction(trial, "draft_temperature", TEMPERATURES)
        if mode == "ssd":
            found["saguaro_c"] = _fraction(trial, "saguaro_c", SAGUARO)
    return EngineSettings(**found)


def _fraction(trial: BaseTrial | _Known, name: str, limits: tuple[float, float]) -> float:
    return round(trial.suggest_float(name, *limits, step=0.01), 2)


class _Known:
    """Answers like a trial: by what settings say, or what comes nearest."""

    def __init__(self, settings: EngineSettings) -> None:
        self._wanted = asdict(settings) | {"stop": STOPS[settings.min_confidence is not None]}

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        wanted = self._wanted[name]
        if wanted not in choices:
            raise ValueError(f"{name} {wanted} is not searched here")
        return str(wanted)

    def suggest_int(self, name: str, low: int, high: int, **_how: object) -> int:
        return min(max(int(self._wanted[name]), low), high)

    def suggest_float(self, name: str, low: float, high: float, **_how: object) -> float:
        return round(min(max(float(self._wanted[name]), low), high), 2)


def neighbours(settings: EngineSettings, space: Space) -> tuple[EngineSettings, ...]:
    """Return the settings that differ in one value, and that not by much."""
    near = fitting(_changed(settings), space)
    return tuple(each for each in near if each != canonical(settings, space))


def _changed(settings: EngineSettings) -> Iterator[EngineSettings]:
    for step in (-4, -2, -1, 1, 2, 4):
        yield replace(settings, draft_length=settings.draft_length + step)
    budget = settings.fan_out_budget
    for other in (budget - 1, budget + 1, round(budget / 1.5), round(budget * 1.5)):
        yield replace(settings, fan_out_budget=other)
    for shape in get_args(FanOutShape):
        yield replace(settings, fan_out_shape=shape)
    for fallback in get_args(Fallback):
        yield replace(settings, fallback=fallback)
    for factor in (0.8, 0.93, 1.07, 1.25):
        yield replace(settings, draft_temperature=settings.draft_temperature * factor)
    for change in (-0.1, -0.03, 0.03, 0.1):
        yield replace(settings, saguaro_c=settings.saguaro_c + change)
        if settings.min_confidence is not None:
            yield replace(settings, min_confidence=settings.min_confidence + change)
    for confidence in (0.0, 0.3, 0.6) if settings.min_confidence is None else (None,):
        yield replace(settings, min_confidence=confidence)
