"""What a server says of itself: its health, its models, its settings, its answers, its figures, its page."""

from __future__ import annotations

import time
from asyncio import to_thread
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from localspec.app.answer_json import Json
from localspec.errors import LocalSpecError
from localspec.server.queue import EngineQueue
from localspec.server.served import Kind, ModelDescription, ServedModel, ServedModels
from localspec.server.service import FINGERPRINT, ChatService, EncoderService, Protocol
from localspec.types.models import ModelInfo

_TYPES: Mapping[Kind, str] = {"chat": "model", "embeddings": "embedding", "rerank": "rerank"}
_WRITES: Mapping[Kind, str] = {"chat": "text", "embeddings": "embeddings", "rerank": "rerank"}
STARTED = int(time.time())
_PAGE = Path(__file__).with_name("page.html")
_NOTHING_FROM_ELSEWHERE = "default-src 'self' 'unsafe-inline'; img-src data:; frame-ancestors 'none'"


async def _health(models: ServedModels, _request: Request) -> Response:
    chat = models.first("chat")
    if chat is not None and isinstance(chat.opened, ChatService) and chat.opened.queue.trouble:
        payload = {"code": 503, "message": chat.opened.queue.trouble, "type": "unavailable_error"}
        return JSONResponse({"error": payload}, 503)
    return JSONResponse({"status": "ok"})


async def _models(models: ServedModels, request: Request) -> Response:
    if request.query_params.get("reload"):
        await models.reload()
    listed = [model for model in models.all if model.offer.is_listed]
    data = [entry for model in listed for entry in await _listed(model)]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    around: Json = {"has_more": False, **ends}  # Anthropic's
    return JSONResponse({"object": "list", "data": data} | around)


async def _model(models: ServedModels, request: Request) -> Response:
    name = request.path_params["name"]
    model = models.named(name)
    if model is None:
        raise models.unknown(name)
    entry = next((each for each in await _listed(model) if each["id"] == name), None)
    return JSONResponse(entry or (await _listed(model))[0] | {"id": name})


async def _listed(model: ServedModel) -> list[Json]:
    """Return a model under all its names, in the words of OpenAI, Anthropic and llama-server."""
    described = await description(model)
    about: Json = {
        "object": "model",
        "type": _TYPES[model.offer.kind],
        "created": STARTED,
        "created_at": datetime.fromtimestamp(STARTED, UTC).isoformat().replace("+00:00", "Z"),
        "owned_by": "localspec",
        "status": _status(model),
        "architecture": {"input_modalities": ["text"], "output_modalities": [_WRITES[model.offer.kind]]},
    }
    if described is not None:
        about |= {
            "meta": _facts(described.target) | {"draft": described.draft and _facts(described.draft)},
            "capabilities": {
                "context": described.target.context,
                "tools": model.offer.kind == "chat",
                "tools_in_template": described.takes_tools,
                "thinking": described.thinks,
            },
        }
    if model.offer.aliases:
        about["aliases"] = list(model.offer.aliases)
    return [{"id": name} | about | _shown(model, name) for name in model.offer.ids]


def _shown(model: ServedModel, name: str) -> Json:
    profile = model.offer.profiles.get(name)
    if profile is None:
        return {"display_name": name}
    return {"display_name": profile.title, "description": profile.description}


def _status(model: ServedModel) -> Json:
    """Return the status in llama-server's words, and what an open model takes of each device."""
    told: Json = {"value": model.status}
    if model.status == "loading" and model.progress is not None:
        told["progress"] = {"value": round(model.progress, 2)}
    if model.status == "loaded":
        told["memory"] = model.held.by_device
    if model.status == "unloaded" and model.failure:
        told |= {"failed": True, "error": model.failure}
    return told


async def description(model: ServedModel) -> ModelDescription | None:
    """Describe a model, as it is open or by its files; None for files that cannot be read."""
    try:
        described = await to_thread(model.offer.describe)
    except LocalSpecError:
        described = None
    if isinstance(model.opened, ChatService):
        pair = model.opened.queue.models
        described = replace(described or ModelDescription(pair.target), target=pair.target, draft=pair.draft)
    elif isinstance(model.opened, EncoderService):
        described = ModelDescription(model.opened.encoder.info)
    return described


def _facts(model: ModelInfo) -> Json:
    return {
        "name": model.name,
        "n_ctx": model.context,
        "n_ctx_train": model.training_context,
        "n_params": model.parameters,
        "n_vocab": model.vocabulary,
        "size": model.file_bytes,
    }


async def _props(models: ServedModels, request: Request) -> Response:
    name = request.query_params.get("model")
    if name or models.settings.any_name:
        return JSONResponse(await _props_of(models.find(name, "chat")))
    usual = models.first("chat")
    router: Json = {
        "role": "router",
        "max_instances": models.settings.most_open,
        "models_autoload": models.settings.autoload,
        "build_info": FINGERPRINT,
    }
    return JSONResponse((await _props_of(usual) if usual else {}) | router)


async def _props_of(model: ServedModel) -> Json:
    service = model.opened
    if not isinstance(service, ChatService):
        told: Json = {"build_info": FINGERPRINT, "model_alias": model.name, "is_sleeping": True}
        return told | {"status": _status(model)}
    pair = service.queue.models
    saved = await to_thread(pair.saved)
    return {
        "build_info": FINGERPRINT,
        "model_path": str(pair.target.path),
        "model_alias": model.name,
        "is_sleeping": False,
        "draft_model_path": pair.draft and str(pair.draft.path),
        "devices": list(pair.target.devices),
        "total_slots": service.queue.parallel,
        "default_generation_settings": {
            "n_ctx": pair.target.context,
            "speculative": pair.draft is not None,
            "params": service.settings(service.usual_request),
        },
        "modalities": {"vision": False, "audio": False},
        "saved": asdict(saved),
        "notes": list(pair.notes),
    }


@dataclass(frozen=True, slots=True)
class _Metric:
    """A figure of `/metrics`; one that llama-server has too is shown under its name there as well."""

    name: str
    about: str
    value: Callable[[ServedModels], float]
    llama: str = ""
    kind: str = "counter"

    def lines(self, models: ServedModels) -> str:
        """Return the figure in Prometheus' format."""
        names = [f"localspec_{self.name}"] + [f"llamacpp:{self.llama}"] * bool(self.llama)
        value = f"{self.value(models):.10g}"
        return "".join(
            f"# HELP {name} {self.about}\n# TYPE {name} {self.kind}\n{name} {value}\n" for name in names
        )


def _total(name: str, about: str, llama: str = "") -> _Metric:
    return _Metric(f"{name}_total", about, lambda models: models.totals[name], llama)


def _queues(models: ServedModels) -> list[EngineQueue]:
    """Return the queues of open pairs."""
    return [model.opened.queue for model in models.all if isinstance(model.opened, ChatService)]


def _answering(models: ServedModels) -> float:
    return sum(len(queue.jobs()[0]) for queue in _queues(models))


def _waiting(models: ServedModels) -> float:
    waiting = sum(len(queue.jobs()[1]) for queue in _queues(models))
    return waiting + sum(len(model.waiting) for model in models.all)


def _restarts(models: ServedModels) -> float:
    return sum(queue.restarts for queue in _queues(models))


def _loaded(models: ServedModels) -> float:
    return sum(model.opened is not None for model in models.all)


def _read(models: ServedModels) -> float:
    return models.totals["prompt_tokens"] - models.totals["cached_tokens"]


def _read_speed(models: ServedModels) -> float:
    seconds = models.totals["prompt_s"]
    return _read(models) / seconds if seconds else 0.0


def _speed(models: ServedModels) -> float:
    seconds = models.totals["decode_s"]
    return models.totals["tokens"] / seconds if seconds else 0.0


_METRICS = (
    _total("requests", "Requests that were answered or failed."),
    _total("failed", "Requests that failed or whose client left."),
    _total("prompt_tokens", "Tokens of prompts."),
    _total("cached_tokens", "Tokens of prompts that were found in the cache.", "prompt_tokens_cached_total"),
    _Metric("read_tokens_total", "Tokens of prompts that were read.", _read, "prompt_tokens_total"),
    _total("tokens", "Tokens written.", "tokens_predicted_total"),
    _total("rounds", "Passes of the target model that wrote tokens, without the first of each answer."),
    _total(
        "passes", "Passes that wrote tokens, or read a text for an embedding or a rank.", "n_decode_total"
    ),
    _total(
        "verifications", "Passes of the target model that verified a draft.", "spec_decode_num_drafts_total"
    ),
    _Metric(
        "longest_tokens",
        "Tokens of the longest conversation, with its answer.",
        lambda models: models.totals["longest"],
        "n_tokens_max",
    ),
    _total("drafted", "Tokens drafted.", "spec_decode_num_draft_tokens_total"),
    _total("accepted", "Drafted tokens that were accepted.", "spec_decode_num_accepted_tokens_total"),
    _total("hits", "Rounds whose draft was prepared."),
    _total("misses", "Rounds that wanted a prepared draft and had none."),
    _total("prompt_s", "Seconds of reading prompts.", "prompt_seconds_total"),
    _total("decode_s", "Seconds of writing.", "tokens_predicted_seconds_total"),
    _total("first_token_s", "Seconds from requests to their first token."),
    _total("waited_s", "Seconds that requests waited for others."),
    _Metric("prompt_speed", "Tokens read in a second.", _read_speed, "prompt_tokens_seconds", "gauge"),
    _Metric("speed", "Tokens written in a second.", _speed, "predicted_tokens_seconds", "gauge"),
    _Metric(
        "answers_per_pass",
        "Answers that a pass works on.",
        lambda models: float(models.totals["passes"] > 0),
        "n_busy_slots_per_decode",
        "gauge",
    ),
    _Metric("restarts_total", "Restarts of model processes.", _restarts),
    _Metric("models_loaded", "Models that are open.", _loaded, kind="gauge"),
    _Metric("answering", "Answers being written.", _answering, "requests_processing", "gauge"),
    _Metric("waiting", "Answers that wait.", _waiting, "requests_deferred", "gauge"),
)


async def _metrics(models: ServedModels, _request: Request) -> Response:
    if "metrics" in models.hidden:
        raise HTTPException(501, "the figures are turned off (--no-metrics)")
    text = "".join(metric.lines(models) for metric in _METRICS)
    reply = PlainTextResponse(text, media_type="text/plain; version=0.0.4")
    # Starlette would spell it in small letters, and some clients compare them.
    reply.raw_headers.append((b"Process-Start-Time-Unix", str(STARTED).encode()))
    return reply


async def _not_offered(_models: ServedModels, request: Request) -> Response:
    """Refuse what llama-server offers at such a path."""
    raise HTTPException(501, f"{request.url.path} is not offered by this server")


async def _page(models: ServedModels, _request: Request) -> Response:
    if "ui" in models.hidden:
        raise HTTPException(404, "the page is turned off (--no-ui)")
    headers = {"Content-Security-Policy": _NOTHING_FROM_ELSEWHERE}
    return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers=headers)


async def _no_proxy(_models: ServedModels, request: Request) -> Response:
    """Refuse to pass a request on: it would reach what only this machine can."""
    raise HTTPException(403, f"{request.url.path} is not offered: this server asks no other one for clients")


_OF_OTHERS = ("/props", "/audio/transcriptions")
PROTOCOL: Protocol[ServedModels] = Protocol(
    {"/cors-proxy": _no_proxy, **dict.fromkeys(_OF_OTHERS, _not_offered)},
    told={
        "/": _page,
        "/health": _health,
        "/v1/models": _models,
        "/v1/models/{name:path}": _model,
        "/props": _props,
        "/metrics": _metrics,
        "/cors-proxy": _no_proxy,
    },
)
