"""The command line's settings for the screen."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.app.opener import ModelsOpener
from localspec.chat.answer_settings import SessionRequest
from localspec.storage.config import Config
from localspec.storage.profiles import Profiles


@dataclass(frozen=True, slots=True)
class ScreenRequest:
    """The first view of the screen, and the opener of its models; `profile` is for new chats.

    Each opening reads config.toml again, unless models were chosen on the screen.
    """

    config: Config
    profiles: Profiles
    profile: str
    resumes: bool
    session: SessionRequest
    opener: ModelsOpener
    opens_default_pair: bool
