"""The service of a server: profiles as models, and answers for the protocols."""

from __future__ import annotations

import time
from asyncio import to_thread
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from localspec.app.answer_json import Json
from localspec.chat.answer_settings import SessionRequest, followed
from localspec.chat.figures import note, summary_line
from localspec.chat.tool_use.kit import ToolKit
from localspec.inference.embedder import Embedder
from localspec.inference.interface import check_room
from localspec.llama.library import LLAMA_BUILD
from localspec.safe_text import safe_line
from localspec.server.beginnings import Beginnings
from localspec.server.exchange import ApiError, error
from localspec.server.queue import EngineQueue, QueuedRequest
from localspec.storage.profiles import Profile
from localspec.types.events import Finished, GenerationEvent, ModeChanged, Summary
from localspec.types.request import Message
from localspec.version import __version__

_COUNTED = ("prompt_tokens", "cached_tokens", "tokens", "rounds", "drafted", "accepted", "hits", "misses",
            "prompt_s", "decode_s")  # fmt: skip


FINGERPRINT = f"b{LLAMA_BUILD}-localspec-{__version__}"
"""What clients of llama-server read its build from."""
LLAMA_NAMES = {"repetition_penalty": "repeat_penalty", "penalty_window": "repeat_last_n"}
"""The names of sampling's fields that llama-server calls otherwise."""


@dataclass(frozen=True, slots=True)
class ChatService:
    """The models behind the queue, and the settings of the server's start."""

    queue: EngineQueue
    profiles: Mapping[str, Profile]
    usual: str  # the profile of requests that name none
    asked: SessionRequest  # settings by flags, for what requests leave open
    report: Callable[[str], object] = lambda _line: None
    totals: Counter[str] = field(default_factory=Counter)  # of `Summary`, and of requests
    warned: set[str] = field(default_factory=set)
    embedder: Embedder | None = None
    beginnings: Beginnings = field(default_factory=Beginnings)
    kit: ToolKit | None = None  # of MCP servers that clients may use

    def profile(self, model: str | None) -> Profile:
        """Return the profile that a request names; the default one for an unknown name.

        Clients often send the name of another model.
        """
        return self.profiles.get(model or "") or self.profiles[self.usual]

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
        if line not in self.warned:
            self.warned.add(line)
            self.report(f"{time.strftime('%H:%M:%S')}  {safe_line(line)}")

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
        }

    async def answer(self, asked: QueuedRequest) -> AsyncGenerator[GenerationEvent]:
        """Yield the events of an answer, which end with `Finished`; closing the generator gives it up.

        Raises `QueueFullError`, and what writing the answer raises.
        """
        began, finished = time.monotonic(), None
        self.totals["requests"] += 1
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
            self.totals["failed"] += finished is None

    async def _check_room(self, asked: QueuedRequest) -> None:
        """Raise ContextFullError for a conversation that would only be refused when its turn comes."""
        answer, models = asked.overrides.answer, self.queue.models
        if self.queue.jobs()[0] is None or asked.work is not None or isinstance(answer.prompt, str):
            return
        size = sum(len(message.content.encode()) for message in answer.prompt)
        if size + sum(map(len, answer.tools)) >= models.target.context:  # a token has a byte or more
            count = (answer.prompt, answer.tools, answer.template_variables)
            check_room(await to_thread(models.count_tokens, *count), models.target)

    def _count(self, asked: QueuedRequest, summary: Summary, seconds: float) -> None:
        figures = {name: getattr(summary, name) for name in _COUNTED}
        waited = max(0.0, seconds - summary.seconds)
        self.totals["longest"] = max(self.totals["longest"], summary.prompt_tokens + summary.tokens)
        self.totals["verifications"] += summary.rounds if summary.drafted else 0
        self.totals.update(figures | {"first_token_s": waited + summary.first_token_s, "waited_s": waited})
        line = summary_line("", summary).strip()
        if asked.reads:
            line = f"read {summary.new_prompt_tokens:,} tokens before they are asked"
        waited_for = f"  waited {waited:.1f} s" if waited > 0.1 else ""
        self.report(f"{time.strftime('%H:%M:%S')}  {asked.profile.name}  {line}{waited_for}")


Handler = Callable[[ChatService, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Protocol:
    """Paths with the handlers of what is sent there or only `told`, and the wording of errors."""

    handlers: Mapping[str, Handler] = field(default_factory=dict)
    error: Callable[[ApiError], Json] = error
    told: Mapping[str, Handler] = field(default_factory=dict)
