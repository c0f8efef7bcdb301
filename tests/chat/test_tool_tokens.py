"""The tokens that tools take of each prompt: counted, in the budget, and nothing is started for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.prompting import context_budget
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.errors import UserError
from localspec.storage.profiles import profiles
from localspec.types.drafts import Token
from localspec.types.request import Request
from tests.chat.tool_models import CallingModels, MadeTools, kit_of
from tests.scripted import ScriptedModels


class OneTokenAWord(CallingModels):
    """Models whose template writes tools, and that make a token of each word."""

    def render(self, request: Request) -> str:
        return " ".join([super().render(request), *request.tools])

    def tokenize(self, text: str, *, special: bool = True, add_special: bool = False) -> list[Token]:
        return [(1, word.encode()) for word in text.split(" ")]


class Unasked(MadeTools):
    """Tools of a server that has not been started."""

    def tools(self) -> Sequence[object]:  # type: ignore[override]
        raise AssertionError("it was started")


@pytest.fixture
def session() -> Iterator[ChatSession]:
    with Store(None) as store:
        session = ChatSession(store, tuple(profiles(Path("/nowhere"))), SessionRequest(), start="new")
        kit = kit_of(tools := MadeTools({"look": "reads"}, lambda *_: ""))
        boxes = {"made": tools, "docs": Unasked({}, lambda *_: "")}
        session.shared.make_kit = lambda: replace(kit, boxes=boxes, waiting=lambda: ["docs"])
        yield session


def test_tools_take_what_the_template_makes_of_them(session: ChatSession) -> None:
    models = OneTokenAWord()
    assert session.tool_tokens(models) == 0
    session.update_settings(tools=("made", "docs", "none"))
    words = len(session.kit.offered(["made"]).functions[0].split(" ")) if session.kit else 0
    assert session.tool_tokens(models) == words > 5
    session.update_settings(tools=())
    assert session.tool_tokens(models) == 0


def test_models_elsewhere_and_a_broken_mcp_json_count_none(session: ChatSession) -> None:
    session.update_settings(tools=("made",))
    assert session.tool_tokens(ScriptedModels()) == 0

    def broken() -> None:
        raise UserError("mcp.json, line 3")

    session.shared._kit = None
    session.shared.make_kit = broken  # type: ignore[assignment]
    assert session.tool_tokens(OneTokenAWord()) == 0


def test_the_budget_of_a_chat_has_its_tools(session: ChatSession) -> None:
    session.chat.ask("one two three")
    path, count = session.chat.path, OneTokenAWord().count_tokens
    without, tools = context_budget("", path, 100, count), context_budget("", path, 100, count, tools=40)
    assert (tools.fixed, tools.tools, without.tools) == (without.fixed + 40, 40, 0)
    assert context_budget("", path, 40, count, tools=40).excess(()) > 0
