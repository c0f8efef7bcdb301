"""The settings of answers: the source of each value, and where a new one is saved.

`settings.toml` lists the settings.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from localspec.chat.answer_settings import AUTO, THINKING
from localspec.chat.messages import ChatSettings
from localspec.chat.session import ChatSession
from localspec.errors import UserError
from localspec.hardware.memory.needs import context_size
from localspec.inference.interface import OpenModels
from localspec.models.recommended import said_by
from localspec.storage import config
from localspec.storage.paths import config_dir
from localspec.storage.profiles import ToolGroup, change_profile, profiles
from localspec.storage.toml_file import Changes
from localspec.types.request import NO_LIMIT, Mode, Recommendation, Sampling
from localspec.units import MODE_NAMES
from localspec.values import Range, range_of, read

Place = Literal["chat", "profile", "config"]
Value = bool | int | float | str
_CONTEXTS = Range(config.MIN_CONTEXT, config.MAX_CONTEXT)
_OF_CHATS = {*(field.name for field in fields(ChatSettings)), "system_prompt"}
_CHOICES: dict[str, tuple[Value, ...]] = {
    "mode": (AUTO, *get_args(Mode)),
    "switch": (True, False),
    "compaction": get_args(config.CompactionMode),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting; `profile` and `config` are its keys in those files, empty where it does not exist."""

    name: str
    title: str
    words: str
    kind: Literal["number", "whole", "switch", "mode", "compaction", "text"] = "number"
    profile: str = ""
    config: str = ""

    @property
    def choices(self) -> tuple[Value, ...]:
        """Return the values to choose from; none where anything can be written."""
        return _CHOICES.get(self.kind, ())

    def read(self, text: str) -> Value | None:
        """Return the number that a text says, None for an empty one; raises UserError."""
        if not text.strip():
            return None
        low, high = _CONTEXTS if self.name == "context" else range_of(ChatSettings, self.name)
        is_whole = self.kind == "whole"
        try:
            value = int(text) if is_whole else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # nor if it is not a number
            allowed = (
                f"a whole number, {low} to {high:,}" if is_whole else f"a number, {low:g} to {high:,.9g}"
            )
            raise UserError(allowed)
        return value

    def shown(self, value: Value | None) -> str:
        """Return a value in a word."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, str):
            line = value.partition("\n")[0]
            return MODE_NAMES.get(value, line) if self.kind == "mode" else line
        return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def place(self, wanted: Place) -> Place:
        """Return the place that a value is saved in if `place` does not have this setting."""
        if self.name not in _OF_CHATS or (wanted == "config" and self.config):
            return "config"
        return "profile" if wanted == "profile" and self.profile else "chat"


SETTINGS = read(
    tuple[Setting, ...],
    tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["settings"],
    "settings",
)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a value: a place, or one that cannot be changed from here; None if it has none."""

    name: str
    place: Place | None
    values: Mapping[str, Any]


def sources(session: ChatSession, models: OpenModels | None) -> tuple[Source, ...]:
    """Return the sources of the settings of the next answer; later ones override earlier ones.

    Reads config.toml again; raises UserError if it is invalid.
    """
    known = config.read_config(config_dir() / "config.toml")
    asked = session.shared.request
    profile = session.followed
    chat = session.chat.info
    recommended = Recommendation() if models is None else models.target.recommended
    default = {"mode": AUTO, "thinking": True, "ignores_circles": False, "system_prompt": ""}
    default |= {"read_ahead": True, "thinking_budget": NO_LIMIT, "compaction": config.Config().compact}
    default |= asdict(Sampling())
    kept = {
        "ignores_circles": known.ignore_circles or None,
        "context": known.context or None,
        "read_ahead": known.read_ahead and None,
        "compaction": None if known.compact == config.Config().compact else known.compact,
    }
    of_profile = {
        "mode": profile.speculation.mode,
        "system_prompt": session.profile.system_prompt,
        "thinking_budget": profile.thinking_budget,
    }
    circles = asked.answer.ignores_circles
    flags = {
        "mode": AUTO if asked.is_auto else asked.speculation.mode,
        "max_tokens": asked.answer.max_tokens,
        "seed": asked.answer.seed,
        "thinking_budget": asked.answer.thinking_budget,
        "thinking": dict(asked.answer.template_variables).get(THINKING),
        "ignores_circles": None if circles == known.ignore_circles else circles,
        "system_prompt": asked.system,
    }
    return (
        Source("default", None, default),
        _context(models),
        Source("config.toml", "config", kept),
        Source(recommended.source, None, recommended.sampling.settled),
        Source(f"profile {profile.title}", "profile", of_profile | said_by(profile, recommended)),
        Source("command line", None, {**flags, **asked.sampling}),
        Source("this chat", "chat", chat.settings.settled | {"system_prompt": chat.system}),
    )


def _context(models: OpenModels | None) -> Source:
    """Return the context that is open, and why it is not what the model was trained for."""
    if models is None:
        return Source("default", None, {})
    context = models.target.context
    trained = models.target.training_context
    reason = f"open now; trained for {trained:,}" if context < trained else "default: as trained"
    if context == context_size(0, trained) < trained:
        reason = f"default limit, for memory; trained for {trained:,}"
    return Source(reason, None, {"context": context})


def check_place(wanted: Place, names: Collection[str]) -> None:
    """Raise UserError for settings that can be saved elsewhere, but not in this place."""
    missing = [each for each in SETTINGS if each.name in names and each.place(wanted) != wanted]
    if titles := ", ".join(each.title for each in missing if each.name in _OF_CHATS):
        holder = {"chat": "a chat", "profile": "a profile", "config": "config.toml"}[wanted]
        in_profile = wanted == "config" and all(each.profile for each in missing)
        or_there = " or in the profile" * in_profile
        raise UserError(f"{holder} cannot hold {titles}", f"save with this chat{or_there}")


def keep(session: ChatSession, wanted: Place, changes: Mapping[str, Value | None]) -> str:
    """Save new values in a place, None removing one; return a line that says what was saved where.

    What only config.toml has is saved there in any case. Raises UserError, before anything is saved, for
    settings that the place does not have, and StoreError.
    """
    check_place(wanted, changes)
    title = session.followed.title
    saved = []
    places = {"chat": "with this chat", "profile": f"in profile {title}", "config": "in config.toml"}
    for place, words in places.items():
        part = [each for each in SETTINGS if each.name in changes and each.place(wanted) == place]
        if not part:
            continue
        values = {each.name: changes[each.name] for each in part}
        if place == "profile":  # auto is what a profile says that names no mode
            keys = {each.profile: None if values[each.name] == AUTO else values[each.name] for each in part}
            _keep_in_profile(session, session.followed.name, keys)
        elif place == "config":
            config.keep({each.config: values[each.name] for each in part})
            if "ignores_circles" in values:
                answer = replace(
                    session.shared.request.answer, ignores_circles=bool(values["ignores_circles"])
                )
                session.shared.request = replace(session.shared.request, answer=answer)
            if "compaction" in values:
                session.shared.compaction_mode = config.read_config(config_dir() / "config.toml").compact
            if "read_ahead" in values:
                session.shared.reads_ahead = values["read_ahead"] is not False
        if place != "chat":  # or this chat would go before it
            values = {name: None for name in values if name in _OF_CHATS}
        session.update_settings(**values)
        saved.append(f"{', '.join(each.title for each in part)} {words}")
    return f"saved: {'; '.join(saved)}"


def keep_tools(session: ChatSession) -> str:
    """Save the tools that are on in the open chat in its profile instead; return a line that says so.

    Raises UserError, before anything is saved, and StoreError.
    """
    profile = session.tools_profile
    names = session.tools_on()
    keys: dict[str, bool | list[str] | None] = {"tools.on": bool(names)}
    if names:  # else those that the profile offers stay, switched off
        servers = [name for name in names if name not in get_args(ToolGroup)]
        keys["tools.groups"] = [name for name in names if name not in servers]
        keys["tools.servers"] = servers or None
    _keep_in_profile(session, profile.name, keys)
    session.update_settings(tools=None)
    return f"saved in profile {profile.title}: {', '.join(names) or 'no tools'}"


def _keep_in_profile(session: ChatSession, name: str, keys: Changes) -> None:
    folder = config_dir() / "profiles"
    change_profile(name, keys, folder)
    session.shared.take_profiles(profiles(folder).good)
