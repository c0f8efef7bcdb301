"""OpenAI's protocol: from a request's JSON to what is asked of the models, and from events to replies."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from localspec.app.figures import Json, finite, timings
from localspec.chat.answer_settings import SessionRequest
from localspec.chat.tool_calls import AnswerReader, ToolFormat, call_grammar
from localspec.errors import LocalSpecError, UserError
from localspec.inference.interface import SharedModels
from localspec.server.blocks import Blocks, Step
from localspec.server.exchange import Protocol, Refusal, data_event, read, read_json, streamed, whole
from localspec.server.queue import Asked
from localspec.server.service import Service
from localspec.storage.profiles import SAMPLING_RANGES, Profile, Speculation
from localspec.types import (
    Finished,
    GenerationEvent,
    Grammar,
    Message,
    Sampling,
    TemplateVariables,
    TokenScore,
    TokensScored,
    ToolCall,
)

_OTHERS = {"repetition_penalty": "repeat_penalty", "penalty_window": "repeat_last_n"}  # as llama.cpp has it
_MOST_STOPS = 16
_TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")  # kinds of parts
_MOST_ANSWERS = 8
_TOOL_NAME = re.compile(r"[\w.-]{1,128}")
_MOST_LOGPROBS = 20


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
    body = read(Body, await read_json(request))
    chat = await asked_in_chat(service, body)
    reply = _Reply(chat.asked.profile.name, chat.blocks, is_chat=True)
    return await _answered(service, request, body, chat.asked, reply)


async def _complete(service: Service, request: Request) -> Response:
    body = read(Body, await read_json(request))
    asked = asked_of(body, service, bare_text(body), service.profile(body.model))
    reply = _Reply(asked.profile.name, lambda: Blocks(AnswerReader(thinks=None)), is_chat=False)
    return await _answered(service, request, body, asked, reply)


async def _answered(service: Service, request: Request, body: Body, asked: Asked, reply: _Reply) -> Response:
    """Answer as often as wanted, one after the other: each finds the prompt in the caches."""
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
class ResponseFormat:
    """What an answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: object = None  # OpenAI's, around the schema
    schema: object = None  # llama.cpp's


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message as clients send it; its content is a text, or parts of which the texts count."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: object = None
    tool_calls: tuple[GivenCall, ...] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the client offers, or one that is called."""

    name: str
    description: str | None = None
    parameters: object = None
    arguments: object = None


@dataclass(frozen=True, slots=True)
class GivenCall:
    """A call of the assistant as clients send it back."""

    function: Function
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as clients send it; only functions are known."""

    type: Literal["function"]
    function: Function


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
    logprobs: object = None  # true or false in a chat, a number in a bare text
    top_logprobs: int | None = None
    logit_bias: object = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None  # llama.cpp's
    messages: tuple[ChatMessage, ...] | None = None
    prompt: object = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: object = None
    parallel_tool_calls: bool | None = None

    @property
    def wants_usage(self) -> bool:
        """Tell whether a stream is to end with the tokens it took."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


@dataclass(frozen=True, slots=True)
class Chat:
    """What a chat asks for, and how its answer is read."""

    asked: Asked
    messages: tuple[Message, ...]
    form: ToolFormat | None
    parallel: bool

    def blocks(self) -> Blocks:
        """Return what reads an answer."""
        is_continued = self.messages[-1].role == "assistant"
        thinks = "" if self.form is None or is_continued else self.form.thinks
        return Blocks(AnswerReader(self.form, self.asked.tools, thinks=thinks), parallel=self.parallel)


async def asked_in_chat(service: Service, body: Body) -> Chat:
    """Return what a chat asks for; raises UserError for what makes no sense."""
    profile, messages = service.conversation(service.profile(body.model), conversation(body))
    asked = asked_of(body, service, messages, profile)
    tools, must_call = offered(body)
    form = None
    with suppress(*() if tools else (LocalSpecError,)):  # only calls cannot do without
        form = await asyncio.to_thread(service.queue.tool_format, asked.request.template_variables)
    if must_call and form is not None:
        if asked.grammar is not None:
            raise UserError("a grammar and a tool that must be called cannot both be met", "keep one")
        token = partial(_only_token, service.queue.models)
        asked = replace(asked, grammar=await asyncio.to_thread(call_grammar, form, must_call, token))
    shows_control = bool(tools) or (form is not None and form.kind == "harmony")
    asked = replace(asked, tools=tools, shows_control=shows_control)
    return Chat(asked, messages, form, body.parallel_tool_calls is not False)


def _only_token(models: SharedModels, tag: str) -> int | None:
    tokens = models.tokenize(tag)
    return tokens[0][0] if len(tokens) == 1 else None


def offered(body: Body) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tools that a model may call, and those of which it must call one."""
    tools: dict[str, str] = {}
    for at, tool in enumerate(body.tools or ()):
        function = tool.function
        if not _TOOL_NAME.fullmatch(function.name):
            raise UserError(f"tools[{at}].function.name has to be of letters, digits and _ . - alone")
        if not isinstance(function.parameters, dict | None):
            raise UserError(f"tools[{at}].function.parameters is no object")
        said = {"name": function.name, "description": function.description, "parameters": function.parameters}
        known = {name: value for name, value in said.items() if value is not None}
        tools[function.name] = json.dumps({"type": "function", "function": known}, ensure_ascii=False)
    choice, every = body.tool_choice, tuple(tools.values())
    if choice in (None, "auto", "none"):
        return (() if choice == "none" else every), ()
    if not tools:
        raise UserError("tool_choice wants a call, and there are no tools")
    if choice == "required":
        return every, every
    wanted = choice.get("function") if isinstance(choice, dict) else None
    name = wanted.get("name") if isinstance(wanted, dict) else None
    if not isinstance(name, str) or name not in tools:
        raise UserError("tool_choice is not auto, none, required, or the function of one of the tools")
    return every, (tools[name],)


def conversation(body: Body) -> tuple[Message, ...]:
    """Return the messages of a chat; raises UserError for what is no text."""
    if not body.messages:
        raise UserError("messages is missing or empty")
    messages = [_message(said, f"messages[{at}]") for at, said in enumerate(body.messages)]
    while [said.role for said in messages[:2]] == ["system"] * 2:  # many templates allow one
        messages[:2] = [Message("system", f"{messages[0].content}\n\n{messages[1].content}")]
    return tuple(messages)


def _message(said: ChatMessage, where: str) -> Message:
    calls = tuple(
        ToolCall(call.id or "", call.function.name, _json_text(call.function.arguments))
        for call in said.tool_calls or ()
    )
    if calls and said.role != "assistant":
        raise UserError(f"{where}.tool_calls are not the assistant's")
    role = "system" if said.role == "developer" else said.role
    content = text_of(said.content, where)
    return Message(role, content, calls, said.tool_call_id or "", said.reasoning_content or "")


def _json_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def an_object(value: object, where: str) -> Json:
    """Return what has to be a JSON object; raises UserError."""
    if not isinstance(value, dict):
        raise UserError(f"{where} is not an object")
    return value


def objects(value: object, where: str) -> list[Json]:
    """Return what has to be a list of JSON objects, or nothing; raises UserError."""
    if not isinstance(value, list | None):
        raise UserError(f"{where} is not a list")
    return [an_object(item, f"{where}[{at}]") for at, item in enumerate(value or ())]


def text_of(content: object, where: str) -> str:
    """Return the text of a message: a text, nothing, or parts that are all texts; raises UserError."""
    texts = []
    for part in content if isinstance(content, list) else [content or ""]:
        kind = part.get("type") if isinstance(part, dict) else "text"
        text = part.get("text") if isinstance(part, dict) else part
        if kind not in _TEXTS or not isinstance(text, str):
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


def asked_of(body: Body, service: Service, prompt: tuple[Message, ...] | str, profile: Profile) -> Asked:
    """Return what a request asks for; raises UserError for what makes no sense."""
    return Asked(
        prompt,
        profile,
        _settled(body, service.asked),
        grammar=_grammar(body),
        logit_bias=_bias(body.logit_bias),
        top_logprobs=_logprobs(body),
    )


def _settled(body: Body, usual: SessionRequest) -> SessionRequest:
    """Return what a request settles over what is usual."""
    given = {name: getattr(body, _OTHERS.get(name, name)) for name in SAMPLING_RANGES}
    settled = {name: value for name, value in given.items() if value is not None}

    def sampling(before: Sampling) -> Sampling:
        return replace(usual.sampling(before), **settled)

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


def _grammar(body: Body) -> Grammar | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None if body.grammar is None else Grammar("gbnf", body.grammar)
    if body.grammar is not None:
        raise UserError("response_format and grammar both say what the answer must look like", "keep one")
    schema = wanted.schema
    if wanted.type == "json_schema":
        around = wanted.json_schema
        schema = around.get("schema") if isinstance(around, dict) else schema
        if not isinstance(schema, dict | bool):
            raise UserError("response_format.json_schema.schema is missing, or not an object")
    elif schema is None:
        schema = {"type": "object"}
    return Grammar("json_schema", json.dumps(schema))


def _bias(value: object) -> tuple[tuple[int, float], ...]:
    """Return the pairs of OpenAI's object, or of llama.cpp's list."""
    pairs = list(value.items()) if isinstance(value, dict) else [] if value is None else value
    try:
        assert isinstance(pairs, list)
        return tuple((int(token), float(-100 if bias is False else bias)) for token, bias in pairs)
    except (AssertionError, TypeError, ValueError, OverflowError):
        raise UserError("logit_bias is not an object of token ids and numbers") from None


def _logprobs(body: Body) -> int | None:
    given = body.logprobs
    if given is None or given is False:
        return None
    wanted = body.top_logprobs or 0 if given is True else given
    if not isinstance(wanted, int) or not 0 <= wanted <= _MOST_LOGPROBS:
        raise UserError(f"logprobs ask for more than {_MOST_LOGPROBS} tokens, or no number of them")
    return wanted


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

    def __init__(self, model: str, blocks: Callable[[], Blocks], *, is_chat: bool) -> None:
        self._blocks, self._is_chat = blocks, is_chat
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
            blocks, scores = self._blocks(), list[TokenScore]()
            async for event in events:
                for _ in blocks.take(event):
                    pass
                if isinstance(event, TokensScored):
                    scores += event.scores
                elif isinstance(event, Finished):
                    ended.append(event)
            choice = {"index": index, **self._said(blocks), "logprobs": self._scored(scores)}
            choices.append(choice | {"finish_reason": blocks.reason})
        return {**self._head, "choices": choices, "usage": usage(ended), **_timings(ended)}

    def _said(self, blocks: Blocks) -> Json:
        text, thinking = blocks.text("text"), blocks.text("thinking")
        if not self._is_chat:
            return {"text": text}
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in blocks.calls
        ]
        message: Json = {"role": "assistant", "content": text or (None if calls else "")}
        message |= {"reasoning_content": thinking} if thinking else {}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    async def stream(
        self, answers: Sequence[AsyncGenerator[GenerationEvent]], *, wants_usage: bool
    ) -> AsyncGenerator[Json]:
        """Yield the chunks for a client that reads along."""
        if self._is_chat:
            self._head["object"] = "chat.completion.chunk"
        ended = list[Finished]()
        for index, events in enumerate(answers):
            begun, blocks, scores = not self._is_chat, self._blocks(), list[TokenScore]()
            async for event in events:
                if not begun:  # not before: what is wrong with a request shows until then, in the status
                    begun = True
                    yield self._chunk(index, {"role": "assistant", "content": ""})
                if isinstance(event, TokensScored):
                    scores += event.scores
                elif isinstance(event, Finished):
                    ended.append(event)
                for step in blocks.take(event):
                    if (delta := _delta(step, blocks)) is not None:
                        yield self._chunk(index, delta, scores)
            yield self._chunk(index, {}, scores, blocks.reason) | _timings(ended)
        if wants_usage:
            yield {**self._head, "choices": [], "usage": usage(ended)}

    def _chunk(
        self, index: int, delta: Json, scores: list[TokenScore] | None = None, reason: str | None = None
    ) -> Json:
        """Return a piece of an answer, with the scores that wait for one."""
        said: Json = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        said |= {"logprobs": self._scored(scores or ()), "finish_reason": reason}
        if scores:
            scores.clear()
        return {**self._head, "choices": [{"index": index, **said}]}

    def _scored(self, scores: Sequence[TokenScore]) -> Json | None:
        """Return what the target thought of some tokens."""
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


def _delta(step: Step, blocks: Blocks) -> Json | None:
    """Return what a chunk says of a step."""
    block = step.block
    if block.kind != "call":
        name = "content" if block.kind == "text" else "reasoning_content"
        return {name: step.added} if step.added else None
    called: Json = {"index": len(blocks.calls) - 1, "function": {"arguments": step.added}}
    if step.kind == "begins":
        function = {"name": block.name, "arguments": ""}
        called |= {"id": block.id, "type": "function", "function": function}
    return None if step.kind == "ends" else {"tool_calls": [called]}


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


def _token(data: bytes, logprob: float) -> Json:
    return {"token": _text(data), "logprob": max(logprob, -9999.0), "bytes": list(data)}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
