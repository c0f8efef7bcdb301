"""Which settings the study tries next: a pure function of what it has tried.

One model of the whole space fits badly, because most parameters exist only for some values of others, and
plain decoding, which can be tried only once, looks promising to it for ever. So each way (mode, acceptance
rule, stop) has its own, and those that fall behind are left. Towards the end half of the trials look around
the best settings, which such a model does poorly.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from localspec.tuning.search.space import (
    Space,
    Way,
    fitting,
    neighbours,
    parameters,
    starting_points,
    suggest,
    ways,
)
from localspec.tuning.search.study_file import quiet
from localspec.tuning.search.study_history import History
from localspec.types import EngineSettings

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

RANDOM_TRIALS = 4  # of each way, start points included, before its model is asked
SETTLED = 8  # trials without a better one, after which every other one looks around the best settings
ATTEMPTS = 8  # to get settings that were not tried from a model, before something else is tried
_FIXED = ("mode", "acceptance", "stop")  # the parameters that make a way


class Choice:
    """The study's sampler: TPE for each way, over trials in memory."""

    def __init__(self, space: Space, starts: Sequence[EngineSettings], seed: int) -> None:
        """Try `starts` first, and with them the usual ones."""
        self._space = space
        self._starts = tuple(dict.fromkeys((*starting_points(space), *fitting(starts, space))))
        self._ways = ways(space)
        self._studies: dict[Way, Study] = {}
        self._seed = seed

    def is_start(self, settings: EngineSettings) -> bool:
        """Tell whether these are settings that somebody will ask about: they are never left early."""
        return settings in self._starts

    def learn(self, settings: EngineSettings, trial: FrozenTrial) -> None:
        """Take a finished trial."""
        self._study(Way.of(settings)).add_trial(trial)

    def next(self, history: History) -> EngineSettings | None:
        """Return settings that were not tried, None if nothing new can be found."""
        number = len(history.tried)
        for start in self._starts:
            if start not in history.seen:
                return start
        random = Random(f"{self._seed} {number}")
        settled = number % 2 and history.was_quiet(len(self._starts), SETTLED)
        if settled and (near := self._near(history, random)) is not None:
            return near
        return self._from_models(history, number) or self._near(history, random)

    def _near(self, history: History, random: Random) -> EngineSettings | None:
        if history.best is None or history.best.settings.mode == "off":
            return None
        around = neighbours(history.best.settings, self._space)
        untried = [settings for settings in around if settings not in history.seen]
        return random.choice(untried) if untried else None

    def _from_models(self, history: History, number: int) -> EngineSettings | None:
        """Ask the leading way's model and the least searched way's in turn, then all others."""
        found = history.ways_open(self._ways)
        if not found:
            return None
        known = history.ways
        by_trials = sorted(found, key=lambda way: known[way].trials if way in known else 0)
        leader = max(found, key=lambda way: known[way].best if way in known else 0.0)
        order = [leader, *by_trials] if number % 4 < 2 else [*by_trials, leader]  # parity picks neighbours
        for way in dict.fromkeys(order):
            if (settings := self._sampled(way, history, number)) is not None:
                return settings
        return None

    def _sampled(self, way: Way, history: History, number: int) -> EngineSettings | None:
        """Return new settings from a way's model; all chance comes from the seed and the trial's number."""
        from optuna.trial import TrialState

        study = self._study(way)
        for attempt in range(ATTEMPTS):
            study.sampler = self._sampler(way, self._seed * 1_000_003 + number * ATTEMPTS + attempt)
            trial = study.ask()
            settings = suggest(trial, self._space)
            study.tell(trial, state=TrialState.FAIL)  # what really happens is told by `learn`
            if settings not in history.seen:
                return settings
        return None

    def _sampler(self, way: Way, seed: int) -> BaseSampler:
        from optuna.samplers import PartialFixedSampler, TPESampler

        example = EngineSettings(
            way.mode, acceptance=way.acceptance, min_confidence=None if way.stop == "automatic" else 0.0
        )
        answers = parameters(example, self._space)
        fixed = {name: answers[name] for name in _FIXED if name in answers}
        with quiet():
            model = TPESampler(
                seed=seed % 2**32, multivariate=True, constant_liar=False, n_startup_trials=RANDOM_TRIALS
            )
            return PartialFixedSampler(fixed, model)

    def _study(self, way: Way) -> Study:
        import optuna

        if way not in self._studies:
            self._studies[way] = optuna.create_study(direction="maximize")
        return self._studies[way]


def distributions(settings: EngineSettings, space: Space) -> dict[str, BaseDistribution]:
    """Return where the parameters of settings come from."""
    from optuna.trial import FixedTrial

    trial = FixedTrial(parameters(settings, space))
    suggest(trial, space)
    return trial.distributions
