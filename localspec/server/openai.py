"""OpenAI's protocol: from a request's JSON to what is asked of the models, and from events to replies."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, TypeGuard

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.chat.answer_settings import thinking_variables
from localspec.chat.calls.form import ToolFormat
from localspec.chat.calls.grammar import call_grammar
from localspec.chat.calls.reader import AnswerReader
from localspec.chat.calls.triggers import call_triggers
from localspec.chat.schema_check import (
    CheckedSchema,
    checked_answer,
    checked_arguments,
    enforced,
    enforced_answer,
)
from localspec.chat.tool_use.kit import ToolKit
from localspec.chat.tool_use.offer import single_token
from localspec.errors import UserError
from localspec.inference.interface import SharedModels
from localspec.server.adapters import ScaledAdapter, scales_of
from localspec.server.blocks import BlockStream, ReplyEvent
from localspec.server.choices import ChoicesReply, Wanted
from localspec.server.exchange import read, read_json
from localspec.server.fields import in_known_words, with_known_thinking
from localspec.server.live_timings import NOTHING, Live
from localspec.server.messages import ChatMessage, an_object, conversation, objects
from localspec.server.native import native_answer
from localspec.server.queue import QueuedRequest
from localspec.server.schemas import NO_SCHEMAS, ReplySchemas
from localspec.server.service import LLAMA_NAMES, ChatService, Protocol
from localspec.server.tool_rounds import ToolRounds
from localspec.server.tools_here import ToolDefinition, ToolsHere, kit_for, tools_here, wanted_server
from localspec.server.wordless import in_words
from localspec.storage.profiles import Profile, Speculation
from localspec.types.request import (
    BANS,
    SAMPLING,
    FrequencyPenalty,
    Grammar,
    Infill,
    Message,
    MinP,
    PenaltyWindow,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TemplateVariables,
    ThinkingBudget,
    TopK,
    TopP,
    Trigger,
    seed_after,
)
from localspec.types.request import Request as GenerationRequest
from localspec.values import Range

_MAX_STOPS = 16
_MAX_ANSWERS = 8
_MAX_PROMPTS = 64
_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}}
_LONGEST_BIASED = 200  # characters of a text
_NUMBER = re.compile(r"-?\d+")
_TOOL_NAME = re.compile(r"[\w.-]{1,128}")
_MAX_LOGPROBS = 20
_IN_MEMORY = ("in_memory", "in-memory")  # both are in use
_EFFORTS = {"none": 0, "minimal": 512, "low": 1024}  # tokens of thinking, also where no template asks


async def _chat(service: ChatService, request: Request) -> Response:
    kit = kit_for(service.server.kit, request)
    chat = await asked_in_chat(service, body_of(await read_json(request)), kit)
    return await _answered(service, request, chat.body, [chat.asked], chat.blocks, chat.rounds)


async def _complete(service: ChatService, request: Request) -> Response:
    body = body_of(await read_json(request))
    if body.echo and body.logprobs not in (None, False):
        raise UserError("echo and logprobs cannot be combined", "a prompt has no log-probabilities here")
    prompts = await asyncio.to_thread(bare_texts, body, service.queue.models)
    answer = answer_of(body, service, prompts[0])
    if body.suffix:
        answer = replace(answer, infill=Infill(body.suffix))
    schemas = await schemas_of(service, answer)
    profile = service.profile(body.model)
    asked = [asked_of(body, service, replace(answer, prompt=prompt), profile) for prompt in prompts]
    return await _answered(service, request, body, asked, partial(bare_blocks, schemas))


async def _count(service: ChatService, request: Request) -> Response:
    """Count the tokens of a chat's prompt, as llama-server does."""
    chat = await asked_in_chat(service, body_of(await read_json(request)))
    tokens = await counted_tokens(service, chat)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens})


async def counted_tokens(service: ChatService, chat: Chat) -> int:
    """Return the number of tokens of a chat's prompt."""
    answer = chat.asked.overrides.answer
    count = service.queue.models.count_tokens
    return await asyncio.to_thread(count, chat.messages, answer.tools, answer.template_variables)


async def schemas_of(service: ChatService, answer: GenerationRequest) -> ReplySchemas:
    """Return the check of an answer; raises UserError for a JSON schema that cannot be used."""
    return ReplySchemas(await asyncio.to_thread(checked_answer, answer.grammar), report=service.report)


async def _answered(
    service: ChatService,
    request: Request,
    body: Body,
    asked: Sequence[QueuedRequest],
    blocks: Callable[[], BlockStream],
    rounds: ToolRounds | None = None,
) -> Response:
    """Return a reply with `n` answers to each request."""
    number = 1 if body.n is None or any(one.reads for one in asked) else body.n
    if not 1 <= number <= _MAX_ANSWERS:
        raise UserError(f"n is not a number from 1 to {_MAX_ANSWERS}")
    client = object()
    every = [replace(_reseeded(one, index), client=client) for one in asked for index in range(number)]
    wants_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    is_verbose = service.server.is_verbose if body.verbose is None else body.verbose
    details = await _details(service, every) if is_verbose else None
    wanted = Wanted(bool(body.echo), wants_usage, body.live, details)
    reply = ChoicesReply(every, blocks, number, wanted, None if rounds is None else rounds.here)

    def answer(which: int) -> AsyncGenerator[ReplyEvent]:
        return answered(service, rounds, lambda: reply.every[which], every[which])

    streams = bool(body.stream)
    at_once = service.queue.at_once
    events = reply.events_of_all(answer, number, at_once, streams=streams)
    return await reply.send(request, events, streams=streams)


async def _details(
    service: ChatService, every: Sequence[QueuedRequest]
) -> Callable[[int, BlockStream], Json]:
    """Return a function that tells how the answer of a number came about, with its prompt."""
    answers = [asked.overrides.answer for asked in every]
    render = service.queue.models.render
    prompts = [await asyncio.to_thread(render, answer) for answer in answers]
    return lambda number, blocks: native_answer(service, every[number], blocks, number, prompts[number])


def _reseeded(asked: QueuedRequest, index: int) -> QueuedRequest:
    """Return the request of another answer to the same prompt."""
    answer = asked.overrides.answer
    another = replace(answer, seed=None if answer.seed is None else seed_after(answer.seed, index))
    return replace(asked, overrides=replace(asked.overrides, answer=another))


def answered(
    service: ChatService, rounds: ToolRounds | None, blocks: Callable[[], BlockStream], asked: QueuedRequest
) -> AsyncGenerator[ReplyEvent]:
    """Return the events of an answer to a chat, which may call tools that run here."""
    if rounds is not None:
        return rounds.answer(service, asked, blocks)
    return in_words(service, asked, blocks)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The client's options for the end of a stream."""

    include_usage: bool | None = None


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What an answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: object = None  # OpenAI's, around the schema
    schema: object = None  # llama.cpp's


@dataclass(frozen=True, slots=True)
class Body:
    """Fields that both kinds of completion share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: PresencePenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    repeat_last_n: PenaltyWindow | None = None
    seed: Seed | None = None
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
    tools: tuple[ToolDefinition, ...] | None = None
    tool_choice: object = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Range(0, 10**6)] | None = None  # of tools that run here
    reasoning_effort: str | None = None
    thinking_budget: ThinkingBudget | None = None
    prompt_cache_retention: str | None = None
    return_progress: bool | None = None  # llama-server's, in a stream, as is the next
    timings_per_token: bool | None = None
    verbose: bool | None = None  # llama-server's: how the answer came about
    echo: bool | None = None  # of a bare text, as is the next
    suffix: str | None = None
    id_slot: Annotated[int, Range(-1, 2**31 - 1)] | None = None  # llama-server's; -1: any
    lora: tuple[ScaledAdapter, ...] | None = None
    ignore_eos: bool | None = None

    @property
    def limit(self) -> int | None:
        """Return the number of tokens to write at most; with 0 the prompt is read and nothing written."""
        limit = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        return None if limit == -1 else limit

    @property
    def live(self) -> Live:
        """Return the wishes for chunks that tell more than the answer."""
        return Live(bool(self.return_progress), bool(self.timings_per_token)) if self.stream else NOTHING


def body_of(value: object) -> Body:
    """Read the fields of a request; raises UserError for one that is wrong or not offered."""
    body = in_known_words(value)
    return read(Body, with_known_thinking(body) if isinstance(body, dict) else body)


@dataclass(frozen=True, slots=True)
class Chat:
    """The request of a chat, and how its answer is parsed."""

    body: Body
    asked: QueuedRequest
    messages: tuple[Message, ...]
    form: ToolFormat | None
    schemas: ReplySchemas
    warnings: tuple[str, ...] = ()  # about the request
    here: ToolsHere | None = None  # tools that were asked for and run here
    rounds: ToolRounds | None = None  # of an answer that may call those

    def blocks(self) -> BlockStream:
        """Return the parser of the answer."""
        reader = AnswerReader(self.form, self.asked.overrides.answer.tools)
        parallel = self.body.parallel_tool_calls is not False
        here = () if self.here is None else self.here.labels
        return BlockStream(reader, self.schemas, parallel=parallel, warnings=self.warnings, here=here)


async def asked_in_chat(service: ChatService, body: Body, kit: ToolKit | None = None) -> Chat:
    """Read the request of a chat; raises UserError if it is invalid.

    It may ask for tools of a `kit`, which run here, because its protocol can show their calls.
    """
    for name in ("echo", "prompt", "suffix"):
        if getattr(body, name):
            raise UserError(f"{name} is not offered in a chat", "leave it out, or use /v1/completions")
    profile, messages = service.conversation(service.profile(body.model), conversation(body.messages))
    answer = answer_of(body, service, messages)
    here = await _tools_here(kit, body)
    tools, must_call = offered(body, here)
    warnings = (*_left_out(body.tools or (), here), *(() if here is None else here.problems))
    for line in warnings:
        service.warn(line)
    service.compare_beginning(messages, tools)
    schemas = await schemas_of(service, answer)
    if not tools:
        return Chat(body, asked_of(body, service, answer, profile), messages, None, schemas, warnings, here)
    form = await asyncio.to_thread(service.queue.tool_format, answer.template_variables)
    calling, arguments = await _calling(service, body, answer, form, tools, must_call)
    rounds = None
    if here is not None and here.labels:
        free = calling
        if must_call:
            free, _ = await _calling(service, body, answer, form, tools, ())
        rounds = ToolRounds(here, messages, form, free, answer, body.max_tool_calls)
    asked = asked_of(body, service, calling, profile)
    return Chat(body, asked, messages, form, replace(schemas, arguments=arguments), warnings, here, rounds)


async def _tools_here(kit: ToolKit | None, body: Body) -> ToolsHere | None:
    """Return the tools that a request wants to run here; None if it wants none, or none are offered."""
    tools = body.tools or ()
    if kit is None or body.tool_choice == "none" or body.max_tool_calls == 0:
        return None
    found = [wanted_server(tool, kit, f"tools[{at}]") for at, tool in enumerate(tools)]
    wanted = [server for server in found if server is not None]
    taken = {tool.function.name for tool in tools if tool.function is not None}
    return await tools_here(kit, wanted, taken) if wanted else None


async def _calling(
    service: ChatService,
    body: Body,
    answer: GenerationRequest,
    form: ToolFormat,
    tools: Sequence[str],
    must_call: Sequence[str],
) -> tuple[GenerationRequest, dict[str, CheckedSchema]]:
    """Return an answer that may call tools, or must call one of some, and the checks of their arguments."""
    grammar = answer.grammar
    triggers = tuple[Trigger, ...]()
    arguments = {_name(tool): checked_arguments(tool) for tool in tools}
    is_schema = grammar is not None and grammar.kind == "json_schema"
    if must_call and grammar is not None and not is_schema:
        raise UserError("a grammar and a tool that must be called cannot both be met", "use only one")
    halves = await asyncio.to_thread(lambda: [enforced(tool) for tool in must_call or tools])
    token = single_token(service.queue.models.tokenize)
    if must_call or is_schema:  # a schema is for the answer that calls nothing
        arguments |= {_name(tool): check for tool, check in halves}
        several = body.parallel_tool_calls is not False and (not must_call or body.tool_choice == "required")
        otherwise = None if must_call or grammar is None else enforced_answer(grammar)
        calls = partial(call_grammar, several=several, otherwise=otherwise)
        grammar = await asyncio.to_thread(calls, form, [tool for tool, _ in halves], token)
    elif grammar is None:
        triggers = await asyncio.to_thread(call_triggers, form, [tool for tool, _ in halves], token)
    calling = replace(answer, grammar=grammar, triggers=triggers, tools=tuple(tools), shows_control=True)
    return calling, arguments


def _left_out(tools: Sequence[ToolDefinition], here: ToolsHere | None) -> Iterator[str]:
    """Yield a warning about tools that are no functions and do not run here, if there are some."""
    labels = () if here is None else [server.label for server in here.servers]
    others = {
        tool.type[:40]
        for tool in tools
        if tool.is_elsewhere or (tool.mcp_server_name or tool.server_label) not in labels
    }
    if others := others - {"function"}:
        yield f"tools of the types {', '.join(sorted(others))} are left out: the models cannot call them"


def _name(tool: str) -> str:
    return str(json.loads(tool)["function"]["name"])


def offered(body: Body, here: ToolsHere | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tools that a model may call, and those of which it must call one."""
    tools: dict[str, str] = {}
    if here is not None:
        tools |= {name: tool.as_function() for name, (tool, _) in here.offered.owners.items()}
    for at, tool in enumerate(body.tools or ()):
        if tool.type != "function":
            continue
        if (function := tool.function) is None:
            raise UserError(f"tools[{at}].function is missing")
        if not _TOOL_NAME.fullmatch(function.name):
            raise UserError(f"tools[{at}].function.name has to be of letters, digits and _ . - alone")
        if not isinstance(function.parameters, dict | None):
            raise UserError(f"tools[{at}].function.parameters is not an object")
        described = {
            "name": function.name,
            "description": function.description or "",  # many templates fail without one
            "parameters": _NO_PARAMETERS if function.parameters is None else function.parameters,
        }
        tools[function.name] = json.dumps({"type": "function", "function": described}, ensure_ascii=False)
    choice = body.tool_choice
    every = tuple(tools.values())
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice, every = _allowed(choice, tools, here)
    if choice in (None, "auto", "none"):
        return (() if choice == "none" else every), ()
    if not tools:
        raise UserError("tool_choice requires a call, but there are no tools")
    if choice == "required":
        return every, every
    if isinstance(choice, dict) and (names := _here(choice, here)):
        return every, tuple(tools[name] for name in names)
    wanted = choice.get("function") if isinstance(choice, dict) else None
    name = wanted.get("name") if isinstance(wanted, dict) else None
    if not isinstance(name, str) or name not in tools:
        raise UserError("tool_choice is not auto, none, required, or the function of one of the tools")
    return every, (tools[name],)


def _allowed(
    choice: Json, tools: Mapping[str, str], here: ToolsHere | None
) -> tuple[object, tuple[str, ...]]:
    """Return the mode of a choice among some of the tools, and those; raises UserError."""
    wanted = an_object(choice.get("allowed_tools") or choice, "tool_choice.allowed_tools")
    chosen = objects(wanted.get("tools"), "tool_choice.allowed_tools.tools")
    names = dict.fromkeys(name for tool in chosen for name in (*_chosen(tool), *_here(tool, here)))
    if unknown := [name for name in names if name not in tools]:
        raise UserError(f"tool_choice allows {unknown[0]}, which is none of the tools")
    if (mode := wanted.get("mode") or "auto") not in ("auto", "required"):
        raise UserError("tool_choice.allowed_tools.mode is not auto or required")
    return mode, tuple(tools[name] for name in names)


def _chosen(tool: Json) -> tuple[str, ...]:
    """Return the function that an entry of a choice names, none for a tool of another type."""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, dict) else None
    return (name,) if isinstance(name, str) and tool.get("type", "function") == "function" else ()


def _here(choice: Json, here: ToolsHere | None) -> tuple[str, ...]:
    """Return the tools that run here and that a choice of an MCP server, or of one of its tools, names."""
    if here is None or choice.get("type") != "mcp":
        return ()
    return here.named(choice.get("server_label"), choice.get("name"))


def bare_blocks(schemas: ReplySchemas = NO_SCHEMAS) -> BlockStream:
    """Return the parser of an answer that is only text."""
    return BlockStream(AnswerReader(is_bare=True), schemas)


def bare_texts(body: Body, models: SharedModels, *, mixes: bool = False) -> list[str]:
    """Return the texts that plain completions continue: of a text, of token ids, or of a list of such.

    With `mixes`, token ids among texts are one prompt together.
    """
    prompt = body.prompt
    several = isinstance(prompt, list) and not _is_tokens(prompt) and not (mixes and _is_mixed(prompt))
    prompts = prompt if isinstance(prompt, list) and several else [prompt]
    if not 1 <= len(prompts) <= _MAX_PROMPTS:
        raise UserError(f"prompt is a list of none, or of more than {_MAX_PROMPTS}")
    return [_prompt(one, models, mixes=mixes) for one in prompts]


def _is_tokens(prompt: object) -> TypeGuard[list[int]]:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


def _is_mixed(prompt: object) -> TypeGuard[list[int | str]]:
    return isinstance(prompt, list) and {type(part) for part in prompt} == {int, str}


def _prompt(prompt: object, models: SharedModels, *, mixes: bool) -> str:
    if isinstance(prompt, dict) and not prompt.get("multimodal_data"):  # as llama-server takes one
        prompt = prompt.get("prompt_string")
    if mixes and _is_mixed(prompt):
        return "".join(part if isinstance(part, str) else models.detokenize([part]) for part in prompt)
    if _is_tokens(prompt):
        return _text_of_tokens(prompt, models)
    if not isinstance(prompt, str):
        raise UserError("prompt is not a text", "send texts, or lists of token ids")
    return prompt


def _text_of_tokens(tokens: list[int], models: SharedModels) -> str:
    """Return the text of tokens; raises UserError if the model would read it as other tokens."""
    for start in (0, 1):  # the model puts its own first token before a text
        text = models.detokenize(tokens[start:])
        if [token for token, _ in models.tokenize(text, add_special=True)] == tokens:
            return text
    raise UserError("prompt is a list of tokens, but the model reads their text as others", "send the text")


def answer_of(body: Body, service: ChatService, prompt: tuple[Message, ...] | str) -> GenerationRequest:
    """Return the answer that a request asks for; raises UserError for what makes no sense."""
    usual = service.asked.answer
    budget = body.thinking_budget
    if budget is None:
        budget = _EFFORTS.get(body.reasoning_effort or "", usual.thinking_budget)
    variables = _variables(body) or usual.template_variables
    return replace(
        usual,
        prompt=prompt,
        max_tokens=body.limit or usual.max_tokens,
        ends_circles=bool(body.limit) and not body.ignore_eos,  # agents always send a limit
        stop=_stops(body.stop) or usual.stop,
        seed=usual.seed if body.seed in (None, -1) else body.seed,
        template_variables=thinking_variables(variables, budget),
        thinking_budget=budget,
        grammar=_grammar(body),
        logit_bias=(*_bias(body.logit_bias, service.queue.models), *_bans(body, service.queue.models)),
        top_logprobs=_logprobs(body),
        kept_as=None if body.prompt_cache_retention in _IN_MEMORY else usual.kept_as,
        adapters=service.scales
        if body.lora is None
        else scales_of(body.lora, service.queue.models.target.adapters),
        slot=None if body.id_slot in (None, -1) else body.id_slot % service.queue.parallel,
        tells_reading=body.live != NOTHING,
    )


def asked_of(body: Body, service: ChatService, answer: GenerationRequest, profile: Profile) -> QueuedRequest:
    """Return an answer with how a request wants it decoded and sampled."""
    usual = service.asked
    given = {name: getattr(body, LLAMA_NAMES.get(name, name)) for name in SAMPLING}
    sampling = {**usual.sampling, **{name: value for name, value in given.items() if value is not None}}
    speculation = replace(usual.speculation, **(body.speculative or Speculation()).settled)
    overrides = replace(usual, speculation=speculation, sampling=sampling, answer=answer)
    return QueuedRequest(profile, overrides, tells_rounds=body.live.timings, reads=body.limit == 0)


def _grammar(body: Body) -> Grammar | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None if body.grammar is None else Grammar("gbnf", body.grammar)
    if body.grammar is not None:
        raise UserError("response_format and grammar cannot be combined", "use only one")
    schema = wanted.schema
    if wanted.type == "json_schema":
        around = wanted.json_schema
        schema = around.get("schema") if isinstance(around, dict) else schema
        if not isinstance(schema, dict | bool):
            raise UserError("response_format.json_schema.schema is missing, or not an object")
    elif schema is None:
        schema = {"type": "object"}
    return Grammar("json_schema", json.dumps(schema))


def _bias(value: object, models: SharedModels) -> tuple[tuple[int, float], ...]:
    """Return the pairs of OpenAI's object, or of llama.cpp's list; a text stands for each of its tokens."""
    pairs = list(value.items()) if isinstance(value, dict) else [] if value is None else value
    found = list[tuple[int, float]]()
    try:
        assert isinstance(pairs, list)
        for key, bias in pairs:
            amount = float(-100 if bias is False else bias)
            if not isinstance(key, str) or _NUMBER.fullmatch(key):
                found.append((int(key), amount))
                continue
            assert len(key) <= _LONGEST_BIASED
            found += ((token, amount) for token, _ in models.tokenize(key, special=False))
    except (AssertionError, TypeError, ValueError, OverflowError):
        raise UserError("logit_bias is not an object of token ids and numbers") from None
    return tuple(found)


def _bans(body: Body, models: SharedModels) -> Iterator[tuple[int, float]]:
    """Yield the bias against each token that ends the model's turn, if it may not end it."""
    for token in models.target.end_tokens if body.ignore_eos else ():
        yield token, BANS


def _logprobs(body: Body) -> int | None:
    given = body.logprobs
    if given is None or given is False:
        return None
    wanted = body.top_logprobs or 0 if given is True else given
    if not isinstance(wanted, int) or not 0 <= wanted <= _MAX_LOGPROBS:
        raise UserError(f"logprobs ask for more than {_MAX_LOGPROBS} tokens, or no number of them")
    return wanted


def _stops(value: object) -> tuple[str, ...]:
    stops = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in stops) or len(stops) > _MAX_STOPS:
        raise UserError(f"stop has to be a text or a list of up to {_MAX_STOPS} texts, none of them empty")
    return tuple(stops)


def _variables(body: Body) -> TemplateVariables:
    """Return the variables of the chat template; those that are named go before the effort."""
    effort = body.reasoning_effort
    value = body.chat_template_kwargs
    value = {} if value is None else value
    if not isinstance(value, dict) or not all(
        isinstance(item, bool | int | float | str) for item in value.values()
    ):
        raise UserError("chat_template_kwargs has to be an object of plain values")
    variables = {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
    return tuple({**(variables if effort else {}), **value}.items())


PROTOCOL: Protocol[ChatService] = Protocol(
    {"/v1/chat/completions": _chat, "/v1/chat/completions/input_tokens": _count, "/v1/completions": _complete}
)
