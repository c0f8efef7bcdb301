"""OpenAI's replies: the choices of a chat or of a plain completion, whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from localspec.app.answer_json import Json, finite, timings
from localspec.server.blocks import (
    BlockEvent,
    BlockStream,
    ContentBlock,
    ProtocolReply,
    prompt_progress,
    warned,
)
from localspec.server.exchange import SERVER_SENT
from localspec.server.queue import QueuedRequest
from localspec.server.service import FINGERPRINT
from localspec.server.tools_here import ToolsHere
from localspec.types.events import Finished, PromptProgress, TokenScore


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reply holds besides its answers: the prompt of a text, the usage and the reading in a stream."""

    echoes: bool = False
    usage: bool = False
    progress: bool = False


class ChoicesReply(ProtocolReply):
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
        """Begin with nothing; each of the requests gets `number` answers, which may call the tools `here`."""
        super().__init__(blocks())
        self._here = here
        self._fresh, self._number = blocks, number
        self._prompts = [one.overrides.answer.prompt for one in asked]
        self._wanted = wanted
        self._is_chat = not isinstance(self._prompts[0], str)
        self._choices = list[Json]()
        self._scores = list[TokenScore]()  # of the present answer
        self._ended = list[Finished]()
        self._warnings = list[str]()
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
            yield self._chunk({"role": "assistant", "content": ""})
        elif self._wanted.echoes:
            yield self._chunk({"content": self._prompts[len(self._choices)]})

    def events_of(self, step: BlockEvent) -> Iterator[Json]:
        """Yield the chunk of a step; of a call that runs here, one that clients who do not know it skip."""
        if step.block.is_here:
            if step.kind in ("runs", "over"):
                yield self._chunk({}, self._new_scores()) | {"mcp_call": self._called(step.block)}
        elif (delta := _delta(step, self.blocks)) is not None:
            yield self._chunk(delta, self._new_scores())

    def progress_events(self, progress: PromptProgress) -> Iterator[Json]:
        """Yield a chunk about the reading of a prompt, as llama-server has it."""
        if self._wanted.progress:
            yield self._chunk({}) | prompt_progress(progress, self.began)

    def last_events(self) -> Iterator[Json]:
        """Yield the last chunk of an answer, and the usage after the last answer."""
        blocks = self.blocks
        assert blocks.finished is not None
        self._ended.append(blocks.finished)
        self._warnings += blocks.warnings
        yield self._chunk({}, self._new_scores(), blocks.reason) | self._timings() | warned(blocks.warnings)
        choice = {"index": len(self._choices), **self._said(), "logprobs": self._scored(self._scores)}
        self._choices.append(choice | {"finish_reason": blocks.reason})
        self.blocks, self._scores = self._fresh(), []
        if self._wanted.usage and len(self._ended) == len(self._prompts):
            found = _usage(self._ended, self._number)
            yield {**self._head, "choices": [], "usage": found, **self._timings()}

    def complete(self) -> Json:
        """Return all answers."""
        head = self._head | {"object": "chat.completion" if self._is_chat else "text_completion"}
        warnings = [*dict.fromkeys(self._warnings)]
        told = {"usage": _usage(self._ended, self._number), **self._timings(), **warned(warnings)}
        return {**head, "choices": self._choices, **told}

    def _said(self) -> Json:
        blocks, text, thinking = self.blocks, self.blocks.text("text"), self.blocks.text("thinking")
        if not self._is_chat:
            return {"text": f"{self._prompts[len(self._choices)]}{text}" if self._wanted.echoes else text}
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in blocks.calls
        ]
        message: Json = {"role": "assistant", "content": text or (None if calls else "")}
        message |= {"reasoning_content": thinking} if thinking else {}
        ran = [self._called(block) for block in blocks.all if block.is_here]
        message |= {"mcp_calls": ran} if ran else {}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def _called(self, block: ContentBlock) -> Json:
        assert self._here is not None  # or no call would run here
        return self._here.call(block, block.id, is_over=self.blocks.finished is not None)

    def _new_scores(self) -> list[TokenScore]:
        """Return the scores that were not sent yet."""
        new, self.blocks.scores = self.blocks.scores, []
        self._scores += new
        return new

    def _chunk(self, delta: Json, scores: Sequence[TokenScore] = (), reason: str | None = None) -> Json:
        choice: Json = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        choice |= {"logprobs": self._scored(scores), "finish_reason": reason}
        return {**self._head, "choices": [{"index": len(self._choices), **choice}]}

    def _scored(self, scores: Sequence[TokenScore]) -> Json | None:
        """Return the target's log-probabilities of some tokens."""
        if not scores:
            return None
        if self._is_chat:
            content = [
                _token(score.data, score.logprob)
                | {"top_logprobs": [_token(data, logprob) for _, data, logprob in score.top]}
                for score in scores
            ]
            return {"content": content}
        return {
            "tokens": [_text(score.data) for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [{_text(data): logprob for _, data, logprob in each.top} for each in scores],
        }

    def _timings(self) -> Json:
        return {"timings": finite(timings(self._ended[-1].summary))}


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


def _usage(ended: Sequence[Finished], number: int) -> Json:
    """Return the tokens of a reply under OpenAI's names; a prompt counts once for its `number` of answers."""
    tokens = sum(each.summary.tokens for each in ended)
    prompt = sum(each.summary.prompt_tokens for each in ended[::number])
    cached = sum(each.summary.cached_tokens for each in ended[::number])
    thinking = sum(each.summary.thinking_tokens for each in ended)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thinking},
    }


def _token(data: bytes, logprob: float) -> Json:
    return {"token": _text(data), "logprob": max(logprob, -9999.0), "bytes": list(data)}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
