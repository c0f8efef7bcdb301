"""What the command line settles for the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.chat.answer_settings import PairKnowledge, SessionRequest
from localspec.inference.interface import OpenModels
from localspec.inference.worker.wire import LogLine
from localspec.models.pair_request import ModelChoice
from localspec.storage.config import Config
from localspec.storage.profiles import Profiles
from localspec.types import ModelInfo

if TYPE_CHECKING:
    from localspec.app.recommendation import LocalTarget, Ranked  # likewise
    from localspec.app.tuning import Stop, TuneChoice  # 0.1 s that the start does without
    from localspec.tuning.events import TuneEvent

OnLog = Callable[[LogLine], None]


@dataclass(frozen=True, slots=True)
class ScreenRequest:
    """What to show at first, and how models are opened and tuned; `profile` is that of new chats.

    Each opening looks anew at what config.toml names by then, unless it is of models that were chosen here:
    of the `choices` beside those that are open, on another machine if `host` names one. `go_home` lets them
    open on this one from then on, None where they do. A run tunes those that are open, `was_stopped` tells of
    the last one, and `check_tuning` raises `UserError` where none can be made.
    """

    config: Config
    profiles: Profiles
    profile: str
    resumes: bool
    session: SessionRequest
    knowledge: PairKnowledge
    opens_default_pair: bool
    choices: Callable[[Sequence[ModelInfo]], Iterable[LocalTarget | Ranked]] | None
    host: str
    go_home: Callable[[], None] | None
    open_models: Callable[[ModelChoice | None, Callable[[float], bool], OnLog], OpenModels]
    tune: Callable[[TuneChoice, Stop, OnLog], Iterator[TuneEvent]]
    was_stopped: Callable[[], bool]
    check_tuning: Callable[[], None] = lambda: None
