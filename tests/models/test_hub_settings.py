"""Settings of the environment that decide how the hub is reached, and what is said of impossible ones."""

from __future__ import annotations

import socket

import pytest

from localspec.errors import UserError
from localspec.models.hub import pull
from localspec.models.names import parse
from tests.models.hub_server import Hub, Repository

NAME = "someone/tiny-GGUF"
FILE = "tiny-Q4_K_M.gguf"


@pytest.fixture(autouse=True)
def offered(hub: Hub) -> None:
    hub.repositories[NAME] = Repository({FILE: b"GGUF"})


def refusal() -> tuple[str, str]:
    with pytest.raises(UserError) as caught:
        pull(parse(NAME))
    return caught.value.message, caught.value.hint


def test_a_proxy_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{port}")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    message, hint = refusal()
    assert message.startswith(f"hub.invalid cannot be reached through the proxy 127.0.0.1:{port}")
    assert "secret" not in message
    assert "HTTPS_PROXY" in hint


@pytest.mark.parametrize("proxy", ["http://user:secret@[x", "user:secret@127.0.0.1:1", "http://user:secret@"])
def test_no_proxy_however_written_gives_its_password_away(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    message, hint = refusal()
    assert "secret" not in message
    assert "HTTPS_PROXY" in hint


def test_certificates_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file.pem")
    message, hint = refusal()
    assert message.startswith("the certificates cannot be read: ")
    assert "SSL_CERT_FILE" in hint


def test_a_proxy_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "gopher://127.0.0.1:1")
    message, hint = refusal()
    assert message.startswith("the proxy settings cannot be used")
    assert "HTTPS_PROXY" in hint


@pytest.mark.parametrize(
    "address", ["huggingface.co", "ftp://hub", "http://[hub", "http://hub:99999", "https://"]
)
def test_an_endpoint_that_is_not_an_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    message, hint = refusal()
    assert message.startswith("HF_ENDPOINT is not an address: ")
    assert "https://huggingface.co" in hint


def test_a_token_that_was_copied_with_its_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "“hf_good”")
    message, hint = refusal()
    assert message == "the token has an invalid character"
    assert "HF_TOKEN" in hint
