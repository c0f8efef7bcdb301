"""What the report shows of the machine: cost curves, and how the models were opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from localspec.decoding.measurements import CallCosts, Costs
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import Attempt, LoadOptionsChosen
from localspec.tuning.report.data import Prediction, ReportInput
from localspec.tuning.report.figures import Data, Figure, colours, gallery
from localspec.tuning.report.markup import Markup, folded, join, paragraph, table, tag
from localspec.tuning.report.scales import UNKNOWN, Point, fixed, milliseconds
from localspec.tuning.report.svg import Axis, Chart, Series, line_chart
from localspec.tuning.report.texts import agreement, brief, interval, mode_name
from localspec.types import Mode

_Curve = tuple[tuple[int, float], ...]


def cost_section(costs: Costs | None, has_draft: bool) -> Markup:
    """Return the cost curves of both models."""
    calls = sorted(costs.calls, key=lambda each: (each.together, each.depth)) if costs else []
    return tag(
        "section",
        tag("h2", "What calls cost on this machine"),
        paragraph(
            "Medians of repeated calls. “Alone”: only this model works; “together”: both work at once, as "
            "when the next draft is prepared while the target verifies. Dashed: with more tokens in the "
            "context.",
            class_="lead",
        ),
        gallery(list(_figures(calls, has_draft))),
        _overheads(costs) if costs and costs.overheads else "",
        id="costs",
    )


def _figures(calls: Sequence[CallCosts], has_draft: bool) -> Iterator[Figure]:
    yield _figure(
        "verify",
        ("Target: verifying m tokens in one call", "tokens in the call"),
        [(each, each.verify) for each in calls],
        ("The flatter the curve, the cheaper it is to check guesses.", "costs were not measured."),
    )
    missing = "costs were not measured." if has_draft else "there was no draft model."
    yield _figure(
        "step",
        ("Draft model: one step of N branches", "branches in the call"),
        [(each, each.step) for each in calls],
        ("A flat curve means that preparing more outcomes costs little.", missing),
    )


def _figure(
    key: str, words: tuple[str, str], curves: Sequence[tuple[CallCosts, _Curve]], says: tuple[str, str]
) -> Figure:
    depths = sorted({each.depth for each, _ in curves})
    series = tuple(
        Series(_name(each), _in_ms(curve), _look(each, each.depth == depths[0]))
        for each, curve in curves
        if curve
    )
    doubling = key == "step"
    axes = Axis(words[1], doubling=doubling, tight=True), Axis("ms per call", zero=True, unit=" ms")
    chart = Chart(key, words[0], "; ".join(_ends(each) for each in series), *axes, series)
    data = _data(words[1], curves)
    return Figure(words[0], "measured", says[0], line_chart(chart), says[1], data, colours(series))


def _look(calls: CallCosts, shallow: bool) -> str:
    return ("b" if calls.together else "a") + ("" if shallow else " dashed")


def _name(calls: CallCosts) -> str:
    return f"{'together' if calls.together else 'alone'} at {calls.depth:,} tokens"


def _in_ms(curve: _Curve) -> tuple[Point, ...]:
    return tuple((size, 1000 * seconds) for size, seconds in sorted(curve))


def _ends(each: Series) -> str:
    (first, low), (last, high) = each.points[0], each.points[-1]
    return f"{each.name}: {fixed(low, 2)} ms for {first:g}, {fixed(high, 2)} ms for {last:g}"


def _data(first: str, curves: Sequence[tuple[CallCosts, _Curve]]) -> Data:
    told = [(calls, dict(curve)) for calls, curve in curves if curve]
    sizes = sorted({size for _, curve in told for size in curve})
    rows = (
        (str(size), *(milliseconds(curve[size]) if size in curve else UNKNOWN for _, curve in told))
        for size in sizes
    )
    return Data((first, *(_name(calls) for calls, _ in told)), tuple(rows))


def _overheads(costs: Costs) -> Markup:
    head = ("mode", "Python per round", "per drafted token", "verify", "draft step", "hand-over")
    rows = (
        (
            mode_name(each.mode),
            milliseconds(each.round_s),
            milliseconds(each.token_s),
            f"{fixed(each.verify, 2)}×",
            f"{fixed(each.step, 2)}×",
            milliseconds(each.handoff_s),
        )
        for each in costs.overheads
    )
    caption = "Fitted on real rounds; the simulator adds it to the calls above"
    return folded("What rounds cost beside these calls", table(caption, head, rows))


def workplace_section(chosen: LoadOptionsChosen | None) -> Markup:
    """Return which ways of opening the models were tried."""
    parts: list[str] = [tag("h2", "How the models were opened")]
    if chosen is None:
        parts.append(paragraph("Other threads, batch sizes and cache types were not tried.", class_="lead"))
        return tag("section", *parts, id="opened")
    parts.append(paragraph(chosen.reason, class_="lead"))
    head = ("threads", "of the draft", "micro-batch", "flash attention", "draft cache", "draft on", "result")
    rows = [(*_workplace(each.workplace), _outcome(each, chosen)) for each in chosen.attempts]
    if rows:
        parts.append(tag("div", table("Really run, in the order of the trials", head, rows), class_="card"))
    else:
        parts.append(paragraph("Nothing else was tried."))
    return tag("section", *parts, id="opened")


def _workplace(place: LoadOptions) -> tuple[str, ...]:
    flash = {None: "automatic", True: "on", False: "off"}[place.draft_flash_attention]
    return (
        str(place.threads or "automatic"),
        str(place.draft_threads or "automatic"),
        str(place.micro_batch),
        flash,
        place.draft_kv_type,
        "the processor" if place.draft_on_cpu else "its device",
    )


def _outcome(attempt: Attempt, chosen: LoadOptionsChosen) -> Markup:
    if attempt.failure:
        words = f"failed: {attempt.failure}"
    elif attempt.tokens_per_s is None:
        words = "stopped early"
    else:
        words = f"{fixed(attempt.tokens_per_s)} tokens/s"
        words += f" ({mode_name(attempt.mode)})" if attempt.mode else ""
        words += ", stopped early" if attempt.pruned else ""
    told = attempt.workplace == chosen.workplace and not attempt.failure
    return join([tag("strong", words), " chosen"] if told else [words])


_BAND = 0.08  # how far a prediction may be off and still be called good
_LOOKS: dict[Mode, str] = {"ssd": "a", "sd": "b", "ngram": "c", "off": "muted"}


def prediction_section(given: ReportInput) -> Markup:
    """Return how well the simulator's predictions agree with real runs."""
    pairs = _pairs(given)
    title = "Predicted against measured"
    said = agreement(pairs)
    clouds = tuple(_cloud(pairs, mode) for mode in _LOOKS if any(p.settings.mode == mode for p in pairs))
    line = _identity(pairs)
    axes = Axis("simulated tokens/s"), Axis("measured tokens/s")
    chart = Chart("scatter", title, said, *axes, (line, *clouds), band=_band(line.points), square=True)
    figure = Figure(
        title,
        "simulated and measured",
        f"{said} Shaded: within {_BAND:.0%}.",
        line_chart(chart) if said else None,
        "nothing was both simulated and run.",
        _predictions_data(pairs),
        colours((*clouds, line)),
    )
    return tag("section", tag("h2", "Can the simulation be trusted?"), gallery([figure]), id="predictions")


def _pairs(given: ReportInput) -> tuple[Prediction, ...]:
    contenders = (
        Prediction(task.result.task, each.settings, each.predicted, each.rate)
        for task in given.tasks
        for each in task.result.contenders
        if each.predicted is not None
    )
    return (*contenders, *given.predictions)


def _identity(pairs: Sequence[Prediction]) -> Series:
    ends = [end for pair in pairs for end in (pair.predicted, pair.measured.value) if isfinite(end)]
    points = ((min(ends), min(ends)), (max(ends), max(ends))) if ends else ()
    return Series("prediction = measurement", points, "muted dashed", dots=False)


def _band(ends: Sequence[Point]) -> tuple[Point, ...]:
    above = [(at, at * (1 + _BAND)) for at, _ in ends]
    below = [(at, at * (1 - _BAND)) for at, _ in ends]
    return (*above, *reversed(below))


def _cloud(pairs: Sequence[Prediction], mode: Mode) -> Series:
    own = [pair for pair in pairs if pair.settings.mode == mode]
    points = tuple((pair.predicted, pair.measured.value) for pair in own)
    whiskers = tuple((pair.predicted, pair.measured.low, pair.measured.high) for pair in own)
    return Series(mode_name(mode), points, f"{_LOOKS[mode]} cross", line=False, whiskers=whiskers)


def _predictions_data(pairs: Sequence[Prediction]) -> Data:
    rows = (
        (
            f"{pair.task}: {brief(pair.settings)}",
            fixed(pair.predicted),
            fixed(pair.measured.value),
            interval(pair.measured),
        )
        for pair in pairs
    )
    return Data(("settings", "simulated", "measured", "95%"), tuple(rows))
