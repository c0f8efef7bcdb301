"""Names of servers and tools made fit for models: `server__tool`, unique, of [a-zA-Z0-9_-] alone.

Those of prompts are typed by users, so letters of all scripts stay.

A name does not depend on the order of a list, so a tool that a server adds later does not take over the name
of another one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

_LONGEST = 64  # OpenAI's limit for functions, which models and clients learned
_LONGEST_SERVER = 24
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_UNTYPED = re.compile(r"[^\w.:-]")
_LINE = re.compile(r"_{2,}")
_DIGITS = 6


def server_names(names: Iterable[str]) -> dict[str, str]:
    """Return a fit name for each server; it has no `__`, which separates it from the tool."""
    fit = {name: _LINE.sub("_", _UNFIT.sub("_", name)).strip("_") for name in names}
    return _unique(fit, _LONGEST_SERVER)


def tool_names(server: str, names: Iterable[str]) -> dict[str, str]:
    """Return the name `server__tool` for each tool of the server with the fit name `server`."""
    fit = {name: _UNFIT.sub("_", name) for name in names}
    short = _unique(fit, _LONGEST - len(server) - 2)
    return {name: f"{server}__{text}" for name, text in short.items()}


def tool_name(server: str, own_name: str) -> str:
    """Return the name of a tool from its server's, as mcp.json has that, and its own, which fits already."""
    return f"{server_names((server,))[server]}__{own_name}"


def prompt_names(names: Iterable[str]) -> dict[str, str]:
    """Return a name for each prompt that can be typed as a command."""
    return _unique({name: _UNTYPED.sub("_", name) for name in names}, _LONGEST)


def _unique(fit: dict[str, str], longest: int) -> dict[str, str]:
    """Shorten what is too long, and mark with a hash what is not the only one of its name."""
    counts = Counter(fit.values())
    return {
        name: text
        if text and len(text) <= longest and (counts[text] == 1 or text == name)
        else f"{text[: longest - _DIGITS - 1]}_{_hash(name)}".lstrip("_")
        for name, text in fit.items()
    }


def _hash(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
