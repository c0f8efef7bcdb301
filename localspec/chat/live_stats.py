"""How fast an answer comes, and what speculation adds: live, of earlier answers, of several compared."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from localspec import units
from localspec.chat.messages import AnswerRecord
from localspec.chat.timeline import History
from localspec.decoding.tally import HitCounter
from localspec.types.events import ModeChanged, RoundDone, Summary
from localspec.types.models import PlainRate
from localspec.types.request import Mode
from localspec.units import MODE_NAMES

WINDOW_S = 2.0  # of work that the live figure looks back on
ROUNDING_S = 1e-6  # by which sums of times may be off
NEAR_TOKENS = 256  # a single measurement speaks for depths this near,
NEAR_SHARE = 0.25  # or within this share of its own depth
SAME_DEPTH = 32  # tokens within which a new measurement replaces an old one
ENOUGH_TOKENS = 16  # a plain answer at least this long is itself a measurement
CONTEXT = 24  # characters shown before a difference


@dataclass(frozen=True, slots=True)
class Figures:
    """What a status line tells of an answer; None where there is nothing to tell.

    `ratio` compares with measured plain decoding. `acceptance` is accepted / verified draft tokens,
    `accepted_length` the tokens per round with the target's own, `hit_rate` the share of prepared drafts.
    """

    mode: str
    tokens_per_s: float | None = None
    ratio: float | None = None
    acceptance: float | None = None
    accepted_length: float | None = None
    hit_rate: float | None = None
    note: str = ""


class PlainRates:
    """Measured plain decoding at several depths of context; safe to share between threads."""

    def __init__(self) -> None:
        self._points: tuple[PlainRate, ...] = ()  # by depth; replaced, never changed

    def forget(self) -> None:
        """Drop what was measured: other models decode from now on."""
        self._points = ()

    def add(self, rate: PlainRate) -> None:
        """Take in a measurement; it replaces an earlier one of about the same depth."""
        if rate.tokens_per_s > 0:
            others = (point for point in self._points if abs(point.depth - rate.depth) > SAME_DEPTH)
            self._points = tuple(sorted((*others, rate), key=lambda point: point.depth))

    def learn(self, record: AnswerRecord) -> None:
        """Take in an answer that was itself written by plain decoding; others tell nothing."""
        if record.summary.tokens > ENOUGH_TOKENS and (rate := own_rate(record)):
            self.add(rate)

    def at(self, depth: int) -> float | None:
        """Return the tokens per second at a depth: between two measurements or near one, else None."""
        points = self._points
        place = bisect_left(points, depth, key=lambda point: point.depth)
        if 0 < place < len(points):
            lower, upper = points[place - 1 : place + 1]
            share = (depth - lower.depth) / (upper.depth - lower.depth)
            # the time of a token grows with the depth in a straight line
            return 1 / ((1 - share) / lower.tokens_per_s + share / upper.tokens_per_s)
        for point in points[max(0, place - 1) : place + 1]:
            if abs(point.depth - depth) <= max(NEAR_TOKENS, NEAR_SHARE * point.depth):
                return point.tokens_per_s
        return None


class LiveStats:
    """The figures of the answer that is being written.

    The first round reads the prompt and says nothing about the pace; it is left out of every figure.
    """

    def __init__(self, plain: PlainRates) -> None:
        self._plain = plain
        self.start("off")

    def start(self, mode: Mode, prompt_tokens: int | None = None) -> None:
        """Begin a new answer; without the size of its prompt there is no ratio before its end."""
        self._mode = mode
        self._note = ""
        self._prompt_tokens = prompt_tokens
        self._rounds = History()
        self._mode_began = 0  # with this round
        self._hits = HitCounter(mode)

    def add(self, rounds: Sequence[RoundDone]) -> None:
        """Take in rounds in the order in which they ended."""
        self._rounds.add(rounds)
        for mark in rounds:
            self._hits.add(mark.stats.origin)

    def changed(self, change: ModeChanged) -> None:
        """Go on in another mode; the live speed is then that of the new mode alone."""
        self._mode, self._note = change.mode, change.reason
        self._hits.change(change.mode)
        self._mode_began = len(self._rounds)

    def figures(self) -> Figures:
        """Return the figures as of the last round."""
        rounds, prompt_tokens = self._rounds, self._prompt_tokens
        recent = rounds.round_at(rounds.seconds - WINDOW_S + ROUNDING_S)
        speed = rounds.speed(max(self._mode_began, recent)) or None
        plain = None if prompt_tokens is None else self._plain.at(prompt_tokens + 1 + rounds.tokens)
        return Figures(
            MODE_NAMES[self._mode],
            speed,
            _ratio(self._mode, speed, plain),
            _share(rounds.accepted, rounds.drafted),
            rounds.length() if rounds.drafted else None,
            _share(self._hits.hits, self._hits.hits + self._hits.misses),
            self._note,
        )


def of_record(record: AnswerRecord) -> Figures:
    """Return the figures of a whole answer."""
    s, speed = record.summary, _speed(record.summary)
    last = record.changes[-1] if record.changes else None
    mode = MODE_NAMES.get(record.mode, record.mode)
    if last is not None and last.mode != record.mode:
        mode = f"{mode} → {MODE_NAMES.get(last.mode, last.mode)}"
    return Figures(
        mode,
        speed,
        _ratio(record.mode, speed, record.plain.tokens_per_s if record.plain else None),
        _share(s.accepted, s.drafted),
        _share(max(0, s.tokens - 1), s.rounds) if s.drafted else None,
        _share(s.hits, s.hits + s.misses),
        last.reason if last else "",
    )


_WORDS: dict[str, Callable[[float], str]] = {
    "acceptance": lambda share: f"{units.percent(share)} of guesses right",
    "tokens_per_s": lambda speed: f"{units.rate(speed)} tokens/s",
    "ratio": lambda ratio: f"{ratio:.1f} times plain",
    "accepted_length": lambda tokens: f"{tokens:.1f} tokens a round",
    "hit_rate": lambda share: f"{units.percent(share)} ready in time",
}


def in_words(figures: Figures) -> dict[str, str]:
    """Return the figures that are known, by their fields, as people say them."""
    known = {name: getattr(figures, name) for name in _WORDS}
    return {name: _WORDS[name](figure) for name, figure in known.items() if figure is not None}


def label(record: AnswerRecord) -> str:
    """Return the line under an answer: how long it took, how fast it came, what speculation brought."""
    words = in_words(of_record(record))
    speeds = (words[name] for name in ("tokens_per_s", "ratio") if name in words)
    return "  ".join((*_times(record.summary), of_record(record).mode, *speeds))


def _times(s: Summary) -> tuple[str, ...]:
    if not s.tokens:
        return ()
    tokens, seconds = units.counted(s.tokens, "token"), units.short(s.first_token_s + s.decode_s)
    return f"{tokens} in {seconds}", f"first after {units.short(s.first_token_s)}"


def mode_name(mode: str) -> str:
    """Return a mode as a heading has it."""
    name = MODE_NAMES.get(mode, mode)
    return name[:1].upper() + name[1:]


def depth(s: Summary) -> int:
    """Return the middle of the answer: its mean depth of context."""
    return s.prompt_tokens + s.tokens // 2


def _speed(s: Summary) -> float | None:
    """Return the tokens per second after the first, which comes with the prompt."""
    return _share(max(0, s.tokens - 1), s.decode_s) or None


def _ratio(mode: str, speed: float | None, plain: float | None) -> float | None:
    return None if mode == "off" or not speed or not plain else speed / plain


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """A text and how it came about; `complete` if it ended by itself or at a limit."""

    text: str
    record: AnswerRecord
    complete: bool = True


def own_rate(record: AnswerRecord) -> PlainRate | None:
    """Return how fast an answer was that was plain throughout, None for others."""
    speed = _speed(record.summary)
    is_plain = record.mode == "off" and not record.changes
    return PlainRate(depth(record.summary), speed) if is_plain and speed else None


def plain_rate(answers: Sequence[ComparedAnswer]) -> float | None:
    """Return the tokens per second of the plain answer, None if there is none that was plain throughout."""
    rates = (own_rate(each.record) for each in answers if each.complete)
    return next((rate.tokens_per_s for rate in rates if rate), None)


def figures(answer: ComparedAnswer, plain: float | None) -> tuple[str, ...]:
    """Return the figures of an answer in words; the ratio is to plain decoding in the same comparison."""
    record = of_record(answer.record)
    ratio = record.ratio or _ratio(answer.record.mode, record.tokens_per_s, plain)
    words = in_words(replace(record, ratio=ratio))
    speed = "  ".join(words[name] for name in ("tokens_per_s", "ratio") if name in words)
    shares = (words[name] for name in ("acceptance", "hit_rate", "accepted_length") if name in words)
    return tuple(filter(None, (speed, ", ".join(_times(answer.record.summary)), ", ".join(shares))))


def first_difference(one: str, other: str) -> int | None:
    """Return where two texts first differ, None if they are equal."""
    pairs = enumerate(zip_longest(one, other))
    return next((at for at, (mine, others) in pairs if mine != others), None)


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
    reference = next((answer for answer in answers if answer.record.mode == "off"), answers[0])
    return " ".join(_against(answer, reference) for answer in answers if answer is not reference)


def _against(answer: ComparedAnswer, reference: ComparedAnswer) -> str:
    name, other = mode_name(answer.record.mode), mode_name(reference.record.mode)
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
