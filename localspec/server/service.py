"""What a server offers: profiles as models, answers to what protocols ask, and figures of all of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from localspec.app.figures import summary_line
from localspec.chat.answer_settings import SessionRequest, followed
from localspec.server.queue import Asked, EngineQueue
from localspec.storage.profiles import Profile
from localspec.types import Finished, GenerationEvent, Message, Summary

_COUNTED = ("prompt_tokens", "cached_tokens", "tokens", "rounds", "drafted", "accepted", "hits", "misses",
            "prompt_s", "decode_s")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Service:
    """The models behind the queue, and what whoever started the server settled."""

    queue: EngineQueue
    profiles: Mapping[str, Profile]
    usual: str  # the profile of requests that name none
    asked: SessionRequest  # what flags settle, where requests leave it open
    tell: Callable[[str], object] = lambda _line: None
    totals: Counter[str] = field(default_factory=Counter)  # of `Summary`, and of requests

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
        began, finished = time.monotonic(), None
        self.totals["requests"] += 1
        try:
            async with aclosing(self.queue.answer(asked)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        finished = event
                        self._count(asked, event.summary, time.monotonic() - began)
                    yield event
        finally:
            self.totals["failed"] += finished is None

    def _count(self, asked: Asked, summary: Summary, seconds: float) -> None:
        figures = {name: getattr(summary, name) for name in _COUNTED}
        waited = max(0.0, seconds - summary.first_token_s - summary.decode_s)
        self.totals.update(figures | {"first_token_s": waited + summary.first_token_s, "waited_s": waited})
        line = summary_line("", summary).strip()
        waited_for = f"  waited {waited:.1f} s" if waited > 0.1 else ""
        self.tell(f"{time.strftime('%H:%M:%S')}  {asked.profile.name}  {line}{waited_for}")
