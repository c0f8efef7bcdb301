"""A model that says by a call that it makes none, as Command R's do, is asked for its words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from localspec.types.events import FinishReason
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels

DIRECT = '<tool_call>\n[{"tool_name": "directly-answer", "parameters": {}}]\n</tool_call>'
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
LOOK: Any = {"name": "look", "parameters": {"type": "object", "properties": {}}}
USER = [{"role": "user", "content": "Hi"}]
CHAT: Any = {"messages": USER, "tools": [{"type": "function", "function": LOOK}]}
WORDS = "It is dry."


@pytest.fixture
def models() -> TellingModels:
    return TellingModels(texts=[f"<think>Hm.</think>{DIRECT}", WORDS])


@pytest.fixture
def served(models: TellingModels) -> Iterator[Served]:
    with serving(lambda: models) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", **LOOK}]}),
        ("/v1/messages", {"messages": USER, "tools": [{"name": "look", "input_schema": LOOK["parameters"]}]}),
        ("/api/chat", CHAT),
    ],
)
def test_the_words_are_the_answer(
    served: Served, models: TellingModels, path: str, body: dict[str, object], stream: bool
) -> None:
    reply = served.post(path, {**body, "stream": stream})
    assert reply.status_code == 200
    assert "directly-answer" not in reply.text
    assert "<tool_call>" not in reply.text
    if stream:
        assert all(word in reply.text for word in ("It ", "is ", "dry", "."))
    else:
        assert WORDS in reply.text
    first, second = models.requests
    assert (len(first.tools), second.tools, second.triggers) == (1, (), ())
    assert first.prompt == second.prompt


def test_the_figures_are_those_of_both(served: Served, models: TellingModels) -> None:
    usage = served.chat(**CHAT, max_tokens=500).json()["usage"]
    tokens = len(f"<think>Hm.</think>{DIRECT}")
    assert usage["completion_tokens"] == tokens + len(WORDS)
    assert models.requests[-1].max_tokens == 500 - tokens


@pytest.mark.parametrize("text", [CALL, f"I say it. {DIRECT}", WORDS, DIRECT + CALL])
def test_an_answer_that_says_or_calls_something_is_the_only_one(
    served: Served, models: TellingModels, text: str
) -> None:
    models.texts = [text]
    message = served.chat(**CHAT).json()["choices"][0]["message"]
    assert len(models.requests) == 1
    assert message["content"] or message["tool_calls"]


@pytest.mark.parametrize("reason", ["length", "context"])
def test_an_answer_that_was_cut_is_the_only_one(
    served: Served, models: TellingModels, reason: FinishReason
) -> None:
    models.reason = reason
    assert served.chat(**CHAT).json()["choices"][0]["finish_reason"] == "length"
    assert len(models.requests) == 1
