"""Clients of one server, several at a time: some leave, some kill the engine; memory is watched."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx2

from localspec.demo import bundled_pair, prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.types.models import ModelOptions
from tests.campaign.clock import now_s
from tests.campaign.log import Log, allowed_s, require
from tests.campaign.requests import check, impatient, reply, sent
from tests.campaign.turns import Watch
from tests.server.running import Served, serving

_CLIENTS = 4
_CROWD = 8
_WATCHED_EVERY = 20  # cases
_CASE_S = 20.0
_KEPT = 16 << 20  # bytes of other conversations
_WISHES: tuple[dict[str, object], ...] = (
    {},
    {"n": 2},
    {"temperature": 0},
    {"stop": ["the", "."]},
    {"logprobs": True, "top_logprobs": 2},
    {"response_format": {"type": "json_object"}},
    {"speculative": {"mode": "ssd"}},
    {"speculative": {"mode": "off"}},
)


def opened() -> Worker:
    """Open the bundled pair in a process of its own."""
    target, draft = (ModelOptions(path, context=1024, threads=1) for path in bundled_pair())
    worker = Worker.open(OpenPlan(target, draft))
    worker.keep_conversations(_KEPT)
    return worker


def clients(log: Log, _folder: Path) -> None:
    """Let four clients ask at once; each gets its answer, or is reported why not, and nothing is left."""
    with serving(opened) as served:
        _crowd(log, served, _CLIENTS, is_malformed=False, deaths=0.02)


def crowds(log: Log, _folder: Path) -> None:
    """The same with eight, of whom one asks what can be answered."""
    with impatient(), serving(opened) as served:
        _crowd(log, served, _CROWD, is_malformed=True, deaths=0.07)


def _crowd(log: Log, served: Served, count: int, *, is_malformed: bool, deaths: float) -> None:
    questions = [prompt.prompt for prompt in prompts()]
    watch = Watch()
    died = 0
    with ThreadPoolExecutor(count) as crowd:
        for number in log.numbers():
            rng = log.random(number)
            with log.case(number, _CASE_S):
                asks = [_ask(served, rng, questions)]
                asks += [
                    _malformed(served, rng) if is_malformed else _ask(served, rng, questions)
                    for _ in range(count - 1)
                ]
                kills = rng.random() < deaths
                for done in [crowd.submit(ask) for ask in asks]:
                    if kills:
                        _kill(served)
                    status, text = done.result()
                    require(status in (0, 200) or (kills and status == 503), f"{status}: {text[:300]}")
                died += kills
                _require_idle(served)
            if number % _WATCHED_EVERY == 0:
                watch.look()
    watch.check(log)
    log.notes.append(f"{count * log.cases:,} requests; the engine was killed in {died} cases")


def _malformed(served: Served, rng: random.Random) -> Callable[[], tuple[int, str]]:
    data, leaves = sent(rng), rng.random() < 0.1

    def ask() -> tuple[int, str]:
        check(reply(served.port, data, leaves=leaves))
        return 0, ""

    return ask


def _ask(served: Served, rng: random.Random, questions: list[str]) -> Callable[[], tuple[int, str]]:
    body = {
        "messages": [{"role": "user", "content": rng.choice(questions)[: rng.choice((40, 400))]}],
        "max_tokens": rng.randrange(1, 40),
        "stream": rng.random() < 0.5,
        **rng.choice(_WISHES),
    }
    return partial(_asked, served, body, rng.randrange(1, 8) if rng.random() < 0.2 else None)


def _asked(served: Served, body: dict[str, object], leaves_after: int | None) -> tuple[int, str]:
    """Ask, and read to the end or leave after some lines; return the status, or 0, and the text."""
    with (
        suppress(httpx2.HTTPError),
        httpx2.Client(base_url=served.url, verify=False, timeout=30) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        lines = []
        for line in reply.iter_lines():
            lines.append(line)
            if len(lines) == leaves_after:
                break
        return reply.status_code, "\n".join(lines)
    return 0, ""


def _kill(served: Served) -> None:
    models = served.service.queue.models
    assert isinstance(models, Worker)
    with suppress(ProcessLookupError):
        os.kill(models.pid, signal.SIGKILL)


def _require_idle(served: Served) -> None:
    ends = now_s() + allowed_s(2.0)
    while served.service.queue.jobs() != ((), ()):
        require(now_s() < ends, "a request goes on that nobody waits for")
        time.sleep(0.005)
