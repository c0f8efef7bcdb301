"""A conversation that is too long, in the words by which agents know that they have to shorten it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.server.running import Served, serving
from tests.server.test_doors import CHAT, FOR_EVER, connected, sent
from tests.server.turning_models import TurningModels
from tests.waiting import until

LONG: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "word " * 598}]
STREAMS = pytest.mark.parametrize("stream", [False, True])
BUSY = pytest.mark.parametrize("is_busy", [False, True])


@pytest.fixture
def steps() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def served(steps: threading.Semaphore, is_busy: bool) -> Iterator[Served]:
    """A server, perhaps with an answer that does not end."""
    with serving(lambda: TurningModels(steps=steps)) as running, connected(running) as other:
        if is_busy:
            other.sendall(sent(FOR_EVER))
            until(lambda: bool(running.service.queue.jobs()[0]))
        yield running
        steps.release(10_000)


@BUSY
@STREAMS
def test_openai_clients_get_its_code_and_the_sizes(served: Served, stream: bool) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as chat:
            client.chat.completions.create(model="general", messages=LONG, stream=stream)
        with pytest.raises(openai.BadRequestError) as response:
            client.responses.create(model="general", input=LONG, stream=stream)
    for failed in (chat.value, response.value):
        assert failed.code == "context_length_exceeded"
        words = "the request (600 tokens) exceeds the available context size (512 tokens)"
        assert words in failed.message
        assert "this model's maximum context length is 512 tokens" in failed.message  # LiteLLM looks for it
        assert "prompt is too long" in failed.message  # as LangChain does for this
        body: Any = failed.body
        assert (body["n_prompt_tokens"], body["n_ctx"]) == (600, 512)
        assert body["type"] == "exceed_context_size_error"


@BUSY
@STREAMS
def test_anthropic_clients_get_its_sentence(served: Served, stream: bool) -> None:
    with (
        anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.BadRequestError) as failed,
    ):
        client.messages.create(model="general", max_tokens=9, messages=LONG, stream=stream)
    body: Any = failed.value.body
    message = "prompt is too long: 600 tokens > 511 maximum"
    assert body["error"] == {"type": "invalid_request_error", "message": message}


@pytest.mark.parametrize("is_busy", [True])
def test_what_fits_waits_for_its_turn(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 500}], "max_tokens": 1, "stream": True}
    with connected(served) as client:
        client.sendall(sent(body, CHAT))
        until(lambda: len(served.service.queue.jobs()[1]) == 1)
