"""Calls and their results in words, for the screen, the terminal and exports."""

from __future__ import annotations

import json
import re

from localspec.chat.markdown import fenced
from localspec.chat.messages import RunOutcome, ToolRun
from localspec.chat.tool_use.consent import CallAsked
from localspec.safe_text import safe_line
from localspec.tools.results import content_of
from localspec.tools.tool import Effect, Tool
from localspec.units import short

_OUTCOMES: dict[RunOutcome, str] = {
    "done": "done",
    "failed": "failed",
    "refused": "not run",
    "stopped": "stopped",
}
_WISHES: dict[Effect, str] = {
    "none": "be used",
    "reads": "read",
    "fetches": "fetch from the network",
    "writes": "change files",
    "runs": "run something",
}
_NOTE = re.compile(r"\[(.+)\]")  # how a command ended
_LONGEST = 200  # characters of a line with arguments


def describe_run(run: ToolRun) -> str:
    """Return a line about how a call was run: its tool, its outcome, its time and why it was allowed.

    Of a step that LocalSpec asks for, it says which one that is.
    """
    if not run.call.id:
        return safe_line(f"asks for {run.because} of the question")
    source = f" of {run.source}" if run.source else ""
    took = f" in {short(run.seconds)}" if run.outcome in ("done", "failed") and run.seconds >= 0.1 else ""
    because = f", {run.because}" if run.because else ""
    return safe_line(f"{run.call.name}{source}, {_OUTCOMES[run.outcome]}{took}{because}")


def describe_wish(tool: Tool) -> str:
    """Return a line about a tool that waits for consent."""
    source = f" of {tool.source}" if tool.source else ""
    return safe_line(f"{tool.name}{source} wants to {_WISHES[tool.effect]}")


def why_failed(text: str) -> str:
    """Return the line of a failed call's result that gives the reason: a note at the end, else the first."""
    lines = content_of(text).removeprefix("Error: ").strip().split("\n")
    note = _NOTE.fullmatch(lines[-1])
    line = safe_line(note[1] if note else lines[0])
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def describe_arguments(arguments: str) -> str:
    """Return the arguments of a call as one line, as far as they have come."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        line = arguments
    else:
        named = isinstance(value, dict)
        line = ", ".join(f"{name}: {_short(each)}" for name, each in value.items()) if named else arguments
    line = " ".join(safe_line(line.replace("\n", " ")).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def shown_call(asked: CallAsked) -> str:
    """Return in Markdown, and in full, what a call would do."""
    if asked.preview:
        return asked.preview
    try:
        text = json.dumps(json.loads(asked.call.arguments), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = asked.call.arguments
    return fenced(text, "json")


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
