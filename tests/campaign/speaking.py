"""Clients of `localspec serve`: what they send in several protocols, and what came back of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx2

from tests.campaign.clock import now_s
from tests.campaign.log import require

Json = dict[str, Any]
PATIENCE_S = 120.0  # of a client that does not leave


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks, and how many tokens it takes at most."""

    text: str
    system: str = ""
    tokens: int = 24

    @property
    def whole(self) -> str:
        """Return the prompt of protocols that know no messages."""
        return f"{self.system}\n\n{self.text}".strip()

    @property
    def messages(self) -> list[Json]:
        """Return the messages, with the system's if there is one."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.text}]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A protocol as its clients see it; `piece` and `count` read one object of a reply.

    `count` is the number of tokens, which only a complete answer has.
    """

    path: str
    body: Callable[[Question], Json]
    piece: Callable[[Json], str]
    count: Callable[[Json], int | None]


def _of_chat(reply: Json) -> str:
    said = [choice.get("delta") or choice.get("message") or {} for choice in reply.get("choices", ())]
    return "".join(each.get("content") or "" for each in said)


def _of_choices(reply: Json) -> str:
    return "".join(choice.get("text") or "" for choice in reply.get("choices", ()))


def _of_blocks(reply: Json) -> str:
    if reply.get("type") == "content_block_delta":
        return str(reply["delta"].get("text", ""))
    return "".join(block.get("text", "") for block in reply.get("content", ()))


def _of_items(reply: Json) -> str:
    if reply.get("type") == "response.output_text.delta":
        return str(reply["delta"])
    parts = [part for item in reply.get("output", ()) for part in item.get("content", ())]
    return "".join(part.get("text", "") for part in parts)


def _usage(name: str) -> Callable[[Json], int | None]:
    def count(reply: Json) -> int | None:
        found = (reply.get("usage") or {}).get(name)
        return None if found is None else int(found)

    return count


def _of_response(reply: Json) -> int | None:
    done = reply.get("response", reply)
    return _usage("output_tokens")(done) if done.get("status") in ("completed", "incomplete") else None


def _of_message(reply: Json) -> int | None:
    is_whole = reply.get("type") == "message" or "stop_reason" in reply.get("delta", ())
    return _usage("output_tokens")(reply) if is_whole else None


PROTOCOLS = (
    Spoken(
        "/v1/chat/completions",
        lambda asked: {
            "messages": asked.messages,
            "max_tokens": asked.tokens,
            "stream_options": {"include_usage": True},
        },
        _of_chat,
        _usage("completion_tokens"),
    ),
    Spoken(
        "/v1/completions",
        lambda asked: {
            "prompt": asked.whole,
            "max_tokens": asked.tokens,
            "stream_options": {"include_usage": True},
        },
        _of_choices,
        _usage("completion_tokens"),
    ),
    Spoken(
        "/v1/messages",
        lambda asked: {
            "system": asked.system,
            "messages": [{"role": "user", "content": asked.text}],
            "max_tokens": asked.tokens,
        },
        _of_blocks,
        _of_message,
    ),
    Spoken(
        "/v1/responses",
        lambda asked: {
            "instructions": asked.system,
            "input": asked.text,
            "max_output_tokens": asked.tokens,
        },
        _of_items,
        _of_response,
    ),
    Spoken(
        "/api/chat",
        lambda asked: {"messages": asked.messages, "options": {"num_predict": asked.tokens}},
        lambda reply: str(reply.get("message", {}).get("content", "")),
        lambda reply: reply.get("eval_count"),
    ),
    Spoken(
        "/completion",
        lambda asked: {"prompt": asked.whole, "n_predict": asked.tokens},
        lambda reply: str(reply.get("content", "")),
        lambda reply: reply.get("tokens_predicted") if reply.get("stop") else None,
    ),
)
CHAT = PROTOCOLS[0]


@dataclass(slots=True)
class Outcome:
    """What came of a request; it is complete, or has an error, or its client left."""

    status: int = 0
    error: str = ""
    tokens: int | None = None
    left: bool = False
    began: float = field(default_factory=now_s)
    pieces: list[tuple[float, str]] = field(default_factory=list)  # of text, and when they came

    @property
    def text(self) -> str:
        """Return the text."""
        return "".join(piece for _, piece in self.pieces)

    @property
    def worst_gap_s(self) -> float:
        """Return the longest wait between two pieces."""
        times = [moment for moment, _ in self.pieces]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def tokens_within(self, begins: float, ends: float) -> int:
        """Return about how many tokens came between two moments, by the characters that came."""
        characters = sum(len(piece) for moment, piece in self.pieces if begins <= moment <= ends)
        return round(characters * (self.tokens or 0) / max(1, len(self.text)))

    def take(self, spoken: Spoken, line: str) -> None:
        """Take a line of the reply."""
        data = line.removeprefix("data:").strip()
        if not data.startswith("{"):
            return  # a comment, the name of an event, or the last line of a stream
        reply = json.loads(data)
        if piece := spoken.piece(reply):
            self.pieces.append((now_s(), piece))
        failed = reply.get("error") or (reply.get("response") or {}).get("error")
        if failed:
            self.error = failed if isinstance(failed, str) else str(failed["message"])
        count = spoken.count(reply)
        self.tokens = self.tokens if count is None else count

    def check(self, words: Sequence[str] = ()) -> None:
        """Require an answer or an error in a line; of errors, only those with one of the words."""
        if self.left:
            return
        require(
            self.error or self.tokens is not None,
            f"neither answer nor error: {self.status} {self.text[:99]!r}",
        )
        require("\n" not in self.error, f"told at length: {self.error[:300]}")
        require(
            not self.error or any(word in self.error for word in words), f"{self.status}: {self.error[:300]}"
        )


def ask(url: str, spoken: Spoken, body: Json, leaves_s: float | None = None) -> Outcome:
    """Ask, and read to the end or leave after about so long."""
    found = Outcome()
    wait = httpx2.Timeout(PATIENCE_S, read=leaves_s or PATIENCE_S)
    try:
        with (
            httpx2.Client(base_url=url, verify=False, timeout=wait) as client,
            client.stream("POST", spoken.path, json=body) as reply,
        ):
            found.status = reply.status_code
            for line in reply.iter_lines():
                found.take(spoken, line)
                if leaves_s is not None and now_s() - found.began > leaves_s:
                    found.left = True
                    return found
    except httpx2.HTTPError as error:
        found.left = leaves_s is not None and isinstance(error, httpx2.ReadTimeout)
        found.error = "" if found.left else f"the connection broke: {type(error).__name__} {error}"
    return found
