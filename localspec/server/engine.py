"""Requests of an attached screen: the models' own methods, interleaved with other clients."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TypeVar, cast, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from localspec.chat.tool_use.offer import offer_of
from localspec.errors import UserError
from localspec.inference.attached import EngineConnection, TextToTokenize, from_json, to_json
from localspec.inference.interface import ModeChoice, SharedModels
from localspec.server.exchange import error, read_body, streamed
from localspec.server.queue import QueuedRequest
from localspec.server.served import ServedModels
from localspec.server.service import ChatService, Protocol
from localspec.types.drafts import Token
from localspec.types.models import DeviceMemory
from localspec.types.request import EngineSettings, Message, TaskType
from localspec.types.request import Request as GenerationRequest
from localspec.values import tagged
from localspec.version import __version__

T = TypeVar("T")
Verb = Callable[[ChatService, bytes], Awaitable[object]]


async def _answered(verb: Verb, service: ChatService, request: Request) -> Response:
    payload = to_json(await verb(service, await read_body(request)))
    return Response(payload, media_type="application/json")


async def _open(service: ChatService, _body: bytes) -> EngineConnection:
    models = service.queue.models
    return EngineConnection(__version__, models.target, models.draft, models.notes)


async def _cancel(service: ChatService, body: bytes) -> bool:
    """End the answer of the caller's name; raises HTTPException for no name, or one that no answer has."""
    name = from_json(body, str)
    if not name:
        raise HTTPException(400, "which answer is to end? Send the name that it was asked for with")
    if not service.queue.cancel(name):
        raise HTTPException(404, "no answer of this name is in progress")
    return True


async def _choose_settings(service: ChatService, body: bytes) -> ModeChoice:
    wanted = from_json(body, EngineSettings)
    return ModeChoice(*await service.in_turn(lambda models: models.choose_settings(wanted)))


async def _recall(service: ChatService, body: bytes) -> tuple[ModeChoice, ...]:
    """Return the tuned settings for a task, if any."""
    task = from_json(body, str)
    if task not in get_args(TaskType):
        raise UserError(f"there is no task `{task[:40]}`")
    tuned = await service.in_turn(lambda _models: service.queue.tuned_for(cast(TaskType, task)))
    return () if tuned is None or tuned.settings is None else (ModeChoice(tuned.settings, tuned.reason),)


def _choices(models: SharedModels) -> list[object]:
    """Return the models on this machine with what can draft for them."""
    from localspec.app.recommendation import LocalTarget, choices  # the placement: 0.1 s

    open_now = [model for model in (models.target, models.draft) if model]
    return list(takewhile(lambda row: isinstance(row, LocalTarget), choices(open_now)))


async def _count_tokens(service: ChatService, body: bytes) -> int:
    return await to_thread(service.queue.models.count_tokens, from_json(body, tuple[Message, ...]))


async def _generate(service: ChatService, request: Request) -> Response:
    wanted = from_json(await read_body(request), GenerationRequest)
    wanted = replace(wanted, kept_as=None if wanted.kept_as is None else "")  # its chats are not those here
    if wanted.adapters is None:
        wanted = replace(wanted, adapters=service.scales)
    name = request.headers.get("x-answer", "")
    if len(name) > 64:
        raise HTTPException(400, "the name of the answer is too long")
    if wanted.triggers:  # an expression of a client could take for ever
        raise HTTPException(400, "triggers are not taken: their expressions are made here")
    if wanted.tools and wanted.grammar is None and not isinstance(wanted.prompt, str):
        wanted = await to_thread(_with_triggers, service, wanted)
    asked = QueuedRequest(service.profile(None), service.asked, request=wanted, name=name)
    events = (tagged(event) async for event in service.answer(asked))
    return await streamed(request, events, error)


def _with_triggers(service: ChatService, wanted: GenerationRequest) -> GenerationRequest:
    """Return a request whose calls follow the schemas of its tools; raises UserError for wrong ones."""
    queue = service.queue
    variables = wanted.template_variables
    form = queue.tool_format(variables)
    try:
        offer = offer_of(queue.models, wanted.tools, variables, form)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"the tools of the request are not functions: {type(error).__name__}") from None
    return replace(wanted, triggers=offer.triggers, shows_control=True)  # its tools are in it already


async def _render(service: ChatService, body: bytes) -> str:
    return await to_thread(service.queue.models.render, from_json(body, GenerationRequest))


async def _tokenize(service: ChatService, body: bytes) -> tuple[Token, ...]:
    given = from_json(body, TextToTokenize)
    tokenize = partial(service.queue.models.tokenize, special=given.special, add_special=given.add_special)
    return tuple(await to_thread(tokenize, given.text))


_VERBS: dict[str, Verb] = {
    "open": _open,
    "cancel": _cancel,
    "choose_settings": _choose_settings,
    "count_tokens": _count_tokens,
    "recall": _recall,
    "render": _render,
    "tokenize": _tokenize,
    "choices": lambda service, _body: to_thread(_choices, service.queue.models),
}
_ANSWERED = {f"/engine/{name}": partial(_answered, verb) for name, verb in _VERBS.items()}


async def _memory(models: ServedModels, _request: Request) -> Response:
    """Return the memory of every device of the pair; none while it is closed, which this does not change."""
    pair = models.first("chat")
    found: tuple[DeviceMemory, ...] = ()
    if pair is not None and isinstance(pair.opened, ChatService):
        found = await to_thread(pair.opened.queue.models.memory)
    return Response(to_json(found), media_type="application/json")


PROTOCOL: Protocol[ChatService] = Protocol({**_ANSWERED, "/engine/generate": _generate}, names_model=False)
TOLD: Protocol[ServedModels] = Protocol({"/engine/memory": _memory})
