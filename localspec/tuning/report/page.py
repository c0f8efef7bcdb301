"""The page of the tuning report: its sections in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from localspec.storage.paths import write_atomically
from localspec.tuning.events import ConfirmedContender
from localspec.tuning.report.costs import cost_section, prediction_section, workplace_section
from localspec.tuning.report.data import LandscapeCell, Prediction, ReportInput, ReportModel, TaskReport
from localspec.tuning.report.figures import gallery
from localspec.tuning.report.markup import Markup, bullets, folded, join, paragraph, table, tag, text
from localspec.tuning.report.scales import UNKNOWN, fixed, parameters, size
from localspec.tuning.report.style import STYLE
from localspec.tuning.report.svg import Bar, rate_bars
from localspec.tuning.report.task import task_figures
from localspec.tuning.report.texts import (
    brief,
    choice,
    chosen,
    comparison,
    contender_name,
    dropped_words,
    interval,
    meanings,
    methods,
    settings_words,
    warnings,
)

# Nothing on the page may be fetched or run, whatever a model is called.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WORDS = (
    ("draft, verify, accept", "The draft model proposes tokens; the target checks them in one call."),
    ("bonus token", "The token that the target itself puts after the accepted ones."),
    ("SD", "Speculative decoding: the target waits while the draft model proposes."),
    ("SSD", "The draft model prepares the next draft while the target still verifies the one before."),
    ("fan-out budget", "For how many outcomes of the verification a draft is prepared."),
    ("hit", "The outcome was among those prepared."),
    ("draft temperature, C", "How the draft model's confidence is corrected before it is used."),
)


def page(given: ReportInput) -> str:
    """Return the whole page as HTML."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"Tuning report: {given.target.name}"),
        tag("style", Markup(STYLE)),
    )
    body = tag("body", _header(given), tag("main", *_sections(given)), _footer())
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _header(given: ReportInput) -> Markup:
    links = [each.result.task for each in given.tasks] + ["costs", "predictions", "settings", "method"]
    return tag(
        "header",
        tag("h1", "Tuning report"),
        paragraph(_pair(given), class_="lead"),
        tag("nav", *(tag("a", at.capitalize(), href=f"#{at}") for at in links), aria_label="Sections"),
    )


def _pair(given: ReportInput) -> Markup:
    draft = text(", without a draft model")
    if given.draft:
        draft = join([" with ", _model_name(given.draft), " as the draft model"])
    made = given.made.strftime("%Y-%m-%d %H:%M %Z").strip()
    return join([_model_name(given.target), draft, f" · {made}"])


def _model_name(model: ReportModel) -> Markup:
    return tag("bdi", tag("strong", model.name))


def _sections(given: ReportInput) -> Iterator[Markup]:
    yield _results(given)
    if meaning := list(meanings(given)):
        items = tag("ul", *(tag("li", each) for each in meaning), class_="meaning")
        yield tag("section", tag("h2", "What it means"), items)
    for task in given.tasks:
        yield _task(task)
    yield cost_section(given.costs, has_draft=given.draft is not None)
    yield prediction_section(given)
    yield workplace_section(given.workplace)
    yield _settings(given)
    yield _facts(given)
    method = tag("h2", "How this was measured"), bullets(methods(given)), _glossary()
    yield tag("section", *method, id="method")


def _results(given: ReportInput) -> Markup:
    parts: list[str] = [tag("h2", "Result")]
    if given.quick:
        parts.append(tag("p", "A quick run: fewer trials and shorter measurements.", class_="callout"))
    parts += [tag("p", warning, class_="callout") for warning in warnings(given)]
    if not given.tasks:
        parts.append(paragraph("No task has been tuned yet.", class_="lead"))
    parts.append(tag("div", *(_result(each) for each in given.tasks), class_="grid"))
    return tag("section", *parts, id="result")


def _result(task: TaskReport) -> Markup:
    result, winner = task.result, chosen(task.result)
    parts: list[str] = [tag("h3", f"{result.task.capitalize()}: {brief(result.settings)}")]
    if winner is not None:
        unit = tag("small", f" tokens/s ({interval(winner.rate)})")
        line = [tag("span", fixed(winner.rate.value), unit, class_="big")]
        if winner.name != "plain":
            words = f"{fixed(winner.gain.value, 2)}× plain decoding ({interval(winner.gain, 2)})"
            line.append(tag("span", words, class_="gain"))
        parts.append(tag("div", *line, class_="headline"))
    parts += [paragraph(choice(result.settings)), paragraph(comparison(result))]
    parts.append(paragraph(result.reason, class_="soft"))
    parts += [paragraph(dropped_words(each), class_="soft") for each in result.dropped]
    bars = [_bar(each, each is winner) for each in result.contenders]
    title = f"Measured tokens per second, {result.task}"
    drawing = rate_bars(bars)
    if drawing is None:
        parts.append(paragraph("Not shown: no way of decoding was really run.", class_="soft"))
    else:
        parts += [drawing, _contenders(title, result.contenders)]
    return tag("div", *parts, class_="card")


def _bar(contender: ConfirmedContender, is_chosen: bool) -> Bar:
    rate = contender.rate
    told = f"{fixed(rate.value)} ({interval(rate)})"
    name = f"chosen: {brief(contender.settings)}" if is_chosen else contender_name(contender)
    return Bar(name, told, rate.value, rate.low, rate.high, is_chosen)


def _contenders(title: str, contenders: Sequence[ConfirmedContender]) -> Markup:
    head = ("way of decoding", "tokens/s (95%)", "against plain (95%)", "predicted")
    rows = (
        (
            contender_name(each),
            f"{fixed(each.rate.value)} ({interval(each.rate)})",
            f"{fixed(each.gain.value, 2)}× ({interval(each.gain, 2)})",
            UNKNOWN if each.predicted is None else fixed(each.predicted),
        )
        for each in contenders
    )
    return folded("Values", table(title, head, rows))


def _task(task: TaskReport) -> Markup:
    name = task.result.task
    said = f"{task.result.trials:,} simulated trials; {task.result.seconds:,.0f} s in all."
    return tag(
        "section",
        tag("h2", name.capitalize()),
        paragraph(said, class_="lead"),
        gallery(list(task_figures(task))),
        id=name,
    )


def _settings(given: ReportInput) -> Markup:
    tasks = [each.result for each in given.tasks]
    head = ("", *(each.task for each in tasks))
    rows = zip(*(settings_words(each.settings) for each in tasks), strict=True)
    lines = [(first[0], *(words for _, words in (first, *others))) for first, *others in rows]
    caption = f"{UNKNOWN} not used in this mode"
    shown = tag("div", table(caption, head, lines), class_="card") if tasks else paragraph("None yet.")
    return tag("section", tag("h2", "Settings"), shown, id="settings")


def _facts(given: ReportInput) -> Markup:
    facts = [("Target", _model(given.target))]
    facts.append(("Draft model", _model(given.draft) if given.draft else Markup("none")))
    facts += [(name, tag("bdi", value)) for name, value in given.machine]
    entries = [part for name, value in facts for part in (tag("dt", name), tag("dd", value))]
    return tag("section", tag("h2", "Machine and models"), tag("div", tag("dl", *entries), class_="card"))


def _model(model: ReportModel) -> Markup:
    about = f": {parameters(model.parameters)} parameters, {size(model.file_bytes)}; on {model.place}"
    return join([tag("bdi", model.name), about])


def _glossary() -> Markup:
    entries = [part for name, words in _WORDS for part in (tag("dt", name), tag("dd", words))]
    return folded("Words", tag("dl", *entries))


def _footer() -> Markup:
    words = "Made by localspec tune --report. This page holds everything that it shows and fetches nothing."
    return tag("footer", words)


__all__ = [
    "LandscapeCell",
    "Prediction",
    "ReportInput",
    "ReportModel",
    "TaskReport",
    "render",
    "write_report",
]


def render(given: ReportInput) -> str:
    """Return the report as HTML with inline style and inline SVG, nothing to fetch and nothing to run."""
    return page(given)


def write_report(path: Path, given: ReportInput) -> None:
    """Write the report in one step, for its owner's eyes; raises StoreError."""
    write_atomically(path, render(given))
