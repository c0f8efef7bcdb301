"""What commands do to a chat, and what they leave to the face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.commands.command import CommandContext
from localspec.chat.commands.effects import (
    Act,
    ActOnMessage,
    ChangeChat,
    Copy,
    Effect,
    NewChat,
    Say,
    ShowSetting,
    SwitchChat,
)
from localspec.chat.commands.parsing import parse
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.errors import UserError
from localspec.storage.profiles import profiles
from tests.chat.talk import answer_again, ask
from tests.scripted import ScriptedModels


@pytest.fixture
def session(tmp_path: Path) -> Iterator[ChatSession]:
    with Store(tmp_path / "chats.db") as store:
        yield ChatSession(store, profiles(tmp_path).good, SessionRequest())


def run(session: ChatSession, text: str, folder: Path = Path(), *, has_draft: bool = True) -> list[Effect]:
    call = parse(text)
    assert call is not None
    return list(call.effects(CommandContext(session, ScriptedModels(has_draft=has_draft), folder)))


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("/new", NewChat()),
        ("/rename Boats", ChangeChat("rename", "Boats")),
        ("/search two words", Act("search", "two words")),
        ("/search", Act("search")),
        ("/keys", Act("help")),
        ("/model 'my model'", Act("model", "my model")),
        ("/attach my file.txt", Act("attach", '@"my file.txt"')),
        ("/attach a.txt", Act("attach", "@a.txt")),
        ("/profile", Act("profile")),
    ],
)
def test_a_command_leaves_something_to_the_face(session: ChatSession, text: str, effect: Effect) -> None:
    assert run(session, text) == [effect]


def test_a_budget_for_thinking_is_kept_with_the_chat(session: ChatSession) -> None:
    assert run(session, "/thinking") == [Act("thinking")]
    said = {}
    for words in ("1,024", "off", "on", "1"):
        assert run(session, f"/thinking {words}") == [ShowSetting("thinking", is_new=True)]
        said[words] = session.thinking
    assert said == {
        "1,024": "thinking takes at most 1,024 tokens",
        "off": "thinking is off",
        "on": "thinking has no limit",
        "1": "thinking takes at most 1 token",
    }
    session.update_settings(thinking=False)
    assert session.thinking == "thinking is off"
    run(session, "/thinking 512")
    assert session.thinking == "thinking takes at most 512 tokens"
    for words in ("-2", "much", "1.5"):
        with pytest.raises(UserError, match="is not a number of tokens"):
            run(session, f"/thinking {words}")


def test_settings_are_kept_with_the_chat(session: ChatSession) -> None:
    assert run(session, "/mode") == [ShowSetting("mode", is_new=False)]
    assert run(session, "/mode sd") == [ShowSetting("mode", is_new=True)]
    modes = [session.mode]
    assert run(session, "/mode auto") == [ShowSetting("mode", is_new=True)]
    assert [*modes, session.mode] == ["sd", None]
    assert run(session, "/temp 0") == [ShowSetting("temperature", is_new=True)]
    assert session.sampling(None).temperature == 0
    assert run(session, "/system Be brief.") == [ShowSetting("system prompt", is_new=True)]
    assert session.chat.system == "Be brief."
    run(session, "/system -")
    assert session.chat.system == ""
    assert run(session, "/profile writing") == [ShowSetting("profile", is_new=True)]
    assert session.profile.name == "writing"


@pytest.mark.parametrize("text", ["/mode sd", "/regen ssd"])
def test_a_mode_that_needs_a_draft_model_is_rejected_without_one(session: ChatSession, text: str) -> None:
    with pytest.raises(UserError, match="needs a draft model"):
        run(session, text, has_draft=False)
    assert session.mode is None


def test_commands_find_their_message(session: ChatSession) -> None:
    for text in ("/regen", "/edit", "/continue", "/compare", "/copy", "/tag x"):
        with pytest.raises(UserError, match="ask something first"):
            run(session, text)
    answer = ask(session.chat, "How?", "Like this:\n```\ncode\n```")
    question = session.chat.path[0]
    assert run(session, "/regen") == [ActOnMessage("regenerate", answer.id)]
    assert run(session, "/regen off") == [ActOnMessage("regenerate", answer.id, ("off",))]
    assert run(session, "/edit") == [ActOnMessage("edit", question.id)]
    assert run(session, "/continue") == [ActOnMessage("continue", answer.id)]
    assert run(session, "/compare") == [ActOnMessage("compare", answer.id, ("off", "sd", "ssd"))]
    assert run(session, "/compare ngram") == [ActOnMessage("compare", answer.id, ("ngram",))]
    assert run(session, "/copy") == [Copy(answer.content, "the last answer")]
    assert run(session, "/copy code") == [Copy("code\n", "the last code block")]
    with pytest.raises(UserError, match="no branches"):
        run(session, "/branch")
    other = answer_again(session.chat, "Without code.")
    assert run(session, "/branch previous") == [ActOnMessage("previous", other.id)]
    with pytest.raises(UserError, match="no code block"):
        run(session, "/copy code")


def test_chats_go_to_files_and_come_back(session: ChatSession, tmp_path: Path) -> None:
    ask(session.chat, "How?", "So.")
    number = session.chat.info.id
    assert run(session, "/export json a.json", tmp_path) == [Say(f"written to {tmp_path / 'a.json'}")]
    with pytest.raises(UserError, match="exists already"):
        run(session, "/export json a.json", tmp_path)
    assert run(session, "/import a.json", tmp_path) == [
        Say("imported 0 chats; 1 already there", is_long=True),
        SwitchChat(number),
    ]
    (tmp_path / "none.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="not a chat that can be imported"):
        run(session, "/import none.json", tmp_path)
