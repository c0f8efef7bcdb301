"""Several answers to one question compared: their figures, and where their texts differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from localspec.chat.figures import in_words, mode_name, of_record, ratio_to_plain, times
from localspec.chat.messages import AnswerRecord
from localspec.chat.plain_rates import own_rate

CONTEXT = 24  # characters shown before a difference


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """A text and how it came about; `complete` if it ended by itself or at a limit."""

    text: str
    record: AnswerRecord
    complete: bool = True


def plain_rate(answers: Sequence[ComparedAnswer]) -> float | None:
    """Return the tokens per second of the plain answer, None if there is none that was plain throughout."""
    rates = (own_rate(each.record) for each in answers if each.complete)
    return next((rate.tokens_per_s for rate in rates if rate), None)


def figures(answer: ComparedAnswer, plain: float | None) -> tuple[str, ...]:
    """Return the figures of an answer in words; the ratio is to plain decoding in the same comparison."""
    record = of_record(answer.record)
    ratio = record.ratio or ratio_to_plain(answer.record.mode, record.tokens_per_s, plain)
    words = in_words(replace(record, ratio=ratio))
    speed = "  ".join(words[name] for name in ("tokens_per_s", "ratio") if name in words)
    shares = (words[name] for name in ("acceptance", "hit_rate", "accepted_length") if name in words)
    return tuple(filter(None, (speed, ", ".join(times(answer.record.summary)), ", ".join(shares))))


def first_difference(one: str, other: str) -> int | None:
    """Return the first position where two texts differ, None if they are equal."""
    pairs = enumerate(zip_longest(one, other))
    return next((at for at, (mine, others) in pairs if mine != others), None)


def verdict(answers: Sequence[ComparedAnswer]) -> str:
    """Compare the texts with the plain one, in sentences."""
    if len(answers) < 2:
        return ""
    temperature = answers[0].record.sampling.temperature
    if temperature > 0:
        return (
            f"At temperature {temperature:g}, each mode draws from the same distribution: "
            "the words may differ, but no answer is better than another."
        )
    reference = next((answer for answer in answers if answer.record.mode == "off"), answers[0])
    return " ".join(_against(answer, reference) for answer in answers if answer is not reference)


def _against(answer: ComparedAnswer, reference: ComparedAnswer) -> str:
    name = mode_name(answer.record.mode)
    other = mode_name(reference.record.mode)
    at = first_difference(answer.text, reference.text)
    if at is None:
        return f"{name} wrote the same text as {other}."
    if at == min(len(answer.text), len(reference.text)) and not (answer.complete and reference.complete):
        return f"{name} and {other} are the same up to the end of the shorter one."
    before = ("…" if at > CONTEXT else "") + " ".join(reference.text[max(0, at - CONTEXT) : at].split())
    return (
        f"{name} differs from {other} from character {at + 1:,}, after “{before}”: "
        "two tokens were almost equally likely there, and verifying several at once can round differently."
    )
