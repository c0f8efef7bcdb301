"""The tool that says what time it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from threading import Event
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from localspec.errors import UserError
from localspec.values import shown


@dataclass(frozen=True, slots=True)
class TimeArguments:
    """Arguments of `time`."""

    zone: Annotated[str | None, "time zone such as Europe/Berlin; without it, the user's"] = None


def tell_time(wanted: TimeArguments, _stop: Event) -> str:
    """Return the date, the weekday and the time with its zone; raises UserError for an unknown zone."""
    now = datetime.now().astimezone() if wanted.zone is None else datetime.now(_zone(wanted.zone))
    offset = f"{now:%z}"
    return f"{now:%A, %Y-%m-%d %H:%M:%S} {offset[:3]}:{offset[3:5]} ({wanted.zone or now.tzname()})"


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError of a name that is a folder
        raise UserError(
            f"there is no time zone {shown(name)}", "name a place as in Europe/Berlin, or UTC"
        ) from None
