"""The study of a task's settings: Optuna's random sampler over the simulator, and neighbours of the best.

Every choice follows from the seed and the trials before it: a run that continues makes the same trials again,
in the seconds that simulating takes. Chance, with every other trial a neighbour of the best, came within 0.6%
of Optuna's multivariate TPE on paced devices in a quarter of its time (`tests/benchmarks/search.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from localspec.errors import Cancelled, LocalSpecError
from localspec.tuning.space import Space, canonical, neighbours, starting_points, suggest
from localspec.types.request import EngineSettings, Mode

NOTICEABLE = 1.001  # times the best; less is not a reason to continue
PATIENCE = 60  # trials without a noticeable gain: a run cannot measure the last tenth of a percent
ATTEMPTS = 40  # to get settings by chance that were not tried
CLOSE = 0.1  # behind the best: the simulator's error is nearly that between modes, and less within one

Simulate = Callable[[EngineSettings], float]
"""Returns tokens per second over the trace."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of the study: settings, and simulated tokens per second; None where `failure` says why."""

    number: int
    settings: EngineSettings
    tokens_per_s: float | None
    failure: str = ""
    is_best: bool = False  # of all until then

    @property
    def estimate(self) -> float:
        """Return its tokens per second, 0 after a failure."""
        return self.tokens_per_s or 0.0


class _Choice:
    """What was tried, and the settings that come next."""

    def __init__(self, space: Space, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._random = Random(seed)
        self._chance = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        self._starts = iter(starting_points(space))
        self._seen: set[EngineSettings] = set()

    def next(self, best: Trial | None) -> EngineSettings | None:
        """Return settings that were not tried, None if nothing new can be found."""
        found = next(self._starts, None)
        if found is None and len(self._seen) % 2:
            found = self._near(best)
        found = found or self._by_chance() or self._near(best)
        if found is not None:
            self._seen.add(found)
        return found

    def _near(self, best: Trial | None) -> EngineSettings | None:
        """Return settings next to the best."""
        around = () if best is None else neighbours(best.settings, self._space)
        untried = [settings for settings in around if settings not in self._seen]
        return self._random.choice(untried) if untried else None

    def _by_chance(self) -> EngineSettings | None:
        drawn = (suggest(self._chance.ask(), self._space) for _ in range(ATTEMPTS))
        return next((settings for settings in drawn if settings not in self._seen), None)


def search(
    simulate: Simulate, space: Space, trials: int = 150, budget_s: float = math.inf, seed: int = 0
) -> Iterator[Trial]:
    """Yield the trials of a study until a limit is reached or nothing improves.

    A simulation that raises is a failed trial; `Cancelled` is passed on.
    """
    choice = _Choice(space, seed)
    ends_s = time.perf_counter() + budget_s
    best: Trial | None = None
    quiet_trials = 0  # since the last noticeable gain
    for number in range(trials):
        is_late = time.perf_counter() >= ends_s
        settings = None if is_late or quiet_trials >= PATIENCE else choice.next(best)
        if settings is None:
            return
        tried = _try(simulate, settings, number, best)
        gains = tried.is_best and (best is None or tried.estimate > NOTICEABLE * best.estimate)
        quiet_trials = 0 if gains else quiet_trials + 1
        best = tried if tried.is_best else best
        yield tried


def _try(simulate: Simulate, settings: EngineSettings, number: int, best: Trial | None) -> Trial:
    try:
        value = float(simulate(settings))
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"the simulation gave {value} tokens per second")
    except Cancelled:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this trial's failure and the study continues
        return Trial(number, settings, None, _reason(error))
    return Trial(number, settings, value, is_best=best is None or value > best.estimate)


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    line = next(iter(str(error).splitlines()), "")
    return line if line and isinstance(error, LocalSpecError) else f"{type(error).__name__}: {line}"


def best(tried: Iterable[Trial], count: int = 3) -> tuple[Trial, ...]:
    """Return the best settings that differ in behaviour, without plain decoding.

    The very best comes first, then the best of every other mode that is close to it, since errors of the
    simulator are shared within a mode and differ between modes; then the next best ones.
    """
    ranked = sorted(
        (each for each in tried if each.tokens_per_s is not None and each.settings.mode != "off"),
        key=lambda each: (-each.estimate, each.number),
    )
    firsts: dict[Mode, Trial] = {}
    for each in ranked:
        if each.estimate >= (1.0 - CLOSE) * ranked[0].estimate:
            firsts.setdefault(each.settings.mode, each)
    chosen: list[Trial] = []
    for each in [*firsts.values(), *ranked]:
        if len(chosen) < count and not any(_alike(each, other) for other in chosen):
            chosen.append(each)
    return tuple(sorted(chosen, key=lambda each: (-each.estimate, each.number)))


def _alike(one: Trial, other: Trial) -> bool:
    """Return whether two trials behave so similarly that a real run could not distinguish them."""
    a = one.settings
    b = other.settings
    if a.mode != b.mode or a.acceptance != b.acceptance:
        return False
    if math.isclose(one.estimate, other.estimate, rel_tol=1e-9):
        return True  # they differ in limits that are never reached
    if (a.min_confidence is None) != (b.min_confidence is None) or a.fan_out_shape != b.fan_out_shape:
        return False
    return (
        a.fallback == b.fallback
        and abs(a.draft_length - b.draft_length) <= 1
        and abs(math.log(a.fan_out_budget / b.fan_out_budget)) < math.log(1.5)
        and abs(math.log(a.draft_temperature / b.draft_temperature)) < math.log(1.2)
        and abs(a.saguaro_c - b.saguaro_c) < 0.15
        and abs((a.min_confidence or 0.0) - (b.min_confidence or 0.0)) < 0.1
    )


def predicted(tried: Iterable[Trial], settings: EngineSettings, space: Space) -> float | None:
    """Return the simulated tokens per second of settings, None if they were not tried to the end."""
    if settings.mode not in space.modes:
        return None
    wanted = canonical(settings, space)
    return next((each.tokens_per_s for each in tried if each.settings == wanted), None)
