"""A conversation is the same to a model whether a user has it on the screen or a client asks the server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.messages import Role, StoredMessage
from localspec.chat.prompting import to_prompt
from localspec.server.exchange import read
from localspec.server.messages import conversation
from localspec.server.openai import Body

ROLES: tuple[Role, ...] = ("user", "assistant")


@given(st.lists(st.tuples(st.sampled_from(ROLES), st.text("ab\n`<>", min_size=1)), max_size=8))
def test_the_screen_and_the_server_ask_alike(turns: list[tuple[Role, str]]) -> None:
    turns.append(("user", "And now?"))
    path = [
        StoredMessage(number, 1, number - 1 or None, role, text, 0.0)
        for number, (role, text) in enumerate(turns, 1)
    ]
    said = [{"role": role, "content": text} for role, text in turns]
    body = read(Body, {"messages": [{"role": "system", "content": "Be brief."}, *said]})
    assert to_prompt("Be brief.", path) == conversation(body.messages)
