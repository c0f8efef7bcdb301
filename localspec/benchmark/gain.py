"""The gain of a draft model: answers with and without it, alternating."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from localspec.benchmark.harness import OwnContender, Question, Run, Turn, interleave, paces
from localspec.decoding.tally import total
from localspec.demo import prompts
from localspec.errors import EngineError
from localspec.inference.interface import OpenModels
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling

PROMPTS = 6
TOKENS = 96
FEWEST = 8
"""An answer of fewer tokens says nothing about speed."""
SEEDS = 4000  # far from those that the user gives


@dataclass(frozen=True, slots=True)
class MeasuredSpeedup:
    """The measured gain of a draft model: speed with it over speed without, and its 95% interval."""

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
        """Return whether the draft makes answers faster beyond doubt."""
        return self.low > 1.0

    def __str__(self) -> str:
        """Return the result in words."""
        figures = f"{self.together:.1f} against {self.plain:.1f} tokens/s without it"
        interval = f"x{self.ratio:.2f}, 95% between {self.low:.2f} and {self.high:.2f}"
        if self.is_gain:
            return f"faster: {figures} ({interval})"
        if self.high < 1.0:
            return f"no gain, it slows answers down: {figures} ({interval})"
        return f"no significant gain: {figures} ({interval})"


def measure(models: OpenModels, on_progress: Callable[[float], object]) -> MeasuredSpeedup:
    """Compare answers to bundled prompts with and without the draft model; raises EngineError."""
    chosen, _ = models.choose_settings(EngineSettings())
    if chosen.mode in ("off", "ngram"):  # expected to lose: then it has to show that
        chosen = replace(chosen, mode="sd")
    ways = [OwnContender(each.mode, models, each) for each in (replace(chosen, mode="off"), chosen)]
    sampling = models.target.recommended.sampling.over(Sampling())
    bundled = prompts()  # of all tasks, of which some are taken, spread evenly
    questions = [
        Question("dialogue", Request((Message("user", found.prompt),), sampling, chosen, max_tokens=TOKENS))
        for found in bundled[:: max(1, len(bundled) // PROMPTS)][:PROMPTS]
    ]
    runs: list[Run] = []
    begun = -len(ways)  # warm-ups come first
    for found in interleave(ways, questions, 1, first_seed=SEEDS):
        if isinstance(found, Run):
            runs.append(found)
        elif isinstance(found, Turn):
            on_progress(max(0, begun) / (len(ways) * len(questions)))
            begun += 1
    on_progress(1.0)
    return _gain(chosen.mode, runs)


def _gain(mode: Mode, runs: Sequence[Run]) -> MeasuredSpeedup:
    from localspec.benchmark import statistics  # numpy: 0.1 s

    plain = paces((run for run in runs if run.contender == "off"), FEWEST)
    together = paces((run for run in runs if run.contender == mode), FEWEST)
    both = sorted(plain.keys() & together.keys())
    if len(both) < 2:
        raise EngineError("the answers were too short to measure anything")
    plain, together = ({place: each[place] for place in both} for each in (plain, together))
    ratio = statistics.speedup(together, plain)
    assert ratio is not None
    drafted = [run.summary for run in runs if run.contender == mode and (run.prompt, run.repetition) in both]
    speeds = statistics.rate(plain).value, statistics.rate(together).value
    return MeasuredSpeedup(
        mode, *speeds, ratio.value, ratio.low, ratio.high, total(drafted).acceptance, len(both)
    )
