"""The profile `auto`: general's, but with the sampling and settings of coding where a program is asked about.

Its system prompt is always the same, so that what the models have read stays in their caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.storage.profiles import DEFAULT_PROFILE, Profile

if TYPE_CHECKING:
    from localspec.chat.routing import Route

AUTO = "auto"
LOOKED_BACK = 8  # questions that a follow-up may go back to
_NO_FILE = Path(AUTO)


@dataclass(frozen=True, slots=True)
class Question:
    """What a person asked, and the names of the files that came along."""

    text: str
    files: tuple[str, ...] = ()


def with_auto(profiles: Iterable[Profile]) -> tuple[Profile, ...]:
    """Return the profiles and `auto`; a file of that name goes before."""
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
    """Tell whether a profile follows others."""
    return profile.path == _NO_FILE


def followed(profile: Profile, profiles: Mapping[str, Profile], questions: Sequence[Question]) -> Profile:
    """Return the profile whose sampling and settings an answer to the last question follows."""
    return profiles.get(_route(questions), profile) if is_auto(profile) else profile


def _route(questions: Sequence[Question]) -> Route:
    from localspec.chat.routing import route  # 40 ms of patterns

    found: Route | None = None
    for question in questions[-LOOKED_BACK:]:
        found = route(question.text, question.files, found)
    return found or "general"
