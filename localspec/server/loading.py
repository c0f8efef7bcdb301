"""llama-server's router: models are opened and closed by hand."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.server.exchange import read, read_json
from localspec.server.served import ServedModel, ServedModels
from localspec.server.service import Protocol


@dataclass(frozen=True, slots=True)
class LoadBody:
    """A request to open or close a model."""

    model: str


async def _load(models: ServedModels, request: Request) -> Response:
    """Begin to open a model; `/models` tells when it is open."""
    model = await _named(models, request)
    if model.is_ready or model.is_opening:
        raise HTTPException(400, f"{model.name} is {model.status} already")
    models.load(model)
    return JSONResponse({"success": True})


async def _unload(models: ServedModels, request: Request) -> Response:
    """Begin to close a model; its running answers have a moment to end."""
    model = await _named(models, request)
    if model.status == "unloaded":
        raise HTTPException(400, f"{model.name} is not loaded")
    models.unload(model)
    return JSONResponse({"success": True})


async def _named(models: ServedModels, request: Request) -> ServedModel:
    name = read(LoadBody, await read_json(request)).model
    model = models.named(name)
    if model is None:
        raise models.unknown(name)
    return model


PROTOCOL: Protocol[ServedModels] = Protocol({"/models/load": _load, "/models/unload": _unload})
