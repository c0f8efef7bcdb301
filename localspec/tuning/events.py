"""What the tuner says, finds and keeps: frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from localspec.storage.tuned_settings import LoadOptions
from localspec.types import EngineSettings, Interval, TaskType

Stage = Literal["machine", "costs", "traces", "study", "confirm"]
STAGES: tuple[Stage, ...] = ("machine", "costs", "traces", "study", "confirm")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A really run trial of a workplace: tokens per second of its best mode, or why there are none."""

    workplace: LoadOptions
    tokens_per_s: float | None
    mode: str = ""
    failure: str = ""  # "out of memory", "the process ended by SIGABRT", ...; a failure is never a zero
    pruned: bool = False


@dataclass(frozen=True, slots=True)
class SettingsCandidate:
    """Settings that the study found good, with the simulated tokens per second."""

    settings: EngineSettings
    predicted: float


@dataclass(frozen=True, slots=True)
class ConfirmedContender:
    """One way of decoding in the confirmation: measured tokens per second, and in those of plain decoding."""

    name: str  # "plain", "best", "second", "third", "llama.cpp"
    settings: EngineSettings
    predicted: float | None
    rate: Interval
    gain: Interval


@dataclass(frozen=True, slots=True)
class Dropped:
    """A contender, or a mode, that could not be measured, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RankCurve:
    """How often the bonus token was the draft model's 1st, 2nd, 3rd ... other choice, by accepted tokens.

    `hits[k][r]` is the chance that it is among the first r+1 choices after k accepted tokens;
    the miss rate is about `scale * (r+1) ** -exponent`.
    """

    hits: tuple[tuple[float, ...], ...]
    counts: tuple[int, ...]  # per k: bonus tokens expected in the trace; the last k is a whole draft accepted
    scale: float
    exponent: float


@dataclass(frozen=True, slots=True)
class DraftCalibration:
    """What a trace says about the draft model as a guesser of the target."""

    draft_temperature: float  # minimises the divergence
    divergence: tuple[tuple[float, float], ...]  # (temperature, mean total variation distance)
    acceptance: tuple[float, ...]  # by position in a draft, as far as 8: of the tokens judged there
    ranks: RankCurve


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What the tuner settled on for a task, and the evidence."""

    task: TaskType
    settings: EngineSettings  # mode "off" where nothing beats plain decoding
    reason: str  # in a plain sentence
    contenders: tuple[ConfirmedContender, ...]  # "plain" first
    calibration: DraftCalibration | None
    trials: int
    seconds: float  # of work, those before a restart included
    drift: float = 1.0  # of plain decoding, from the beginning of the confirmation to its end
    dropped: tuple[Dropped, ...] = ()
    quick: bool = False

    @property
    def winner(self) -> ConfirmedContender:
        """Return the contender that the settings are."""
        return next(each for each in self.contenders if each.settings == self.settings)


@dataclass(frozen=True, slots=True)
class StageBegan:
    """A stage begins; `task` None where it serves all tasks. `kept` of `steps` are on disk already."""

    stage: Stage
    task: TaskType | None
    steps: int
    kept: int = 0


@dataclass(frozen=True, slots=True)
class StageProgress:
    """So many steps of the stage are done; `left_s` estimates the rest of the whole run."""

    stage: Stage
    task: TaskType | None
    done: int
    steps: int
    left_s: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The best known way for a task; `rate` once it has really run."""

    task: TaskType
    settings: EngineSettings
    predicted: float | None
    rate: Interval | None = None


@dataclass(frozen=True, slots=True)
class LoadOptionsChosen:
    """How the models are opened from here on, and why."""

    workplace: LoadOptions
    attempts: tuple[Attempt, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class TaskDone:
    """A task is tuned, and its settings are kept."""

    result: TaskResult


TuneEvent = StageBegan | StageProgress | BestSoFar | LoadOptionsChosen | TaskDone
