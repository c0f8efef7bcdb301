"""Thousands of turns as one person might take them, while memory, threads and descriptors are watched."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression

import psutil

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.answering import AnswerEvent, AnswerSaved
from localspec.chat.session import AnswerVariant, ChatSession
from localspec.chat.store import Store
from localspec.demo import bundled_pair, prompts
from localspec.errors import Cancelled, ContextFullError, EngineDied, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.storage.profiles import profiles
from localspec.types.events import TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import Mode, Request
from tests.campaign.log import Log, require

MODES: tuple[Mode, ...] = ("off", "ngram", "sd", "ssd")
_WATCHED_EVERY = 50  # turns
_PER_MODELS = 400  # turns until other models are opened
_GROWTH = 48 << 20  # bytes that this process and the engine's may each gain, however many turns there are
_SETTLED = 0.3  # of the turns: caches have filled by then
_TURN_S = 5.0


class Person:
    """One session, its models, and what comes to mind."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "chats.db")
        self.known = profiles(folder / "profiles").good
        request = SessionRequest(answer=Request("", max_tokens=12))
        self.session = ChatSession(self.store, self.known, request, start="new")
        self.questions = [prompt.prompt for prompt in prompts()]
        self.worker = self.opened(0)
        self.deaths = 0

    def opened(self, kind: int) -> Worker:
        """Open the bundled pair, or the target alone, or the draft in its place."""
        target, draft = (
            ModelOptions(path, context=1024, micro_batch=64, threads=1) for path in bundled_pair()
        )
        pairs = ((target, draft), (target, None), (draft, None), (replace(target, kv_type_k="q8_0"), draft))
        return Worker.open(OpenPlan(*pairs[kind % len(pairs)]))

    def close(self) -> None:
        """Leave."""
        self.worker.close()
        self.store.close()

    def turn(self, rng: random.Random) -> None:
        """Do something, mostly ask."""
        chat = self.session.chat
        match rng.randrange(12):
            case 0:
                self.session.new()
            case 1 if self.store.chats():
                self.session.open(rng.choice(self.store.chats()[:20]).id)
            case 2:
                self.session.choose_profile(rng.choice(self.session.profiles).name)
            case 3:
                self.session.update_settings(mode=rng.choice((*MODES, "auto", None)))
            case 4 if chat.path:
                chosen = rng.choice(chat.path)
                chat.switch(chosen.id, rng.choice((-1, 1)))
            case 5 if chat.path:
                questions = [message for message in chat.path if message.role == "user"]
                chat.edit(rng.choice(questions).id, rng.choice(self.questions))
            case 6 if chat.path:
                chat.back_to(rng.choice(chat.path).id)
            case 7:
                self.session.update_settings(temperature=rng.choice((None, 0.0, 1.5)))
        self.asks(rng)

    def asks(self, rng: random.Random) -> None:
        """Ask and read the answer, or leave it, or stop it, or continue with the last one."""
        chat = self.session.chat
        last = chat.path[-1] if chat.path else None
        continues = None
        if last is not None and last.role == "assistant" and last.state != "complete" and rng.random() < 0.3:
            continues = last.id
        elif last is None or last.role == "assistant":
            chat.ask(rng.choice(self.questions)[: rng.choice((5, 40, 300))])
        mode = rng.choice((*MODES, None))
        has_draft = self.worker.draft is not None
        with suppress(ContextFullError, Cancelled):
            try:
                variant = AnswerVariant(mode if has_draft else "off")
                events = self.session.answer(self.worker, variant=variant, continues=continues)
                self.reads(events, rng)
            except EngineDied:
                self.deaths += 1
                self.worker.close()
                self.worker = self.opened(0)
            except ContextFullError:
                self.session.new()

    def reads(self, events: Iterator[AnswerEvent], rng: random.Random) -> None:
        """Read an answer in one of several ways, and look at what was kept."""
        how = rng.randrange(10)
        stop = rng.randrange(1, 8)
        text, saved = "", None
        with closing(events):  # type: ignore[type-var]
            for number, event in enumerate(events):
                if isinstance(event, TextDelta):
                    text += event.text
                if isinstance(event, AnswerSaved):
                    saved = event
                if number == stop and how == 0:
                    return
                if number == stop and how in (1, 2):
                    self.worker.cancel()
                if number == stop and how == 3 and rng.random() < 0.1:
                    os.kill(self.worker.pid, signal.SIGKILL)
        if saved is not None:
            kept = {message.id: message for message in self.store.messages(saved.message.chat)}
            require(kept[saved.message.id].content.endswith(text), "what was read is not what is kept")


class Watch:
    """What a process holds, looked at now and then."""

    def __init__(self, process: psutil.Process | None = None, name: str = "", pool: int = 0) -> None:
        """Watch this process, or another one, which may be replaced; `pool` threads may come late."""
        self.process, self._pool = process or psutil.Process(), pool
        self._name = f"{name}: " if name else ""
        self._began_s = time.monotonic()
        self.seen: list[tuple[int, int, int, int]] = []
        self._times_s: list[float] = []

    def look(self) -> None:
        """Note memory of the process, its threads, descriptors and children."""
        full = self.process.memory_full_info()  # not mapped files; but what was written and then swapped out
        held = (full.uss + getattr(full, "swap", 0), self.process.num_threads(), self.process.num_fds())
        self.seen.append((*held, len(self.process.children(recursive=True))))
        self._times_s.append(time.monotonic() - self._began_s)

    def check(self, log: Log) -> None:
        """Compare what is held in the end with what was held when everything had been used once."""
        start = int(len(self.seen) * _SETTLED)
        settled, times_s = self.seen[start:], self._times_s[start:]
        if len(settled) < 2:
            return
        first, last = settled[0], settled[-1]
        growth = min(seen[0] for seen in settled[-3:]) - max(seen[0] for seen in settled[:3])
        every = -(-len(settled) // 8)
        course = ", ".join(f"{seen[0] >> 20}" for seen in settled[::-every][::-1])
        slope = linear_regression(times_s, [seen[0] for seen in settled]).slope * 3600
        log.notes.append(
            f"{self._name}memory {course} MiB ({slope / 2**20:+.1f} an hour), "
            f"{last[1]} threads, {last[2]} files"
        )
        if growth > _GROWTH:
            log.found.append(f"{self._name}memory has grown by {growth >> 20} MiB")
        for place, what, more in ((1, "threads", self._pool), (2, "descriptors", 0), (3, "children", 0)):
            if last[place] > max(seen[place] for seen in settled[: len(settled) // 2 + 1]) + more:
                log.found.append(f"{self._name}{what}: {last[place]}, at first {first[place]}")


def turns(log: Log, folder: Path) -> None:
    """Take turns; every so often other models, and at times the engine is killed."""
    person, watch = Person(folder), Watch()
    engine: list[int] = []
    try:
        for number in log.numbers():
            rng = log.random(number)
            if number % _PER_MODELS == _PER_MODELS - 1:
                with log.case(number, _TURN_S):
                    _compare(engine, log)
                    person.worker.close()
                    person.worker = person.opened(rng.randrange(4))
            with log.case(number, _TURN_S, person.session.mode or "auto"):
                try:
                    person.turn(rng)
                except UserError as error:
                    log.notes.append(f"refused: {error}") if len(log.notes) < 5 else None
            if number % _WATCHED_EVERY == 0:
                watch.look()
                with suppress(psutil.Error):
                    engine.append(psutil.Process(person.worker.pid).memory_info().rss)
        watch.check(log)
        log.notes.append(f"{person.deaths} deaths of the engine")
    finally:
        person.close()


def _compare(engine: list[int], log: Log) -> None:
    """Find an engine that grew while the same models were open."""
    if len(engine) > 4 and (growth := engine[-1] - max(engine[1:3])) > _GROWTH:
        log.found.append(f"the engine has grown by {growth >> 20} MiB in {_PER_MODELS} turns")
    engine.clear()
