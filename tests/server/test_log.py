"""One line for each request that is refused or fails, and for each death, without what clients send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from localspec.errors import ContextFullError, EngineError
from localspec.inference.attached import to_json
from localspec.server import queue
from localspec.server.application import AccessPolicy
from localspec.types.events import GenerationEvent
from localspec.types.request import Message, Request
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels
from tests.server.test_doors import ASK, CHAT, FOR_EVER, connected, is_idle, sent
from tests.server.turning_models import TurningModels
from tests.waiting import until

SECRET = "xyzzy"
SAYS = {"role": "user", "content": SECRET}
TOOL = {"type": "function", "function": {"name": SECRET, "parameters": SECRET}}
DIED = "the model process was ended by the system (SIGKILL)"


@pytest.fixture(scope="module")
def made_up() -> Iterator[Served]:
    with serving(TurningModels) as running:
        yield running


@pytest.fixture
def lines(made_up: Served) -> list[str]:
    made_up.lines.clear()
    return made_up.lines


def said(lines: list[str]) -> list[str]:
    """Return the lines without the time."""
    return [line.split("  ", 1)[1] for line in lines]


@pytest.mark.parametrize(
    ("path", "body", "line"),
    [
        (CHAT, {}, "400 invalid_request_error"),
        (CHAT, {"messages": SECRET}, "400 invalid_request_error: messages is not a list"),
        (
            CHAT,
            {"messages": [SAYS | {"role": SECRET}]},
            "400 invalid_request_error: messages[0].role is not one of",
        ),
        (CHAT, {"messages": [SAYS], "temperature": SECRET}, "400 invalid_request_error: temperature is not"),
        (CHAT, {"messages": [SAYS], "tools": [TOOL]}, "400 invalid_request_error"),
        (CHAT, {"messages": [SAYS], "grammar": SECRET, "response_format": {"type": "json_object"}}, "400"),
        (CHAT, {"messages": [SAYS | {"tool_calls": [{"id": SECRET}]}]}, "400 invalid_request_error"),
        ("/v1/messages", {"messages": [SAYS | {"role": SECRET}]}, "400 invalid_request_error"),
        ("/v1/responses", {"input": [SECRET]}, "400 invalid_request_error"),
        ("/v1/completions", {"prompt": [SECRET, 3]}, "400 invalid_request_error"),
        ("/engine/generate", {"prompt": SECRET, "sampling": 3}, "400 invalid_request_error"),
        (
            "/engine/generate",
            {"prompt": SECRET, "triggers": [{"head": "(a+)+b", "grammars": []}]},
            "400 invalid_request_error: triggers are not taken",
        ),
        ("/engine/cancel", SECRET, "404 not_found_error: no answer of this name is in progress"),
        ("/engine/recall", SECRET, "400 invalid_request_error"),
        ("/v1/nothing", {"prompt": SECRET}, "404 not_found_error: Not Found"),
        ("/health", {"prompt": SECRET}, "405 invalid_request_error: Method Not Allowed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_request_leaves_one_line(
    made_up: Served, lines: list[str], path: str, body: object, line: str, stream: bool
) -> None:
    reply = made_up.post(path, body | {"stream": stream} if isinstance(body, dict) else body)
    assert reply.status_code == int(line[:3])
    until(lambda: bool(lines))
    [told] = said(lines)
    method = f"POST {path}  "
    assert told.startswith(method + line)
    assert SECRET not in told


def test_a_body_that_is_not_a_json_is_not_repeated(made_up: Served, lines: list[str]) -> None:
    assert made_up.client.post(CHAT, content=f'{{"messages": "{SECRET}'.encode()).status_code == 400
    until(lambda: bool(lines))
    assert said(lines) == [f"POST {CHAT}  400 invalid_request_error"]


@pytest.mark.slow
def test_rejected_clients_are_logged() -> None:
    policy = AccessPolicy("s3cret", origins=frozenset({"https://example.org"}))
    with serving(TurningModels, policy) as guarded:
        guarded.post(CHAT, ASK)
        guarded.post(CHAT, ASK, {"Authorization": "Bearer s3cret", "Origin": "https://evil.example"})
        preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        refused = guarded.client.options(CHAT, headers=preflight)
        assert "access-control-allow-origin" not in refused.headers  # which browsers take as a refusal
        until(lambda: len(guarded.lines) == 3)
        keyless, page, before = said(guarded.lines)
    assert keyless == f"POST {CHAT}  401 authentication_error: the API key is missing or wrong"
    assert page.startswith(f"POST {CHAT}  403 permission_error: pages of https://evil.example")
    assert before.startswith(f"OPTIONS {CHAT}  403 permission_error: pages of https://evil.example")
    assert "s3cret" not in f"{keyless}{page}{before}"


def test_data_that_is_not_http_is_logged(made_up: Served, lines: list[str]) -> None:
    with connected(made_up) as client:
        client.sendall(b"xyzzy\r\n\r\n")
        assert b"400" in client.recv(100)
        until(lambda: bool(lines))
    assert said(lines) == ["400 the data is not HTTP"]


def test_an_answered_request_logs_only_its_figures(made_up: Served, lines: list[str]) -> None:
    made_up.client.get("/health")
    made_up.post(CHAT, {"messages": [SAYS], "max_tokens": 2})
    until(lambda: bool(lines))
    [told] = said(lines)
    assert told.startswith("general")
    assert SECRET not in told


def test_the_line_of_an_answer_says_how_much_of_its_prompt_was_cached() -> None:
    with serving(TellingModels) as served:
        served.chat(messages=[SAYS])
        until(lambda: bool(served.lines))
        [told] = said(served.lines)
    assert "prompt of 10 tokens, 4 cached" in told


def test_a_client_that_leaves_is_not_a_failure(made_up: Served, lines: list[str]) -> None:
    with connected(made_up) as client:
        client.sendall(sent(FOR_EVER))
        until(lambda: not is_idle(made_up))
    until(lambda: is_idle(made_up))
    assert made_up.client.get("/health").status_code == 200
    assert [line for line in said(lines) if "499" in line] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [EngineError(f"broken: {SECRET}"), ContextFullError("the prompt is 9 tokens")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_on_the_way_leaves_one_line(error: Exception, stream: bool) -> None:
    class Failing(TellingModels):
        def generate(self, request: Request) -> Iterator[GenerationEvent]:
            yield from list(super().generate(request))[:2]
            raise error

    with serving(Failing) as served:
        served.chat(messages=[SAYS], stream=stream)
        until(lambda: bool(served.lines))
        [told] = said(served.lines)
    is_ours = isinstance(error, EngineError)
    full = "the request exceeds the available context size; the prompt is 9 tokens"
    words = "500 server_error: broken" if is_ours else f"400 exceed_context_size_error: {full}"
    assert told == f"POST {CHAT}  {words}"


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_each_death_leaves_one_line_and_so_does_the_answer_it_took(stream: bool) -> None:
    opened: list[TurningModels] = []

    def open_models() -> TurningModels:
        opened.append(TurningModels())
        return opened[-1]

    with serving(open_models) as served:
        for number in range(1, 4):
            with connected(served) as client:
                client.sendall(sent(FOR_EVER | {"stream": stream, "messages": [SAYS]}))
                until(lambda: bool(opened[-1].written))
                opened[-1].dies.set()
                until(partial(_has_lines, served, 2 * number))
        assert sorted(said(served.lines)) == sorted(
            3 * [f"{DIED}; the models are open again", f"POST {CHAT}  503 unavailable_error: {DIED}"]
        )


@pytest.mark.slow
def test_a_queue_that_is_full_leaves_a_line_for_each_that_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "MAX_WAITING", 0)
    with serving(TurningModels) as served:
        for _ in range(10):
            reply = served.chat(messages=[SAYS])
            assert reply.status_code == 503
            assert int(reply.headers["Retry-After"]) > 0
        until(lambda: len(served.lines) == 10)
        assert {*said(served.lines)} == {
            f"POST {CHAT}  503 unavailable_error: 0 requests are waiting already"
        }


@pytest.mark.parametrize(
    ("name", "status"), [("", 400), (" ", 404), ("min", 404), ("mine2", 404), (None, 400), (["mine"], 400)]
)
def test_a_name_that_is_none_ends_nobodys_answer(made_up: Served, name: object, status: int) -> None:
    with ExitStack() as opened:
        for body in (sent(FOR_EVER), sent(FOR_EVER | {"stream": True}), _named("mine")):
            opened.enter_context(connected(made_up)).sendall(body)
        until(lambda: len(_jobs(made_up)) == 3)
        assert made_up.post("/engine/cancel", name).status_code == status
        assert not any(job.cancelled for job in _jobs(made_up))
        assert len(_jobs(made_up)) == 3
    until(lambda: is_idle(made_up))


@pytest.mark.slow
def test_a_name_ends_its_answer_and_no_other(made_up: Served) -> None:
    with ExitStack() as opened:
        for body in (sent(FOR_EVER), _named("mine"), _named("yours")):
            opened.enter_context(connected(made_up)).sendall(body)
        until(lambda: len(_jobs(made_up)) == 3)
        assert made_up.post("/engine/cancel", "mine").json() is True
        until(lambda: len(_jobs(made_up)) == 2)
        assert {job.asked.name for job in _jobs(made_up)} == {"", "yours"}
    until(lambda: is_idle(made_up))


def test_a_name_that_another_answer_has_is_rejected(made_up: Served) -> None:
    with connected(made_up) as first, connected(made_up) as second:
        first.sendall(_named("mine"))
        until(lambda: len(_jobs(made_up)) == 1)
        second.sendall(_named("mine"))
        assert b"400 Bad Request" in second.recv(100)
        assert len(_jobs(made_up)) == 1
    until(lambda: is_idle(made_up))


def _has_lines(served: Served, number: int) -> bool:
    return len(served.lines) == number


def _jobs(served: Served) -> list[queue.Job]:
    running, waiting = served.service.queue.jobs()
    return [*running, *waiting]


def _named(name: str) -> bytes:
    wanted = to_json(Request((Message("user", "Hi"),))).encode()
    head = f"POST /engine/generate HTTP/1.1\r\nHost: localhost\r\nX-Answer: {name}\r\n"
    return f"{head}Content-Length: {len(wanted)}\r\n\r\n".encode() + wanted
