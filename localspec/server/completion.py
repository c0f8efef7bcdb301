"""llama-server's own completions: `/completion` continues a text, `/infill` fills a gap in one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from localspec.app.answer_json import Json
from localspec.server.blocks import BlockEvent, BlockStream
from localspec.server.exchange import read, read_json
from localspec.server.live_timings import Live
from localspec.server.messages import an_object
from localspec.server.native import native_answer
from localspec.server.openai import (
    Body,
    answer_of,
    asked_of,
    bare_blocks,
    bare_texts,
    body_of,
    schemas_of,
)
from localspec.server.queue import QueuedRequest
from localspec.server.service import ChatService, Protocol
from localspec.server.several import SeveralAnswers
from localspec.types.events import TokenScore
from localspec.types.request import Infill
from localspec.types.request import Request as GenerationRequest


@dataclass(frozen=True, slots=True)
class NativeBody:
    """The fields of llama-server's own completions, in addition to those of OpenAI's."""

    n_probs: int | None = None
    return_tokens: bool = False
    response_fields: tuple[str, ...] = ()

    def over(self, body: Body) -> Body:
        """Return a request with these fields, by OpenAI's names."""
        wants_scores = body.logprobs is None and (self.n_probs or self.return_tokens)
        return replace(body, logprobs=self.n_probs or 0) if wants_scores else body


@dataclass(frozen=True, slots=True)
class File:
    """Another file that the model may look at."""

    text: str
    filename: str = "tmp"


@dataclass(frozen=True, slots=True)
class InfillBody:
    """The fields of `/infill`, in addition to a completion's; `prompt` continues the prefix."""

    input_prefix: str
    input_suffix: str
    input_extra: tuple[File, ...] = ()
    prompt: str = ""


async def _complete(service: ChatService, request: Request) -> Response:
    native, body = _bodies(await read_json(request))
    prompts = await asyncio.to_thread(partial(bare_texts, mixes=True), body, service.queue.models)
    answers = [answer_of(body, service, prompt) for prompt in prompts]
    return await _answered(service, request, native, body, answers)


def _bodies(value: object) -> tuple[NativeBody, Body]:
    """Return the fields that are only offered here, and all by OpenAI's names."""
    own = {field.name for field in fields(NativeBody)}
    others = {name: given for name, given in an_object(value, "the request").items() if name not in own}
    native = read(NativeBody, value)
    return native, native.over(body_of(others))


async def _infill(service: ChatService, request: Request) -> Response:
    value = await read_json(request)
    gap = read(InfillBody, value)
    native, body = _bodies(value)
    files = tuple((file.filename, file.text) for file in gap.input_extra)
    answer = answer_of(body, service, gap.input_prefix + gap.prompt)
    answer = replace(answer, infill=Infill(gap.input_suffix, files))
    return await _answered(service, request, native, body, [answer])


async def _answered(
    service: ChatService,
    request: Request,
    native: NativeBody,
    body: Body,
    answers: Sequence[GenerationRequest],
) -> Response:
    profile = service.profile(body.model)
    client = object()
    every = [replace(asked_of(body, service, answer, profile), client=client) for answer in answers]
    schemas = await schemas_of(service, answers[0])
    blocks = partial(bare_blocks, schemas)
    reply = _Reply(service, every, native, body.live, blocks)
    streams = bool(body.stream)
    at_once = service.queue.at_once
    events = reply.events_of_all(lambda which: service.answer(every[which]), 1, at_once, streams=streams)
    return await reply.send(request, events, streams=streams)


class _Reply(SeveralAnswers):
    """The texts that continue prompts, or fill a gap: one object, or a list of them for several prompts."""

    def __init__(
        self,
        service: ChatService,
        every: Sequence[QueuedRequest],
        native: NativeBody,
        live: Live,
        blocks: Callable[[], BlockStream],
    ) -> None:
        super().__init__([blocks() for _ in every], live)
        self._service = service
        self._asked = every
        self._native = native

    def _head(self, number: int) -> Json:
        asked = self._asked[number]
        return {"index": number, "id_slot": asked.overrides.answer.slot or 0, "model": asked.profile.name}

    def events_of(self, step: BlockEvent) -> Iterator[Json]:
        if step.added:
            sent = self.blocks.new_scores()
            added: Json = {"content": step.added, "stop": False}
            yield self._head(self.at) | added | self._scored(sent) | self.live()

    def progress_events(self, told: Json) -> Iterator[Json]:
        yield self._head(self.at) | {"content": "", "tokens": [], "stop": False} | told

    def last_events(self) -> Iterator[Json]:
        left = self.blocks.new_scores()
        yield self._wanted(self._told(self.at, self.blocks) | {"content": ""} | self._scored(left))

    def complete(self) -> Json | list[Json]:
        found = [self._wanted(self._told(number, blocks)) for number, blocks in enumerate(self.every)]
        return found if len(found) > 1 else found[0]

    def _wanted(self, whole: Json) -> Json:
        """Return the fields that the client wants, by their paths, or all."""
        if not self._native.response_fields:
            return whole
        values = {path: _at(whole, path.split("/")) for path in self._native.response_fields}
        return {path: value[0] for path, value in values.items() if value}

    def _told(self, number: int, blocks: BlockStream) -> Json:
        asked = self._asked[number]
        prompt = asked.overrides.answer.prompt
        assert isinstance(prompt, str)
        return native_answer(self._service, asked, blocks, number, prompt) | self._scored(blocks.scores)

    def _scored(self, scores: Sequence[TokenScore]) -> Json:
        """Return tokens and their probabilities, as far as they were asked for."""
        tokens = [score.token for score in scores] if self._native.return_tokens else []
        found: Json = {"tokens": tokens}
        if self._native.n_probs:
            found["completion_probabilities"] = [
                _probability(score.token, score.data, score.logprob)
                | {"top_logprobs": [_probability(*best) for best in score.top]}
                for score in scores
            ]
        return found


def _at(whole: object, steps: Sequence[str]) -> tuple[object, ...]:
    """Return the value at a path, or nothing."""
    for step in steps:
        if not isinstance(whole, dict) or step not in whole:
            return ()
        whole = whole[step]
    return (whole,)


def _probability(token: int, data: bytes, logprob: float) -> Json:
    text = data.decode("utf-8", "replace")
    return {"id": token, "token": text, "bytes": list(data), "logprob": max(logprob, -9999.0)}


PROTOCOL: Protocol[ChatService] = Protocol(
    {"/completion": _complete, "/completions": _complete, "/infill": _infill}
)
