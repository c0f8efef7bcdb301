"""What the study may search: the settings that differ in what they do, as Optuna parameters; pure.

A parameter is asked for only where it matters; elsewhere it keeps its default, so that settings that behave
alike are equal. Fractions have two digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast, get_args

from localspec.types import Acceptance, EngineSettings, Fallback, FanOutShape, Mode, Sampling

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

Stop = Literal["automatic", "confidence"]

TEMPERATURES = (0.3, 2.0)
SAGUARO = (0.1, 1.0)
CONFIDENCES = (0.0, 0.9)
_FRACTION = 0.01
_FIXED = EngineSettings(draft_length=4, min_confidence=0.4)
_COMBINED = EngineSettings(fallback="ngram")
_LLAMA_CPP = EngineSettings(mode="sd", draft_length=3, acceptance="match", min_confidence=0.0)


@dataclass(frozen=True, slots=True)
class Space:
    """What a pair, its machine and a sampling allow; `draws` says that the temperature is above 0."""

    modes: tuple[Mode, ...] = get_args(Mode)
    draws: bool = True
    max_draft_length: int = 16
    max_fan_out: int = 16


def space_of(
    sampling: Sampling, *, has_draft: bool, can_branch: bool, can_rewind: bool = True, max_fan_out: int = 16
) -> Space:
    """Return what can be searched for models of some abilities."""
    allowed = {"off": True, "ngram": can_rewind, "sd": can_rewind and has_draft}
    allowed["ssd"] = allowed["sd"] and can_branch
    modes = tuple(mode for mode in get_args(Mode) if allowed[mode])
    return Space(modes, sampling.temperature > 0, max_fan_out=max_fan_out)


@dataclass(frozen=True, slots=True)
class Way:
    """The choices that decide which other parameters there are."""

    mode: Mode
    acceptance: Acceptance
    stop: Stop

    @classmethod
    def of(cls, settings: EngineSettings) -> Way:
        """Return the way that settings go."""
        stop: Stop = "automatic" if settings.min_confidence is None else "confidence"
        return cls(settings.mode, settings.acceptance, stop)


def ways(space: Space) -> tuple[Way, ...]:
    """Return every way that has something to search."""
    return tuple(dict.fromkeys(Way.of(start) for start in starting_points(space) if start.mode != "off"))


def starting_points(space: Space) -> tuple[EngineSettings, ...]:
    """Return what should be tried first: plain decoding, llama.cpp's default, and each way's usual values."""
    rules: tuple[Acceptance, ...] = get_args(Acceptance)
    usual = [
        replace(base, mode=mode, acceptance=rule)
        for base in (EngineSettings(), _FIXED, _COMBINED)
        for mode in get_args(Mode)
        for rule in rules
    ]
    return fitting([EngineSettings(mode="off"), _LLAMA_CPP, *usual], space)


def fitting(wanted: Iterable[EngineSettings], space: Space) -> tuple[EngineSettings, ...]:
    """Return the settings whose mode is allowed, as they can be searched, each once."""
    return tuple(dict.fromkeys(canonical(each, space) for each in wanted if each.mode in space.modes))


def canonical(settings: EngineSettings, space: Space) -> EngineSettings:
    """Return the searched settings that do the same, or the nearest; the mode must be one of the space's."""
    if settings.mode not in space.modes:
        raise ValueError(f"mode {settings.mode} is not searched here")
    mode = settings.mode
    plain = EngineSettings(mode=mode)
    if mode == "off":
        return plain
    confidence = settings.min_confidence
    found = replace(
        plain,
        draft_length=min(max(settings.draft_length, 1), space.max_draft_length),
        min_confidence=None if confidence is None else _fraction(confidence, CONFIDENCES),
    )
    if mode == "ngram":
        return found
    found = replace(found, fallback=settings.fallback)
    if space.draws:
        found = replace(found, acceptance=settings.acceptance)
    if mode == "ssd":
        found = replace(
            found,
            fan_out_budget=min(max(settings.fan_out_budget, 1), space.max_fan_out),
            fan_out_shape=settings.fan_out_shape,
        )
    if not _tempers(found, space):
        return found
    found = replace(found, draft_temperature=_fraction(settings.draft_temperature, TEMPERATURES))
    return replace(found, saguaro_c=_fraction(settings.saguaro_c, SAGUARO)) if mode == "ssd" else found


def _tempers(settings: EngineSettings, space: Space) -> bool:
    """Tell whether drafts are drawn, so that how the draft's distribution is tempered matters."""
    return space.draws and settings.acceptance == "rejection"


def _fraction(value: float, limits: tuple[float, float]) -> float:
    return round(min(max(value, limits[0]), limits[1]), 2)


def suggest(trial: BaseTrial, space: Space) -> EngineSettings:
    """Ask a trial for settings."""
    mode = cast(Mode, trial.suggest_categorical("mode", space.modes))
    found = EngineSettings(mode=mode)
    if mode == "off":
        return found
    found = replace(found, draft_length=trial.suggest_int("draft_length", 1, space.max_draft_length))
    if trial.suggest_categorical("stop", get_args(Stop)) == "confidence":
        found = replace(found, min_confidence=_suggest(trial, "min_confidence", CONFIDENCES))
    if mode == "ngram":
        return found
    fallback = trial.suggest_categorical("fallback", get_args(Fallback))
    found = replace(found, fallback=cast(Fallback, fallback))
    if space.draws:
        rule = trial.suggest_categorical("acceptance", get_args(Acceptance))
        found = replace(found, acceptance=cast(Acceptance, rule))
    if mode == "ssd":
        found = replace(
            found,
            fan_out_budget=trial.suggest_int("fan_out_budget", 1, space.max_fan_out, log=True),
            fan_out_shape=cast(
                FanOutShape, trial.suggest_categorical("fan_out_shape", get_args(FanOutShape))
            ),
        )
    if not _tempers(found, space):
        return found
    found = replace(found, draft_temperature=_suggest(trial, "draft_temperature", TEMPERATURES))
    return replace(found, saguaro_c=_suggest(trial, "saguaro_c", SAGUARO)) if mode == "ssd" else found


def _suggest(trial: BaseTrial, name: str, limits: tuple[float, float]) -> float:
    return round(trial.suggest_float(name, *limits, step=_FRACTION), 2)


def parameters(settings: EngineSettings, space: Space) -> dict[str, str | int | float]:
    """Return what a trial has to answer for `suggest` to return these settings."""
    settings = canonical(settings, space)
    found: dict[str, str | int | float] = {"mode": settings.mode}
    if settings.mode == "off":
        return found
    found |= {"draft_length": settings.draft_length, "stop": Way.of(settings).stop}
    if settings.min_confidence is not None:
        found["min_confidence"] = settings.min_confidence
    if settings.mode == "ngram":
        return found
    found["fallback"] = settings.fallback
    if space.draws:
        found["acceptance"] = settings.acceptance
    if settings.mode == "ssd":
        found["fan_out_budget"] = settings.fan_out_budget
        found["fan_out_shape"] = settings.fan_out_shape
    if _tempers(settings, space):
        found["draft_temperature"] = settings.draft_temperature
        if settings.mode == "ssd":
            found["saguaro_c"] = settings.saguaro_c
    return found


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
