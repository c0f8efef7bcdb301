"""How the answers of a chat line by line are written, and what may change between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localspec.app.answer_options import AnswerOptions
from localspec.chat.answer_settings import Choice, Chooser
from localspec.chat.learning import Answered, Experience
from localspec.cli.shared.answer import Answer
from localspec.cli.shared.opening import note
from localspec.inference.interface import OpenModels
from localspec.storage.profiles import Speculation
from localspec.types import Mode


class Decider:
    """Options and settings of the next answer; of the profile `auto` also whom it follows."""

    def __init__(
        self, models: OpenModels, experience: Experience, options: AnswerOptions, asked: Speculation
    ) -> None:
        """Begin with what the flags ask for."""
        self._chooser = Chooser(models, experience, note)
        self._experience = experience
        self._given = options = options.on(models.target.path)
        self._asked = asked
        self.options = options.under([])

    @property
    def choice(self) -> Choice:
        """Return how the next answer is decoded, as far as is known without its question."""
        return self._chooser.choose(self.options.profile, self._asked)

    def take(self, questions: Sequence[str]) -> str:
        """Decide for an answer to the last of the questions; return what is new to say about that."""
        before, self.options = self.options.profile, self._given.under(questions)
        changed = self.options.profile is not before
        return f"{self._given.profile.name}: {self.options.profile.name}" if changed else ""

    def learn(self, choice: Choice, answer: Answer) -> None:
        """Count an answer in, where that is wanted."""
        if answer.finished is not None:
            steady, summary = not answer.changes, answer.finished.summary
            self._experience.learn(Answered(self.options.profile.task, choice.settings, summary, steady))

    def choose_mode(self, mode: Mode | None) -> None:
        """Decode the next answers in a mode, or in the one that pays."""
        self._asked = replace(self._asked, mode=mode)

    def set_temperature(self, temperature: float) -> None:
        """Pick the tokens of the next answers at a temperature."""
        self._given = replace(self._given, flags=replace(self._given.flags, temperature=temperature))
        self.options = replace(self.options, flags=self._given.flags)
