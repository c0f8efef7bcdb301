"""Markup whose texts are escaped by construction: well-formed as HTML and, a tag at a time, as XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

# What XML forbids even as a reference, and single surrogates, which cannot be encoded.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"br", "meta"})


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


def text(content: str) -> Markup:
    """Return a text as markup: special characters escaped, impossible ones replaced."""
    if isinstance(content, Markup):
        return content
    return Markup(escape(_FORBIDDEN.sub("\ufffd", content)))


def join(parts: Iterable[str]) -> Markup:
    """Return texts and markup, one after the other."""
    return Markup("".join(text(part) for part in parts))


def tag(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """Return an element; `aria_label` becomes `aria-label`, `class_` `class`, and None is left out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{told}/>")
    return Markup(f"<{name}{told}>{join(content)}</{name}>")


def _attribute(value: str | float) -> str:
    return text(value) if isinstance(value, str) else short(value)


def short(value: float) -> str:
    """Return a coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def paragraph(*content: str, class_: str | None = None) -> Markup:
    """Return a paragraph."""
    return tag("p", *content, class_=class_)


def bullets(items: Iterable[str]) -> Markup:
    """Return a list with bullets."""
    return tag("ul", *(tag("li", item) for item in items))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table that scrolls sideways where it does not fit; the first column names its rows."""
    header = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = (tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows)
    whole = tag("table", tag("caption", caption), tag("thead", header), tag("tbody", *body))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def folded(summary: str, *content: str) -> Markup:
    """Return content that a click unfolds."""
    return tag("details", tag("summary", summary), *content)
