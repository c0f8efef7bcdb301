"""Put the rounds of an answer into words."""

from __future__ import annotations

from localspec.chat.timeline import History


def describe_totals(history: History) -> str:
    """Return the sums of an answer in one line."""
    totals = history.totals
    if not totals.rounds:
        return "No rounds yet"
    parts = ["1 round" if totals.rounds == 1 else f"{totals.rounds:,} rounds"]
    if totals.drafted:
        parts.append(f"{percent(totals.accepted, totals.drafted)} accepted")
    if totals.chances:
        parts.append(f"{percent(totals.hits, totals.chances)} prepared in time")
    if totals.drafted or totals.waited_s:
        parts.append(f"waited {duration(totals.waited_s)}")
    if totals.hidden_s:
        parts.append(f"{duration(totals.hidden_s)} of drafting hidden")
    return ", ".join(parts)


def describe_round(history: History, index: int) -> str:
    """Return what a round did and cost, in one line."""
    round_ = history.round(index)
    stats = round_.stats
    parts = [f"drafted {stats.drafted}, accepted {stats.accepted}"] if stats.drafted else ["no draft"]
    parts.append(f"verify {duration(stats.verify_s)}")
    if stats.draft_s:
        parts.append(f"draft {duration(stats.draft_s)} waited for")
    if stats.ahead_s:
        parts.append(f"draft {duration(stats.ahead_s)} hidden")
    if stats.wait_s >= 0.00005:
        parts.append(f"other waiting {duration(stats.wait_s)}")
    return f"round {index + 1}: {', '.join(parts)}"


def duration(seconds: float) -> str:
    """Return a short time in words."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def percent(part: int, whole: int) -> str:
    """Return a share in words."""
    return f"{100 * part / whole:.0f} %"
