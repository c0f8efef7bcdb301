"""What the report says in words: pure functions from results to sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isfinite, log
from statistics import correlation, median

from localspec.decoding.measurements import CallCosts, Costs
from localspec.tuning.events import ConfirmedContender, Dropped, Estimate, TaskResult
from localspec.tuning.report.data import Prediction, ReportInput
from localspec.tuning.report.scales import UNKNOWN, finite, fixed, milliseconds, percent
from localspec.types import EngineSettings

_CONTENDERS = {
    "plain": "plain decoding",
    "best": "study's best",
    "second": "study's second",
    "third": "study's third",
    "llama.cpp": "llama.cpp's defaults",
}
_PARAMETERS = {
    "mode": "mode",
    "draft_length": "draft length",
    "fan_out_budget": "fan-out budget",
    "fan_out_shape": "fan-out shape",
    "draft_temperature": "draft temperature",
    "saguaro_c": "Saguaro's C",
    "acceptance": "acceptance rule",
    "min_confidence": "confidence stop",
    "fallback": "fallback of the draft model",
}
DRIFT = 0.05  # more than this is told at the top


def mode_name(mode: str) -> str:
    """Return a mode as the screen writes it."""
    return {"off": "plain", "ngram": "n-gram"}.get(mode, mode.upper())


def brief(settings: EngineSettings) -> str:
    """Return settings in a few words."""
    if settings.mode == "off":
        return "plain decoding"
    ahead = f", budget {settings.fan_out_budget}" if settings.mode == "ssd" else ""
    return f"{mode_name(settings.mode)}, K {settings.draft_length}{ahead}"


def choice(settings: EngineSettings) -> str:
    """Return what was chosen, as a sentence."""
    up_to = f"up to {settings.draft_length} token{'' if settings.draft_length == 1 else 's'}"
    match settings.mode:
        case "off":
            return "Plain decoding; speculation stays off."
        case "ngram":
            return f"Repetitions in the text are proposed as drafts of {up_to} (n-gram)."
        case "sd":
            return f"The draft model proposes {up_to} at a time (speculative decoding, SD)."
        case "ssd":
            return (
                f"The draft model proposes {up_to} at a time and, while the target verifies them, prepares "
                f"the next draft for up to {settings.fan_out_budget} outcomes (SSD)."
            )


def contender_name(contender: ConfirmedContender) -> str:
    """Return how a way of decoding is called, and its settings."""
    name = _CONTENDERS.get(contender.name, contender.name)
    return name if contender.settings.mode == "off" else f"{name}: {brief(contender.settings)}"


def dropped_words(dropped: Dropped) -> str:
    """Return what could not be measured, and why, as a sentence."""
    name = _CONTENDERS.get(dropped.name) or mode_name(dropped.name)
    return f"Could not be measured: {name} ({dropped.reason})."


def parameter_name(name: str) -> str:
    """Return a parameter of the search in words."""
    return _PARAMETERS.get(name, name.replace("_", " "))


def interval(estimate: Estimate, digits: int = 1) -> str:
    """Return the ends of an interval."""
    return f"{fixed(estimate.low, digits)} to {fixed(estimate.high, digits)}"


def rate(estimate: Estimate) -> str:
    """Return tokens per second with their interval."""
    return f"{fixed(estimate.value)} tokens/s ({interval(estimate)})"


def named(result: TaskResult, name: str) -> ConfirmedContender | None:
    """Return a contender by its name."""
    return next((each for each in result.contenders if each.name == name), None)


def chosen(result: TaskResult) -> ConfirmedContender | None:
    """Return the contender that the settings are; whatever plain decoding's other settings say."""
    if result.settings.mode == "off":
        return named(result, "plain")
    return next((each for each in result.contenders if each.settings == result.settings), None)


def comparison(result: TaskResult) -> str:
    """Return the chosen way against plain decoding and against llama.cpp's defaults."""
    winner, plain, common = chosen(result), named(result, "plain"), named(result, "llama.cpp")
    others = []
    if plain is not None and winner is not plain:
        others.append(f"Plain decoding wrote {rate(plain.rate)}.")
    if common is not None and winner is not common:
        others.append(f"With llama.cpp's defaults it was {rate(common.rate)}.")
    if common is None and winner is not None:
        others.append("It was not compared with llama.cpp's defaults.")
    return " ".join(others)


def settings_words(settings: EngineSettings) -> tuple[tuple[str, str], ...]:
    """Return the name and value of every setting; a dash where the mode does not use it."""
    drafts, ahead = settings.mode in {"sd", "ssd"}, settings.mode == "ssd"
    stop = "by measured costs" if settings.min_confidence is None else f"{settings.min_confidence:g}"
    used = {
        "draft_length": (settings.mode != "off", str(settings.draft_length)),
        "fan_out_budget": (ahead, str(settings.fan_out_budget)),
        "fan_out_shape": (ahead, settings.fan_out_shape),
        "draft_temperature": (drafts, f"{settings.draft_temperature:g}"),
        "saguaro_c": (ahead, f"{settings.saguaro_c:g}"),
        "acceptance": (drafts, settings.acceptance),
        "min_confidence": (settings.mode != "off", stop),
        "fallback": (drafts, settings.fallback),
    }
    values = ((parameter_name(name), words if uses else UNKNOWN) for name, (uses, words) in used.items())
    return (("mode", mode_name(settings.mode)), *values)


def meanings(given: ReportInput) -> Iterator[str]:
    """Yield what the figures mean, in plain sentences."""
    if given.costs is not None:
        yield from _of_costs(given.costs, _drafted(given))
    firsts = [
        f"{percent(each.result.calibration.acceptance[0])} in {each.result.task}"
        for each in given.tasks
        if each.result.calibration is not None and each.result.calibration.acceptance
    ]
    if firsts:
        yield f"Of the first draft tokens the target accepts {_listed(firsts)}."


def _drafted(given: ReportInput) -> int:
    chosen_ones = [each.result.settings for each in given.tasks]
    return max((each.draft_length for each in chosen_ones if each.mode != "off"), default=4)


def _of_costs(costs: Costs, drafted: int) -> Iterator[str]:
    alone = sorted((each for each in costs.calls if not each.together), key=lambda each: each.depth)
    if not alone or not (one := dict(alone[0].verify).get(1)) or not isfinite(one):
        return
    size, several = max(
        ((m, cost) for m, cost in alone[0].verify if m <= drafted + 1), key=lambda item: item[0]
    )
    if size > 1 and isfinite(several):
        yield (
            f"Verifying {size} tokens at once costs {several / one:.1f} times what one token costs on this "
            f"machine ({milliseconds(several)} against {milliseconds(one)}); one after the other they would "
            f"cost {size} times as much."
        )
    step = dict(alone[0].step).get(1)
    if step and isfinite(step):
        yield f"A token of the draft model costs {percent(step / one)} of one of the target" + _together(
            costs.calls, alone[0], one
        )


def _together(calls: Sequence[CallCosts], alone: CallCosts, one: float) -> str:
    both = next((each for each in calls if each.together and each.depth == alone.depth), None)
    slowed = dict(both.verify).get(1) if both else None
    if not slowed or not isfinite(slowed):
        return "."
    return f"; while both work at once, a token of the target takes {slowed / one:.2f} times as long."


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def agreement(pairs: Sequence[Prediction]) -> str:
    """Return how well the predictions agree with what was measured."""
    kept = [pair for pair in finite((p.predicted, p.measured.value) for p in pairs) if pair[1] > 0]
    if not kept:
        return ""
    errors = [abs(predicted / measured - 1) for predicted, measured in kept]
    said = f"{len(kept)} settings: median error {median(errors):.1%}, largest {max(errors):.1%}"
    ranks = [_ranks([pair[side] for pair in kept]) for side in (0, 1)]
    if len(kept) < 5 or any(len(set(each)) == 1 for each in ranks):
        return said + "."
    return f"{said}, rank correlation {correlation(ranks[0], ranks[1]):.2f}."


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def warnings(given: ReportInput) -> Iterator[str]:
    """Yield what makes figures doubtful: a machine that changed while it was measured."""
    for what, drift in _drifts(given):
        if _doubt(drift) > DRIFT:
            said = f"{what} {fixed(drift, 2)} times that at the beginning."
            yield f"The machine changed its speed while it was measured. {said}"


def _drifts(given: ReportInput) -> Iterator[tuple[str, float]]:
    for each in given.tasks:
        task = each.result.task.capitalize()
        yield f"{task}: the speed of plain decoding at the end was", each.result.drift
    if given.costs and given.costs.calls:
        drift = max((calls.drift for calls in given.costs.calls), key=_doubt)
        yield "Costs: the time of one token of the target at the end was, at worst,", drift


def _doubt(drift: float) -> float:
    return abs(log(drift)) if 0 < drift < inf else inf


def methods(given: ReportInput) -> Iterator[str]:
    """Yield how the figures came about and what they cannot say."""
    if given.quick:
        yield "This was a quick run: fewer trials and shorter measurements, so wider intervals."
    yield (
        "Rates were measured in real runs: the contenders took turns (interleaved) on fresh prompts that no "
        "other stage had seen. Ranges in brackets are 95% bootstrap intervals."
    )
    yield (
        "Speculation is kept only where its whole interval beats plain decoding. It never changes what the "
        "target may say: the words follow the same distribution in every mode."
    )
    yield (
        "Whatever is marked “simulated” was computed from the measured costs and recorded texts, not run; "
        "“predicted against measured” shows how far to trust it."
    )
    for what, drift in _drifts(given):
        yield f"{what} {fixed(drift, 2)} times that at the beginning."
    yield from given.notes
