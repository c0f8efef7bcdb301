"""The page of the tuning report: what `page.html.j2` shows beside the figures."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite, log, nan
from pathlib import Path

from localspec.storage.paths import write_atomically
from localspec.tuning.events import ConfirmedContender, TaskResult
from localspec.tuning.report.data import ReportInput
from localspec.tuning.report.figures import (
    agreement,
    best_so_far,
    lowest,
    mean_hits,
    nearest,
    power_law,
    told_ranks,
)
from localspec.tuning.report.svg import FOLDER, rendered

DRIFT = 0.05  # more than this is told at the top
_COMPUTED = agreement, best_so_far, lowest, mean_hits, nearest, power_law, told_ranks


def render(given: ReportInput) -> str:
    """Return the report as HTML with inline style and inline SVG, nothing to fetch and nothing to run."""
    return rendered(
        FOLDER / "page.html.j2",
        given=given,
        calls=_calls(given),
        chosen=_chosen,
        drifts=list(_drifts(given)),
        is_doubtful=lambda drift: _doubt(drift) > DRIFT,
        named=_named,
        **{each.__name__: each for each in _COMPUTED},
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


def _calls(given: ReportInput) -> dict[str, float] | None:
    """Return what one and `several` tokens take at the least depth, NaN where that was not measured."""
    calls = sorted(given.costs.calls, key=lambda each: each.depth) if given.costs else []
    alone = next((each for each in calls if not each.together), None)
    one = dict(alone.verify).get(1, nan) if alone else nan
    if alone is None or not isfinite(one) or not one:
        return None
    both = next((each for each in calls if each.together and each.depth == alone.depth), None)
    lengths = [
        task.result.settings.draft_length for task in given.tasks if task.result.settings.mode != "off"
    ]
    size, several = max(each for each in alone.verify if each[0] <= max(lengths, default=4) + 1)
    return {
        "one": one,
        "size": size,
        "several": several,
        "step": dict(alone.step).get(1, nan),
        "together": dict(both.verify).get(1, nan) if both else nan,
    }


def _drifts(given: ReportInput) -> Iterator[tuple[str, float]]:
    for each in given.tasks:
        task = each.result.task.capitalize()
        yield f"{task}: the speed of plain decoding at the end was", each.result.drift
    if given.costs and given.costs.calls:
        drift = max((calls.drift for calls in given.costs.calls), key=_doubt)
        yield "Costs: the time of one token of the target at the end was, at worst,", drift


def _doubt(drift: float) -> float:
    return abs(log(drift)) if 0 < drift < inf else inf
