"""What a study found: candidates for real runs, and what a report draws; all from its trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from localspec.tuning.events import SettingsCandidate
from localspec.tuning.report.data import LandscapeCell
from localspec.tuning.search.space import Space, canonical, parameters
from localspec.tuning.search.study import Tried, distributions
from localspec.tuning.search.study_file import quiet
from localspec.types import EngineSettings, Mode

CLOSE = 0.1  # behind the best: the simulator may err by nearly that between modes, and less within one
FEWEST = 12  # trials of a mode, before it is said which parameters matter


def best(tried: Iterable[Tried], count: int = 3) -> tuple[SettingsCandidate, ...]:
    """Return the best settings that differ in behaviour, without plain decoding.

    The very best comes first, then the best of every other mode that is close to it, since errors of the
    simulator are shared within a mode and differ between modes; then the next best ones.
    """
    ranked = sorted(
        (each for each in tried if each.tokens_per_s is not None and each.settings.mode != "off"),
        key=lambda each: (-each.estimate, each.number),
    )
    firsts: dict[Mode, Tried] = {}
    for each in ranked:
        if each.estimate >= (1.0 - CLOSE) * ranked[0].estimate:
            firsts.setdefault(each.settings.mode, each)
    chosen: list[Tried] = []
    for each in [*firsts.values(), *ranked]:
        if len(chosen) < count and not any(_alike(each, other) for other in chosen):
            chosen.append(each)
    chosen.sort(key=lambda each: (-each.estimate, each.number))
    return tuple(SettingsCandidate(each.settings, each.estimate) for each in chosen)


def _alike(one: Tried, other: Tried) -> bool:
    """Tell whether two trials did the same, or nearly: a real run could not tell them apart."""
    a, b = one.settings, other.settings
    if a.mode != b.mode or a.acceptance != b.acceptance:
        return False
    if math.isclose(one.estimate, other.estimate, rel_tol=1e-9):
        return True  # they differ in limits that are never reached
    if (a.min_confidence is None) != (b.min_confidence is None) or a.fan_out_shape != b.fan_out_shape:
        return False
    return (
        a.fallback == b.fallback
        and abs(a.draft_length - b.draft_length) <= 1
        and abs(math.log(a.fan_out_budget / b.fan_out_budget)) < math.log(1.5)
        and abs(math.log(a.draft_temperature / b.draft_temperature)) < math.log(1.2)
        and abs(a.saguaro_c - b.saguaro_c) < 0.15
        and abs((a.min_confidence or 0.0) - (b.min_confidence or 0.0)) < 0.1
    )


def predicted(tried: Iterable[Tried], settings: EngineSettings, space: Space) -> float | None:
    """Return the simulated tokens per second of settings, None if they were not tried to the end."""
    if settings.mode not in space.modes:
        return None
    wanted = canonical(settings, space)
    return next((each.tokens_per_s for each in tried if each.settings == wanted), None)


def history(tried: Iterable[Tried]) -> tuple[float | None, ...]:
    """Return the tokens per second of the trials in their order, None where one failed or was left early."""
    return tuple(each.tokens_per_s for each in tried)


def landscape(tried: Iterable[Tried]) -> tuple[LandscapeCell, ...]:
    """Return the best value for each draft length and fan-out budget, 0 for speculating without one.

    Where all trials were left early it is the value on the share of the trace that they saw.
    """
    cells: dict[tuple[int, int], Tried] = {}
    for each in tried:
        settings = each.settings
        if each.failure or settings.mode not in ("sd", "ssd"):
            continue
        place = settings.draft_length, settings.fan_out_budget if settings.mode == "ssd" else 0
        if place not in cells or _rank(each) > _rank(cells[place]):
            cells[place] = each
    return tuple(LandscapeCell(*place, cells[place].estimate) for place in sorted(cells))


def _rank(tried: Tried) -> tuple[bool, float]:
    return tried.tokens_per_s is not None, tried.estimate


def importance(tried: Sequence[Tried], space: Space) -> tuple[tuple[str, float], ...]:
    """Return how much each parameter mattered in the best mode, the most important first, by PED-ANOVA.

    A parameter that a trial did not need counts with its default. Empty after too few trials.
    """
    found = best(tried, 1)
    mode = found[0].settings.mode if found else "off"
    usable = [each for each in tried if each.tokens_per_s is not None and each.settings.mode == mode]
    if len(usable) < FEWEST:
        return ()
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    full = EngineSettings(mode=mode, acceptance="rejection", min_confidence=0.0)  # has every parameter
    everywhere = distributions(full, space)
    names = [name for name, values in everywhere.items() if name != "mode" and not values.single()]
    with quiet():
        study = optuna.create_study(direction="maximize")
        for each in usable:
            answers = parameters(full, space) | parameters(each.settings, space)
            study.add_trial(
                optuna.trial.create_trial(value=each.estimate, params=answers, distributions=everywhere)
            )
        shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=names)
    return tuple(shares.items())
