"""Sizes, times, columns and modes in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

MODE_NAMES = {"off": "plain", "ngram": "n-gram", "sd": "speculative", "ssd": "SSD"}
LONG_MODES = {"off": "plain decoding", "sd": "speculative decoding", "ssd": "drafting ahead"}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_UNITS = {
    "": 1, "b": 1, "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30, "t": 2**40,
    "tib": 2**40,
}  # fmt: skip
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_ON_THE_BOX = {"kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}


def long_mode(mode: str) -> str:
    """Return a mode in words, with its short name where that says more."""
    return LONG_MODES[mode] if mode == "off" else f"{LONG_MODES[mode]} ({MODE_NAMES[mode]})"


def memory(count: float, gib_from: float = 1.0) -> str:
    """Return a memory size in MiB or GiB: 512 MiB, 7.8 GiB."""
    return f"{count / 2**30:.1f} GiB" if abs(count) >= gib_from * 2**30 else f"{count / 2**20:.0f} MiB"


def size(count: float) -> str:
    """Return a number of bytes, in the units of memory: a model's file and what is free can be compared."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale * 0.9995:
            return f"{count / scale:.3g} {unit}" if count < scale * 999.5 else f"{count / scale:.0f} {unit}"
    return f"{count:.0f} byte{'' if count == 1 else 's'}"


def parse_size(text: str, *, of_memory: bool = False) -> int | None:
    """Return the bytes of a size such as 512 MiB, 1.5g or 2 GB; None if the text is not a size.

    The makers of memory and GPUs write GB for GiB: `of_memory` reads their sizes.
    """
    found = _SIZE.fullmatch(text.strip())
    units = _UNITS | (_ON_THE_BOX if of_memory else _DECIMAL)
    unit = units.get(found[2].lower()) if found else None
    return None if found is None or unit is None else int(float(found[1]) * unit)


def parse_file_size(text: str) -> int | None:
    """Return the bytes of a size that is 0 or at least a MiB; None for others, often without their unit."""
    found = parse_size(text)
    return found if found == 0 or (found is not None and found >= 2**20) else None


def number(count: int) -> str:
    """Return a number of parameters: 135M, 7.6B."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale * 0.9995:
            return f"{count / scale:.3g}{unit}" if count < scale * 999.5 else f"{count / scale:.0f}{unit}"
    return str(count)


def rate(tokens_per_s: float) -> str:
    """Return tokens per second in words."""
    return f"{tokens_per_s:,.{0 if tokens_per_s >= 9.95 else 1}f}"


def bandwidth(bytes_per_s: float) -> str:
    """Return the rate of a memory or a link: 850 GB/s, 0.4 GB/s, 20 MB/s."""
    if bytes_per_s < 5e7:
        return f"{bytes_per_s / 1e6:.0f} MB/s"
    return f"{bytes_per_s / 1e9:.{0 if bytes_per_s >= 9.95e9 else 1}f} GB/s"


def counted(number: int, what: str) -> str:
    """Return a number with its noun: 1 chat, 2 chats."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time to wait: 40 s, 3 min, 1 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def short(seconds: float) -> str:
    """Return a duration: 0.04 s, 3.6 s, 2 min."""
    return f"{seconds:.{2 if seconds < 0.95 else 1}f} s" if seconds < 10 else duration(seconds)


UNMEASURED = "plain decoding until the speed of both models is measured"
MEASURING = "measuring the speed of both models; questions come first"
MEASURING_LAST = (
    "the answer is complete; measuring how fast both models are, for the next one (Ctrl+C skips it)"
)


def first_call(seconds: float) -> str:
    """Return the line to show while a GPU compiles."""
    return f"compiling GPU kernels, once: {duration(seconds)} so far"


def ago(moment: str, now: datetime) -> str:
    """Return the age of a time in ISO 8601."""
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return "some time ago"
    seconds = (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()
    for length, word in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {word}{'s' * (count > 1)} ago"
    return "just now"


def percent(share: float) -> str:
    """Return a share of 0 to 1 as a whole number of percent; 0% and 100% are none and all of it."""
    return f"{share:.0%}" if share in (0.0, 1.0) else f"{min(max(share, 0.01), 0.99):.0%}"


def columns(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return lines with aligned columns; those in `right` are aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if at in right else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
