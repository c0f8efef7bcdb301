"""What the command line settles for the screen."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.app.opener import ModelsOpener
from localspec.chat.answer_settings import SessionRequest
from localspec.storage.config import Config
from localspec.storage.profiles import Profiles


@dataclass(frozen=True, slots=True)
class ScreenRequest:
    """What to show at first, and who opens the models; `profile` is that of new chats.

    Each opening looks anew at what config.toml names by then, unless it is of models that were chosen here.
    """

    config: Config
    profiles: Profiles
    profile: str
    resumes: bool
    session: SessionRequest
    opener: ModelsOpener
    opens_default_pair: bool
