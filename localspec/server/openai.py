"""OpenAI's protocol: from a request's JSON to what is asked of the models, and from events to replies."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from localspec.app.figures import Json, finite, timings
from localspec.chat.answer_settings import SessionRequest
from localspec.chat.thinking import Part, split
from localspec.errors import UserError
from localspec.server.exchange import Protocol, Refusal, data_event, read, read_json, streamed, whole
from localspec.server.queue import Asked
from localspec.server.service import Service
from localspec.storage.profiles import Speculation
from localspec.types import (
    Finished,
    FinishReason,
    GenerationEvent,
    Message,
    Sampling,
    TemplateVariables,
    TextDelta,
)

_MOST_STOPS = 16
_MOST_ANSWERS = 8
_ENDED: dict[FinishReason, str] = {"stop": "stop"}  # all others ended before the model would have
_NOT_YET = ("tools", "logprobs", "top_logprobs", "logit_bias", "grammar", "response_format")
_MEANINGLESS: tuple[object, ...] = (None, False, 0, [], {}, {"type": "text"})


def protocol(service: Service) -> Protocol:
    """Return the paths of OpenAI's protocol."""
    return Protocol(
        {
            "/v1/chat/completions": partial(_chat, service),
            "/v1/completions": partial(_complete, service),
        },
        error,
    )


def error(refusal: Refusal) -> Json:
    """Return an error as OpenAI words it."""
    told = {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.status}
    return {"error": told}


async def _chat(service: Service, request: Request) -> Response:
    body = _read_body(await read_json(request))
    profile, messages = service.conversation(service.profile(body.model), conversation(body))
    asked = Asked(messages, profile, asked_of(body, service.asked))
    return await _answered(service, request, body, asked)


async def _complete(service: Service, request: Request) -> Response:
    body = _read_body(await read_json(request))
    asked = Asked(bare_text(body), service.profile(body.model), asked_of(body, service.asked))
    return await _answered(service, request, body, asked)


async def _answered(service: Service, request: Request, body: Body, asked: Asked) -> Response:
    """Answer as often as wanted, one after the other: each finds the prompt in the caches."""
    reply = _Reply(asked.profile.name, is_chat=not isinstance(asked.prompt, str))
    number = 1 if body.n is None else body.n
    if not 1 <= number <= _MOST_ANSWERS:
        raise UserError(f"n is not a number from 1 to {_MOST_ANSWERS}")
    seed = asked.request.seed
    each = [
        replace(asked, request=replace(asked.request, seed=None if seed is None else seed + index))
        for index in range(number)
    ]
    answers = [service.answer(one) for one in each]
    if not body.stream:
        return await whole(request, reply.whole(answers))
    chunks = reply.stream(answers, wants_usage=body.wants_usage)
    return await streamed(request, _frames(chunks), lambda refused: data_event(error(refused)))


async def _frames(chunks: AsyncIterator[Json]) -> AsyncGenerator[str]:
    async for chunk in chunks:
        yield data_event(chunk)
    yield "data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a client wants to be told at the end of a stream."""

    include_usage: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message as clients send it; its content is a text, or parts of which the texts count."""

    role: Literal["system", "developer", "user", "assistant"]
    content: object = None


@dataclass(frozen=True, slots=True)
class Body:
    """What both kinds of completion have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
    seed: int | None = None
    stop: object = None
    speculative: Speculation | None = None
    chat_template_kwargs: object = None
    messages: tuple[ChatMessage, ...] | None = None
    prompt: object = None

    @property
    def wants_usage(self) -> bool:
        """Tell whether a stream is to end with the tokens it took."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def _read_body(value: object) -> Body:
    """Return the JSON of a request; raises UserError for what it cannot ask for."""
    body = read(Body, value)
    assert isinstance(value, dict)
    for name in _NOT_YET:
        if value.get(name) not in _MEANINGLESS:
            raise UserError(f"{name} is not supported", "leave it out")
    return body


def conversation(body: Body) -> tuple[Message, ...]:
    """Return the messages of a chat; raises UserError for what is no text."""
    if not body.messages:
        raise UserError("messages is missing or empty")
    return tuple(
        Message("system" if said.role == "developer" else said.role, text_of(said.content, f"messages[{at}]"))
        for at, said in enumerate(body.messages)
    )


def text_of(content: object, where: str) -> str:
    """Return the text of a message: a text, nothing, or parts that are all texts; raises UserError."""
    texts = []
    for part in content if isinstance(content, list) else [content or ""]:
        kind = part.get("type") if isinstance(part, dict) else "text"
        text = part.get("text") if isinstance(part, dict) else part
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            what = kind[:40] if isinstance(kind, str) and kind != "text" else "something"
            raise UserError(f"{where}.content holds {what} that is no text", "send text alone")
        texts.append(text)
    return "\n".join(texts)


def bare_text(body: Body) -> str:
    """Return the text that a plain completion continues."""
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise UserError("prompt is not a text", "send one text; lists and token ids are not supported")
    return prompt


def asked_of(body: Body, usual: SessionRequest) -> SessionRequest:
    """Return what a request settles over what is usual; raises UserError for what makes no sense."""
    given = {
        "temperature": body.temperature,
        "top_k": body.top_k,
        "top_p": body.top_p,
        "min_p": body.min_p,
        "repetition_penalty": body.repeat_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "penalty_window": body.repeat_last_n,
    }
    settled = {name: value for name, value in given.items() if value is not None}

    def sampling(before: Sampling) -> Sampling:
        return replace(usual.sampling(before), **cast("dict[str, Any]", settled))

    limit = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    return replace(
        usual,
        speculation=replace(usual.speculation, **(body.speculative or Speculation()).settled),
        sampling=sampling,
        max_tokens=usual.max_tokens if limit in (None, -1) else limit,
        stop=_stops(body.stop) or usual.stop,
        seed=usual.seed if body.seed is None or body.seed < 0 else body.seed,
        template_variables=_variables(body.chat_template_kwargs) or usual.template_variables,
    )


def _stops(value: object) -> tuple[str, ...]:
    stops = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in stops) or len(stops) > _MOST_STOPS:
        raise UserError(f"stop has to be a text or a list of up to {_MOST_STOPS} texts, none of them empty")
    return tuple(stops)


def _variables(value: object) -> TemplateVariables:
    if value is None:
        return ()
    if not isinstance(value, dict) or not all(
        isinstance(item, bool | int | float | str) for item in value.values()
    ):
        raise UserError("chat_template_kwargs has to be an object of plain values")
    return tuple(value.items())


class _Reply:
    """One reply under way: what goes to a client of the events of its answers."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._head: Json = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid4().hex}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    async def whole(self, answers: Sequence[AsyncGenerator[GenerationEvent]]) -> Json:
        """Return the reply to a client that waits for all of it."""
        choices, ended = [], list[Finished]()
        for index, events in enumerate(answers):
            text = ""
            async for event in events:
                if isinstance(event, TextDelta):
                    text += event.text
                elif isinstance(event, Finished):
                    ended.append(event)
            reason = _ENDED.get(ended[-1].reason, "length")
            choices.append({"index": index, **self._said(text), "logprobs": None, "finish_reason": reason})
        return {**self._head, "choices": choices, "usage": usage(ended), **_timings(ended)}

    def _said(self, text: str) -> Json:
        if not self._is_chat:
            return {"text": text}
        thinking, answer = _parted(split(text))
        message: Json = {"role": "assistant", "content": answer}
        return {"message": message | {"reasoning_content": thinking} if thinking else message}

    async def stream(
        self, answers: Sequence[AsyncGenerator[GenerationEvent]], *, wants_usage: bool
    ) -> AsyncGenerator[Json]:
        """Yield the chunks for a client that reads along."""
        if self._is_chat:
            self._head["object"] = "chat.completion.chunk"
        ended = list[Finished]()
        for index, events in enumerate(answers):
            begun, parts = not self._is_chat, _StreamedText(apart=self._is_chat)
            async for event in events:
                if not begun:  # not before: what is wrong with a request shows until then, in the status
                    begun = True
                    yield self._chunk(index, {"role": "assistant", "content": ""})
                if isinstance(event, TextDelta):
                    for delta in parts.added(event.text):
                        yield self._chunk(index, delta)
                elif isinstance(event, Finished):
                    ended.append(event)
            for delta in parts.added("", more=False):
                yield self._chunk(index, delta)
            yield self._chunk(index, {}, _ENDED.get(ended[-1].reason, "length")) | _timings(ended)
        if wants_usage:
            yield {**self._head, "choices": [], "usage": usage(ended)}

    def _chunk(self, index: int, delta: Json, reason: str | None = None) -> Json:
        said: Json = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        return {**self._head, "choices": [{"index": index, **said, "finish_reason": reason}]}


class _StreamedText:
    """An answer as it comes: thinking apart, as long as tags may still tell it apart."""

    def __init__(self, *, apart: bool) -> None:
        self._text = ""
        self._thought = 0  # characters of thinking that were sent
        self._answer_from = None if apart else 0  # where what was not sent of the answer begins

    def added(self, text: str, *, more: bool = True) -> Iterator[Json]:
        """Yield what can be sent of the answer with this text at its end; `more` if it goes on."""
        self._text += text
        if self._answer_from is None:
            parts = split(self._text, streaming=more)
            thinking, answer = _parted(parts)
            if added := thinking[self._thought :]:
                self._thought += len(added)
                yield {"reasoning_content": added}
            if not answer:
                return
            self._answer_from = next(part.start for part in parts if part.kind == "answer")
        if added := self._text[self._answer_from :]:
            self._answer_from = len(self._text)
            yield {"content": added}


def usage(ended: Sequence[Finished]) -> Json:
    """Return the tokens of a reply under OpenAI's names; the prompt counts once."""
    first, tokens = ended[0].summary, sum(each.summary.tokens for each in ended)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": first.prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
    }


def _timings(ended: Sequence[Finished]) -> Json:
    return {"timings": finite(timings(ended[-1].summary))}


def _parted(parts: Sequence[Part]) -> tuple[str, str]:
    """Return what was thought, and what was answered."""
    thinking = "".join(part.text for part in parts if part.kind == "thinking")
    return thinking, "".join(part.text for part in parts if part.kind == "answer")
