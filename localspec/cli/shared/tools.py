"""Chats of the command line whose model may call tools."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from localspec.app.opening import OpenedPair
from localspec.chat.answer_settings import AnswerOptions, SessionRequest
from localspec.chat.answer_turns import AnswerTurn, AnswerTurns
from localspec.chat.messages import Attachment
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.cli.shared import opening
from localspec.cli.shared.answer import AnswerOutput, StreamedAnswer, write_answer
from localspec.cli.shared.tool_flags import ToolsOfFlags
from localspec.errors import UserError
from localspec.inference.worker.client import Worker
from localspec.storage.profiles import Profile


def use_tools(session: ChatSession, tools: ToolsOfFlags) -> None:
    """Give a session its tools, and switch those of the flags on; raises UserError for another name."""
    session.shared.make_kit = tools.kit
    if tools.names is None:
        return
    boxes = tools.kit().boxes
    if unknown := [name for name in tools.names if name not in boxes]:
        raise UserError(f"there are no tools `{unknown[0]}`", f"tools: {', '.join(boxes)}")
    session.update_settings(tools=tuple(tools.names))


def answered_with_tools(
    args: argparse.Namespace,
    tools: ToolsOfFlags,
    pair: OpenedPair[Worker],
    settings: tuple[SessionRequest, Sequence[Profile]],
    text: str,
    attached: Sequence[Attachment],
) -> tuple[AnswerOptions, StreamedAnswer]:
    """Answer in a chat that is not saved, whose model may call tools."""
    asked, profiles = settings
    turn = AnswerTurn(AnswerTurns())
    with Store(None) as store:
        session = ChatSession(
            store, profiles, asked, profiles[0].name, start="aside", tuned_for=pair.tuned_for
        )
        use_tools(session, tools)
        session.chat.ask(text, attached)
        try:
            with turn.taken(pair.models):
                events = session.answer(pair.models, turn)
                answer = write_answer(pair.models, events, AnswerOutput.asked(args), turn=turn)
        finally:
            session.shared.close()
        for notice in session.shared.take_notices():
            opening.note(notice)
        assert session.in_use is not None  # of the answer
        return session.in_use, answer
