"""The study of real short runs, for what cannot be simulated: threads, caches, where the draft model sits.

Every attempt opens the models anew, in a process of their own. One that fails has a reason and no figure.
An attempt that was under way when the program was killed is made again; after the second time it counts as
failed, because what ended the program may have been the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from localspec.errors import Cancelled, EngineError, LocalSpecError
from localspec.inference.interface import OpenModels
from localspec.tuning.events import Attempt, Workplace
from localspec.tuning.search.study_file import ENDED, FAILURE, UNFINISHED, StudyFile, StudyKey, explained
from localspec.tuning.workplaces_possible import Room, course
from localspec.types import EngineSettings, Finished, KvType, Mode, Request, Summary

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

OpenWorkplace = Callable[[Workplace], AbstractContextManager[OpenModels]]

BEHIND = 0.15  # the usual workplace after some of the requests: then the rest is spared
_MODE = "mode"
_TWICE = "the program ended twice while this was tried"
_FLASH = ("automatic", "on", "off")


@dataclass(frozen=True, slots=True)
class Runs:
    """What is run in each workplace: every request in every mode, by the automatic rules."""

    room: Room
    modes: tuple[Mode, ...]
    requests: tuple[Request, ...]
    budget_s: float


@dataclass(frozen=True, slots=True)
class _Measured:
    """An attempt, with the best mode's tokens per second after each request."""

    attempt: Attempt
    so_far: tuple[float, ...] = ()
    seconds: float = 0.0


def try_workplaces(open_models: OpenWorkplace, runs: Runs, path: Path, key: StudyKey) -> Iterator[Attempt]:
    """Yield the attempts, those on file first; the time left of the budget is kept for the winner.

    Raises `StoreError`, and passes on `Cancelled`.
    """
    with StudyFile(path) as file:
        study = file.study(key.name(runs.room, runs.modes, runs.requests), *_ABOUT)
        kept = list(_kept(study.get_trials(deepcopy=False)))
        done: list[_Measured] = []
        steps = course(runs.room, lambda: _is_late(done, runs.budget_s))
        workplace = next(steps)
        while True:
            measured = next((each for each in kept if each.attempt.workplace == workplace), None)
            if measured is not None:  # of another one, where the budget is not what it was
                kept.remove(measured)
            else:
                with explained(path):  # a file that the attempt itself misses is the attempt's failure
                    measured = _attempt(study, open_models, workplace, runs, _bar(done, workplace))
            done.append(measured)
            yield measured.attempt
            try:
                workplace = steps.send(measured.attempt)
            except StopIteration:
                return


_ABOUT = (
    ("value", "tokens per second of whole answers, really run, in the fastest mode"),
    ("steps", "requests answered in every mode"),
    ("threads", "0 leaves it to the program"),
    ("pruned", "clearly behind the usual workplace after some requests"),
)


def _is_late(done: Sequence[_Measured], budget_s: float) -> bool:
    """Tell whether the rest of the time is needed to measure the winner and the usual workplace again."""
    spent = sum(measured.seconds for measured in done)
    return spent + 3 * spent / max(1, len(done)) > budget_s


def _bar(done: Sequence[_Measured], workplace: Workplace) -> tuple[float, ...]:
    """Return what the usual workplace reached last; nothing for one whose figure is wanted in any case."""
    if any(measured.attempt.workplace == workplace for measured in done):
        return ()
    return next((each.so_far for each in reversed(done) if each.attempt.workplace == Workplace()), ())


def _attempt(
    study: Study, open_models: OpenWorkplace, workplace: Workplace, runs: Runs, bar: Sequence[float]
) -> _Measured:
    """Make an attempt that is on file from its beginning."""
    from optuna.trial import TrialState

    started = time.perf_counter()
    study.enqueue_trial(_parameters(workplace))
    trial = study.ask(_distributions())
    race, failure, pruned = _Race(), "", False
    try:
        with open_models(workplace) as models:
            pruned = not race.run(models, runs, bar, trial)
    except Cancelled:
        _leave(study, trial, "stopped")
        raise
    except MemoryError:
        failure = "out of memory"
    except (LocalSpecError, OSError) as error:
        failure = str(error)
    except BaseException:
        _leave(study, trial, "stopped")
        raise
    seconds = time.perf_counter() - started
    if failure:
        trial.set_user_attr(FAILURE, failure)
        study.tell(trial, state=TrialState.FAIL)
        return _Measured(Attempt(workplace, None, failure=failure), (), seconds)
    trial.set_user_attr(_MODE, race.mode)
    if pruned:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, race.so_far[-1])
    value = None if pruned else race.so_far[-1]
    return _Measured(Attempt(workplace, value, race.mode, pruned=pruned), tuple(race.so_far), seconds)


def _leave(study: Study, trial: Trial, why: str) -> None:
    from optuna.trial import TrialState

    trial.set_user_attr(UNFINISHED, why)
    study.tell(trial, state=TrialState.FAIL)


@dataclass(slots=True)
class _Tally:
    """What one mode's answers took."""

    tokens: int = 0
    decode_s: float = 0.0
    prompt_tokens: int = 0


@dataclass(slots=True)
class _Race:
    """The modes of one workplace, request by request."""

    so_far: list[float] = field(default_factory=list)
    mode: Mode = "off"
    _read: int = 0  # tokens of prompts, those from the cache not counted
    _read_s: float = 0.0
    _tallies: dict[Mode, _Tally] = field(default_factory=dict)

    def run(self, models: OpenModels, runs: Runs, bar: Sequence[float], trial: Trial) -> bool:
        """Answer the requests; return False when left early for being behind `bar`."""
        for number, request in enumerate(runs.requests):
            for mode in runs.modes:
                self._add(mode, _answer(models, request, mode))
            rates = {mode: self._rate(tally) for mode, tally in self._tallies.items()}
            self.mode = max(rates, key=lambda mode: rates[mode])
            self.so_far.append(rates[self.mode])
            trial.report(self.so_far[-1], number)
            is_last = number == len(runs.requests) - 1
            if not is_last and number < len(bar) and self.so_far[-1] < (1.0 - BEHIND) * bar[number]:
                return False
        return True

    def _add(self, mode: Mode, summary: Summary) -> None:
        tally = self._tallies.setdefault(mode, _Tally())
        tally.tokens += summary.tokens
        tally.decode_s += summary.decode_s
        tally.prompt_tokens += summary.prompt_tokens
        self._read += summary.prompt_tokens - summary.cached_tokens
        self._read_s += summary.prompt_s

    def _rate(self, tally: _Tally) -> float:
        """Return tokens per second of whole answers; a prompt costs what reading did, cached or not."""
        reading_s = tally.prompt_tokens * self._read_s / self._read if self._read else 0.0
        seconds = tally.decode_s + reading_s
        if not seconds:
            raise EngineError("the answers were too short to measure anything")
        return tally.tokens / seconds


def _answer(models: OpenModels, request: Request, mode: Mode) -> Summary:
    for event in models.generate(replace(request, settings=EngineSettings(mode=mode))):
        if isinstance(event, Finished):
            if event.reason == "cancelled":
                raise Cancelled("the measurement was stopped")
            return event.summary
    raise EngineError("an answer broke off")


def _kept(trials: Sequence[FrozenTrial]) -> Iterator[_Measured]:
    """Return the attempts that are on file."""
    from optuna.trial import TrialState

    killed = 0
    for trial in trials:
        seconds = trial.duration.total_seconds() if trial.duration is not None else 0.0
        failure = str(trial.user_attrs.get(FAILURE, ""))
        if trial.state == TrialState.FAIL and not failure:
            killed += trial.user_attrs.get(UNFINISHED) == ENDED
            if killed < 2 or len(trial.params) < len(fields(Workplace)):
                continue
            failure = _TWICE
        killed = 0
        whole = trial.state == TrialState.COMPLETE
        steps = tuple(trial.intermediate_values[step] for step in sorted(trial.intermediate_values))
        attempt = Attempt(
            _workplace(trial.params),
            trial.value if whole else None,
            str(trial.user_attrs.get(_MODE, "")),
            failure,
            pruned=trial.state == TrialState.PRUNED,
        )
        yield _Measured(attempt, () if failure else steps, seconds)


def _distributions() -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        "threads": IntDistribution(0, 4096),
        "draft_threads": IntDistribution(0, 4096),
        "micro_batch": IntDistribution(1, 65536),
        "draft_flash_attention": CategoricalDistribution(_FLASH),
        "draft_kv_type": CategoricalDistribution(get_args(KvType)),
        "draft_on_cpu": CategoricalDistribution((False, True)),
    }


def _parameters(workplace: Workplace) -> dict[str, int | str | bool]:
    flash = workplace.draft_flash_attention
    return {
        "threads": workplace.threads,
        "draft_threads": workplace.draft_threads or 0,
        "micro_batch": workplace.micro_batch,
        "draft_flash_attention": _FLASH[0] if flash is None else _FLASH[1] if flash else _FLASH[2],
        "draft_kv_type": workplace.draft_kv_type,
        "draft_on_cpu": workplace.draft_on_cpu,
    }


def _workplace(parameters: dict[str, object]) -> Workplace:
    flash = parameters["draft_flash_attention"]
    return Workplace(
        threads=cast(int, parameters["threads"]),
        draft_threads=cast(int, parameters["draft_threads"]) or None,
        micro_batch=cast(int, parameters["micro_batch"]),
        draft_flash_attention=None if flash == _FLASH[0] else flash == _FLASH[1],
        draft_kv_type=cast(KvType, parameters["draft_kv_type"]),
        draft_on_cpu=cast(bool, parameters["draft_on_cpu"]),
    )
