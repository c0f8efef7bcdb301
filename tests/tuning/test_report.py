"""The page of a run: whole in one file, each picture with the run's numbers, and what is not there told."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from localspec.benchmark.statistics import Interval
from localspec.storage.profiles import profiles
from localspec.tuning import report
from localspec.tuning.events import BestSoFar, TaskResult, TuneEvent
from localspec.tuning.plan import TunePlan
from localspec.tuning.run_folder import RunFolder, RunState
from localspec.tuning.words import figure
from localspec.types.events import Summary
from localspec.types.request import EngineSettings
from tests.cli.tuning_script import cache_chosen, compared
from tests.tuning.fake_models import VERIFY_S
from tests.tuning.test_tune import identity, planned, run_of

TRIALS = 13  # enough for a picture of what mattered
OF_ALL = ["costs-verify", "costs-step"]
OF_A_TASK = ["acceptance", "hit-rate", "landscape", "history", "importance", "agreement"]


@dataclass
class Run:
    """A finished run of one task, and its page."""

    plan: TunePlan
    events: list[TuneEvent]
    state: RunState
    traces: Path
    told: list[str] = field(default_factory=list)
    page: str = ""

    @property
    def result(self) -> TaskResult:
        return next(event for event in self.events if isinstance(event, TaskResult))


def drawn(run: Run) -> str:
    return report.page("Tuning a <pair>", run.state, run.plan, run.traces, run.told.append)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_DATA_DIR", str(home / "data"))
        plan = replace(planned(home), trials=TRIALS)
        events = list(run_of(plan).events())
        folder = RunFolder(identity(plan).pair)
        state = folder.state.read()
        assert state is not None
        made = Run(plan, events, state, folder.path / "traces")
        made.page = drawn(made)
        yield made


def pictures(page: str) -> list[str]:
    return re.findall(r'<div id="([\w-]+)"', page)


@pytest.mark.slow
def test_the_page_says_how_the_models_were_opened(run: Run) -> None:
    assert "The models were opened" not in run.page  # a quick run tries nothing
    page = drawn(replace(run, state=replace(run.state, opened=cache_chosen())))
    assert "<p>The models were opened with target cache q8_0.</p>" in page
    assert "<p>Note that a q8_0 cache moves the target&#x27;s distribution: KL divergence 0.0012 nats" in page


@pytest.mark.slow
def test_the_page_says_what_neighbouring_tokens_share(run: Run) -> None:
    assert "neighbouring" not in run.page
    assert run.state.costs is not None
    costs = replace(run.state.costs, compared=compared().passes)
    page = drawn(replace(run, state=replace(run.state, costs=costs)))
    assert "<p>Passes over 2, 3, 5 neighbouring tokens of answers take 0.95, 0.90, 0.80 of" in page


def lines_of(page: str, name: str) -> list[dict[str, Any]]:
    """Return what a picture draws, as plotly is given it."""
    start = re.search(rf'Plotly\.newPlot\(\s*"{name}",\s*', page)
    assert start is not None, f"there is no picture {name}"
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(page[start.end() :])[0]
    return found


def test_the_page_downloads_nothing(run: Run) -> None:
    page = run.page
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page  # which a browser holds plotly itself to
    own = page.replace(get_plotlyjs(), "")
    assert len(own) < len(page) / 2  # plotly is on the page
    assert not re.search(r"https?:|<link|<img|<iframe|\bsrc=|\bimport\b", own)
    assert "Tuning a &lt;pair&gt;</h1>" in own


def test_every_picture_is_there_below_a_sentence(run: Run) -> None:
    assert pictures(run.page) == [*OF_ALL, *(f"coding-{name}" for name in OF_A_TASK)]
    above = [part.rpartition("<p>")[2].partition("</p>")[0] for part in run.page.split("<div id=")[:-1]]
    sentences = [says.split(": ", 1)[1] for says in report.SAYS.values()]
    assert [says[1:] for says in above] == [says[1:] for says in sentences]
    assert run.told[0] == "coding: simulating its trials again"


def test_the_choice_is_reported_with_its_reason(run: Run) -> None:
    result = run.result
    assert f"draft {result.settings.draft_length}" in run.page
    rate = figure(result.winner.rate.value)
    assert f"at {rate} tokens per second, since {result.reason}." in run.page


def test_costs_are_those_that_were_measured_alone_and_together(run: Run) -> None:
    verify, step = lines_of(run.page, "costs-verify"), lines_of(run.page, "costs-step")
    for lines in (verify, step):
        assert {"alone", "together"} == {line["name"].split(",")[0] for line in lines}
    for line in verify:
        assert line["y"] == pytest.approx([1000 * VERIFY_S * (1 + 0.02 * (size - 1)) for size in line["x"]])
    for line in step:
        assert line["y"] == pytest.approx([1 + 0.01 * width for width in line["x"]])


def test_the_search_is_drawn_as_it_went(run: Run) -> None:
    trials, best = lines_of(run.page, "coding-history")[:2]
    assert len(trials["y"]) == run.result.trials == TRIALS
    told = [event for event in run.events if isinstance(event, BestSoFar) and event.rate is None]
    assert list(dict.fromkeys(best["y"])) == [each.predicted for each in told]
    assert best["y"] == list(accumulate(trials["y"], max))


def test_what_mattered_sums_to_one(run: Run) -> None:
    bars = lines_of(run.page, "coding-importance")[0]
    assert {"mode", "draft_length", "fan_out_budget"} <= set(bars["y"])
    assert sum(bars["x"]) == pytest.approx(1)


def test_acceptance_is_by_position(run: Run) -> None:
    bars = lines_of(run.page, "coding-acceptance")[0]
    assert bars["x"] == list(range(1, report.POSITIONS + 1))
    assert bars["y"][:3] == pytest.approx([0.72, 0.71, 0.71], abs=0.01)


def test_hit_rates_are_drawn_with_their_fit(run: Run) -> None:
    seen, fit = lines_of(run.page, "coding-hit-rate")
    assert seen["x"] == fit["x"] == list(report.BUDGETS)
    assert seen["y"] == pytest.approx([0.28, 0.33, 0.52, 0.69, 0.84, 0.87], abs=0.01)
    assert fit["name"] == "fit: 1 - 0.89·F^-0.58"


def test_a_fit_finds_the_power_law_that_made_the_rates() -> None:
    misses = {budget: round(1000 * budget**-0.5) for budget in report.BUDGETS}  # of 1250 rounds
    points, fit = report._hit_rates({of: Summary(hits=1250 - n, misses=n) for of, n in misses.items()}).data
    assert points.y == pytest.approx([1 - n / 1250 for n in misses.values()])
    assert fit.name == "fit: 1 - 0.80·F^-0.50"
    assert fit.y == pytest.approx(points.y, abs=0.001)


def test_the_landscape_holds_rates_by_length_and_fan_out(run: Run) -> None:
    cells, chosen = lines_of(run.page, "coding-landscape")[0], run.result.settings
    assert cells["y"] == list(report.BUDGETS)
    assert cells["x"] == sorted({*report.LENGTHS, chosen.draft_length})
    row = cells["z"][report.BUDGETS.index(chosen.fan_out_budget)]
    assert row[cells["x"].index(chosen.draft_length)] == run.result.winner.predicted
    assert cells["z"][-1][-1] > cells["z"][0][0] > 1 / VERIFY_S  # faster than plain, and long drafts pay


def test_predictions_stand_next_to_what_was_measured(run: Run) -> None:
    *points, equal = lines_of(run.page, "coding-agreement")
    simulated = [each for each in run.result.contenders if each.predicted is not None]
    assert len(simulated) >= 3
    for point, each in zip(points, simulated, strict=True):
        assert (point["x"], point["y"]) == ([each.predicted], [each.rate.value])
        assert point["error_y"]["array"] == [pytest.approx(each.rate.high - each.rate.value)]
    assert equal["x"] == equal["y"]


def test_answers_that_are_gone_are_reported_and_the_rest_is_drawn(run: Run, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    shutil.copytree(run.traces, traces)
    next(traces.iterdir()).unlink()
    state = run.state.having(replace(run.state.of("coding"), task="writing"))
    both = (*run.plan.profiles, profiles(tmp_path).named("writing"))
    page = drawn(replace(run, state=state, plan=replace(run.plan, profiles=both), traces=traces))
    assert page.count("Its recorded answers are gone") == 2
    assert pictures(page) == [*OF_ALL, "coding-agreement", "writing-agreement"]


def test_without_a_draft_model_there_is_nothing_of_it(run: Run) -> None:
    assert run.state.costs is not None
    calls = tuple(replace(each, step=()) for each in run.state.costs.calls)
    plain, rate = EngineSettings("off"), Interval(60.0, 59.0, 61.0)
    contenders = (replace(run.result.contenders[0], settings=plain, rate=rate),)
    result = replace(run.result, settings=plain, contenders=contenders, trials=0)
    state = replace(run.state, costs=replace(run.state.costs, calls=calls))
    page = drawn(replace(run, state=state.having(replace(state.of("coding"), result=result))))
    assert pictures(page) == ["costs-verify"]
    assert "Chosen: plain decoding, at 60.0 tokens per second" in page
