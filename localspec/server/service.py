"""What a server offers: profiles as models, answers to what protocols ask, and figures of all of it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from localspec.app.figures import summary_line
from localspec.chat.answer_settings import SessionRequest, followed
from localspec.server.queue import Asked, EngineQueue
from localspec.storage.profiles import Profile
from localspec.types import Finished, GenerationEvent, Message


@dataclass(slots=True)
class Totals:
    """What was answered since the start."""

    requests: int = 0
    failed: int = 0  # or given up
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    hits: int = 0
    misses: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    waited_s: float = 0.0  # from the request to the first token


@dataclass(frozen=True, slots=True)
class Service:
    """The models behind the queue, and what whoever started the server settled."""

    queue: EngineQueue
    profiles: Mapping[str, Profile]
    usual: str  # the profile of requests that name none
    asked: SessionRequest  # what flags settle, where requests leave it open
    tell: Callable[[str], object] = lambda _line: None
    totals: Totals = field(default_factory=Totals)

    def profile(self, model: str | None) -> Profile:
        """Return the profile that a request names; a name that is none means the usual one.

        Clients often send the name of some model that they know.
        """
        return self.profiles.get(model or "") or self.profiles[self.usual]

    def conversation(
        self, profile: Profile, messages: tuple[Message, ...]
    ) -> tuple[Profile, tuple[Message, ...]]:
        """Return which profile a chat follows, and its messages with a system prompt in front."""
        system = profile.system_prompt if self.asked.system is None else self.asked.system
        questions = [(said.content, ()) for said in messages if said.role == "user"]
        if system and messages[0].role != "system":
            messages = (Message("system", system), *messages)
        return followed(profile, self.profiles, questions), messages

    async def answer(self, asked: Asked) -> AsyncGenerator[GenerationEvent]:
        """Yield the events of an answer, which end with `Finished`; closing the generator gives it up.

        Raises `QueueFullError`, and what writing the answer raises.
        """
        began, totals, finished = time.monotonic(), self.totals, False
        totals.requests += 1
        try:
            async with aclosing(self.queue.answer(asked)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        finished = True
                        self._count(event, time.monotonic() - began)
                        line = summary_line("", event.summary).strip()
                        self.tell(f"{time.strftime('%H:%M:%S')}  {asked.profile.name}  {line}")
                    yield event
        finally:
            totals.failed += not finished

    def _count(self, finished: Finished, seconds: float) -> None:
        summary, totals = finished.summary, self.totals
        for name in ("prompt_tokens", "cached_tokens", "tokens", "rounds", "drafted", "accepted", "hits",
                     "misses", "prompt_s", "decode_s"):  # fmt: skip
            setattr(totals, name, getattr(totals, name) + getattr(summary, name))
        totals.waited_s += max(0.0, seconds - summary.decode_s)
