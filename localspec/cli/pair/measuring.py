"""Really run a target with a draft model, and say whether the draft makes it faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from localspec.demo import prompts
from localspec.errors import EngineError
from localspec.inference.interface import OpenModels
from localspec.models.default_pair import recommended_sampling
from localspec.types import EngineSettings, Finished, Message, Mode, Request, Sampling, Summary

PROMPTS = 6
TOKENS = 96
FEWEST = 8
"""An answer of fewer tokens says nothing about speed."""
SEEDS = 4000  # far from those that a person gives

OnProgress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Gain:
    """What a draft model brings, as measured: speed with it over speed without, and its 95% interval."""

    mode: Mode
    plain: float
    together: float
    ratio: float
    low: float
    high: float
    acceptance: float | None
    answers: int

    @property
    def is_gain(self) -> bool:
        """Tell whether the draft makes answers faster beyond doubt."""
        return self.low > 1.0

    def __str__(self) -> str:
        """Return the verdict for people."""
        figures = f"{self.together:.1f} against {self.plain:.1f} tokens/s without it"
        interval = f"x{self.ratio:.2f}, 95% between {self.low:.2f} and {self.high:.2f}"
        if self.is_gain:
            return f"faster: {figures} ({interval})"
        if self.high < 1.0:
            return f"no gain, it slows answers down: {figures} ({interval})"
        return f"no gain that could be told from chance: {figures} ({interval})"


def measure(models: OpenModels, on_progress: OnProgress) -> Gain:
    """Answer some bundled prompts plainly and with the draft in turn, and compare; raises EngineError."""
    chosen, _ = models.choose_settings(EngineSettings())
    if chosen.mode in ("off", "ngram"):  # expected to lose: then it has to show that
        chosen = replace(chosen, mode="sd")
    ways = (replace(chosen, mode="off"), chosen)
    pairs: list[tuple[Summary, Summary]] = []
    questions = _questions()
    for number, question in enumerate(questions):
        order = ways if number % 2 == 0 else ways[::-1]  # drift of the machine hits both alike
        answers = {settings.mode: _answer(models, question, settings, number) for settings in order}
        plain, together = answers["off"], answers[chosen.mode]
        if min(plain.tokens, together.tokens) >= FEWEST:
            pairs.append((plain, together))
        on_progress((number + 1) / len(questions))
    if len(pairs) < 2:
        raise EngineError("the answers were too short to measure anything")
    return _gain(chosen.mode, pairs)


def _questions() -> Sequence[str]:
    """Return prompts of all tasks, spread evenly."""
    all_prompts = prompts()
    step = max(1, len(all_prompts) // PROMPTS)
    return [found.prompt for found in all_prompts[::step][:PROMPTS]]


def _answer(models: OpenModels, question: str, settings: EngineSettings, number: int) -> Summary:
    request = Request(
        prompt=(Message("user", question),),
        sampling=recommended_sampling(models.target.path, "dialogue") or Sampling(),
        settings=settings,
        max_tokens=TOKENS,
        seed=SEEDS + number,
    )
    for event in models.generate(request):
        if isinstance(event, Finished):
            return event.summary
    raise EngineError("an answer broke off")


def _gain(mode: Mode, pairs: Sequence[tuple[Summary, Summary]]) -> Gain:
    from localspec.benchmark.statistics import ratio_of_sums  # numpy: 0.1 s

    plain, together = [summary for summary, _ in pairs], [summary for _, summary in pairs]
    ratio, low, high = ratio_of_sums(_paces(plain), _paces(together))
    drafted = sum(summary.drafted for summary in together)
    accepted = sum(summary.accepted for summary in together)
    return Gain(
        mode=mode,
        plain=_rate(plain),
        together=_rate(together),
        ratio=ratio,
        low=low,
        high=high,
        acceptance=accepted / drafted if drafted else None,
        answers=len(pairs),
    )


def _paces(summaries: Sequence[Summary]) -> list[float]:
    return [summary.decode_s / (summary.tokens - 1) for summary in summaries]


def _rate(summaries: Sequence[Summary]) -> float:
    return sum(summary.tokens - 1 for summary in summaries) / sum(summary.decode_s for summary in summaries)
