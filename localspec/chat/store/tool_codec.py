"""Calls of tools and their runs as JSON, as the store keeps them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from localspec.chat.messages import ToolRun
from localspec.types.request import ToolCall
from localspec.values import plain, read


def pack_calls(calls: Sequence[ToolCall]) -> str:
    """Return calls as JSON."""
    return json.dumps([plain(call) for call in calls])


def unpack_calls(text: str) -> tuple[ToolCall, ...]:
    """Return the calls of an answer; none if they are invalid here."""
    with suppress(ValueError, RecursionError):
        return read(tuple[ToolCall, ...], json.loads(text))
    return ()


def pack_run(run: ToolRun | None) -> str | None:
    """Return as JSON how a call was run."""
    return None if run is None else json.dumps(plain(run))


def unpack_run(text: str | None) -> ToolRun | None:
    """Return the run of a call; None if that is invalid here."""
    with suppress(ValueError, RecursionError):
        return None if text is None else read(ToolRun, json.loads(text))
    return None
