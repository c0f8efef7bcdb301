"""Compare answers to one question that were decoded in several ways, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from localspec.chat.live_stats import Figures, mode_name, of_record
from localspec.chat.messages import AnswerRecord
from localspec.types import Mode

CONTEXT = 24  # characters shown before a difference


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """A text and how it came about; `complete` if it ended by itself or at a limit."""

    mode: Mode
    text: str
    record: AnswerRecord
    complete: bool = True


def plain_rate(answers: Sequence[ComparedAnswer]) -> float | None:
    """Return the tokens per second of the plain answer, None if there is none that was plain throughout."""
    for answer in answers:
        if answer.mode == "off" and answer.complete and not answer.record.changes:
            return of_record(answer.record).tokens_per_s
    return None


def figures(answer: ComparedAnswer, plain: float | None) -> tuple[str, ...]:
    """Return the figures of an answer in words; the ratio is to plain decoding in the same comparison."""
    record: Figures = of_record(answer.record)
    summary = answer.record.summary
    lines = []
    if record.tokens_per_s is not None:
        ratio = f"  ×{record.tokens_per_s / plain:.2f} of plain" if plain and answer.mode != "off" else ""
        lines.append(f"{record.tokens_per_s:.1f} tok/s{ratio}")
    lines.append(
        f"{summary.tokens:,} tokens in {summary.first_token_s + summary.decode_s:.1f} s, "
        f"first after {summary.first_token_s:.2f} s"
    )
    shares = []
    if record.acceptance is not None:
        shares.append(f"accepted {record.acceptance:.0%}")
    if record.hit_rate is not None:
        shares.append(f"hits {record.hit_rate:.0%}")
    if record.accepted_length is not None:
        shares.append(f"{record.accepted_length:.1f} tokens a round")
    return (*lines, ", ".join(shares)) if shares else tuple(lines)


def first_difference(one: str, other: str) -> int | None:
    """Return where two texts first differ, None if they are equal."""
    if one == other:
        return None
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)


def verdict(answers: Sequence[ComparedAnswer]) -> str:
    """Return what the texts have in common, in sentences; others are held against the plain one."""
    if len(answers) < 2:
        return ""
    temperature = answers[0].record.sampling.temperature
    if temperature > 0:
        return (
            f"Drawn at temperature {temperature:g} from the same distribution: "
            "the modes may write different words, and neither is the truer answer."
        )
    reference = next((answer for answer in answers if answer.mode == "off"), answers[0])
    return " ".join(_against(answer, reference) for answer in answers if answer is not reference)


def _against(answer: ComparedAnswer, reference: ComparedAnswer) -> str:
    name, other = mode_name(answer.mode), mode_name(reference.mode)
    at = first_difference(answer.text, reference.text)
    if at is None:
        return f"{name} wrote the same text as {other}."
    if at == min(len(answer.text), len(reference.text)) and not (answer.complete and reference.complete):
        return f"{name} and {other} agree as far as both go."
    before = ("…" if at > CONTEXT else "") + " ".join(reference.text[max(0, at - CONTEXT) : at].split())
    return (
        f"{name} differs from {other} from character {at + 1:,}, after “{before}”: "
        "where two tokens are as good as tied, checking several at once can round the other way."
    )
