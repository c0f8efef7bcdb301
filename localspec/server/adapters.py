"""LoRA adapters of an open pair: their scales for requests that name none, and for those that do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.errors import UserError
from localspec.server.exchange import read, read_json
from localspec.server.service import ChatService, Protocol
from localspec.types.models import Adapter
from localspec.types.request import AdapterScale


@dataclass(frozen=True, slots=True)
class ScaledAdapter:
    """An adapter by its number, and its scale."""

    id: int
    scale: AdapterScale


@dataclass(frozen=True, slots=True)
class AdapterList:
    """What clients send as a bare list."""

    lora: tuple[ScaledAdapter, ...]


def scales_of(wanted: Sequence[ScaledAdapter], adapters: Sequence[Adapter]) -> tuple[float, ...]:
    """Return the scales that a client wants, 0 for adapters that it leaves out.

    Raises UserError for an adapter that is not there.
    """
    scales = [0.0] * len(adapters)
    for each in wanted:
        if not 0 <= each.id < len(adapters):
            hint = f"they are 0 to {len(adapters) - 1}" if adapters else "start the server with --lora FILE"
            raise UserError(f"lora: there is no adapter {each.id}", hint)
        scales[each.id] = each.scale
    return tuple(scales)


async def _tell(service: ChatService, _request: Request) -> Response:
    adapters = service.queue.models.target.adapters
    return JSONResponse(
        [
            {"id": number, "path": str(adapter.path), "scale": scale}
            for number, (adapter, scale) in enumerate(zip(adapters, service.scales, strict=True))
        ]
    )


async def _set(service: ChatService, request: Request) -> Response:
    """Set the scales for later requests that name none."""
    wanted = read(AdapterList, {"lora": await read_json(request)}).lora
    service.set_scales(scales_of(wanted, service.queue.models.target.adapters))
    told: Json = {"success": True}
    return JSONResponse(told)


PROTOCOL: Protocol[ChatService] = Protocol({"/lora-adapters": _set}, told={"/lora-adapters": _tell})
