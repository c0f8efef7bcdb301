"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: its verdict, what was seen, and the command that fixes it."""

    name: str
    verdict: Verdict
    text: str
    mend: str = ""
