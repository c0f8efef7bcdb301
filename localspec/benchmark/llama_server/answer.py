"""One answer of llama-server: asked for as a stream, and what it took."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from time import perf_counter

from localspec.benchmark.contender import Prompt
from localspec.errors import ContextFullError, EngineError
from localspec.storage.json_file import UnexpectedError, checked
from localspec.types import Sampling, Summary

SILENCE_LIMIT_S = 600.0
_EVENT = b"data: "
_LARGEST_SEED = 2**31 - 1  # the server reads seeds as signed numbers; a negative one would be drawn anew


@dataclass(frozen=True, slots=True)
class Timings:
    """The server's own account of an answer; without a drafted token it says nothing of drafts."""

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    cache_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0


@dataclass(frozen=True, slots=True)
class _Ending:
    timings: Timings


@dataclass(frozen=True, slots=True)
class _Complaint:
    message: str
    type: str = ""


@dataclass(frozen=True, slots=True)
class _Refusal:
    error: _Complaint


def request_body(prompt: Prompt, sampling: Sampling, max_tokens: int, seed: int) -> bytes:
    """Return a request that decodes as this program does: the same samplers in the same order, no others.

    Greedy decoding takes the server's shortest way there: penalties, then the best token of all.
    """
    greedy = sampling.temperature <= 0
    roles = (("system", prompt.system), ("user", prompt.text))
    rest = ["top_p", "min_p", "temperature"]
    return json.dumps(
        {
            "messages": [{"role": role, "content": text} for role, text in roles if text or role == "user"],
            "stream": True,
            "sse_ping_interval": -1,
            "max_tokens": max_tokens,
            "seed": seed & _LARGEST_SEED,
            "cache_prompt": False,
            "samplers": ["penalties", "top_k", *([] if greedy else rest)],
            "top_k": 1 if greedy else sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "temperature": max(0.0, sampling.temperature),
            "repeat_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repeat_last_n": sampling.penalty_window,
            "dynatemp_range": 0.0,
            "mirostat": 0,
        }
    ).encode()


def ask(host: str, port: int, body: bytes) -> Summary:
    """Ask, read the answer to its end and return what it took.

    Raises ContextFullError and EngineError where the server says no; OSError and HTTPException where it
    breaks off.
    """
    connection = HTTPConnection(host, port, timeout=SILENCE_LIMIT_S)
    try:
        started = perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise _error_of(response.read())
        text, first_token_s = _read(response, started)
    finally:
        connection.close()
    return _summary(_ending(text), first_token_s)


def _read(response: HTTPResponse, started: float) -> tuple[bytes, float]:
    """Read a stream without a look inside: the processor belongs to the server meanwhile."""
    pieces: list[bytes] = []
    first_token_s = 0.0
    while piece := response.read1():
        if not pieces:
            first_token_s = perf_counter() - started
        pieces.append(piece)
    return b"".join(pieces), first_token_s


def _ending(text: bytes) -> Timings:
    """Return the timings that the last event carries."""
    events = [line[len(_EVENT) :] for line in text.splitlines() if line.startswith(_EVENT)]
    last = next((event for event in reversed(events) if event.startswith(b"{")), b"")
    try:
        return checked(_Ending, json.loads(last), "the last event").timings
    except (UnexpectedError, ValueError):
        raise _error_of(last) from None


def _error_of(said: bytes) -> Exception:
    """Return the error for an answer that is none."""
    try:
        complaint = checked(_Refusal, json.loads(said), "the answer").error
    except (UnexpectedError, ValueError):
        shown = said[:200].decode("utf-8", "replace") or "nothing"
        return EngineError(f"llama-server answers otherwise than llama.cpp's own: {shown}")
    if complaint.type == "exceed_context_size_error":
        return ContextFullError(f"llama-server: {complaint.message}", "choose a larger context")
    return EngineError(f"llama-server refuses to answer: {complaint.message}")


def _summary(timings: Timings, first_token_s: float) -> Summary:
    """Return what an answer took.

    `decode_s` is the server's `predicted_ms`: from when the first token was drawn to when the last was, as
    ours is; HTTP and the words' way to us are left out. Where the server has a draft model, that has read
    the prompt before the first token: it counts in `prompt_s` and `first_token_s`, while ours reads it
    after the first token.
    """
    return Summary(
        prompt_tokens=timings.cache_n + timings.prompt_n,
        cached_tokens=timings.cache_n,
        tokens=timings.predicted_n,
        drafted=timings.draft_n,
        accepted=timings.draft_n_accepted,
        prompt_s=timings.prompt_ms / 1000,
        first_token_s=first_token_s,
        decode_s=timings.predicted_ms / 1000,
    )
