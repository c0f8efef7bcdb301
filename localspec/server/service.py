"""What answers requests, an open pair or a model that writes no text, and the protocols of requests."""

from __future__ import annotations

import time
from asyncio import to_thread
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Generic, TypeVar
from typing import Protocol as PythonProtocol

from starlette.requests import Request
from starlette.responses import Response

from localspec.app.answer_json import Json
from localspec.chat.answer_settings import SessionRequest, followed
from localspec.chat.figures import note, summary_line
from localspec.chat.tool_use.kit import ToolKit
from localspec.inference.encoders import Encoder
from localspec.inference.interface import SharedModels, check_room
from localspec.llama.library import LLAMA_BUILD
from localspec.safe_text import safe_line
from localspec.server.beginnings import Beginnings
from localspec.server.exchange import SERVER_SENT, ApiError, StreamForm, error
from localspec.server.queue import EngineQueue, QueuedRequest
from localspec.storage.profiles import Profile
from localspec.types.events import Finished, GenerationEvent, ModeChanged, Summary
from localspec.types.request import BANS, Message
from localspec.units import counted
from localspec.version import __version__

T = TypeVar("T")
_COUNTED = ("prompt_tokens", "cached_tokens", "tokens", "rounds", "drafted", "accepted", "hits", "misses",
            "prompt_s", "decode_s")  # fmt: skip


FINGERPRINT = f"b{LLAMA_BUILD}-localspec-{__version__}"
"""What clients of llama-server read its build from."""
LLAMA_NAMES = {"repetition_penalty": "repeat_penalty", "penalty_window": "repeat_last_n"}
"""The names of sampling's fields that llama-server calls otherwise."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What all models of a server have in common: the settings of its start, its log and its figures."""

    usual: str  # the profile of requests that name none
    asked: SessionRequest  # settings by flags, for what requests leave open
    report: Callable[[str], object] = lambda _line: None
    totals: Counter[str] = field(default_factory=Counter)  # of `Summary`, and of requests
    warned: set[str] = field(default_factory=set)
    kit: ToolKit | None = None  # of tools that clients may use
    slots: Path | None = None  # the folder of saved slots
    hidden: frozenset[str] = frozenset()  # of what shows the server: ui, slots, metrics
    is_verbose: bool = False  # replies say how they came about

    def log(self, line: str) -> None:
        """Log a line, after the time."""
        self.report(f"{time.strftime('%H:%M:%S')}  {safe_line(line)}")

    def warn(self, line: str) -> None:
        """Log a line the first time, about what comes again and again."""
        if line not in self.warned:
            self.warned.add(line)
            self.log(line)


@dataclass(frozen=True, slots=True)
class ChatService:
    """An open pair behind its queue, with its profiles by the names that clients give them."""

    queue: EngineQueue
    profiles: Mapping[str, Profile]
    server: ServerSettings
    beginnings: Beginnings = field(default_factory=Beginnings)
    chosen_scales: list[tuple[float, ...]] = field(default_factory=list)  # at most one, of LoRA adapters

    @property
    def scales(self) -> tuple[float, ...]:
        """Return the scales of LoRA adapters for requests that name none."""
        usual = tuple(adapter.scale for adapter in self.queue.models.target.adapters)
        return self.chosen_scales[0] if self.chosen_scales else usual

    def set_scales(self, scales: tuple[float, ...]) -> None:
        """Set them, for later requests."""
        self.chosen_scales[:] = [scales]

    @property
    def asked(self) -> SessionRequest:
        """Return the settings of the server's start."""
        return self.server.asked

    @property
    def report(self) -> Callable[[str], object]:
        """Return the function that logs a line."""
        return self.server.report

    def cut(self, reason: str) -> None:
        """End the answers in progress with an error."""
        self.queue.cut(reason)

    def close(self) -> None:
        """Free the models."""
        self.queue.close()

    def profile(self, model: str | None) -> Profile:
        """Return the profile that a request names; the default one for an unknown name.

        Clients often send the name of another model.
        """
        return self.profiles.get(model or "") or self.profiles[self.server.usual]

    def conversation(
        self, profile: Profile, messages: tuple[Message, ...]
    ) -> tuple[Profile, tuple[Message, ...]]:
        """Return the profile of a chat, and its messages with a system prompt first."""
        system = profile.system_prompt if self.asked.system is None else self.asked.system
        questions = [(message.content, ()) for message in messages if message.role == "user"]
        if system and messages[0].role != "system":
            messages = (Message("system", system), *messages)
        return followed(profile, self.profiles, questions), messages

    def warn(self, line: str) -> None:
        """Log a line the first time, about what clients send with every request."""
        self.server.warn(line)

    def compare_beginning(self, messages: Sequence[Message], tools: Sequence[str]) -> None:
        """Log that a conversation came again with another beginning: its whole prompt is read then."""
        if (place := self.beginnings.changed_at(messages, tools)) is not None:
            self.warn(
                f"a conversation came again with other instructions or tools, from character {place} on: "
                "its prompt is read from there on as if it were new"
            )

    @property
    def usual_request(self) -> QueuedRequest:
        """Return a request that leaves everything open."""
        return QueuedRequest(self.profile(None), self.asked)

    def settings(self, asked: QueuedRequest) -> Json:
        """Return the sampling and the limits of an answer, by llama-server's names."""
        answer = asked.overrides.answer
        sampling = asdict(asked.overrides.sampling_under(asked.profile, self.queue.models))
        return {
            **{LLAMA_NAMES.get(name, name): value for name, value in sampling.items()},
            "seed": -1 if answer.seed is None else answer.seed,
            "n_predict": -1 if answer.max_tokens is None else answer.max_tokens,
            "stop": list(answer.stop),
            "n_probs": answer.top_logprobs or 0,
            "logit_bias": [
                {"token": token, "bias": None if bias <= BANS else bias} for token, bias in answer.logit_bias
            ],
            "lora": [{"id": at, "scale": scale} for at, scale in enumerate(answer.adapters or self.scales)],
        }

    async def in_turn(self, ask: Callable[[SharedModels], T]) -> T:
        """Return the models' answer to something else than a prompt, when nothing else uses them."""
        found = list[T]()

        def work(models: SharedModels) -> Iterator[GenerationEvent]:
            found.append(ask(models))
            return iter(())

        asked = QueuedRequest(self.profile(None), self.asked, work)
        async with aclosing(self.queue.answer(asked)) as events:
            async for _ in events:
                pass
        return found[0]

    async def answer(self, asked: QueuedRequest) -> AsyncGenerator[GenerationEvent]:
        """Yield the events of an answer, which end with `Finished`; closing the generator gives it up.

        Raises `QueueFullError`, and what writing the answer raises.
        """
        began = time.monotonic()
        finished = None
        self.server.totals["requests"] += 1
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
            self.server.totals["failed"] += finished is None

    async def _check_room(self, asked: QueuedRequest) -> None:
        """Raise ContextFullError for a conversation that would only be refused when its turn comes."""
        answer = asked.overrides.answer
        models = self.queue.models
        if not self.queue.jobs()[0] or asked.request is not None or asked.work is not None:
            return
        if isinstance(answer.prompt, str):
            return
        size = sum(len(message.content.encode()) for message in answer.prompt)
        if size + sum(map(len, answer.tools)) >= models.target.context:  # a token has a byte or more
            count = (answer.prompt, answer.tools, answer.template_variables)
            check_room(await to_thread(models.count_tokens, *count), models.target)

    def _count(self, asked: QueuedRequest, summary: Summary, seconds: float) -> None:
        figures = {name: getattr(summary, name) for name in _COUNTED}
        waited = max(0.0, seconds - summary.seconds)
        self.server.totals["longest"] = max(
            self.server.totals["longest"], summary.prompt_tokens + summary.tokens
        )
        self.server.totals["passes"] += summary.rounds + (summary.tokens > 0)
        self.server.totals["verifications"] += summary.rounds if summary.drafted else 0
        self.server.totals.update(
            figures | {"first_token_s": waited + summary.first_token_s, "waited_s": waited}
        )
        prompt = f"prompt of {counted(summary.prompt_tokens, 'token')}, {summary.cached_tokens:,} cached"
        line = f"{summary_line('', summary).strip()}  {prompt}"
        if asked.reads:
            line = f"read {summary.new_prompt_tokens:,} tokens before they are asked"
        waited_for = f"  waited {waited:.1f} s" if waited > 0.1 else ""
        self.report(f"{time.strftime('%H:%M:%S')}  {asked.profile.name}  {line}{waited_for}")


E_co = TypeVar("E_co", bound=Encoder, covariant=True)


@dataclass(frozen=True, slots=True)
class EncoderService(Generic[E_co]):
    """An open model for embeddings or reranking, and the name that clients see."""

    name: str
    encoder: E_co
    totals: Counter[str] = field(default_factory=Counter)  # of the server

    def count(self, texts: int, tokens: int, seconds: float) -> None:
        """Count a request that was answered, whose texts were read in a pass each."""
        self.totals.update({"requests": 1, "passes": texts, "prompt_tokens": tokens, "prompt_s": seconds})

    def cut(self, _reason: str) -> None:
        """Do nothing: a text is read in a moment."""

    def close(self) -> None:
        """Free the model."""
        self.encoder.close()


S_contra = TypeVar("S_contra", contravariant=True)


class Handler(PythonProtocol[S_contra]):
    """Answers requests with what is open: a pair, another model, or all models of the server."""

    def __call__(self, open_now: S_contra, request: Request, /) -> Awaitable[Response]:
        """Answer a request."""


def comment(words: str, _path: str, _model: str) -> str:
    """Return a comment of a stream, which readers of server-sent events skip."""
    return f": {words}\n"


@dataclass(frozen=True, slots=True)
class Protocol(Generic[S_contra]):
    """Paths with the handlers of what is sent there, only `told` or `removed`, and the wording of errors.

    The bodies of those that need a model name it, unless it is always the first. A stream, which `streams`
    says is the usual reply, says by `opening` that its model is being opened, in the words, for the path and
    the name that are given.
    """

    handlers: Mapping[str, Handler[S_contra]] = field(default_factory=dict)
    error: Callable[[ApiError], Json] = error
    told: Mapping[str, Handler[S_contra]] = field(default_factory=dict)
    removed: Mapping[str, Handler[S_contra]] = field(default_factory=dict)
    names_model: bool = True
    streams: bool = False
    form: StreamForm = SERVER_SENT
    opening: Callable[[str, str, str], str] = comment
