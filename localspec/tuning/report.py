"""A page about the last run of the tuner, drawn by plotly (the extra `report`); it loads nothing.

A run does not save its simulated trials: they are repeated from its costs and traces, with the same outcome.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from statistics import linear_regression

import optuna
import plotly.graph_objects as go
from optuna.trial import TrialState
from optuna.visualization import plot_optimization_history, plot_param_importances
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from localspec.decoding.measurements import Costs, Trace
from localspec.tuning.events import TaskResult
from localspec.tuning.plan import TunePlan
from localspec.tuning.run_folder import RunState, recorded
from localspec.tuning.simulator.simulator import Simulator
from localspec.tuning.space import STOPS, Space, suggest
from localspec.tuning.study import Trial, search
from localspec.tuning.words import compared_words, figure, load_options_words, settings_words, shift_words
from localspec.types.events import Summary
from localspec.types.request import EngineSettings

BUDGETS = (1, 2, 4, 8, 16, 24)  # of outcomes to prepare, and
LENGTHS = (1, 2, 4, 8, 16)  # of the drafts in the figure
POSITIONS = 8  # of a draft in the figure
FEWEST = 12  # trials before it is said what mattered
SAYS = {
    "verify": "Verification time T_v: the time of one target pass that verifies several draft tokens at "
    "once. The flatter the line, the cheaper is drafting. “Together”: the draft model works meanwhile.",
    "step": "Draft time t_N: the time in which the draft model drafts one token for each of several "
    "continuations. A flat line means that preparing more outcomes costs little.",
    "acceptance": "Acceptance by position: how often the target accepts a draft token that it verifies, by "
    "the token's position in the draft. Where the bars are low, a longer draft is wasted work.",
    "hit-rate": "Hit rate against fan-out: while the target verifies, the draft model prepares drafts for "
    "several outcomes (the fan-out F). The hit rate is how often the next draft was ready.",
    "landscape": "Draft length and fan-out: simulated speed by draft length and prepared outcomes, with "
    "all other settings as in the best trial. Where numbers hardly differ, the choice matters little.",
    "history": "The search: each point is one trial with simulated settings, in order, and the line is the "
    "best so far. If it stays level for long, more trials would not help.",
    "importance": "Importance: how much each setting decided whether a trial was among the fastest tenth. "
    "The bars sum to 1.",
    "agreement": "Predicted against measured: each point is a contender that was simulated and then "
    "measured; its bar is the 95% confidence interval. On the dotted line both are equal.",
}
_RATE = "simulated tokens per second"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
<style>body {{ font: 1rem/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}</style>
<script>{plotly}</script></head>
<body><h1>{title}</h1>
{body}</body></html>
"""


def page(title: str, state: RunState, plan: TunePlan, traces: Path, tell: Callable[[str], None]) -> str:
    """Return the page as HTML; reports each task before its simulation, which takes seconds.

    The tasks are those of the plan's profiles with results; `traces` is the folder of traced answers.
    """
    costs = state.costs or Costs(())  # a run has them before it has results
    parts = [f"<p>{escape(line)}.</p>" for line in _opening(state)]
    parts += ["<h2>What calls cost on this machine</h2>", *_drawn("costs", _costs(costs))]
    if words := compared_words(costs.compared):
        parts.append(f"<p>{escape(words[0].upper() + words[1:])}.</p>")
    for profile in plan.profiles:
        task = state.of(profile.task)
        assert task.result is not None, "only tasks with results are shown"
        rate = figure(task.result.winner.rate.value)
        reason = task.result.reason
        chosen = f"{settings_words(task.result.settings)}, at {rate} tokens per second, since {reason}"
        parts.append(f"<h2>{task.task.capitalize()}</h2><p>Chosen: {escape(chosen)}.</p>")
        if not task.result.trials:
            continue
        if segments := recorded(profile, task.traced, traces):
            tell(f"{task.task}: simulating its trials again")
            simulator = Simulator(Trace(profile.sampling, segments), costs)
            parts += _drawn(task.task, _simulated(simulator, plan.space(profile, costs), task.result))
        else:
            parts.append(
                "<p>Its recorded answers are gone, or are of another profile: nothing is simulated.</p>"
            )
        parts += _drawn(task.task, [("agreement", _agreement(task.result))])
    return _PAGE.format(title=escape(title), plotly=get_plotlyjs(), body="\n".join(parts))


def _opening(state: RunState) -> Iterator[str]:
    """Yield how the models were opened, if other ways were tried."""
    if state.opened is not None:
        yield f"The models were {load_options_words(state.opened.workplace)}"
        if words := shift_words(state.opened):
            yield f"Note that {words}"


def _drawn(section: str, figures: Iterable[tuple[str, go.Figure]]) -> Iterator[str]:
    """Yield figures as parts of the page, each below its title and an explanation."""
    for name, drawn in figures:
        title, says = SAYS[name].split(": ", 1)
        yield f"<h3>{title}</h3><p>{says[0].upper()}{says[1:]}</p>"
        drawn.update_layout(template="plotly_white", title=None, height=420, margin={"t": 30})
        how = {"config": {"displayModeBar": False}, "full_html": False, "include_plotlyjs": False}
        yield to_html(drawn, div_id=f"{section}-{name}", **how)


def _costs(costs: Costs) -> Iterator[tuple[str, go.Figure]]:
    """Draw what calls of both models take, alone and at once."""
    for name, sizes in (("verify", "tokens in the call"), ("step", "continuations in the step")):
        drawn = go.Figure()
        for calls in costs.calls:
            points: Sequence[tuple[int, float]] = getattr(calls, name)
            x = [size for size, _ in points]
            y = [1000 * seconds for _, seconds in points]
            line = f"{'together' if calls.together else 'alone'}, {calls.depth} tokens before"
            drawn.add_scatter(x=x, y=y, name=line, mode="lines+markers")
        drawn.update_layout(xaxis_title=sizes, yaxis={"title": "milliseconds", "rangemode": "tozero"})
        if any(getattr(calls, name) for calls in costs.calls):
            yield name, drawn


def _simulated(simulator: Simulator, space: Space, result: TaskResult) -> Iterator[tuple[str, go.Figure]]:
    """Simulate a task's trials again, and draw the figures of these and its traces."""
    drafting = (each.settings for each in result.contenders if each.settings.mode in ("sd", "ssd"))
    chosen = result.settings if result.settings.mode in ("sd", "ssd") else next(drafting, EngineSettings())
    if "sd" in space.modes:
        yield "acceptance", _acceptance(simulator, chosen)
    if "ssd" in space.modes:
        lengths = sorted({chosen.draft_length, *(n for n in LENGTHS if n <= space.max_draft_length)})
        seen = {
            (k, f): simulator(replace(chosen, mode="ssd", draft_length=k, fan_out_budget=f))
            for k in lengths
            for f in BUDGETS
        }
        yield "hit-rate", _hit_rates({budget: seen[chosen.draft_length, budget] for budget in BUDGETS})
        yield "landscape", _landscape({place: simulator.rate_of(each) for place, each in seen.items()})
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = _study(search(simulator.rate, space, result.trials), space)
    yield "history", plot_optimization_history(study, target_name=_RATE)
    if result.trials >= FEWEST:
        with warnings.catch_warnings(action="ignore"):  # of values that few trials had
            drawn = plot_param_importances(study)
        yield "importance", drawn.update_layout(xaxis_title="share", yaxis_title=None)


def _acceptance(simulator: Simulator, settings: EngineSettings) -> go.Figure:
    whole = replace(settings, mode="sd", draft_length=POSITIONS, min_confidence=0.0, fallback="just-in-time")
    seen = simulator(whole)
    shares = [share for share in seen.acceptance_by_position if share is not None]
    drawn = go.Figure(go.Bar(x=list(range(1, len(shares) + 1)), y=shares))
    return drawn.update_layout(xaxis_title="position", yaxis={"title": "accepted", "tickformat": ".0%"})


def _hit_rates(seen: Mapping[int, Summary]) -> go.Figure:
    """Draw how often a draft was ready, by the outcomes prepared, and a fit of the misses as c·F^-r."""
    rates = {budget: each.hit_rate for budget, each in seen.items() if each.hit_rate}
    x = list(rates)
    y = list(rates.values())
    drawn = go.Figure(go.Scatter(x=x, y=y, name="simulated", mode="markers"))
    missed = [(math.log(budget), math.log(1 - rate)) for budget, rate in rates.items() if rate < 1]
    if len(missed) > 2:
        r, c = linear_regression(*zip(*missed, strict=True))
        fit = [1 - math.exp(c) * budget**r for budget in x]
        drawn.add_scatter(x=x, y=fit, name=f"fit: 1 - {math.exp(c):.2f}·F^{r:.2f}", mode="lines")
    drawn.update_yaxes(title="hit rate", tickformat=".0%", rangemode="tozero")
    return drawn.update_xaxes(title="fan-out F")


def _landscape(rates: Mapping[tuple[int, int], float]) -> go.Figure:
    """Draw rates by draft length and fan-out."""
    lengths, budgets = (sorted(set(each)) for each in zip(*rates, strict=True))
    z = [[rates[length, budget] for length in lengths] for budget in budgets]
    drawn = go.Figure(go.Heatmap(x=lengths, y=budgets, z=z, texttemplate="%{z:.1f}"))
    drawn.update_xaxes(title="draft length", type="category")
    return drawn.update_yaxes(title="fan-out", type="category")


def _study(tried: Iterable[Trial], space: Space) -> optuna.Study:
    """Return trials as Optuna knows them."""
    study = optuna.create_study(direction="maximize")
    for each in tried:
        stop = STOPS[each.settings.min_confidence is not None]
        study.enqueue_trial(asdict(each.settings) | {"stop": stop})
        trial = study.ask()
        suggest(trial, space)
        study.tell(trial, each.tokens_per_s, state=None if each.tokens_per_s else TrialState.FAIL)
    return study


def _agreement(result: TaskResult) -> go.Figure:
    """Draw the simulated and the measured speeds of the contenders."""
    drawn = go.Figure()
    highest = 0.0
    for each in result.contenders:
        if each.predicted is not None:
            rate = each.rate
            name = f"{each.name}: {settings_words(each.settings)}"
            bars = {"array": [rate.high - rate.value], "arrayminus": [rate.value - rate.low]}
            drawn.add_scatter(x=[each.predicted], y=[rate.value], error_y=bars, name=name, mode="markers")
            highest = max(highest, each.predicted, rate.high)
    ends = [0.0, highest]
    line = {"dash": "dot", "color": "gray"}
    drawn.add_scatter(x=ends, y=ends, name="equal", mode="lines", line=line)
    return drawn.update_layout(xaxis_title=_RATE, yaxis_title="measured tokens per second")
