"""What exports say above a message, and when it was."""

from __future__ import annotations

from datetime import UTC, datetime

from localspec.chat.messages import AnswerRecord, State, StoredMessage
from localspec.chat.tool_use.described import describe_run

_SPEAKERS = {"user": "You", "assistant": "Assistant", "tool": "Result"}
_STATES: dict[State, str] = {
    "writing": "still being written",
    "complete": "",
    "stopped": "stopped",
    "length": "ended at the length limit",
    "context": "ended as the context was full",
    "circles": "ended as it repeated itself",
    "failed": "interrupted by an error",
}


def when(time_s: float) -> str:
    """Return a time as local time, to the minute; empty if it is out of range."""
    try:
        return datetime.fromtimestamp(time_s, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return ""


def speaker(message: StoredMessage) -> str:
    """Return the author of a message."""
    return "LocalSpec" if message.is_step else _SPEAKERS[message.role]


def marks(message: StoredMessage, record: AnswerRecord | None) -> list[str]:
    """Return the model of a message, how it ended, whether it is left out, and how its tool was run."""
    found = [" ".join(record.target.split())] if record is not None else []
    found += [_STATES[message.state]] * (message.state != "complete") + ["left out"] * message.dropped
    return found + ([] if message.run is None else [describe_run(message.run)])
