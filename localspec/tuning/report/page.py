"""The page of the tuning report: what `page.html.j2` shows beside the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log
from pathlib import Path

from markupsafe import Markup

from localspec.decoding.measurements import CallCosts, Costs
from localspec.storage.paths import write_atomically
from localspec.tuning.events import ConfirmedContender, TaskResult
from localspec.tuning.report.data import ReportInput
from localspec.tuning.report.figures import PARAMETERS, cost_figures, prediction_figure, task_figures
from localspec.tuning.report.svg import FOLDER, Bar, rate_bars, rendered
from localspec.tuning.words import (
    UNKNOWN,
    brief,
    contender_name,
    contender_words,
    fixed,
    milliseconds,
    mode_name,
    percent,
)
from localspec.types import EngineSettings

DRIFT = 0.05  # more than this is told at the top


def render(given: ReportInput) -> str:
    """Return the report as HTML with inline style and inline SVG, nothing to fetch and nothing to run."""
    results = [task.result for task in given.tasks]
    columns = [settings_words(each.settings) for each in results]
    return rendered(
        FOLDER / "page.html.j2",
        given=given,
        drifts=list(_drifts(given)),
        meanings=list(_meanings(given)),
        tasks=[
            {"name": task.result.task, "result": task.result, "figures": list(task_figures(task))}
            for task in given.tasks
        ],
        costs=list(cost_figures(given.costs, has_draft=given.draft is not None)),
        prediction=prediction_figure(given),
        settings=[(PARAMETERS[name], *(each[name] for each in columns)) for name in PARAMETERS],
        brief=brief,
        chosen=_chosen,
        contender_name=contender_name,
        contender_words=contender_words,
        named=_named,
        parameters=parameters,
        rate_bars=_rate_bars,
        size=size,
    )


def write_report(path: Path, given: ReportInput) -> None:
    """Write the report in one step, for its owner's eyes; raises StoreError."""
    write_atomically(path, render(given))


def _named(result: TaskResult, name: str) -> ConfirmedContender | None:
    return next((each for each in result.contenders if each.name == name), None)


def _chosen(result: TaskResult) -> ConfirmedContender | None:
    """Return the contender that the settings are; whatever plain decoding's other settings say."""
    if result.settings.mode == "off":
        return _named(result, "plain")
    return next((each for each in result.contenders if each.settings == result.settings), None)


def _rate_bars(result: TaskResult) -> Markup | None:
    winner = _chosen(result)
    return rate_bars(
        [
            Bar(f"chosen: {brief(each.settings)}", each.rate, chosen=True)
            if each is winner
            else Bar(contender_name(each), each.rate)
            for each in result.contenders
        ]
    )


def settings_words(settings: EngineSettings) -> dict[str, str]:
    """Return the value of every setting by its name; a dash where the mode does not use it."""
    drafts, ahead = settings.mode in {"sd", "ssd"}, settings.mode == "ssd"
    stop = "by measured costs" if settings.min_confidence is None else f"{settings.min_confidence:g}"
    used = {
        "mode": (True, mode_name(settings.mode)),
        "draft_length": (settings.mode != "off", str(settings.draft_length)),
        "fan_out_budget": (ahead, str(settings.fan_out_budget)),
        "fan_out_shape": (ahead, settings.fan_out_shape),
        "draft_temperature": (drafts, f"{settings.draft_temperature:g}"),
        "saguaro_c": (ahead, f"{settings.saguaro_c:g}"),
        "acceptance": (drafts, settings.acceptance),
        "min_confidence": (settings.mode != "off", stop),
        "fallback": (drafts, settings.fallback),
    }
    return {name: words if uses else UNKNOWN for name, (uses, words) in used.items()}


def _meanings(given: ReportInput) -> Iterator[str]:
    """Yield what the figures mean, in plain sentences."""
    if given.costs is not None:
        chosen = [each.result.settings for each in given.tasks]
        drafted = max((each.draft_length for each in chosen if each.mode != "off"), default=4)
        yield from _of_costs(given.costs, drafted)
    firsts = [
        f"{percent(each.result.calibration.acceptance[0])} in {each.result.task}"
        for each in given.tasks
        if each.result.calibration is not None and each.result.calibration.acceptance
    ]
    if firsts:
        listed = " and ".join([", ".join(firsts[:-1]), firsts[-1]] if firsts[1:] else firsts)
        yield f"Of the first draft tokens the target accepts {listed}."


def _of_costs(costs: Costs, drafted: int) -> Iterator[str]:
    alone = sorted((each for each in costs.calls if not each.together), key=lambda each: each.depth)
    if not alone or not (one := dict(alone[0].verify).get(1)) or not isfinite(one):
        return
    size, several = max((m, cost) for m, cost in alone[0].verify if m <= drafted + 1)
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


@dataclass(frozen=True, slots=True)
class _Drift:
    """How much faster or slower the machine was at the end than at the beginning."""

    what: str
    times: float

    @property
    def says(self) -> str:
        return f"{self.what} {fixed(self.times, 2)} times that at the beginning."

    @property
    def is_doubtful(self) -> bool:
        return _doubt(self.times) > DRIFT


def _drifts(given: ReportInput) -> Iterator[_Drift]:
    for each in given.tasks:
        task = each.result.task.capitalize()
        yield _Drift(f"{task}: the speed of plain decoding at the end was", each.result.drift)
    if given.costs and given.costs.calls:
        drift = max((calls.drift for calls in given.costs.calls), key=_doubt)
        yield _Drift("Costs: the time of one token of the target at the end was, at worst,", drift)


def _doubt(drift: float) -> float:
    return abs(log(drift)) if 0 < drift < inf else inf


def size(amount: float) -> str:
    """Return bytes as people say them."""
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def parameters(count: float) -> str:
    """Return a number of weights as people say them."""
    for unit, name in ((1e9, "billion"), (1e6, "million")):
        if count >= unit:
            return f"{count / unit:.{1 if count < 100 * unit else 0}f} {name}"
    return f"{count:,.0f}"
