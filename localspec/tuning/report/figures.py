"""A figure of the report: its heading, its drawing, what its colours mean, and the same values as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from localspec.tuning.report.markup import Markup, bullets, folded, join, table, tag
from localspec.tuning.report.svg import Series

Source = Literal["measured", "from recorded texts", "simulated", "simulated and measured"]


@dataclass(frozen=True, slots=True)
class Data:
    """The values behind a drawing."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with what belongs to it; without one, `missing` says why."""

    title: str
    source: Source
    says: str
    drawing: Markup | None
    missing: str
    data: Data
    key: str = ""


def card(figure: Figure, drawing: Markup) -> Markup:
    """Return a figure with its heading, its colours and its table."""
    top = tag("div", tag("h3", figure.title), tag("span", figure.source, class_="badge"), class_="top")
    heading = tag("figcaption", top, tag("p", figure.says))
    data = folded("Values", table(figure.title, figure.data.head, figure.data.rows))
    return tag("figure", heading, figure.key, drawing, data)


def gallery(figures: Sequence[Figure]) -> Markup:
    """Return the figures side by side, and after them why others are missing."""
    cards = [card(each, each.drawing) for each in figures if each.drawing is not None]
    reasons = dict.fromkeys(each.missing for each in figures if each.drawing is None)
    absent = [f"{_titles(figures, reason)}: {reason}" for reason in reasons]
    parts = [tag("div", *cards, class_="grid")] if cards else []
    if absent:
        parts.append(tag("div", tag("p", "Not shown:"), bullets(absent), class_="soft missing"))
    return join(parts)


def _titles(figures: Sequence[Figure], reason: str) -> str:
    return ", ".join(each.title for each in figures if each.drawing is None and each.missing == reason)


def colours(series: Sequence[Series]) -> Markup:
    """Return what lines and dots stand for."""
    return tag("div", *(tag("span", _swatch(each), each.name) for each in series), class_="legend")


def _swatch(each: Series) -> Markup:
    parts = []
    if each.line:
        parts.append(tag("path", d="M1 6L25 6", class_="line"))
    if each.dots:
        parts.append(tag("circle", cx=13, cy=6, r=3.2, class_="dot"))
    return tag("svg", tag("g", *parts, class_=each.look), viewBox="0 0 26 12", aria_hidden="true")
