"""What the sessions of all open chats share: profiles, settings of this start, tools, what was measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from localspec.chat.answer_settings import AUTO, SessionRequest, SettingsSelector, TunedLookup, with_auto
from localspec.chat.plain_rates import PlainRates
from localspec.chat.tool_use.kit import ToolKit
from localspec.errors import UserError
from localspec.inference.interface import OpenModels
from localspec.storage.config import CompactionMode
from localspec.storage.profiles import Profile

if TYPE_CHECKING:
    from localspec.chat.store import Store


class SharedSession:
    """What the sessions of a program share, each of which has a chat of its own."""

    def __init__(
        self,
        store: Store,
        profiles: Iterable[Profile],
        request: SessionRequest,
        profile: str,
        tuned_for: TunedLookup,
    ) -> None:
        """Take the choices of this start; raises `UserError` for a profile that does not exist."""
        self.store = store
        self.request = request
        self.tuned_for = tuned_for
        self.rates = PlainRates()
        self.titles = False  # whether the models name new chats
        self.compaction_mode: CompactionMode = "ask"  # near the limit of the context
        self.reads_ahead = True  # whether idle models read what comes before the next answer
        self.make_kit: Callable[[], ToolKit] | None = None  # of the tools that chats may use
        self._kit: ToolKit | None = None
        self._making_kit = threading.Lock()
        self._notices: dict[str, bool] = {}  # and whether they were read
        self._chooser: SettingsSelector | None = None
        self.answers = 0  # so far
        self._profiles = {known.name: known for known in with_auto(profiles)}
        self.usual_profile = self.known(profile).name  # of new chats

    # --- profiles ---

    def take_profiles(self, profiles: Iterable[Profile]) -> None:
        """Take profiles as their files are now."""
        self._profiles = {known.name: known for known in with_auto(profiles)}
        if self.usual_profile not in self._profiles:
            self.usual_profile = AUTO

    @property
    def profiles(self) -> dict[str, Profile]:
        """The profiles to choose from, by name."""
        return self._profiles

    def known(self, name: str) -> Profile:
        """Return the profile of a name; raises `UserError` if there is none."""
        if name not in self._profiles:
            raise UserError(f"there is no profile `{name}`", f"profiles: {', '.join(self._profiles)}")
        return self._profiles[name]

    def profile_of(self, name: str) -> Profile:
        """Return the profile of a name; that of new chats if it no longer exists."""
        return self._profiles.get(name, self._profiles[self.usual_profile])

    # --- tools ---

    @property
    def kit(self) -> ToolKit | None:
        """The tools that chats may use, made when they are first needed; None if there are none."""
        with self._making_kit:
            if self._kit is None and self.make_kit is not None:
                self._kit = self.make_kit()
            return self._kit

    def close(self) -> None:
        """End what runs the tools."""
        if self._kit is not None:
            self._kit.close()

    # --- what was measured ---

    def chooser(self, models: OpenModels) -> SettingsSelector:
        """Return the selector of settings for these models."""
        if self._chooser is None or self._chooser.models is not models:
            if self._chooser and self._chooser.models.target.path != models.target.path:
                self.rates.forget()
            self._chooser = SettingsSelector(models, self.tuned_for, self.notice)
        return self._chooser

    def notice(self, text: str) -> None:
        """Note something to be said once."""
        self._notices.setdefault(text, False)

    def take_notices(self) -> tuple[str, ...]:
        """Return new notices about settings that have gone stale."""
        new = tuple(notice for notice, is_read in list(self._notices.items()) if not is_read)
        self._notices |= dict.fromkeys(new, True)
        return new
