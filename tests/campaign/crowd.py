"""Eight clients of the program `localspec serve`, whose models come and go, and whose engine is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import TypeVar

import httpx2
import psutil

from localspec.demo import prompts
from tests.campaign.log import Log, allowed_s, require
from tests.campaign.serve_program import CLIENTS, COMES_AND_GOES, EXACT, IDLE_S, ServeProgram
from tests.campaign.speaking import CHAT, PROTOCOLS, Json, Outcome, Question, Spoken, ask
from tests.campaign.turns import Watch
from tests.inference.worker.processes import END_TOKENS

_CASE_S = 60.0
_WATCHED_EVERY = 10  # cases
_OTHERS_EVERY, _RACE_AT, _WAKE_AT = 8, 1, 5  # of cases
_WORST_GAP_S = 2.0  # between two pieces of a text, on a machine with nothing else to do
_POOL = (os.cpu_count() or 1) + 4  # threads that asyncio starts one by one, as far as it needs them
_WINDOW_S = 0.5  # in which all write at least, for their shares to be compared
_RACE = 250  # tokens of each client: fewer than end an answer that repeats itself
# The logarithms of two tokens between which rounding chooses may differ by so much. In company prompts are
# read in other pieces, and the cells of several texts alternate, which adds sums in another order. That
# changed 4 of 30 short prompts, by up to 0.16 in a logit; long ones have more sums.
_NEAR = 0.2
_NEAR_IF_LONG = 0.4
_GBNF = 'root ::= ("yes" | "no") " "? [a-z]{1,20}'
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
}
_WISHES: tuple[Json, ...] = (
    *({}, {}, {"temperature": 0}, {"stop": ["the", "."]}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}),
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}}},
    *({"grammar": _GBNF}, {"speculative": {"mode": "ssd"}}, {"speculative": {"mode": "ngram"}}),
    {"speculative": {"mode": "sd", "draft_length": 4}},
)  # of chats
_MODES = ("off", "sd", "ssd", "ngram")
_GREEDY: Json = {"model": EXACT, "temperature": 0, "repeat_penalty": 1.0}
_ENDLESS: Json = {
    "model": EXACT,
    "logit_bias": {str(token): -100 for token in END_TOKENS},
    "stop": [],
    "temperature": 1.0,
}
_UNLOADED = ("was unloaded",)  # in the errors of requests whose model is unloaded under them
_DIED = ("was ended by the system",)


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Alone:
    """A greedy answer to a question that was asked alone, token by token, with the lead over the second."""

    tokens: tuple[tuple[str, float], ...]

    @property
    def text(self) -> str:
        """Return the text."""
        return "".join(token for token, _ in self.tokens)

    def lead(self, text: str) -> float:
        """Return by how much the token led at which another text differs."""
        so_far = ""
        for token, lead in self.tokens:
            so_far += token
            if not text.startswith(so_far):
                return lead
        return 0.0  # it went on where this one ended, of which nothing is told


class Crowd:
    """The clients, what they ask, and what the answers were."""

    def __init__(self, server: ServeProgram) -> None:
        self.server = server
        self.texts = [prompt.prompt for prompt in prompts()]
        long = " ".join(self.texts)
        self.systems = ["Be brief.", *(long[place : place + 3_000] for place in (0, 100, 200))]
        self.questions = [Question(text, system) for text in self.texts[:6] for system in self.systems[:2]]
        self.alone = [self.answered_alone(question) for question in self.questions]
        self.asked: list[tuple[Outcome, int]] = []  # in this case, with the most tokens that each may have
        self.shares: list[float] = []  # of the client that had least, in races
        self.gaps_s: list[float] = []  # the worst of each answer in a race
        self.speeds: list[float] = []  # tokens per second together, in races
        self.differing = 0  # texts that rounding made others
        self.compared = 0
        self.broken = 0  # answers that ended with an error because the engine was killed

    def answered_alone(self, question: Question) -> Alone:
        """Ask for a greedy answer while nobody else does."""
        body = {**CHAT.body(question), **_GREEDY, "logprobs": True, "top_logprobs": 2}
        body.pop("stream_options")
        reply = self.server.client.post(CHAT.path, json=body).json()
        tops = [(each["token"], each["top_logprobs"]) for each in reply["choices"][0]["logprobs"]["content"]]
        return Alone(tuple((token, two[0]["logprob"] - two[1]["logprob"]) for token, two in tops))

    def question(self, rng: random.Random) -> Question:
        """Return a short question or a long one, perhaps after a system prompt that others have too."""
        text = rng.choice(self.texts)
        if rng.random() < 0.1:
            start = rng.randrange(500)
            text = " ".join(self.texts * 3)[start : start + rng.randrange(2_000, 8_000)]
        system = rng.choice(self.systems) if rng.random() < 0.5 else ""
        return Question(text, system, rng.randrange(1, 40))

    def acts(self, rng: random.Random) -> list[str]:
        """Do what one client does in a case; return what was wrong."""
        time.sleep(rng.uniform(0.0, 0.5))
        acts = (self.asks,) * 8 + (self.compares,) * 4 + (self.looks, self.embeds, self.moves)
        wrong = []
        for act in rng.choices(acts, k=rng.randrange(1, 6)):
            try:
                act(rng)
            except Exception as error:  # noqa: BLE001 - what is wrong for one client is reported for the case
                wrong.append(f"{act.__name__}: {type(error).__name__} {error}")
        return wrong

    def sends(self, spoken: Spoken, body: Json, most: int, leaves_s: float | None = None) -> Outcome:
        """Send a request whose answer has so many tokens at most, and note what comes of it."""
        if not body.get("stream"):
            body.pop("stream_options", None)
        outcome = ask(self.server.url, spoken, body, leaves_s)
        self.asked.append((outcome, most))
        return outcome

    def asks(self, rng: random.Random) -> None:
        """Ask in any protocol, and perhaps leave."""
        spoken, question = rng.choice(PROTOCOLS), self.question(rng)
        model = rng.choice((EXACT, EXACT, f"{EXACT}:coding", "other"))
        body = {**spoken.body(question), "model": model, "stream": rng.random() < 0.7}
        if spoken is CHAT:
            body |= rng.choice(_WISHES)
        if model == "other":
            body.pop("speculative", None)  # it has no draft model
        leaves_s = rng.uniform(0.01, 1.0) if rng.random() < 0.25 else None
        outcome = self.sends(spoken, body, question.tokens * body.get("n", 1), leaves_s)
        outcome.check(_UNLOADED if model == "other" else ())

    def compares(self, rng: random.Random) -> None:
        """Ask what was answered alone before; the text is the same, but for what rounding decides."""
        number, mode = rng.randrange(len(self.questions)), rng.choice(_MODES)
        question, alone = self.questions[number], self.alone[number]
        body = {**CHAT.body(question), **_GREEDY, "speculative": {"mode": mode}, "stream": rng.random() < 0.5}
        outcome = self.sends(CHAT, body, question.tokens)
        outcome.check()
        lead = alone.lead(outcome.text)
        self.compared, self.differing = self.compared + 1, self.differing + (outcome.text != alone.text)
        near = _NEAR_IF_LONG if len(question.system) > 100 else _NEAR
        is_right = outcome.text == alone.text or lead < near
        require(is_right, f"{outcome.text!r}, alone {alone.text!r} (mode {mode}, lead {lead:.3f})")

    def looks(self, rng: random.Random) -> None:
        """Look at what the server tells of itself."""
        path = rng.choice(("/v1/models", "/slots", "/props", "/metrics", "/health", "/"))
        status = httpx2.get(self.server.url + path, timeout=60).status_code
        require(status == 200, f"{path}: {status}")

    def embeds(self, rng: random.Random) -> None:
        """Ask for vectors, whose model may have to be opened."""
        body = {"model": "vectors", "input": rng.sample(self.texts, 3)}
        reply = httpx2.post(f"{self.server.url}/v1/embeddings", json=body, timeout=60).json()
        require(len(reply.get("data", ())) == 3 or "was unloaded" in str(reply), f"{reply}"[:300])

    def moves(self, rng: random.Random) -> None:
        """Load or unload a model; one that is so already is refused."""
        path, name = rng.choice(("/models/load", "/models/unload")), rng.choice(COMES_AND_GOES)
        status = httpx2.post(self.server.url + path, json={"model": name}, timeout=60).status_code
        require(status in (200, 400), f"{path} {name}: {status}")

    def together(self, acts: Sequence[Callable[[], Result]]) -> list[Result]:
        """Let each client do something at the same time; return the results."""
        with ThreadPoolExecutor(len(acts)) as clients:
            return [done.result() for done in [clients.submit(act) for act in acts]]

    def mix(self, rng: random.Random) -> None:
        """Let all clients act, and compare the figures of all answers with the server's."""
        self.asked, before = [], self.server.figures()
        found = self.together([partial(self.acts, random.Random(rng.random())) for _ in range(CLIENTS)])
        wrong = [each for each_wrong in found for each in each_wrong]
        require(not wrong, "; ".join(wrong))
        self.server.rests()
        written = self.server.figures()["tokens_total"] - before["tokens_total"]
        told = sum(outcome.tokens or 0 for outcome, _ in self.asked)
        untold = sum(most for outcome, most in self.asked if outcome.tokens is None)
        require(
            told <= written <= told + untold, f"{written} tokens were written, {told} told, {untold} left"
        )

    def race(self, rng: random.Random) -> None:
        """Let all clients have long answers; some have long prompts. Each gets its share, without stalls."""
        asked = [Question(rng.choice(self.texts), tokens=_RACE) for _ in range(CLIENTS)]
        if rng.random() < 0.5:
            asked[0] = replace(self.question(random.Random(1)), tokens=_RACE)
        mode: Json = {"speculative": {"mode": "off"}} if (is_plain := rng.random() < 0.6) else {}
        bodies = [{**CHAT.body(each), **_ENDLESS, **mode, "stream": True} for each in asked]
        outcomes = self.together([partial(ask, self.server.url, CHAT, body) for body in bodies])
        for outcome in outcomes:
            outcome.check()
            require(outcome.tokens == _RACE, f"{outcome.tokens} tokens, not {_RACE}")
        self.gaps_s += [outcome.worst_gap_s for outcome in outcomes]
        begins = max(outcome.pieces[0][0] for outcome in outcomes)
        seconds = min(outcome.pieces[-1][0] for outcome in outcomes) - begins
        if is_plain and seconds > _WINDOW_S:  # drafts of one may be accepted, and another's not
            counts = [outcome.tokens_within(begins, begins + seconds) for outcome in outcomes]
            self.speeds.append(sum(counts) / seconds)
            self.shares.append(min(counts) / mean(counts))
            require(self.shares[-1] >= 0.5, f"one has {self.shares[-1]:.2f} of its share: {counts}")
        worst_s = max(outcome.worst_gap_s for outcome in outcomes)
        require(worst_s < allowed_s(_WORST_GAP_S), f"{worst_s:.1f} s without a piece of text")

    def wake(self, rng: random.Random) -> None:
        """Let all clients ask for a model at the moment when it closes because it has idled."""
        question = Question(rng.choice(self.texts), tokens=4)
        for _ in range(2):
            body = {**CHAT.body(question), "model": "other"}
            self.sends(CHAT, dict(body), question.tokens).check()
            other = {**CHAT.body(question), "model": EXACT}  # which stays open
            meanwhile = [(float(second), CHAT, dict(other), question.tokens) for second in range(IDLE_S)]
            moments = [rng.uniform(IDLE_S - 0.1, IDLE_S + 0.1) for _ in range(CLIENTS)]
            asks = [partial(self.sends_at, moment, CHAT, dict(body), question.tokens) for moment in moments]
            for outcome in self.together([*asks, *(partial(self.sends_at, *each) for each in meanwhile)]):
                outcome.check()

    def sends_at(self, seconds: float, spoken: Spoken, body: Json, most: int) -> Outcome:
        """Send a request after so long."""
        time.sleep(seconds)
        return self.sends(spoken, body, most)

    def asks_much(self, rng: random.Random) -> Outcome:
        """Ask for a long answer in any protocol."""
        spoken, question = rng.choice(PROTOCOLS), replace(self.question(rng), tokens=300)
        stops = _ENDLESS if spoken.path.startswith(("/v1/chat", "/v1/completions", "/completion")) else {}
        body = {**spoken.body(question), **stops, "model": EXACT, "stream": rng.random() < 0.7}
        return self.sends(spoken, body, question.tokens)

    def death(self, rng: random.Random) -> None:
        """Kill the engine under all clients: each has its answer, or an error that says what happened."""
        self.answered_alone(self.questions[0])  # so that the pair is open
        before, worker = self.server.figures(), self.server.worker()
        children = len(self.server.own.children(recursive=True))
        asks = [partial(self.asks_much, random.Random(rng.random())) for _ in range(CLIENTS)]
        killer = threading.Timer(rng.uniform(0.0, 1.0), worker.send_signal, (signal.SIGKILL,))
        killer.start()
        outcomes = self.together(asks)
        killer.join()
        for outcome in outcomes:
            outcome.check(_DIED)
        self.broken += sum(bool(outcome.error) for outcome in outcomes)
        outcome = ask(self.server.url, CHAT, {**CHAT.body(self.questions[0]), **_GREEDY, "stream": True})
        outcome.check()
        self.server.rests()
        after = self.server.own.children(recursive=True)
        require(not psutil.pid_exists(worker.pid), "the killed process is still in the table")
        require(len(after) == children, f"{len(after)} children, {children} before")
        restarts = self.server.figures()["restarts_total"] - before["restarts_total"]
        require(restarts == 1, f"{restarts:.0f} restarts of one death")


@contextmanager
def _crowd(log: Log, folder: Path) -> Iterator[tuple[Crowd, Callable[[], None]]]:
    """Start the server; yield the clients, and what is to be called now and then to look at memory."""
    server = ServeProgram(folder)
    try:
        crowd = Crowd(server)
        watches = [Watch(server.own, "server", _POOL), Watch(server.worker(), "models")]

        def look() -> None:
            server.rests()
            crowd.answered_alone(crowd.questions[0])  # so that the pair does not close just now
            watches[1].process = server.worker()
            for watch in watches:
                watch.look()

        yield crowd, look
        look()
        for watch in watches:
            watch.check(log)
    finally:
        with log.case(-1, what="the end"):
            server.end()


def _early_and_late(speeds: Sequence[float]) -> str:
    """Return the medians of the first half and of the last."""
    half = (len(speeds) + 1) // 2
    return f"first {median(speeds[:half]):.0f}, later {median(speeds[-half:]):.0f}"


def served(log: Log, folder: Path) -> None:
    """Let clients join, leave, ask, load and unload; nothing is lost, and memory is flat."""
    with _crowd(log, folder) as (clients, look):
        for number in log.numbers():
            act = {_RACE_AT: clients.race, _WAKE_AT: clients.wake}.get(number % _OTHERS_EVERY, clients.mix)
            with log.case(number, _CASE_S, act.__name__):
                act(log.random(number))
            if number % _WATCHED_EVERY == 0:
                look()
        log.notes.append(
            f"{clients.compared} greedy texts compared, of which rounding changed {clients.differing}"
        )
        if clients.shares:
            least, worst, usual = min(clients.shares), max(clients.gaps_s), median(clients.gaps_s)
            log.notes.append(
                f"{len(clients.shares)} races: at least {least:.2f} of a share, between two pieces "
                f"at most {worst:.2f} s, usually {usual:.2f} s; {_early_and_late(clients.speeds)} tokens/s"
            )


def deaths(log: Log, folder: Path) -> None:
    """Kill the engine again and again while all clients are busy."""
    with _crowd(log, folder) as (clients, look):
        for number in log.numbers():
            with log.case(number, _CASE_S):
                clients.death(log.random(number))
            look()
        log.notes.append(
            f"{log.cases} deaths, {clients.broken} of {CLIENTS * log.cases} answers ended by them"
        )
