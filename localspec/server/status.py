"""What a server tells of itself: health, models, properties, what runs, and figures for Prometheus."""

from __future__ import annotations

import time
from asyncio import to_thread
from dataclasses import asdict
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from localspec.app.figures import Json
from localspec.server.exchange import Handler
from localspec.server.queue import Job
from localspec.server.service import Service
from localspec.types import ModelInfo
from localspec.version import __version__


def handlers(service: Service) -> dict[str, Handler]:
    """Return what answers to a GET, by path."""
    found = {"health": _health, "models": _models, "props": _props, "slots": _slots, "metrics": _metrics}
    served = {name: partial(handler, service) for name, handler in found.items()}
    return {f"{start}/{name}": handler for name, handler in served.items() for start in ("", "/v1")}


async def _health(service: Service, _request: Request) -> Response:
    if trouble := service.queue.trouble:
        told = {"code": 503, "message": trouble, "type": "unavailable_error"}
        return JSONResponse({"error": told}, 503)
    return JSONResponse({"status": "ok"})


async def _models(service: Service, _request: Request) -> Response:
    models = service.queue.models
    meta = {"target": _model(models.target), "draft": models.draft and _model(models.draft)}
    data = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "localspec",
            "description": f"{profile.title}: {profile.description}",
            "meta": {**_model(models.target), **meta},
        }
        for name, profile in service.profiles.items()
    ]
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


async def _props(service: Service, _request: Request) -> Response:
    models = service.queue.models
    usual = service.profiles[service.usual]
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
                "params": asdict(service.asked.sampling_under(usual, models)),
            },
            "notes": list(models.notes),
        }
    )


async def _slots(service: Service, _request: Request) -> Response:
    current, waiting = service.queue.jobs()
    states = [(job, "waiting" if job.paused is None else "paused") for job in waiting]
    shown = [_slot(service, job, state) for job, state in [(current, "answering"), *states] if job]
    saved = await to_thread(service.queue.models.saved)
    return JSONResponse({"slots": shown, "saved": asdict(saved)})


def _slot(service: Service, job: Job, state: str) -> Json:
    return {
        "id": job.number,
        "state": state,
        "is_processing": state == "answering",
        "model": job.asked.profile.name,
        "n_ctx": service.queue.models.target.context,
        "n_decoded": job.tokens,
        "seconds": round(time.monotonic() - job.since, 3),
    }


async def _metrics(service: Service, _request: Request) -> Response:
    current, waiting = service.queue.jobs()
    totals = service.totals
    counters = {
        "requests": (totals.requests, "Requests that were let in."),
        "requests_failed": (totals.failed, "Requests that failed, or whose client left."),
        "prompt_tokens": (totals.prompt_tokens, "Tokens of prompts."),
        "prompt_tokens_cached": (totals.cached_tokens, "Tokens of prompts that were found in the caches."),
        "tokens": (totals.tokens, "Tokens that were written."),
        "rounds": (totals.rounds, "Rounds of draft, verify and commit."),
        "tokens_drafted": (totals.drafted, "Draft tokens that were judged."),
        "tokens_accepted": (totals.accepted, "Draft tokens that were accepted."),
        "prepared_hits": (totals.hits, "Rounds whose draft was prepared."),
        "prepared_misses": (totals.misses, "Rounds that wanted a prepared draft and had none."),
        "prompt_seconds": (totals.prompt_s, "Time of reading prompts."),
        "decode_seconds": (totals.decode_s, "Time of writing."),
        "waited_seconds": (totals.waited_s, "Time from requests to their first tokens."),
        "engine_restarts": (service.queue.restarts, "Times that the models were opened again."),
    }
    gauges = {
        "requests_answering": (int(current is not None), "Requests that are being answered."),
        "requests_waiting": (len(waiting), "Requests that wait."),
    }
    lines = [
        f"# HELP localspec_{name}{end} {about}\n# TYPE localspec_{name}{end} {kind}\n"
        f"localspec_{name}{end} {value:.10g}\n"
        for kind, end, figures in (("counter", "_total", counters), ("gauge", "", gauges))
        for name, (value, about) in figures.items()
    ]
    return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")
