"""Tools that are switched on in a profile: saved in its file, and in force in chats that set nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.session import ChatSession
from localspec.chat.settings import keep_tools
from localspec.chat.store import Store
from localspec.errors import UserError
from localspec.storage.paths import config_dir
from localspec.storage.profiles import profiles


@pytest.fixture
def session() -> Iterator[ChatSession]:
    with Store(None) as store:
        known = tuple(profiles(config_dir() / "profiles"))
        yield ChatSession(store, known, SessionRequest(), "coding", start="new")


def own_file(name: str = "coding") -> Path:
    return config_dir() / "profiles" / f"{name}.toml"


def test_what_is_on_in_a_chat_is_saved_in_its_profile(session: ChatSession) -> None:
    session.update_settings(tools=("files", "docs", "mcp:time"))
    assert keep_tools(session) == "saved in profile Coding: files, docs, mcp:time"
    assert session.chat.info.settings.tools is None
    assert session.tools_on() == ("files", "docs", "mcp:time")
    text = own_file().read_text()
    assert 'groups = ["files"]' in text
    assert 'servers = ["docs", "mcp:time"]' in text
    session.new()
    assert session.tools_on() == ("files", "docs", "mcp:time")


def test_all_off_keeps_what_the_profile_offers(session: ChatSession) -> None:
    session.update_settings(tools=())
    assert keep_tools(session) == "saved in profile Coding: no tools"
    (found,) = (each for each in profiles(config_dir() / "profiles") if each.name == "coding")
    assert (found.tools.groups, found.tools.on) == (("files", "run"), False)


def test_again_without_servers_takes_them_away(session: ChatSession) -> None:
    for tools in (("files", "docs"), ("time",)):
        session.update_settings(tools=tools)
        keep_tools(session)
    assert session.profile.tools.servers == ()
    assert session.tools_on() == ("time",)
    assert "servers" not in own_file().read_text()


def test_auto_has_the_tools_of_the_default_profile(session: ChatSession) -> None:
    session.choose_profile("auto")
    session.update_settings(tools=("time",))
    assert keep_tools(session) == "saved in profile General: time"
    assert session.tools_on() == ("time",)
    assert own_file("general").exists()


def test_a_profile_that_cannot_be_written_changes_nothing(session: ChatSession) -> None:
    own_file().parent.mkdir(parents=True)
    own_file().write_text("title = 5\n")
    session.update_settings(tools=("time",))
    with pytest.raises(UserError, match="is missing"):
        keep_tools(session)
    assert session.chat.info.settings.tools == ("time",)
    assert own_file().read_text() == "title = 5\n"
