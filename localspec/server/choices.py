"""OpenAI's replies: the choices of a chat or of a plain completion, whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from localspec.app.answer_json import Json, finite, timings
from localspec.server.blocks import BlockEvent, BlockStream, ContentBlock, warned
from localspec.server.exchange import SERVER_SENT
from localspec.server.live_timings import NOTHING, Live
from localspec.server.queue import QueuedRequest
from localspec.server.service import FINGERPRINT
from localspec.server.several import SeveralAnswers
from localspec.server.tools_here import ToolsHere
from localspec.types.events import TokenScore


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reply holds besides its answers: the prompt of a text, and in a stream usage and progress.

    `details` returns how the answer of a number came about, in llama-server's words.
    """

    echoes: bool = False
    usage: bool = False
    live: Live = NOTHING
    details: Callable[[int, BlockStream], Json] | None = None


class ChoicesReply(SeveralAnswers):
    """Some answers to a chat, or continuations of a bare text."""

    form = replace(SERVER_SENT, last="data: [DONE]\n\n")

    def __init__(
        self,
        asked: Sequence[QueuedRequest],
        blocks: Callable[[], BlockStream],
        number: int,
        wanted: Wanted,
        here: ToolsHere | None = None,
    ) -> None:
        """Begin with nothing; each prompt gets `number` answers, which may call the tools `here`."""
        super().__init__([blocks() for _ in asked], wanted.live)
        self._here = here
        self._number = number
        self._wanted = wanted
        self._prompts = [one.overrides.answer.prompt for one in asked]
        self._is_chat = not isinstance(self._prompts[0], str)
        self._head: Json = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid4().hex}",
            "object": "chat.completion.chunk" if self._is_chat else "text_completion",
            "created": int(time.time()),
            "model": asked[0].profile.name,
            "system_fingerprint": FINGERPRINT,
        }

    def first_events(self) -> Iterator[Json]:
        """Yield the first chunk of an answer."""
        if self._is_chat:
            yield self._chunk({"role": "assistant", "content": None})  # an empty text would begin the answer
        elif self._wanted.echoes:
            yield self._chunk({"content": self._prompts[self.at]})

    def events_of(self, step: BlockEvent) -> Iterator[Json]:
        """Yield the chunk of a step; of a call that runs here, one that clients who do not know it skip."""
        if step.block.is_here:
            if step.kind in ("runs", "over"):
                chunk = self._chunk({}, self.blocks.new_scores())
                yield chunk | {"mcp_call": self._called(self.blocks, step.block)}
        elif (delta := _delta(step, self.blocks)) is not None:
            yield self._chunk(delta, self.blocks.new_scores()) | self.live()

    def progress_events(self, told: Json) -> Iterator[Json]:
        """Yield a chunk about the reading of a prompt, as llama-server has it."""
        yield self._chunk({}) | told

    def last_events(self) -> Iterator[Json]:
        """Yield the last chunk of an answer, and the usage after the last answer."""
        blocks = self.blocks
        told = _timings(blocks) | warned(blocks.warnings) | self._detailed(self.at, blocks)
        yield self._chunk({}, blocks.new_scores(), blocks.reason) | told
        if self._wanted.usage and all(each.finished is not None for each in self.every):
            yield {**self._head, "choices": [], "usage": self._usage(), **_timings(blocks)}

    def complete(self) -> Json:
        """Return all answers."""
        head = self._head | {"object": "chat.completion" if self._is_chat else "text_completion"}
        choices = [self._choice(number, blocks) for number, blocks in enumerate(self.every)]
        warnings = [*dict.fromkeys(line for blocks in self.every for line in blocks.warnings)]
        told = {"usage": self._usage(), **_timings(self.every[-1]), **warned(warnings)}
        return {**head, "choices": choices, **told, **self._detailed(len(choices) - 1, self.every[-1])}

    def _detailed(self, number: int, blocks: BlockStream) -> Json:
        details = self._wanted.details
        return {} if details is None else {"__verbose": details(number, blocks)}

    def _choice(self, number: int, blocks: BlockStream) -> Json:
        scores = self._scored(blocks.scores)
        return {
            "index": number,
            **self._said(number, blocks),
            "logprobs": scores,
            "finish_reason": blocks.reason,
        }

    def _said(self, number: int, blocks: BlockStream) -> Json:
        text = blocks.text("text")
        thinking = blocks.text("thinking")
        if not self._is_chat:
            return {"text": f"{self._prompts[number]}{text}" if self._wanted.echoes else text}
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in blocks.calls
        ]
        message: Json = {"role": "assistant", "content": text or (None if calls else "")}
        message |= {"reasoning_content": thinking} if thinking else {}
        ran = [self._called(blocks, block) for block in blocks.all if block.is_here]
        message |= {"mcp_calls": ran} if ran else {}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def _called(self, blocks: BlockStream, block: ContentBlock) -> Json:
        assert self._here is not None  # or no call would run here
        return self._here.call(block, block.id, is_over=blocks.finished is not None)

    def _chunk(self, delta: Json, scores: Sequence[TokenScore] = (), reason: str | None = None) -> Json:
        choice: Json = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        choice |= {"logprobs": self._scored(scores), "finish_reason": reason}
        return {**self._head, "choices": [{"index": self.at, **choice}]}

    def _scored(self, scores: Sequence[TokenScore]) -> Json | None:
        """Return the target's log-probabilities of some tokens."""
        if not scores:
            return None
        if self._is_chat:
            return {"content": scored_tokens(scores)}
        return {
            "tokens": [_text(score.data) for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [{_text(data): logprob for _, data, logprob in each.top} for each in scores],
        }

    def _usage(self) -> Json:
        """Return the tokens under OpenAI's names; a prompt counts once for all answers to it."""
        summaries = [each.finished.summary for each in self.every if each.finished is not None]
        tokens = sum(each.tokens for each in summaries)
        prompt = sum(each.prompt_tokens for each in summaries[:: self._number])
        cached = sum(each.cached_tokens for each in summaries[:: self._number])
        thinking = sum(each.thinking_tokens for each in summaries)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": thinking},
        }


def _timings(blocks: BlockStream) -> Json:
    assert blocks.finished is not None
    return {"timings": finite(timings(blocks.finished.summary))}


def _delta(step: BlockEvent, blocks: BlockStream) -> Json | None:
    """Return the chunk of a step."""
    block = step.block
    if block.kind != "call":
        name = "content" if block.kind == "text" else "reasoning_content"
        added = blocks.before(block) if step.kind == "begins" else step.added
        return {name: added} if added else None
    called: Json = {"index": len(blocks.calls) - 1, "function": {"arguments": step.added}}
    if step.kind == "begins":
        function = {"name": block.name, "arguments": ""}
        called |= {"id": block.id, "type": "function", "function": function}
    return None if step.kind == "ends" else {"tool_calls": [called]}


def scored_tokens(scores: Sequence[TokenScore]) -> list[Json]:
    """Return the log-probabilities of tokens, each with those of the best ones."""
    return [
        _token(score.data, score.logprob)
        | {"top_logprobs": [_token(data, logprob) for _, data, logprob in score.top]}
        for score in scores
    ]


def _token(data: bytes, logprob: float) -> Json:
    return {"token": _text(data), "logprob": max(logprob, -9999.0), "bytes": list(data)}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
