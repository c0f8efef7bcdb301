"""Malformed requests to the server: wrong types, huge, cut, slow, in other encodings."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

from localspec.server import application, exchange
from localspec.types.events import GenerationEvent
from localspec.types.request import Request
from tests.campaign.log import PROMPT_S, Log, require
from tests.server.running import Served, serving
from tests.server.turning_models import TurningModels

_VALUES: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**53), 10**400, 0.5, -0.0, 1e308, nan, inf),
    *("", "a", "auto", "\0", "\ud800", "é" * 99, "x" * 100_000),
    *([], [[]], [None], ["a"], [1, 2], [{}], {}, {"a": {}}, [["a", 1]], {"1": 2}),
    *({"type": "text"}, {"type": "json_schema"}, {"role": "user"}),
)
_FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
_TOOL = {"type": "function", "function": _FUNCTION}
_TEXT = {"type": "text", "text": "Hi"}
_ASKED = {"role": "user", "content": "Hi"}
_CALLS = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
_RESULT = {"role": "tool", "tool_call_id": "1", "content": "dry"}
_BLOCKS = {
    "role": "assistant",
    "content": [{"type": "thinking", "thinking": "hm"}, _TEXT, {"type": "tool_use", "id": "1", "name": "f"}],
}
_ITEM = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
_OUTPUT = {"type": "function_call_output", "call_id": "1", "output": [_TEXT]}
_BODIES: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/v1/chat/completions", {"messages": [_ASKED, _CALLS, _RESULT], "tools": [_TOOL], "tool_choice": _TOOL}),
    ("/v1/messages", {"messages": [_ASKED, _BLOCKS], "tools": [_FUNCTION], "system": [_TEXT]}),
    ("/v1/messages/count_tokens", {"messages": [_ASKED], "thinking": {"type": "enabled"}}),
    ("/v1/responses", {"input": [_ASKED, _ITEM, _OUTPUT], "tools": [{"type": "function", **_FUNCTION}]}),
    ("/v1/responses", {"input": "Hi", "text": {"format": {"type": "text"}}, "instructions": "a"}),
    ("/tokenize", {"content": "Hi", "with_pieces": True}),
    ("/detokenize", {"tokens": [72, 105]}),
    ("/apply-template", {"messages": [_ASKED], "tools": [_TOOL]}),
    ("/completion", {"prompt": ["Hi", [72, "a"]], "response_fields": ["content"], "return_progress": True}),
    ("/v1/embeddings", {"input": ["Hi"], "encoding_format": "base64"}),
    ("/api/chat", {"messages": [_ASKED, _CALLS], "tools": [_TOOL], "options": {"num_predict": 2}}),
    ("/api/generate", {"prompt": "Hi", "system": "a", "options": {"num_predict": 2}}),
    ("/infill", {"input_prefix": "H", "input_suffix": "i", "input_extra": [{"text": "a"}]}),
)
_LIMITS = {"max_tokens": 2, "max_output_tokens": 2}
_FIELDS = (
    "messages prompt model stream stream_options n max_tokens max_completion_tokens temperature top_k top_p "
    "min_p repeat_penalty presence_penalty frequency_penalty repeat_last_n seed stop speculative logprobs "
    "chat_template_kwargs top_logprobs logit_bias response_format grammar tools tool_choice role content "
    "parallel_tool_calls tool_calls tool_call_id reasoning_content"
).split()
_STATUS = {200, 400, 403, 404, 405, 408, 413, 501, 503}
_QUICK_S = 0.2  # for what a server waits seconds for
_LONGEST_S = 20.0  # of an answer
_MOST_WORDS = 50  # of an answer: more do not fit the context


class _EndingModels(TurningModels):
    """Models whose answers end by themselves, as those do whose context is full."""

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        most = min(request.max_tokens or _MOST_WORDS, _MOST_WORDS)
        return super().generate(replace(request, max_tokens=most))


def _changed(rng: random.Random, body: dict[str, object]) -> dict[str, object]:
    """Return a body with values that do not belong where they are."""
    if rng.random() < 0.5:
        body = _changed_inside(rng, body)
    body = {
        **body,
        **_LIMITS,
        **{rng.choice(_FIELDS): rng.choice(_VALUES) for _ in range(rng.randrange(4))},
    }
    messages = body.get("messages")
    if isinstance(messages, list) and rng.random() < 0.5:
        message = {"role": "user", "content": "Hi", rng.choice(_FIELDS): rng.choice(_VALUES)}
        body["messages"] = [*messages, message, rng.choice(_VALUES)][: rng.randrange(1, 4)]
    return body


def _changed_inside(rng: random.Random, body: dict[str, object]) -> dict[str, object]:
    """Return a body of which one value, however deep, is another one or missing."""
    changed: dict[str, object] = deepcopy(body)
    at: object = changed
    while isinstance(at, dict | list) and at:
        key: Any = rng.choice([*at] if isinstance(at, dict) else range(len(at)))
        inside = at[key]
        if not inside or not isinstance(inside, dict | list) or rng.random() < 0.3:
            at[key] = rng.choice(_VALUES)
            if rng.random() < 0.3:
                del at[key]
            break
        at = inside
    return changed


def _bytes(rng: random.Random, body: dict[str, object]) -> bytes:
    """Return the body of a request, perhaps in another encoding, cut, or with other bytes in it."""
    text = json.dumps(_changed(rng, body), ensure_ascii=rng.random() < 0.5)
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1", "utf-7"))
    data = text.encode(encoding, "surrogatepass" if encoding.startswith("utf-") else "replace")
    match rng.randrange(8):
        case 0:
            return data[: rng.randrange(len(data))]
        case 1:
            at = rng.randrange(len(data))
            return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at + 1 :]
        case 2:
            return b"[" * rng.choice((10, 5_000, 100_000)) + data
    return data


def sent(rng: random.Random) -> bytes:
    """Return what a client sends in all."""
    path, body = rng.choice(_BODIES)
    data = _bytes(rng, body)
    method = rng.choice(("POST", "POST", "POST", "POST", "GET", "PUT", "DELETE", "post", "\x00"))
    length: object = rng.choice((len(data),) * 6 + (len(data) - 1, len(data) + 1, -1, "x", 10**30))
    odd_targets = ("/", "*", "//", path + "/", "/\xff", "http://localhost" + path, "/../" + path)
    target = rng.choice((path,) * 8 + odd_targets)
    host = rng.choice(("localhost",) * 8 + ("", "evil.example", "[", "\x7f", "localhost:99999"))
    odd = ("Expect: 100-continue\r\n", f"X: {'a' * 70_000}\r\n", "X\r\n", "Transfer-Encoding: chunked\r\n")
    extra = rng.choice(("",) * 6 + odd) + "Connection: close\r\n"
    head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n{extra}\r\n"
    return head.encode("latin-1") + data


def reply(port: int, data: bytes, *, leaves: bool) -> bytes:
    """Send something, and return all that comes back; `leaves` closes without reading."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=10)) as client:
        found = b""
        begun = time.monotonic()
        with suppress(ConnectionError):
            client.sendall(data)
            while not leaves and (piece := client.recv(65_536)):
                found += piece
                require(time.monotonic() - begun < _LONGEST_S, "the answer does not end")
        return found.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")


def check(found: bytes) -> None:
    """Require an answer of HTTP whose error, if it is one, is reported in a line."""
    if not found:
        return  # closed: what came was no request, or too slow
    head, _, body = found.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    require(status in _STATUS, f"status {status}: {found[:500]!r}")
    if status in (400, 503) and b"application/json" in head:
        told = json.loads(body)["error"]
        message = told if isinstance(told, str) else told["message"]  # Ollama's is the text alone
        require("\n" not in message and 0 < len(message) < 1000, f"told at length: {message[:999]}")
        require("unexpected" not in message, message)


@contextmanager
def impatient() -> Iterator[None]:
    """Let servers wait only a moment for what clients are slow to send."""
    waits = ((application, "HEADER_S"), (exchange, "BODY_S"), (exchange, "STALLED_S"))
    before = [getattr(module, name) for module, name in waits]
    for module, name in waits:
        setattr(module, name, _QUICK_S)
    try:
        yield
    finally:
        for (module, name), value in zip(waits, before, strict=True):
            setattr(module, name, value)


def requests(log: Log, _folder: Path) -> None:
    """Send requests; each is answered or refused in a line, soon, and the next is none the worse."""
    with impatient(), serving(_EndingModels) as served:
        for number in log.numbers():
            rng = log.random(number)
            data, leaves = sent(rng), rng.random() < 0.1
            with log.case(number, PROMPT_S, repr(data[:300])):
                check(reply(served.port, data, leaves=leaves))
                if number % 20 == 0:
                    _require_alive(served)


def _require_alive(served: Served) -> None:
    reply = served.chat(messages=[{"role": "user", "content": "Hi"}], max_tokens=3)
    require(reply.status_code == 200 and "HHH" in reply.text, f"the next one suffers: {reply.text[:300]} ")
    require(len(served.service.queue.jobs()[1]) == 0, "requests are stuck")
