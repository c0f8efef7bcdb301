"""The service of a server: profiles as models, answers for the protocols, and its metrics."""

from __future__ import annotations

import time
from asyncio import to_thread
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from localspec.app.answer_json import Json
from localspec.chat.answer_settings import SessionRequest, followed
from localspec.chat.figures import note, summary_line
from localspec.inference.interface import check_room
from localspec.server.exchange import ApiError, error
from localspec.server.queue import EngineQueue, Job, QueuedRequest
from localspec.storage.profiles import Profile
from localspec.types.events import Finished, GenerationEvent, ModeChanged, Summary
from localspec.types.models import ModelInfo
from localspec.types.request import Message
from localspec.version import __version__

_COUNTED = ("prompt_tokens", "cached_tokens", "tokens", "rounds", "drafted", "accepted", "hits", "misses",
            "prompt_s", "decode_s")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatService:
    """The models behind the queue, and the settings of the server's start."""

    queue: EngineQueue
    profiles: Mapping[str, Profile]
    usual: str  # the profile of requests that name none
    asked: SessionRequest  # settings by flags, for what requests leave open
    report: Callable[[str], object] = lambda _line: None
    totals: Counter[str] = field(default_factory=Counter)  # of `Summary`, and of requests

    def profile(self, model: str | None) -> Profile:
        """Return the profile that a request names; the default one for an unknown name.

        Clients often send the name of another model.
        """
        return self.profiles.get(model or "") or self.profiles[self.usual]

    def conversation(
        self, profile: Profile, messages: tuple[Message, ...]
    ) -> tuple[Profile, tuple[Message, ...]]:
        """Return the profile of a chat, and its messages with a system prompt first."""
        system = profile.system_prompt if self.asked.system is None else self.asked.system
        questions = [(message.content, ()) for message in messages if message.role == "user"]
        if system and messages[0].role != "system":
            messages = (Message("system", system), *messages)
        return followed(profile, self.profiles, questions), messages

    async def answer(self, asked: QueuedRequest) -> AsyncGenerator[GenerationEvent]:
        """Yield the events of an answer, which end with `Finished`; closing the generator gives it up.

        Raises `QueueFullError`, and what writing the answer raises.
        """
        began, finished = time.monotonic(), None
        self.totals["requests"] += 1
        try:
            await self._check_room(asked)
            async with aclosing(self.queue.answer(asked)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        finished = event
                        self._count(asked, event.summary, time.monotonic() - began)
                    elif isinstance(event, ModeChanged) and event.draft_failed:
                        self.report(note(event))
                    yield event
        finally:
            self.totals["failed"] += finished is None

    async def _check_room(self, asked: QueuedRequest) -> None:
        """Raise ContextFullError for a conversation that would only be refused when its turn comes."""
        answer, models = asked.overrides.answer, self.queue.models
        if self.queue.jobs()[0] is None or asked.work is not None or isinstance(answer.prompt, str):
            return
        size = sum(len(message.content.encode()) for message in answer.prompt)
        if size + sum(map(len, answer.tools)) >= models.target.context:  # a token has a byte or more
            count = (answer.prompt, answer.tools, answer.template_variables)
            check_room(await to_thread(models.count_tokens, *count), models.target)

    def _count(self, asked: QueuedRequest, summary: Summary, seconds: float) -> None:
        figures = {name: getattr(summary, name) for name in _COUNTED}
        waited = max(0.0, seconds - summary.seconds)
        self.totals.update(figures | {"first_token_s": waited + summary.first_token_s, "waited_s": waited})
        line = summary_line("", summary).strip()
        waited_for = f"  waited {waited:.1f} s" if waited > 0.1 else ""
        self.report(f"{time.strftime('%H:%M:%S')}  {asked.profile.name}  {line}{waited_for}")


Handler = Callable[[ChatService, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Protocol:
    """Paths, their handlers, and the wording of errors there."""

    handlers: Mapping[str, Handler]
    error: Callable[[ApiError], Json] = error
    method: str = "POST"


async def _health(service: ChatService, _request: Request) -> Response:
    if trouble := service.queue.trouble:
        payload = {"code": 503, "message": trouble, "type": "unavailable_error"}
        return JSONResponse({"error": payload}, 503)
    return JSONResponse({"status": "ok"})


async def _models(service: ChatService, _request: Request) -> Response:
    models = service.queue.models
    meta = _model(models.target) | {"draft": models.draft and _model(models.draft)}
    usual = {"object": "model", "created": 0, "owned_by": "localspec", "meta": meta}
    data = [{"id": name, "description": each.description, **usual} for name, each in service.profiles.items()]
    return JSONResponse({"object": "list", "data": data})


def _model(model: ModelInfo) -> Json:
    return {
        "name": model.name,
        "n_ctx": model.context,
        "n_ctx_train": model.training_context,
        "n_params": model.parameters,
        "n_vocab": model.vocabulary,
        "size": model.file_bytes,
    }


async def _props(service: ChatService, _request: Request) -> Response:
    models = service.queue.models
    return JSONResponse(
        {
            "build_info": f"localspec {__version__}",
            "model_path": str(models.target.path),
            "model_alias": service.usual,
            "draft_model_path": models.draft and str(models.draft.path),
            "devices": list(models.target.devices),
            "total_slots": 1,
            "default_generation_settings": {
                "n_ctx": models.target.context,
                "params": asdict(service.asked.sampling_under(service.profile(None), models)),
            },
            "notes": list(models.notes),
        }
    )


async def _slots(service: ChatService, _request: Request) -> Response:
    current, waiting = service.queue.jobs()
    states = [(job, "waiting" if job.paused is None else "paused") for job in waiting]
    shown = [_slot(service, job, state) for job, state in [(current, "answering"), *states] if job]
    saved = await to_thread(service.queue.models.saved)
    return JSONResponse({"slots": shown, "saved": asdict(saved)})


def _slot(service: ChatService, job: Job, state: str) -> Json:
    return {
        "id": job.number,
        "state": state,
        "is_processing": state == "answering",
        "model": job.asked.profile.name,
        "n_ctx": service.queue.models.target.context,
        "n_decoded": job.tokens,
        "seconds": round(time.monotonic() - job.since, 3),
    }


async def _metrics(service: ChatService, _request: Request) -> Response:
    """Return the counters since the start, by the names of `Summary`, in Prometheus' format."""
    current, waiting = service.queue.jobs()
    counted = {**service.totals, "restarts": service.queue.restarts}
    figures = [(f"{name}_total", "counter", value) for name, value in counted.items()]
    figures += [("answering", "gauge", int(current is not None)), ("waiting", "gauge", len(waiting))]
    lines = [
        f"# TYPE localspec_{name} {kind}\nlocalspec_{name} {value:.10g}\n" for name, kind, value in figures
    ]
    return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")


_TOLD = {"health": _health, "models": _models, "props": _props, "slots": _slots, "metrics": _metrics}
PROTOCOL = Protocol({f"{start}/{name}": _TOLD[name] for name in _TOLD for start in ("", "/v1")}, method="GET")
