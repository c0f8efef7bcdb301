"""Whom the server lets in, and how long it bears with clients that are slow, broken or gone."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import httpx2
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.errors import UserError
from localspec.server import application, exchange, running
from localspec.server.application import AccessPolicy
from localspec.server.origins import CrossOrigin, read_origin
from tests.server.running import Served, serving
from tests.server.turning_models import TurningModels
from tests.waiting import until

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
FOR_EVER = {**ASK, "max_tokens": None}


@pytest.fixture(scope="module")
def made_up() -> Iterator[Served]:
    with serving(TurningModels) as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """A server with a key, and a page that may ask."""
    policy = AccessPolicy("s3cret", origins=frozenset({"https://example.org"}))
    with serving(TurningModels, policy) as running:
        yield running


def is_idle(served: Served) -> bool:
    return served.service.queue.jobs() == ((), ())


def connected(served: Served) -> closing[socket.socket]:
    return closing(socket.create_connection(("127.0.0.1", served.port), timeout=20))


def sent(body: object, path: str = CHAT) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "a@b:c"]
)
def test_a_page_that_took_over_a_name_is_rejected(made_up: Served, host: str) -> None:
    for path in ("/health", "/v1/models"):
        reply = made_up.client.get(path, headers={"Host": host})
        assert reply.status_code == 403
        assert reply.json()["error"]["type"] == "permission_error"
    assert made_up.post(CHAT, ASK, {"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:8080", "[::1]:8080", "[::1]"])
def test_this_machine_is_let_in_by_its_names(made_up: Served, host: str) -> None:
    assert made_up.client.get("/health", headers={"Host": host}).status_code == 200


def test_the_own_page_may_ask(made_up: Served) -> None:
    assert made_up.post(CHAT, ASK, {"Origin": made_up.url}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", ""])
def test_pages_are_rejected(made_up: Served, origin: str) -> None:
    reply = made_up.post(CHAT, ASK, {"Origin": origin})
    assert reply.status_code == 403
    assert "--allow-origin" in reply.json()["error"]["message"]
    wish = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    preflight = made_up.client.options(CHAT, headers=wish)
    assert preflight.status_code >= 400
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_a_page_that_was_named_may_ask(guarded: Served) -> None:
    page = {"Origin": "https://example.org"}
    wish = {
        **page,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    preflight = guarded.client.options(CHAT, headers=wish)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == page["Origin"]
    reply = guarded.post(CHAT, ASK, {**page, "Authorization": "Bearer s3cret"})
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == page["Origin"]
    assert guarded.post(CHAT, ASK, {"Origin": "https://evil.example"}).status_code == 403


def asked_first(served: Served, origin: str) -> dict[str, str]:
    """Return what a browser is told that asks before it sends something from a page."""
    wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization"}
    reply = served.client.options(CHAT, headers={"Origin": origin} | wish)
    assert reply.status_code == 200
    prefix = "access-control-allow-"
    return {name[len(prefix) :]: text for name, text in reply.headers.items() if name.startswith(prefix)}


def test_all_pages_of_this_machine_may_be_named_at_once() -> None:
    policy = AccessPolicy(origins=frozenset({read_origin("localhost")}))
    with serving(TurningModels, policy) as served:
        for own in ("http://localhost", "https://localhost:8080", "http://127.0.0.1:3000", "http://[::1]:1"):
            assert asked_first(served, own)["origin"] == own
            assert served.client.get("/health", headers={"Origin": own}).status_code == 200
        for other in ("http://localhost.evil.com", "http://notlocalhost", "http://127.0.0.10", "localhost"):
            assert not asked_first(served, other)
            assert served.client.get("/health", headers={"Origin": other}).status_code == 403
        assert any("pages of http://notlocalhost may not use this server" in line for line in served.lines)


def test_pages_get_what_was_named_and_their_own_origin_with_credentials() -> None:
    pages = CrossOrigin(("GET", "POST"), ("Authorization",), credentials=True)
    with serving(TurningModels, AccessPolicy(origins=frozenset({"*"}), pages=pages)) as served:
        told = asked_first(served, "https://any.example")
        assert told["origin"] == "https://any.example"  # browsers refuse * here
        assert (told["methods"], told["credentials"]) == ("GET, POST", "true")
        assert "Authorization" in told["headers"]
        reply = served.client.get("/health", headers={"Origin": "https://any.example"})
        assert reply.headers["access-control-allow-origin"] == "https://any.example"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("https://example.org", "https://example.org"),
        ("https://Slash.example.org/", "https://slash.example.org"),
        ("https://example.org:443", "https://example.org"),
        ("http://localhost:3000/", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://*", "chrome-extension://abcdef"),
        ("moz-extension://1-2", "moz-extension://1-2"),
        ("vscode-webview://*", "vscode-webview://a:b"),
        ("null", "null"),
        ("*", "https://any.example"),
    ],
)
def test_an_origin_that_is_named_is_let_in_and_no_other(given: str, sent: str) -> None:
    policy = AccessPolicy(origins=frozenset({read_origin(given)}))
    with serving(TurningModels, policy) as served:
        wish = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Private-Network": "true",
        }
        preflight = served.client.options(CHAT, headers={"Origin": sent} | wish)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] in (sent, "*")
        assert preflight.headers["access-control-allow-private-network"] == "true"
        assert served.client.get("/health", headers={"Origin": sent}).status_code == 200
        for other in (f"{sent}x", f"x{sent}", "https://evil.example", "nul"):
            is_allowed = given.endswith("*") and other.startswith(given[:-1])
            status = 200 if is_allowed else 403
            assert served.client.get("/health", headers={"Origin": other}).status_code == status


@pytest.mark.parametrize(
    "origin",
    [
        "example.org", "https://", "https://example.org/page", "https://example.org?a", "https://*",
        "https://*.example.org", "http://a@b", "https://example.org:x", "", "https://exämple.org", "//x",
    ],
)  # fmt: skip
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(UserError, match="--allow-origin"):
        read_origin(origin)


def test_a_proxy_may_use_its_own_name() -> None:
    policy = running.access(("127.0.0.1",), None, (), ("Chat.Example.org",), is_local=True)
    with serving(TurningModels, policy) as served:
        for host, status in (("chat.example.org", 200), ("localhost", 200), ("example.org", 403)):
            assert served.client.get("/health", headers={"Host": host}).status_code == status


def answers(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), timeout=5):
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")


@needs_ipv6
def test_several_addresses_have_one_port() -> None:
    with running.listen(("127.0.0.1", "::1", "localhost"), 0) as listeners:
        assert [listener.getsockname()[0] for listener in listeners] == ["127.0.0.1", "::1"]
        port = listeners[0].getsockname()[1]
        assert answers("127.0.0.1", port)
        assert answers("::1", port)
    assert not answers("127.0.0.1", port)
    assert not answers("::1", port)


@needs_ipv6
@pytest.mark.parametrize("hosts", [("::",), ("0.0.0.0", "::"), ("::", "0.0.0.0")])
def test_all_addresses_of_both_kinds(hosts: tuple[str, ...]) -> None:
    with running.listen(hosts, 0) as listeners:
        port = listeners[0].getsockname()[1]
        assert answers("127.0.0.1", port)
        assert answers("::1", port)


def test_one_address_that_cannot_be_used_closes_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        pytest.raises(UserError, match=f"cannot listen at 203.0.113.7 port {port}"),
        running.listen(("127.0.0.1", "203.0.113.7"), port),
    ):
        pass
    assert not answers("127.0.0.1", port)


@pytest.mark.parametrize(("path", "status"), [("/", 404), ("/slots", 501), ("/metrics", 501)])
def test_what_is_turned_off_says_so(path: str, status: int) -> None:
    with serving(TurningModels, hidden=frozenset({"ui", "slots", "metrics"})) as served:
        reply = served.client.get(path)
        assert reply.status_code == status
        assert "turned off (--no-" in reply.json()["error"]["message"]
        assert served.client.get("/health").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer s3cret2"}, 401),
        ({"Authorization": "Basic s3cret"}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"Authorization": "Bearer s3cret"}, 200),
        ({"Authorization": "bearer s3cret"}, 200),
        ({"x-api-key": "s3cret"}, 200),
        ({"Authorization": "Bearer none", "x-api-key": "s3cret"}, 200),
        ({"Authorization": "Bearer s3cret", "x-api-key": "none"}, 200),
        ({"Authorization": "Bearer none", "x-api-key": "none"}, 401),
    ],
)
def test_the_key_is_asked_for(guarded: Served, headers: dict[str, str], status: int) -> None:
    assert guarded.post(CHAT, ASK, headers).status_code == status
    for path in ("/v1/models", "/slots", "/metrics", "/props"):
        assert guarded.client.get(path, headers=headers).status_code == status
    assert guarded.client.get("/health", headers=headers).status_code == 200


def test_a_key_that_is_not_a_text_is_wrong(guarded: Served) -> None:
    with connected(guarded) as client:
        client.sendall(
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xc3\r\n\r\n"
        )
        assert b" 401 " in client.recv(100)


def test_a_body_that_is_too_large_is_rejected(made_up: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_BODY", 1000)

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    for body in (b" " * 1001, pieces()):
        with httpx2.Client(base_url=made_up.url, verify=False) as client:
            reply = client.post(CHAT, content=body)
        assert reply.status_code == 413
        assert "a request may have" in reply.json()["error"]["message"]


def test_a_body_that_does_not_come_is_not_waited_for(
    made_up: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BODY_S", 0.05)
    with connected(made_up) as client:
        client.sendall(sent(ASK)[:-5])
        assert b" 408 " in client.recv(1000)


@pytest.mark.parametrize("head", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: local"])
def test_a_head_that_does_not_come_is_not_waited_for(
    made_up: Served, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    with connected(made_up) as used:
        used.sendall(sent(ASK))
        while b'"usage"' not in used.recv(10_000):
            pass
        monkeypatch.setattr(application, "HEADER_S", 0.05)
        with connected(made_up) as client:
            assert _is_closed_after(head, client)
        assert _is_closed_after(b"GET /heal", used)  # also the second one on a connection


def _is_closed_after(head: bytes, client: socket.socket) -> bool:
    """Return whether the server answers nothing; it may be faster than the client sends."""
    try:
        client.sendall(head)
        return client.recv(100) == b""
    except ConnectionError:
        return True


def test_a_head_that_is_too_large_is_rejected(made_up: Served) -> None:
    with connected(made_up) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * application.MAX_HEADER)
        assert b" 400 " in client.recv(1000)


@pytest.mark.slow
def test_crowds_that_say_nothing_leave_room(made_up: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "HEADER_S", 0.5)
    monkeypatch.setattr(application, "MAX_CONNECTIONS", 20)
    with ExitStack() as crowd:
        for _ in range(40):
            crowd.enter_context(connected(made_up))
        until(lambda: _is_answered(made_up))


def _is_answered(served: Served) -> bool:
    try:
        return httpx2.get(f"{served.url}/health", verify=False).status_code == 200
    except httpx2.HTTPError:
        return False


@pytest.mark.parametrize("stream", [True, False])
def test_answers_of_clients_that_left_are_dropped(made_up: Served, stream: bool) -> None:
    with connected(made_up) as client:
        client.sendall(sent(FOR_EVER | {"stream": stream}))
        until(lambda: bool(made_up.service.queue.jobs()[0]))
        if stream:
            client.recv(100)
    until(lambda: is_idle(made_up))


def test_a_client_that_leaves_while_waiting_is_dropped(made_up: Served) -> None:
    with connected(made_up) as first:
        first.sendall(sent(FOR_EVER))
        with connected(made_up) as second:
            second.sendall(sent(FOR_EVER))
            until(lambda: len(made_up.service.queue.jobs()[1]) == 1)
        until(lambda: len(made_up.service.queue.jobs()[1]) == 0)
    until(lambda: is_idle(made_up))


@pytest.mark.slow
def test_a_client_that_does_not_read_its_stream_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "STALLED_S", 0.1)
    with serving(lambda: TurningModels(size=50_000)) as wordy, connected(wordy) as client:
        client.sendall(sent(FOR_EVER | {"stream": True}))
        until(lambda: not is_idle(wordy))
        until(lambda: is_idle(wordy))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
)
def test_data_that_is_not_http_does_no_harm(made_up: Served, data: bytes) -> None:
    with connected(made_up) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        while client.recv(10_000):
            pass
    assert made_up.client.get("/health").status_code == 200


def test_other_paths_and_methods_are_rejected(made_up: Served) -> None:
    assert made_up.client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert made_up.client.get(CHAT).status_code == 405
    assert made_up.client.put(CHAT, json=ASK).json()["error"]["code"] == 405
    assert made_up.client.get("/v1/messages").json()["type"] == "error"  # as its protocol words it


def test_no_piece_of_a_stream_waits_for_the_client_to_confirm_the_one_before(made_up: Served) -> None:
    with connected(made_up):
        until(lambda: bool(made_up.server.server_state.connections))
        for connection in tuple(made_up.server.server_state.connections):
            assert isinstance(connection, H11Protocol)
            own = connection.transport.get_extra_info("socket")
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_death_is_reported_with_its_reason_and_fixed(made_up: Served) -> None:
    def died() -> TurningModels:
        models = made_up.service.queue.models
        assert isinstance(models, TurningModels)
        return models

    with made_up.client.stream("POST", CHAT, json=FOR_EVER | {"stream": True}) as reply:
        lines = reply.iter_lines()
        next(line for line in lines if '"content":"' in line)  # one that died before would be begun again
        died().dies.set()
        *_, last = [line for line in lines if line]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == 503
    assert "SIGKILL" in error["message"]
    until(lambda: not died().dies.is_set())
    assert made_up.post(CHAT, ASK).json()["choices"][0]["message"]["content"] == "HHH"


@pytest.mark.slow
def test_metrics_report_running_and_finished_answers(made_up: Served) -> None:
    def figure(name: str) -> float:
        lines = made_up.client.get("/metrics").text.splitlines()
        found = [line.split()[1] for line in lines if line.startswith(f"localspec_{name} ")]
        return float(found[0]) if found else 0.0

    before = figure("tokens_total")
    assert made_up.post(CHAT, ASK).status_code == 200
    assert figure("tokens_total") == before + 3
    with connected(made_up) as client:
        client.sendall(sent(FOR_EVER))
        until(lambda: figure("answering") == 1)
        slot, *_ = made_up.client.get("/slots").json()
        assert (slot["is_processing"], slot["model"]) == (True, "general")
    until(lambda: is_idle(made_up))
    assert "Hi" not in "".join(made_up.lines)
    assert "general" in made_up.lines[-1]
