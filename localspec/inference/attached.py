"""Models of a running `localspec serve`: its clients are interleaved, and the models are in memory once.

Both sides exchange JSON, which is safe to read from an untrusted sender.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from localspec.errors import ContextFullError, EngineDied, EngineError, ServerLost, UserError
from localspec.inference.interface import ModeChoice
from localspec.types.drafts import Token
from localspec.types.events import Finished, GenerationEvent
from localspec.types.models import DeviceMemory, ModelInfo, PlainRate
from localspec.types.request import EngineSettings, Message, Request, TaskType
from localspec.values import plain, read
from localspec.version import __version__

T = TypeVar("T")
TIMEOUT_S = 10.0  # for an answer to a question that needs no turn
_LONGEST_TURN_S = 600.0  # between two events: a long prompt on a slow machine, behind other answers
_START_HINT = "start one there: `localspec serve`"


@dataclass(frozen=True, slots=True)
class EngineConnection:
    """The server's information for an attached screen."""

    version: str
    target: ModelInfo
    draft: ModelInfo | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextToTokenize:
    """A text for the server's tokenizer, with the options of `tokenize`."""

    text: str
    special: bool = True
    add_special: bool = False


class Server:
    """Where a server is, and how it is asked."""

    def __init__(self, address: str, key: str | None = None, name: str = "") -> None:
        """Take the address, the API key, and the name for the user."""
        self.name = name or f"the server at {address}"
        self._key = key
        self._parts = urlsplit(address if "://" in address else f"http://{address}")

    def call(self, verb: str, kind: type[T], value: object = None, limit_s: float = TIMEOUT_S) -> T:
        """Call a command of `server/engine.py` and return its reply; raises the server's error."""
        with self.asked(verb, to_json(value), limit_s) as response:
            return from_json(response.read(), kind)

    @contextmanager
    def asked(self, verb: str, body: str, limit_s: float, name: str = "") -> Generator[HTTPResponse]:
        """Send a request and yield the response once it begins; raises the server's error.

        `limit_s` is for each part of the response; leaving the block early cancels it.
        """
        parts = self._parts
        headers = {"Content-Type": "application/json", "X-Answer": name}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        opens = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        try:
            with closing(opens(parts.hostname or "", parts.port, timeout=limit_s)) as connection:
                connection.request("POST", f"{parts.path.rstrip('/')}/engine/{verb}", body.encode(), headers)
                with closing(connection.getresponse()) as response:
                    if response.status >= 400:
                        raise _refused(response.status, response.read())
                    yield response
        except (OSError, HTTPException, ValueError) as error:
            how = "the connection was lost" if isinstance(error, IncompleteRead) else error
            raise ServerLost(f"{self.name} is gone: {how}") from error


class AttachedModels:
    """The models of a server, as `OpenModels`; the server schedules its clients."""

    def __init__(self, server: Server) -> None:
        """Look at the server; raises UserError where none of this version answers."""
        self._server = server
        self._answer = ""  # the name of the one that is being written
        try:
            about = server.call("open", EngineConnection)
        except EngineDied:
            raise UserError(f"{server.name} does not answer", _START_HINT) from None
        if about.version != __version__:
            raise UserError(
                f"{server.name} has LocalSpec {about.version}, and this is {__version__}",
                "update the older one",
            )
        self.target = about.target
        self.draft = about.draft
        self.notes = about.notes

    def generate(self, request: Request) -> Generator[GenerationEvent]:
        """Yield the answer as it is written; closing the iterator gives it up.

        The triggers of its tools are made there again: a server takes no expressions from its clients.
        """
        request = replace(request, triggers=())
        self._answer = name = uuid4().hex
        try:
            with self._server.asked("generate", to_json(request), _LONGEST_TURN_S, name) as response:
                yield from _events(response)
        finally:
            self._answer = ""

    def for_one_answer(self) -> Self:
        """Return the same models, whose `cancel` ends only what is asked of these."""
        return copy(self)

    def cancel(self) -> None:
        """End the running answer within a moment."""
        with suppress(EngineError, UserError):
            if self._answer:
                self._server.call("cancel", bool, self._answer)

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Return the settings of the fastest mode there, and the reason in a sentence."""
        asked = settings or EngineSettings()
        chosen = self._server.call("choose_settings", ModeChoice, asked, _LONGEST_TURN_S)
        return chosen.settings, chosen.reason

    def recall(self, task: TaskType) -> ModeChoice | None:
        """Return the settings tuned there for a task, if any."""
        found = self._server.call("recall", tuple[ModeChoice, ...], task)
        return found[0] if found else None

    def choices(self, kind: type[T]) -> T:
        """Return the models that could be opened there, as rows of `choices` in `app/recommendation.py`."""
        return self._server.call("choices", kind, None, _LONGEST_TURN_S)

    def render(self, request: Request) -> str:
        """Return the text of a request's prompt as the target reads it."""
        return self._server.call("render", str, replace(request, triggers=()))

    def tokenize(self, text: str, *, special: bool = True, add_special: bool = False) -> list[Token]:
        """Return the tokens of a text."""
        return list(
            self._server.call("tokenize", tuple[Token, ...], TextToTokenize(text, special, add_special))
        )

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return the tokens of a conversation, including the start of the next answer."""
        return self._server.call("count_tokens", int, tuple(messages))

    def measure_plain(self) -> PlainRate | None:
        """Return None: measuring there would delay other clients."""
        return None

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Return the memory of every device of these models."""
        return self._server.call("memory", tuple[DeviceMemory, ...])

    def first_call_s(self) -> float | None:
        """Return None: the server reports it on its own terminal."""
        return None

    def close(self) -> None:
        """Leave the models to the server."""


def _events(response: HTTPResponse) -> Generator[GenerationEvent]:
    """Yield the events of an answer; raises the error that ends it, HTTPException where nothing does."""
    for line in response:
        if line.startswith(b'data: {"error"'):
            raise _refused(500, line[6:])
        if line.startswith(b"data: "):
            event: GenerationEvent = from_json(line[6:], GenerationEvent)  # type: ignore[arg-type]
            yield event
            if isinstance(event, Finished):
                response.read()  # read to its end: leaving it would cancel the answer
                return
    raise IncompleteRead(b"")


def _refused(status: int, body: bytes) -> Exception:
    """Convert a server's message to an error."""
    problem: Any = {}
    with suppress(ValueError, LookupError, TypeError):
        problem = dict(json.loads(body)["error"])
    message = str(problem.get("message", f"HTTP {status}"))
    code = problem.get("code", status)
    if problem.get("type") == "exceed_context_size_error":
        return ContextFullError(message)
    if code == 503:
        return EngineDied(message)
    if code == 404:
        return UserError("the program there is not a LocalSpec server to attach to", _START_HINT)
    return UserError(message) if code in range(400, 500) else EngineError(message)


def to_json(value: object) -> str:
    """Return a value as JSON."""
    return json.dumps(plain(value))


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Convert JSON to a type; raises UserError."""
    try:
        return read(kind, json.loads(text))
    except (ValueError, RecursionError) as error:
        what = getattr(kind, "__name__", "event")
        hint = "both sides need the same version of LocalSpec"
        raise UserError(f"the data is not a {what}: {error}", hint) from error
