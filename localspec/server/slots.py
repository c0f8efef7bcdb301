"""llama-server's slots: what each is doing, and saving, restoring and erasing their conversations."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.errors import UserError
from localspec.inference.interface import KeepsSlots, SharedModels
from localspec.server.exchange import read, read_json
from localspec.server.queue import Job
from localspec.server.served import ServedModels
from localspec.server.service import ChatService, Protocol

_ACTIONS = ("save", "restore", "erase")
_LONGEST_NAME = 200  # characters
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')  # by some system


@dataclass(frozen=True, slots=True)
class SlotBody:
    """The file of a saved slot."""

    filename: str


async def _slots(models: ServedModels, request: Request) -> Response:
    """Return a slot for each answer that may be interleaved."""
    if "slots" in models.hidden:
        raise HTTPException(501, "the slots are turned off (--no-slots)")
    service = models.find(request.query_params.get("model"), "chat").opened
    if not isinstance(service, ChatService):
        return JSONResponse([])
    running, waiting = service.queue.jobs()
    begun = [*running, *(job for job in waiting if job.is_begun)]
    if len(begun) >= service.queue.parallel and "fail_on_no_slot" in request.query_params:
        raise HTTPException(503, "every slot is taken")
    jobs = enumerate(_in_slots(begun, service.queue.parallel))
    return JSONResponse([_slot(service, number, job, is_current=job in running) for number, job in jobs])


def _in_slots(begun: Sequence[Job], count: int) -> list[Job | None]:
    """Return the answers by slot: those that asked for one there, the others in the rest."""
    named = dict[int, Job]()
    for job in begun:
        if (slot := job.asked.overrides.answer.slot) is not None:
            named.setdefault(slot, job)
    others = iter([job for job in begun if job not in named.values()])
    return [named[number] if number in named else next(others, None) for number in range(count)]


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


async def _act(service: ChatService, request: Request) -> Response:
    """Save, restore or erase the conversation of a slot, when no answer is being written."""
    action = request.query_params.get("action")
    if action not in _ACTIONS:
        raise UserError("action is none of save, restore and erase", "POST /slots/0?action=save")
    slot = _numbered(request.path_params["slot"], service.queue.parallel)
    if action == "erase":
        erased = await service.in_turn(lambda models: _slots_of(models).erase_slot(slot))
        return JSONResponse({"id_slot": slot, "n_erased": erased})
    if (folder := service.server.slots) is None:
        raise HTTPException(501, f"{action} needs a folder: start the server with --slot-save-path FOLDER")
    name = read(SlotBody, await read_json(request)).filename
    path = folder / checked_name(name)
    began = time.monotonic()
    restore = partial(_restored, slot=slot, path=path, scales=service.scales)
    do = partial(_saved, slot=slot, path=path) if action == "save" else restore
    found = await service.in_turn(do)
    taken_ms = round((time.monotonic() - began) * 1000, 3)
    return JSONResponse({"id_slot": slot, "filename": name} | found | {"timings": {f"{action}_ms": taken_ms}})


def _saved(models: SharedModels, *, slot: int, path: Path) -> Json:
    file = _slots_of(models).save_slot(slot, path)
    return {"n_saved": file.tokens, "n_written": file.bytes}


def _restored(models: SharedModels, *, slot: int, path: Path, scales: tuple[float, ...]) -> Json:
    file = _slots_of(models).restore_slot(slot, path, scales)
    return {"n_restored": file.tokens, "n_read": file.bytes}


def _slots_of(models: SharedModels) -> KeepsSlots:
    if not isinstance(models, KeepsSlots):
        raise UserError("these models have no slots")
    return models


def _numbered(text: str, count: int) -> int:
    """Return the number of a slot; raises HTTPException if there is none of that number."""
    if not (text.isascii() and text.isdigit() and int(text[:9]) < count and len(text) < 9):
        raise HTTPException(404, f"there is no such slot; they are 0 to {count - 1}")
    return int(text)


def checked_name(name: str) -> str:
    """Return the name of a file in the folder of saved slots; raises UserError if it leads elsewhere."""
    if not name or len(name.encode()) > _LONGEST_NAME or name.startswith(".") or name != name.strip(" ."):
        raise UserError("filename is empty, too long, or begins or ends with a dot or a space", "slot0.bin")
    if _FORBIDDEN.search(name):
        raise UserError("filename has a character that names of files cannot have", "slot0.bin")
    return name


PROTOCOL: Protocol[ChatService] = Protocol({"/slots/{slot}": _act})
TOLD: Protocol[ServedModels] = Protocol(told={"/slots": _slots})
