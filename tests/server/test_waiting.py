"""A stream that waits, for its turn or while its prompt is read, says so in what clients pass over."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest

from localspec.errors import ContextFullError, EngineError
from localspec.inference.attached import AttachedModels, Server
from localspec.server import anthropic as messages_api
from localspec.server import application, exchange
from localspec.types.events import GenerationEvent
from localspec.types.request import Message, Request
from tests.inference.runtimes import text_of
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels
from tests.server.test_doors import CHAT, FOR_EVER, connected, is_idle, sent
from tests.server.turning_models import TurningModels
from tests.waiting import until

pytestmark = pytest.mark.slow

TOKENS = 3
ASKED = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": TOKENS, "stream": True}
BEATS = 3
BEGIN_S = exchange.BEGIN_S  # as the program has it; tests are more patient


@pytest.fixture
def steps() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def held(steps: threading.Semaphore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server whose models write nothing until they are let."""
    monkeypatch.setattr(exchange, "BEGIN_S", 0.02)
    monkeypatch.setattr(exchange, "SILENCE_S", 0.02)
    with serving(lambda: TurningModels(steps=steps)) as running:
        yield running
        steps.release(10_000)


def by_chat(url: str) -> str:
    body = {name: value for name, value in ASKED.items() if name != "stream"}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chunks = client.chat.completions.create(model="general", stream=True, **body)  # type: ignore[call-overload]
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def by_completion(url: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chunks = client.completions.create(model="general", prompt="Hi", max_tokens=TOKENS, stream=True)
        return "".join(choice.text for chunk in chunks for choice in chunk.choices)


def by_responses(url: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        events = client.responses.create(model="general", input="Hi", max_output_tokens=TOKENS, stream=True)
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def by_messages(url: str) -> str:
    asked = {"role": "user", "content": "Hi"}
    with (
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(model="general", max_tokens=TOKENS, messages=[asked]) as stream,  # type: ignore[list-item]
    ):
        text = "".join(stream.text_stream)
        assert stream.get_final_message().content[0].text == text  # type: ignore[union-attr]
    return text


def by_attaching(url: str) -> str:
    models = AttachedModels(Server(url))
    return text_of(list(models.generate(Request((Message("user", "Hi"),), max_tokens=TOKENS))))


@pytest.mark.parametrize("ask", [by_chat, by_completion, by_responses, by_messages, by_attaching])
def test_clients_of_every_protocol_bear_a_wait(
    held: Served, steps: threading.Semaphore, ask: Callable[[str], str]
) -> None:
    with ThreadPoolExecutor(2) as threads:
        reads = threads.submit(ask, held.url)  # its prompt is read all the while
        until(lambda: bool(held.service.queue.jobs()[0]))
        waits = threads.submit(ask, held.url)  # for its turn
        until(lambda: bool(held.service.queue.jobs()[1]))
        with held.client.stream("POST", CHAT, json=ASKED) as beside:  # they hear as much as this
            lines = beside.iter_lines()
            for _ in range(BEATS):
                assert next(line for line in lines if line) == ": waiting"
            steps.release(10_000)
            assert reads.result(20) == waits.result(20) == TOKENS * "H"


@pytest.mark.parametrize(
    ("path", "body", "beat"),
    [
        (CHAT, ASKED, ": waiting"),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": TOKENS, "stream": True}, ": waiting"),
        ("/v1/messages", ASKED, 'event: ping data: {"type":"ping"}'),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 3, "stream": True}, ": waiting"),
    ],
)
def test_what_a_waiting_stream_says(
    held: Served, steps: threading.Semaphore, path: str, body: object, beat: str
) -> None:
    with held.client.stream("POST", path, json=body) as reply:
        assert reply.status_code == 200
        pieces = reply.iter_text()
        heard = ""
        while beat not in " ".join(heard.splitlines()):
            heard += next(pieces)
        steps.release(10_000)
        heard += "".join(pieces)
    frames = heard.strip().split("\n\n")
    assert all("data: " in frame for frame in frames)  # some clients take any blank line for an event
    assert len(frames) > 1  # tokens that come at once share an event


def test_a_response_that_waits_sends_events_that_every_reader_knows(
    held: Served, steps: threading.Semaphore
) -> None:
    with (
        openai.OpenAI(base_url=f"{held.url}/v1", api_key="none", max_retries=0) as client,
        client.responses.stream(model="general", input="Hi", max_output_tokens=TOKENS) as stream,
    ):
        before = [next(stream) for _ in range(2 + BEATS)]
        steps.release()
        while next(stream).type != "response.output_text.delta":
            pass
        between = next(stream)  # while the second token is not written
        steps.release(10_000)
        after = list(stream)
    assert [event.type for event in before] == ["response.created", *["response.in_progress"] * (1 + BEATS)]
    assert between.type == "response.in_progress"
    (item,) = between.response.model_dump()["output"]
    assert (item["status"], item["content"][0]["text"]) == ("in_progress", "H")
    assert "response.created" not in {event.type for event in after}
    assert after[-1].type == "response.incomplete"
    assert after[-1].response.output_text == TOKENS * "H"


@pytest.mark.parametrize(("agent", "hears"), [("claude-cli/2.1.197 (external, cli)", False), ("x", True)])
def test_claude_code_hears_events_instead_of_pings(
    held: Served, steps: threading.Semaphore, monkeypatch: pytest.MonkeyPatch, agent: str, hears: bool
) -> None:
    monkeypatch.setattr(messages_api, "_PINGS", BEATS)
    asked: Any = {"model": "general", "messages": ASKED["messages"], "max_tokens": TOKENS}
    agents = {"User-Agent": agent}
    with (
        anthropic.Anthropic(
            base_url=held.url, api_key="none", max_retries=0, default_headers=agents
        ) as client,
        client.messages.stream(**asked) as stream,
        held.client.stream("POST", CHAT, json=ASKED) as beside,
    ):
        assert next(stream).type == "message_start"
        lines = beside.iter_lines()
        for _ in range(3 * BEATS):  # the other stream hears as much as this
            assert next(line for line in lines if line) == ": waiting"
        steps.release(10_000)
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds.index("content_block_start") == (0 if hears else kinds.count("message_delta") - 1)
    assert (kinds.count("message_delta") == 1) == hears
    assert message.content[0].text == TOKENS * "H"  # type: ignore[union-attr]
    assert message.stop_reason == "max_tokens"


def test_a_stream_that_falls_silent_in_the_middle_says_so_too(
    held: Served, steps: threading.Semaphore
) -> None:
    with held.client.stream("POST", CHAT, json=ASKED) as reply:
        lines = reply.iter_lines()
        steps.release()
        next(line for line in lines if '"content":"H"' in line)
        assert next(line for line in lines if line) == ": waiting"
        steps.release(10_000)
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_client_that_leaves_a_waiting_stream_is_dropped(held: Served, steps: threading.Semaphore) -> None:
    with connected(held) as first:
        first.sendall(sent(FOR_EVER))
        until(lambda: bool(held.service.queue.jobs()[0]))
        with connected(held) as second:
            second.sendall(sent(ASKED))
            heard = b""
            while b": waiting" not in heard:
                heard += second.recv(4096)
            assert len(held.service.queue.jobs()[1]) == 1
        until(lambda: not held.service.queue.jobs()[1])
    steps.release(10_000)
    until(lambda: is_idle(held))


class Slow(TurningModels):
    """Fails, but takes its time."""

    error: Exception = EngineError("")
    goes_on = threading.Event()

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self.goes_on.wait(20)
        if not request.stop:
            raise self.error
        yield from super().generate(request)


@pytest.mark.parametrize(
    ("path", "failed"), [(CHAT, '"type":"%s"'), ("/v1/messages", "event: error"), ("/v1/responses", "failed")]
)
def test_errors_are_events_once_a_stream_has_waited(
    monkeypatch: pytest.MonkeyPatch, path: str, failed: str
) -> None:
    monkeypatch.setattr(exchange, "BEGIN_S", 0.02)
    monkeypatch.setattr(exchange, "SILENCE_S", 0.02)
    monkeypatch.setattr(Slow, "error", ContextFullError("the prompt is too long"))
    monkeypatch.setattr(Slow, "goes_on", threading.Event())
    body = {**ASKED, "input": "Hi"}
    with serving(Slow) as served, served.client.stream("POST", path, json=body) as reply:
        pieces = reply.iter_text()
        heard = next(pieces)
        Slow.goes_on.set()
        heard += "".join(pieces)
        until(lambda: bool(served.lines))
        assert reply.status_code == 200
    assert failed.replace("%s", "exceed_context_size_error") in heard
    assert "the prompt is too long" in heard
    assert "[DONE]" not in heard
    [line] = served.lines
    assert f"POST {path}  400 exceed_context_size_error: the request exceeds" in line


def test_early_errors_set_the_status_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "error", ContextFullError("the prompt is too long"))
    monkeypatch.setattr(Slow, "goes_on", threading.Event())
    Slow.goes_on.set()
    with serving(Slow) as served:
        assert served.post(CHAT, ASKED).status_code == 400


def test_a_stream_begins_before_its_turn(steps: threading.Semaphore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client hears something long before the first token, and before the pauses of a stream."""
    monkeypatch.setattr(exchange, "BEGIN_S", BEGIN_S)
    monkeypatch.setattr(exchange, "SILENCE_S", 1000.0)
    with serving(lambda: TurningModels(steps=steps)) as served:
        with connected(served) as first:
            first.sendall(sent(FOR_EVER))
            until(lambda: bool(served.service.queue.jobs()[0]))
            with served.client.stream("POST", CHAT, json=ASKED) as reply:
                assert next(reply.iter_lines()) == ": waiting"
        steps.release(10_000)
        until(lambda: is_idle(served))


@pytest.mark.parametrize(
    ("path", "failed"),
    [(CHAT, '"code":503'), ("/v1/messages", "event: error"), ("/v1/responses", "response.failed")],
)
def test_a_server_that_ends_says_so_in_the_streams_that_it_cuts(
    steps: threading.Semaphore, monkeypatch: pytest.MonkeyPatch, path: str, failed: str
) -> None:
    monkeypatch.setattr(application, "DRAIN_S", 0.05)
    body = {**ASKED, "input": "Hi"}
    with serving(lambda: TurningModels(steps=steps)) as served:
        with served.client.stream("POST", path, json=body) as reply:
            pieces = reply.iter_text()
            steps.release()
            heard = next(pieces)
            served.server.should_exit = True
            heard += "".join(pieces)
        steps.release(10_000)
    assert failed in heard
    assert "the server is being stopped" in heard
    assert served.lines[-1].endswith(f"POST {path}  503 unavailable_error: the server is being stopped")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
def test_line_ends_of_other_alphabets_do_not_end_a_line(path: str) -> None:
    text = "one\u2028two\u2029three\x85four\x0bfive\x0csix\x1cseven"
    with serving(lambda: TellingModels(texts=[text])) as served:
        reply = served.post(path, {**ASKED, "input": "Hi"})
    lines = [line for line in reply.text.splitlines() if line and not line.startswith("event: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
    deltas = [event for event in events if "delta" in json.dumps(event)]
    assert deltas
    assert all(line.startswith("data: ") for line in lines)
    assert all(mark in json.dumps(events, ensure_ascii=False) for mark in "\u2028\u2029\x85")
