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


async def _props(service: Service, _request: Request) -> Response:
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
    """Tell what was counted since the start, by the names of `Summary`, as Prometheus reads it."""
    current, waiting = service.queue.jobs()
    counted = {**service.totals, "restarts": service.queue.restarts}
    figures = [(f"{name}_total", "counter", value) for name, value in counted.items()]
    figures += [("answering", "gauge", int(current is not None)), ("waiting", "gauge", len(waiting))]
    lines = [
        f"# TYPE localspec_{name} {kind}\nlocalspec_{name} {value:.10g}\n" for name, kind, value in figures
    ]
    return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")
