"""What was predicted beside what really happened: a line for each setting, and how good each mode is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from localspec.types.events import Summary
from localspec.types.request import EngineSettings, Mode


@dataclass(slots=True)
class Comparison:
    """One setting: the real answers to each request, and what was predicted."""

    settings: EngineSettings
    answers: defaultdict[int, list[Summary]] = field(default_factory=lambda: defaultdict(list))
    predicted: Summary = field(default_factory=Summary)
    predicted_rate: float = 0.0

    @property
    def real(self) -> list[Summary]:
        """Return the answer of median speed to each request: something else disturbs single ones."""
        return [
            sorted(each, key=lambda one: one.decode_s / (one.tokens - 1))[len(each) // 2]
            for each in self.answers.values()
        ]

    @property
    def rate(self) -> float:
        """Return the real tokens per second."""
        return pace(self.real)

    def every_other(self, first: int) -> float:
        """Return the tokens per second of the first, third ... or the second, fourth ... answers."""
        return pace([one for each in self.answers.values() for one in each[first::2]])

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted_rate / self.rate - 1.0


def pace(answers: Sequence[Summary]) -> float:
    """Return the tokens per second of answers, after their first tokens."""
    return sum(each.tokens - 1 for each in answers) / sum(each.decode_s for each in answers)


def report(found: Sequence[Comparison]) -> None:
    """Print every setting, and how good the predictions of each mode are."""
    by_mode: defaultdict[Mode, list[Comparison]] = defaultdict(list)
    for each in found:
        by_mode[each.settings.mode].append(each)
    for mode, comparisons in by_mode.items():
        print(f"\n{mode}: predicted / real")
        for each in sorted(comparisons, key=lambda each: each.rate):
            print("  " + "  ".join(figures(each)))
    plain = by_mode["off"][0].error if "off" in by_mode else 0.0
    print(f"\nplain decoding ran at {1 / (1 + plain):.3f} of its prediction; the others in its speed:")
    for mode, comparisons in by_mode.items():
        relative = [(1 + each.error) / (1 + plain) - 1 for each in comparisons]
        errors, bias = [abs(error) for error in relative], median(relative)
        ranks = spearman([e.predicted_rate for e in comparisons], [e.rate for e in comparisons])
        print(
            f"{mode:6} {len(errors):3} settings: median error {median(errors):.1%}, worst {max(errors):.1%}, "
            f"bias {bias:+.1%}, rank correlation {ranks:.3f}"
        )
        against_itself(comparisons)


def against_itself(comparisons: Sequence[Comparison]) -> None:
    """Print how well the engine predicts itself, from answers given twice: no simulator can do better."""
    if len(comparisons) < 2 or min(len(each) for one in comparisons for each in one.answers.values()) < 2:
        return
    halves = [(each.every_other(0), each.every_other(1)) for each in comparisons]
    errors = [abs(one / other - 1.0) for one, other in halves]
    ranks = spearman([one for one, _ in halves], [other for _, other in halves])
    print(
        f"{'':6} the engine against itself: median {median(errors):.1%}, worst {max(errors):.1%}, "
        f"rank correlation {ranks:.3f}"
    )


def figures(each: Comparison) -> Iterator[str]:
    """Yield the columns of a line."""
    one, s = each.predicted, each.settings
    rounds = sum(summary.rounds for summary in each.real)
    yield f"{each.predicted_rate:6.1f} / {each.rate:6.1f} tokens/s {each.error:+6.1%}"

    def pair(name: str, of_one: float, scale: float) -> str:
        real = sum(getattr(summary, name) for summary in each.real)
        return f"{name} {getattr(one, name) / of_one * scale:.2f}/{real / rounds * scale:.2f}"

    yield "a round: " + "  ".join(pair(name, one.rounds, 1.0) for name in ("drafted", "accepted", "hits"))
    times = ("verify_s", "draft_s", "wait_s", "python_s")
    yield "ms: " + "  ".join(pair(name, one.rounds, 1e3) for name in times)
    if s.mode == "off":
        return
    stop = "-" if s.min_confidence is None else f"{s.min_confidence:.2f}"
    yield f"K {s.draft_length} stop {stop}"
    if s.mode != "ngram":
        yield f"dT {s.draft_temperature:.2f} C {s.saguaro_c:.2f} {s.acceptance}"
    if s.mode == "ssd":
        yield f"B {s.fan_out_budget} {s.fan_out_shape} {s.fallback}"


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the rank correlation of values without ties."""
    if len(one) < 2:
        return 1.0
    ranks = [sorted(range(len(values)), key=values.__getitem__) for values in (one, other)]
    places = [{index: rank for rank, index in enumerate(order)} for order in ranks]
    squares = sum((places[0][index] - places[1][index]) ** 2 for index in range(len(one)))
    return 1.0 - 6.0 * squares / (len(one) * (len(one) ** 2 - 1))
