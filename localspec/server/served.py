"""The models of a server: opened when a request names them, closed to make room or when they idle.

All of it runs in the server's event loop, except for what takes time: planning, opening and closing.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

from starlette.exceptions import HTTPException

from localspec.chat.tool_use.consent import ConsentDesk
from localspec.errors import Cancelled, EngineError, LocalSpecError
from localspec.hardware.placement.room import HeldMemory
from localspec.models.names import close_names
from localspec.safe_text import safe_line
from localspec.server.queue import MAX_WAITING, QueueFullError, ServerEndsError
from localspec.server.service import ServerSettings
from localspec.storage.profiles import Profile
from localspec.types.models import ModelInfo
from localspec.units import duration, memory

_ENDS = "the server is being stopped"
_FEW = 8  # names, that an error lists
STOP_S = 10.0  # for running answers of a model that is unloaded, as llama-server gives them
PROGRESS_S = 5.0  # between two lines of the log about a model that is being opened
Kind = Literal["chat", "embeddings", "rerank"]
_FOR: Mapping[Kind, str] = {"chat": "chats", "embeddings": "embeddings", "rerank": "reranking"}
_NONE: Mapping[Kind, str] = {
    "chat": "this server has no model for chats",
    "embeddings": "this server has no model for embeddings; start it with --embeddings FILE",
    "rerank": "this server has no model for reranking; start it with --rerank FILE",
}
OnProgress = Callable[[float], bool]
"""Gets the share that is done; returns False to stop."""


class OpenedModel(Protocol):
    """What answers requests, as long as its model is open."""

    def cut(self, reason: str, /) -> None:
        """End the answers in progress with an error."""

    def close(self) -> None:
        """Free the model."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What the files of a model say; a draft model is only there in a pair."""

    target: ModelInfo
    draft: ModelInfo | None = None
    takes_tools: bool = False  # in its template; else they are described to it in words
    thinks: bool = False


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A planned model: what it will take, the number of others, from the first on, to close, how to open it.

    `open` raises `Cancelled` when `OnProgress` stops it. `drop` ends what is not opened.
    """

    held: HeldMemory
    closes: int
    open: Callable[[OnProgress], OpenedModel]
    drop: Callable[[], None]


class OfferedModel(Protocol):
    """A model that can be opened. The first of its `ids` is what it is called; `aliases` are not listed."""

    @property
    def kind(self) -> Kind:
        """Return the purpose of the model."""

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Return the profiles by the names that clients give them; only chats have any."""

    @property
    def ids(self) -> Sequence[str]:
        """Return the names that clients see."""

    @property
    def aliases(self) -> Sequence[str]:
        """Return further names that clients may use."""

    @property
    def is_listed(self) -> bool:
        """Return whether clients see it."""

    def describe(self) -> ModelDescription:
        """Describe the model by its files; raises LocalSpecError."""

    def prepare(self, others: Sequence[HeldMemory], on_progress: OnProgress) -> PreparedModel:
        """Check and plan the model beside open ones, in the order in which they may close.

        Raises LocalSpecError, and `Cancelled` when `on_progress` stops it.
        """


@dataclass(slots=True, eq=False)
class ServedModel:
    """One of the models, open or not."""

    offer: OfferedModel
    opened: OpenedModel | None = None
    held: HeldMemory = field(default_factory=HeldMemory)
    uses: int = 0  # requests that are being answered
    used_at: float = field(default_factory=time.monotonic)  # when the last one ended
    waiting: list[asyncio.Future[OpenedModel]] = field(default_factory=list)  # requests until it is open
    progress: float | None = None  # of being opened, once that has begun
    failure: str = ""  # of the last opening
    wanted: bool = False  # open even if no request waits
    stopped: bool = False
    sleeps: bool = False  # closed because it idled
    leaving: int = 0  # reasons to close it as soon as it idles
    opening: asyncio.Task[None] | None = None
    closing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Return its name."""
        return self.offer.ids[0]

    @property
    def is_ready(self) -> bool:
        """Return whether it is open, and stays so for another request."""
        return self.opened is not None and not self.leaving and self.closing is None

    @property
    def is_opening(self) -> bool:
        """Return whether it is being opened, or waits for its turn or for memory."""
        return self.opening is not None

    @property
    def status(self) -> Literal["loaded", "loading", "unloaded"]:
        """Return its status in llama-server's words."""
        return "loaded" if self.opened is not None else "loading" if self.is_opening else "unloaded"

    @property
    def opening_words(self) -> str:
        """Return the words that a client may read while it waits."""
        if self.progress is None:
            return f"{self.name} waits for other models"
        return f"opening {self.name}: {self.progress:.0%}"


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """When the models of a server open and close, besides what fits into memory.

    With `any_name`, a name that is not known means the first model of its kind; without, it is refused.
    Models that were not used for `idle_s` are closed. At most `most_open` are open, 0: as many as fit.
    Without `autoload` requests open none, unless they ask for it. `offers` lists the models again.
    """

    any_name: bool = True
    idle_s: float | None = None
    most_open: int = 0
    autoload: bool = True
    opens_at_start: tuple[str, ...] = ()
    offers: Callable[[], Sequence[OfferedModel]] | None = None


class ServedModels:
    """The models that a server offers. One opens at a time, in the order in which they were asked for."""

    def __init__(
        self,
        offers: Iterable[OfferedModel],
        server: ServerSettings,
        settings: RouterSettings | None = None,
    ) -> None:
        """Offer some models, all of them closed."""
        self.all = [ServedModel(offer) for offer in offers]
        self.server = server
        self.report = server.report
        self.totals = server.totals
        self.hidden = server.hidden
        self.settings = settings or RouterSettings()
        self._removed: list[ServedModel] = []  # from the list, while they close
        self._by_name = _by_name(self.all)
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._ends = False
        self.running_calls = set[ConsentDesk]()  # of tools that clients call themselves: no answer waits

    def first(self, kind: Kind) -> ServedModel | None:
        """Return the model for requests that name none; None without any of that kind."""
        return next((model for model in self.all if model.offer.kind == kind), None)

    def named(self, name: str | None) -> ServedModel | None:
        """Return the model of a name, None if there is none of exactly this name."""
        known = self._by_name
        return known.get(name or "") or known.get((name or "").removesuffix(":latest"))

    def find(self, name: str | None, kind: Kind) -> ServedModel:
        """Return the model that a request means; raises HTTPException (400, 404 or 501)."""
        usual = self.first(kind)
        any_name = self.settings.any_name
        model = usual if any_name or not name else self.named(name)
        if model is None and name and not any_name:
            raise self.unknown(name)
        if model is None:
            raise HTTPException(501, _NONE[kind])
        if model.offer.kind != kind:
            raise HTTPException(400, f"{model.name} is a model for {_FOR[model.offer.kind]}")
        return model

    def unknown(self, name: str) -> HTTPException:
        """Return the error about a name that no model has."""
        names = [each for model in self.all if model.offer.is_listed for each in model.offer.ids]
        hint = close_names(name, names) or "GET /v1/models lists what there is"
        if len(names) <= _FEW:
            hint = f"there are {', '.join(names)}"
        return HTTPException(404, f"there is no model {safe_line(name)[:100]}; {hint}")

    def has_opened(self, model: ServedModel, opened: OpenedModel, held: HeldMemory) -> None:
        """Take a model that was opened before the server runs."""
        model.opened = opened
        model.held = held

    def start(self) -> None:
        """Open what is to be open from the start, and watch for models that idle: the server runs."""
        for model in self.all:
            if model.opened is not None:
                self._watch(model)
            elif model.name in self.settings.opens_at_start:
                self.load(model)

    async def reload(self) -> None:
        """List the models again, and close those that are gone or have changed; raises LocalSpecError."""
        if self.settings.offers is not None:
            self._replace_offers(await to_thread(self.settings.offers))

    def _replace_offers(self, offers: Sequence[OfferedModel]) -> None:
        known = {model.name: model for model in self.all}
        self.all = []
        for offer in offers:
            model = known.pop(offer.ids[0], ServedModel(offer))
            self.all.append(model)
            if model.offer != offer:
                model.offer = offer
                self.unload(model)
        self._by_name = _by_name(self.all)
        self._removed += known.values()
        for model in known.values():
            self.unload(model)

    def _every(self) -> list[ServedModel]:
        """Return all models, with those that are not listed any more and not closed yet."""
        self._removed = [model for model in self._removed if model.opened is not None or model.is_opening]
        return [*self.all, *self._removed]

    def check_open(self, model: ServedModel, autoload: bool | None = None) -> None:
        """Raise HTTPException (400) for a closed model that a request may not open.

        `autoload` is what the request says, None if nothing. One that idled only sleeps.
        """
        may_open = self.settings.autoload if autoload is None else autoload
        if not (may_open or model.is_ready or model.is_opening or model.sleeps):
            raise HTTPException(400, f"{model.name} is not loaded; POST /models/load opens it")

    async def use(self, model: ServedModel) -> OpenedModel:
        """Return a model once it is open; it stays open until `release`.

        Raises `QueueFullError`, `ServerEndsError`, and what opening it raises.
        """
        if self._ends:
            raise ServerEndsError(_ENDS)
        if model.is_ready:
            assert model.opened is not None
            model.uses += 1
            return model.opened
        if len(model.waiting) >= MAX_WAITING:
            raise QueueFullError(f"{MAX_WAITING} requests wait for {model.name} already")
        place: asyncio.Future[OpenedModel] = asyncio.get_running_loop().create_future()
        model.waiting.append(place)
        self._begin(model)
        try:
            return await place
        except asyncio.CancelledError:  # the client has left
            if place in model.waiting:
                model.waiting.remove(place)
                self._changed.set()  # what is not wanted any more makes no room for itself
            elif not place.cancelled() and place.exception() is None:
                self.release(model)
            raise

    def release(self, model: ServedModel) -> None:
        """End a use of a model."""
        model.uses -= 1
        model.used_at = time.monotonic()
        self._changed.set()
        self._watch(model)

    def load(self, model: ServedModel) -> None:
        """Open a model without a request that waits for it."""
        model.wanted = True
        self._begin(model)

    def unload(self, model: ServedModel) -> None:
        """Close a model: stop its opening, or give its running answers `STOP_S` and cut them."""
        model.sleeps = False
        if model.opened is not None and model.closing is None:
            model.closing = asyncio.create_task(self._unloaded(model))
        elif model.is_opening:
            self._stop(model, ServerEndsError(f"{model.name} was unloaded while it was being opened"))

    def stop(self) -> None:
        """Stop opening models, and end calls of tools: the server is to end."""
        self._ends = True
        for model in self._every():
            self._stop(model, ServerEndsError(_ENDS))
        for desk in self.running_calls:
            desk.stop()

    def cut(self) -> None:
        """End all answers in progress with an error."""
        for model in self._every():
            if model.opened is not None:
                model.opened.cut(_ENDS)

    def close(self) -> None:
        """Free all models, when the server has ended."""
        for model in self._every():
            opened = model.opened
            model.opened = None
            if opened is not None:
                opened.close()

    def _begin(self, model: ServedModel) -> None:
        if model.opening is None and not model.is_ready:
            model.stopped = False
            model.sleeps = False
            model.failure = ""
            model.opening = asyncio.create_task(self._open(model))

    async def _open(self, model: ServedModel) -> None:
        """Open a model when it is its turn, and tell the requests that wait for it."""
        try:
            async with self._turn:
                if not model.is_ready:
                    await self._open_with_room(model)
        except Cancelled:
            pass  # who waited for it knows, or has left
        except LocalSpecError as error:
            self._fail(model, error)
        except Exception as error:  # noqa: BLE001 - requests wait for the outcome
            self._fail(model, EngineError(f"unexpected {type(error).__name__}: {error}"))
        model.opening = None
        model.progress = None
        if model.is_ready:
            model.wanted = False
            self._hand_over(model)
        elif (model.waiting or model.wanted) and not self._ends:  # asked for again while it was stopped
            self._begin(model)

    async def _open_with_room(self, model: ServedModel) -> None:
        began = time.monotonic()
        on_progress = self._progress_of(model)
        self._log(f"opening {model.name}")
        while True:
            await self._until(model, lambda: not any(other.closing for other in self._every()))
            others = self._in_order_of_leaving()
            model.progress = 0.0
            held = [other.held for other in others]
            prepared = await to_thread(model.offer.prepare, held, on_progress)
            closes = max(prepared.closes, self._too_many(others))
            if _is_unwanted(model) or closes:
                await to_thread(prepared.drop)
            if _is_unwanted(model):
                raise Cancelled
            if not closes:
                break
            await self._make_room(model, others[:closes])
        model.opened = await to_thread(_opened, model, prepared, on_progress)
        model.held = prepared.held
        model.used_at = time.monotonic()
        self._log(f"{model.name} is open after {duration(time.monotonic() - began)}; {taken(model.held)}")

    def _progress_of(self, model: ServedModel) -> OnProgress:
        """Return a callback for the thread that opens a model; the progress is logged."""
        told = time.monotonic()

        def on_progress(share: float) -> bool:
            nonlocal told
            model.progress = share
            if time.monotonic() - told > PROGRESS_S:
                told = time.monotonic()
                self._log(model.opening_words)
            return not model.stopped

        return on_progress

    def _too_many(self, others: Sequence[ServedModel]) -> int:
        """Return the number of open models to close so that one more may be open."""
        most = self.settings.most_open
        return max(0, len(others) + 1 - most) if most else 0

    def _in_order_of_leaving(self) -> list[ServedModel]:
        """Return the open models: idle ones first, and of those the one that was not used for the longest."""
        is_open = [model for model in self._every() if model.opened is not None]
        return sorted(is_open, key=lambda model: (model.uses > 0, model.used_at))

    async def _make_room(self, model: ServedModel, others: Sequence[ServedModel]) -> None:
        """Close other models for one, each when it idles; requests for them wait from now on."""
        model.progress = None
        for other in others:
            other.leaving += 1
        try:
            await self._until(model, lambda: not any(other.uses for other in others))
            for other in others:
                if other.opened is not None and other.closing is None:
                    await self._close(other, f"to make room for {model.name}")
        finally:
            for other in others:
                other.leaving -= 1

    async def _until(self, model: ServedModel, holds: Callable[[], bool]) -> None:
        """Wait for a change of the models; raises `Cancelled` once none waits for this one."""
        while not holds():
            if _is_unwanted(model):
                raise Cancelled
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _hand_over(self, model: ServedModel) -> None:
        assert model.opened is not None
        for place in model.waiting:
            if not place.done():
                model.uses += 1
                place.set_result(model.opened)
        model.waiting.clear()
        self._watch(model)

    def _fail(self, model: ServedModel, error: LocalSpecError) -> None:
        model.failure = str(error)
        model.wanted = False
        self._log(f"{model.name} cannot be opened: {error}")
        _refuse(model, error)

    def _stop(self, model: ServedModel, error: LocalSpecError) -> None:
        model.stopped = True
        model.wanted = False
        _refuse(model, error)
        self._changed.set()

    async def _unloaded(self, model: ServedModel) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while model.uses:
                    await self._change()
        if model.uses and model.opened is not None:
            model.opened.cut(f"{model.name} was unloaded")
        await self._close(model, "as asked")

    def _watch(self, model: ServedModel) -> None:
        """Close a model when it has idled for long enough."""
        idle_s = self.settings.idle_s
        if idle_s is not None and not model.uses:
            asyncio.get_running_loop().call_later(idle_s, self._look, model, model.used_at)

    def _look(self, model: ServedModel, used_at: float) -> None:
        if model.is_ready and not model.uses and model.used_at == used_at:
            reason = f"after {duration(self.settings.idle_s or 0)} without a request"
            model.sleeps = True
            model.closing = asyncio.create_task(self._close(model, reason))

    async def _close(self, model: ServedModel, reason: str) -> None:
        opened = model.opened
        model.opened = None
        if opened is not None:
            await to_thread(opened.close)
            self._log(f"{model.name} was closed {reason}")
        model.held = HeldMemory()
        model.closing = None
        self._changed.set()

    def _log(self, line: str) -> None:
        self.report(f"{time.strftime('%H:%M:%S')}  {safe_line(line)}")


def _by_name(models: Sequence[ServedModel]) -> dict[str, ServedModel]:
    """Return the models by all their names; an alias is not another model's name."""
    found = {name: model for model in models for name in model.offer.ids}
    for model in models:
        for name in model.offer.aliases:
            found.setdefault(name, model)
    return found


def _opened(model: ServedModel, prepared: PreparedModel, on_progress: OnProgress) -> OpenedModel:
    """Open a model; raises `Cancelled` when it was stopped meanwhile."""
    opened = prepared.open(on_progress)
    if model.stopped:
        opened.close()
        raise Cancelled
    return opened


def _is_unwanted(model: ServedModel) -> bool:
    """Return whether there is no reason left to open a model; an opening that has begun goes on."""
    return model.stopped or not (model.waiting or model.wanted)


def _refuse(model: ServedModel, error: LocalSpecError) -> None:
    for place in model.waiting:
        if not place.done():
            place.set_exception(error)
    model.waiting.clear()


def taken(held: HeldMemory) -> str:
    """Return the memory that a model takes of each device, in words."""
    parts = (f"{memory(size)} of {device}" for device, size in held.by_device.items())
    return "it takes " + (", ".join(parts) or "what llama.cpp gives it")
