"""What a server says of itself: its health, its models, its settings, its answers, its figures, its page."""

from __future__ import annotations

import time
from asyncio import to_thread
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from localspec.app.answer_json import Json
from localspec.server.queue import Job
from localspec.server.service import FINGERPRINT, ChatService, Protocol
from localspec.types.models import ModelInfo

STARTED = int(time.time())
_PAGE = Path(__file__).with_name("page.html")
_NOTHING_FROM_ELSEWHERE = "default-src 'self' 'unsafe-inline'; img-src data:; frame-ancestors 'none'"


async def _health(service: ChatService, _request: Request) -> Response:
    if trouble := service.queue.trouble:
        payload = {"code": 503, "message": trouble, "type": "unavailable_error"}
        return JSONResponse({"error": payload}, 503)
    return JSONResponse({"status": "ok"})


async def _models(service: ChatService, _request: Request) -> Response:
    data = [_listed(service, name) for name in service.profiles]
    if service.embedder is not None:
        data.append(_listed_embedder(service.embedder.info))
    around: Json = {"has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}  # Anthropic's
    return JSONResponse({"object": "list", "data": data} | around)


async def _model(service: ChatService, request: Request) -> Response:
    name = request.path_params["name"]
    if name not in service.profiles:
        raise HTTPException(404, f"there is no model {name[:100]}; there are {', '.join(service.profiles)}")
    return JSONResponse(_listed(service, name))


def _listed(service: ChatService, name: str) -> Json:
    """Return a profile as a model, in the words of OpenAI, Anthropic and llama-server."""
    profile, models = service.profiles[name], service.queue.models
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": profile.title,
        "description": profile.description,
        "created": STARTED,
        "created_at": datetime.fromtimestamp(STARTED, UTC).isoformat().replace("+00:00", "Z"),
        "owned_by": "localspec",
        "meta": _facts(models.target) | {"draft": models.draft and _facts(models.draft)},
    }


def _listed_embedder(model: ModelInfo) -> Json:
    """Return the model for embeddings, which is known by its own name."""
    about: Json = {"id": model.name, "object": "model", "type": "embedding", "display_name": model.name}
    return about | {"created": STARTED, "owned_by": "localspec", "meta": _facts(model)}


def _facts(model: ModelInfo) -> Json:
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
    saved = await to_thread(models.saved)
    return JSONResponse(
        {
            "build_info": FINGERPRINT,
            "model_path": str(models.target.path),
            "model_alias": service.usual,
            "draft_model_path": models.draft and str(models.draft.path),
            "devices": list(models.target.devices),
            "total_slots": service.queue.parallel,
            "default_generation_settings": {
                "n_ctx": models.target.context,
                "speculative": models.draft is not None,
                "params": service.settings(service.usual_request),
            },
            "modalities": {"vision": False, "audio": False},
            "saved": asdict(saved),
            "notes": list(models.notes),
        }
    )


async def _slots(service: ChatService, request: Request) -> Response:
    """Return a slot for each answer that may be interleaved."""
    current, waiting = service.queue.jobs()
    begun = [job for job in (current, *waiting) if job is not None and (job is current or job.is_begun)]
    idle = [None] * (service.queue.parallel - len(begun))
    if not idle and "fail_on_no_slot" in request.query_params:
        raise HTTPException(503, "every slot is taken")
    jobs = enumerate([*begun, *idle])
    return JSONResponse([_slot(service, number, job, is_current=job is current) for number, job in jobs])


def _slot(service: ChatService, number: int, job: Job | None, *, is_current: bool) -> Json:
    models = service.queue.models
    slot: Json = {
        "id": number,
        "n_ctx": models.target.context,
        "speculative": models.draft is not None,
        "is_processing": job is not None,
    }
    if job is None:
        return slot
    limit = job.asked.overrides.answer.max_tokens
    left = -1 if limit is None else limit - job.tokens
    return slot | {
        "id_task": job.number,
        "state": "answering" if is_current else "paused",
        "model": job.asked.profile.name,
        "n_decoded": job.tokens,
        "next_token": [{"has_next_token": True, "n_remain": left, "n_decoded": job.tokens}],
        "seconds": round(time.monotonic() - job.since, 3),
    }


@dataclass(frozen=True, slots=True)
class _Metric:
    """A figure of `/metrics`; one that llama-server has too is shown under its name there as well."""

    name: str
    about: str
    value: Callable[[ChatService], float]
    llama: str = ""
    kind: str = "counter"

    def lines(self, service: ChatService) -> str:
        """Return the figure in Prometheus' format."""
        names = [f"localspec_{self.name}"] + [f"llamacpp:{self.llama}"] * bool(self.llama)
        value = f"{self.value(service):.10g}"
        return "".join(
            f"# HELP {name} {self.about}\n# TYPE {name} {self.kind}\n{name} {value}\n" for name in names
        )


def _total(name: str, about: str, llama: str = "") -> _Metric:
    return _Metric(f"{name}_total", about, lambda service: service.totals[name], llama)


def _is_answering(service: ChatService) -> float:
    return float(service.queue.jobs()[0] is not None)


def _waiting(service: ChatService) -> float:
    return len(service.queue.jobs()[1])


def _read(service: ChatService) -> float:
    return service.totals["prompt_tokens"] - service.totals["cached_tokens"]


def _read_speed(service: ChatService) -> float:
    seconds = service.totals["prompt_s"]
    return _read(service) / seconds if seconds else 0.0


def _speed(service: ChatService) -> float:
    seconds = service.totals["decode_s"]
    return service.totals["tokens"] / seconds if seconds else 0.0


_METRICS = (
    _total("requests", "Requests that were answered or failed."),
    _total("failed", "Requests that failed or whose client left."),
    _total("prompt_tokens", "Tokens of prompts."),
    _total("cached_tokens", "Tokens of prompts that were found in the cache.", "prompt_tokens_cached_total"),
    _Metric("read_tokens_total", "Tokens of prompts that were read.", _read, "prompt_tokens_total"),
    _total("tokens", "Tokens written.", "tokens_predicted_total"),
    _total("rounds", "Passes of the target model that wrote tokens.", "n_decode_total"),
    _total(
        "verifications", "Passes of the target model that verified a draft.", "spec_decode_num_drafts_total"
    ),
    _Metric(
        "longest_tokens",
        "Tokens of the longest conversation, with its answer.",
        lambda service: service.totals["longest"],
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
        lambda service: float(service.totals["rounds"] > 0),
        "n_busy_slots_per_decode",
        "gauge",
    ),
    _Metric("restarts_total", "Restarts of the model process.", lambda service: service.queue.restarts),
    _Metric("answering", "Answers being written.", _is_answering, "requests_processing", "gauge"),
    _Metric("waiting", "Answers that wait.", _waiting, "requests_deferred", "gauge"),
)


async def _metrics(service: ChatService, _request: Request) -> Response:
    text = "".join(metric.lines(service) for metric in _METRICS)
    headers = {"Process-Start-Time-Unix": str(STARTED)}
    return PlainTextResponse(text, headers=headers, media_type="text/plain; version=0.0.4")


async def _no_adapters(_service: ChatService, _request: Request) -> Response:
    return JSONResponse([])


async def _not_offered(_service: ChatService, request: Request) -> Response:
    """Refuse what llama-server offers at such a path."""
    raise HTTPException(501, f"{request.url.path} is not offered by this server")


async def _page(_service: ChatService, _request: Request) -> Response:
    headers = {"Content-Security-Policy": _NOTHING_FROM_ELSEWHERE}
    return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers=headers)


_OF_OTHERS = ("/rerank", "/reranking", "/lora-adapters", "/props", "/slots/{slot}", "/audio/transcriptions")
PROTOCOL = Protocol(
    dict.fromkeys(_OF_OTHERS, _not_offered),
    told={
        "/": _page,
        "/health": _health,
        "/v1/models": _models,
        "/v1/models/{name}": _model,
        "/props": _props,
        "/slots": _slots,
        "/metrics": _metrics,
        "/lora-adapters": _no_adapters,
    },
)
