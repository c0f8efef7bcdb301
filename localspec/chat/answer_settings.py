"""Which settings an answer is written with: flags, then the profile, then the tuner, then measured costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.chat.messages import ChatSettings
from localspec.inference.interface import ModeChoice, OpenModels, QuickChooser
from localspec.models.recommended import said_by, suited
from localspec.storage.profiles import DEFAULT_PROFILE, Profile, Speculation
from localspec.types.request import (
    SAMPLING,
    EngineSettings,
    Mode,
    Recommendation,
    Request,
    Sampling,
    TaskType,
    TemplateVariables,
)

if TYPE_CHECKING:
    from localspec.chat.routing import Route
    from localspec.storage.tuned_settings import TunedTask

UNTUNED = EngineSettings(fallback="ngram")
"""Where nothing is known: repetitions in a text help, and where there are none they cost next to nothing."""
DRAFT_MODES = ("sd", "ssd")
AUTO = "auto"
"""Of profiles: general's, but with the sampling and settings of coding where a program is asked about.

Its system prompt is always the same, so that what the models have read stays in their caches.
"""
THINKING = "enable_thinking"
"""What chat templates call the switch of a model's thinking."""
LOOKED_BACK = 8  # questions that a follow-up may go back to
_NO_FILE = Path(AUTO)


def with_auto(profiles: Iterable[Profile]) -> tuple[Profile, ...]:
    """Return the profiles and `auto`; a profile file named `auto` takes precedence."""
    known = {profile.name: profile for profile in profiles}
    usual = known.get(DEFAULT_PROFILE)
    if usual is not None and AUTO not in known:
        known[AUTO] = replace(
            usual,
            name=AUTO,
            title="Auto",
            description="Coding for questions about programs, General for all others, message by message.",
            path=_NO_FILE,
        )
    return tuple(known.values())


def is_auto(profile: Profile) -> bool:
    """Return whether a profile follows others."""
    return profile.path == _NO_FILE


def followed(
    profile: Profile, profiles: Mapping[str, Profile], questions: Sequence[tuple[str, Sequence[str]]]
) -> Profile:
    """Return the profile that gives an answer to the last question its sampling and settings.

    With the text of each question come the names of the files that travelled with it.
    """
    if not is_auto(profile):
        return profile
    from localspec.chat.routing import route  # 40 ms of patterns

    found: Route | None = None
    for text, files in questions[-LOOKED_BACK:]:
        found = route(text, files, found)
    return profiles.get(found or "general", profile)


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """The tuner's settings for a task; `settings` is None if they are no longer valid.

    `reason` says when they were found and what they gain, `notice` what the user should do.
    """

    settings: EngineSettings | None
    reason: str
    notice: str = ""
    kept: TunedTask | None = None  # with its figures, where it holds


TunedLookup = Callable[[TaskType], TunedChoice | None]
"""Looks up what was tuned for the open models; may read a file, in the thread that works with the models."""


def nothing_known(_task: TaskType) -> TunedChoice | None:
    """Return None: nothing was tuned."""
    return None


def thinking_variables(variables: TemplateVariables, budget: int | None) -> TemplateVariables:
    """Return template variables; those of a budget of 0 turn the thinking off, unless they say."""
    says = budget != 0 or THINKING in dict(variables)
    return variables if says else (*variables, (THINKING, False))


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The settings of the command line, which override the profiles'; None leaves a setting to them.

    A mode that `speculation` leaves open is the profile's, or else `auto`: the fastest on this machine,
    with a fallback where it is not. `is_auto` asks for that even if the profile names a mode.
    `answer` has everything else about the answer; its sampling and settings are ignored.
    """

    speculation: Speculation = field(default_factory=Speculation)
    sampling: Mapping[str, Any] = field(default_factory=dict)  # fields of `Sampling`
    system: str | None = None
    answer: Request = field(default_factory=partial(Request, ""))
    is_auto: bool = False

    def over(self, own: ChatSettings) -> SessionRequest:
        """Return the request with the settings of a chat in place of its own."""
        given = own.settled
        given.pop("tools", None)  # are offered by the session
        before = AUTO if self.is_auto else self.speculation.mode
        mode = given.pop("mode", before)
        thinking = given.pop("thinking", None)
        sampling = {name: given.pop(name) for name in SAMPLING if name in given}
        variables = () if thinking is None else ((THINKING, thinking),)
        variables = (*self.answer.template_variables, *variables)
        if thinking is False:  # also of models whose templates do not ask
            given["thinking_budget"] = 0
        return replace(
            self,
            speculation=replace(self.speculation, mode=None if mode == AUTO else mode),
            sampling={**self.sampling, **sampling},
            answer=replace(self.answer, template_variables=variables, **given),
            is_auto=mode == AUTO,
        )

    def answer_under(self, profile: Profile) -> Request:
        """Return everything else about an answer, with what the profile settles."""
        answer = self.answer
        budget = self.answer.thinking_budget
        budget = profile.thinking_budget if budget is None else budget
        variables = thinking_variables(answer.template_variables, budget)
        return replace(answer, thinking_budget=budget, template_variables=variables)

    def sampling_under(self, profile: Profile, models: OpenModels | None) -> Sampling:
        """Return the sampling of an answer, with the models' recommendation if they are known."""
        below = profile if models is None else suited(profile, models.target.recommended)
        return replace(below.sampling, **self.sampling)

    def explained_sampling(self, profile: Profile | None, recommended: Recommendation) -> str:
        """Return a line with the sampling settings that differ from the default, and their sources."""
        sources = {recommended.source: recommended.sampling.settled}
        if profile is not None:
            sources[f"from profile {profile.title}"] = said_by(profile, recommended)
        sources["from the command line"] = dict(self.sampling)
        by_name = {name: source for source, values in sources.items() for name in values}
        parts = []
        for source, values in sources.items():
            shown = [f"{name} {value:g}" for name, value in values.items() if by_name[name] == source]
            parts += [f"{', '.join(shown)} {source}"] if shown else []
        return f"sampling: {'; '.join([*parts, 'everything else at its default'])}"


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How an answer is to be written: `request` lacks its prompt, and its `seed` if one is to be drawn."""

    request: Request
    reason: str
    profile: str


class SettingsSelector:
    """Chooses for one pair of open models; what it had to measure or look up it remembers."""

    def __init__(
        self,
        models: OpenModels,
        tuned_for: TunedLookup = nothing_known,
        report: Callable[[str], object] = lambda _notice: None,
    ) -> None:
        """Take the models, the lookup of tuned settings, and a callback for settings that have gone stale."""
        self.models = models
        self._experience = tuned_for
        self._report = report
        self._tuned: dict[TaskType, TunedChoice | None] = {}

    def options(self, profile: Profile, asked: SessionRequest) -> AnswerOptions:
        """Return the options of an answer under a profile; the first time it may measure call times."""
        sampling = asked.sampling_under(profile, self.models)
        if asked.is_auto:
            profile = replace(profile, speculation=replace(profile.speculation, mode=None))
        choice = self.choose(profile, asked.speculation)
        answer = asked.answer_under(profile)
        request = replace(answer, sampling=sampling, settings=choice.settings, steps_down=True)
        return AnswerOptions(request, choice.reason, profile.name)

    def choose(self, profile: Profile, asked: Speculation | None = None) -> ModeChoice:
        """Return the decoding settings under a profile.

        A requested mode uses tuned settings only if they are for that mode.
        """
        asked = asked or Speculation()
        wanted = asked.mode or self._possible(profile.speculation.mode)
        tuned = self._recall(profile.task) if wanted != "off" else None
        fits = tuned is not None and wanted in (None, tuned.settings.mode)
        settings = asked.apply(profile.speculation.apply(tuned.settings if tuned and fits else UNTUNED))
        if asked.mode is not None:
            return ModeChoice(settings, "asked for")
        if wanted is not None:
            return ModeChoice(replace(settings, mode=wanted), f"profile {profile.title}")
        choice = tuned or self._measured
        return ModeChoice(replace(settings, mode=choice.settings.mode), choice.reason)

    @property
    def _measured(self) -> ModeChoice:
        """Return the fastest settings: at once if the models know them, else after one measurement."""
        if isinstance(self.models, QuickChooser):
            return ModeChoice(*self.models.known_settings())
        return self._measured_once

    @cached_property
    def _measured_once(self) -> ModeChoice:
        return ModeChoice(*self.models.choose_settings())

    def _possible(self, mode: Mode | None) -> Mode | None:
        return None if mode in DRAFT_MODES and self.models.draft is None else mode

    def _recall(self, task: TaskType) -> ModeChoice | None:
        """Return the tuned settings for a task that are possible with these models."""
        if task not in self._tuned:
            self._tuned[task] = tuned = self._experience(task)
            if tuned is not None and tuned.notice:
                self._report(tuned.notice)
        known = self._tuned[task]
        if known is None or known.settings is None or self._possible(known.settings.mode) is None:
            return None
        return ModeChoice(known.settings, known.reason)
