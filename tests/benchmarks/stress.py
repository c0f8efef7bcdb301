"""Random settings, delays, cancels and turns; whatever happens, greedy text is that of plain decoding."""

from __future__ import annotations

import faulthandler
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from localspec.decoding.constraint import TokenRules
from localspec.decoding.drafters.proposer import RowProposer
from localspec.decoding.engine import Engine
from localspec.decoding.rounds import Round
from localspec.demo import prompts
from localspec.errors import Cancelled
from localspec.types.drafts import DraftOrigin
from localspec.types.request import EngineSettings, Sampling
from tests.benchmarks.pair import GREEDY, MAX_FAN_OUT, Pair, costs
from tests.paced_pair import PacedModel

PENALISED = replace(GREEDY, repetition_penalty=1.3, presence_penalty=0.5, penalty_window=32)
STUCK_S = 120.0


@dataclass(slots=True)
class Stress:
    """What the random runs did, and every difference that they found."""

    runs: int = 0
    answers: int = 0
    tokens: int = 0
    hits: int = 0
    misses: int = 0
    cancels: int = 0
    closes: int = 0
    finished_first: int = 0  # cancels that came too late
    modes: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


class RandomCost:
    """A call's least duration: mostly none, sometimes up to `most_s`; one for each thread."""

    def __init__(self, seed: int, most_s: float) -> None:
        self._random = random.Random(seed)
        self.most_s = most_s

    def __call__(self, size: int) -> float:
        """Return the seconds of a call."""
        return self._random.choice((0.0, 0.0, self._random.random())) * self.most_s


def drawing(
    sampling: Sampling,
    settings: EngineSettings,
    random: np.random.Generator,
    vocabulary: int,
    rules: TokenRules | None = None,
    answer_start: int = 0,
) -> RowProposer:
    """Return a proposer that draws its drafts from q although the target is greedy."""
    proposer = RowProposer(sampling, settings, random, vocabulary, rules, answer_start)
    proposer.deterministic = False
    return proposer


def random_settings(rng: random.Random) -> EngineSettings:
    """Return any settings that a user may choose."""
    return EngineSettings(
        mode=rng.choice(("ssd", "ssd", "ssd", "sd", "ngram")),
        draft_length=rng.randint(1, 12),
        fan_out_budget=rng.randint(1, MAX_FAN_OUT),
        fan_out_shape=rng.choice(("uniform", "geometric", "best-first")),
        draft_temperature=rng.choice((0.6, 1.0, 1.7)),
        saguaro_c=rng.choice((0.0, 0.4, 1.0)),
        acceptance=rng.choice(("match", "rejection")),
        min_confidence=rng.choice((None, 0.0, 0.3, 0.6)),
        fallback=rng.choice(("just-in-time", "ngram")),
    )


class Tormentor:
    """One engine with random delays on both sides, and what is done to it."""

    def __init__(self, pair: Pair, oracle: Pair, seed: int, report: Stress) -> None:
        self._pair = pair
        self._oracle = oracle
        self._random = random.Random(seed)
        self._report = report
        assert pair.contexts.draft is not None
        self._costs = (RandomCost(seed + 1, 0.0), RandomCost(seed + 2, 0.0))
        self._target = PacedModel(pair.contexts.target, self._costs[0])
        self._draft = PacedModel(pair.contexts.draft, self._costs[1])
        self._engine = Engine(self._target, self._draft)
        self._text = pair.encode("Hello!")

    def run(self) -> None:
        """Let an answer be cancelled, abandoned or completed, and then ask again."""
        rng = self._random
        for cost in self._costs:
            cost.most_s = rng.choice((0.0, 0.002, 0.008))
        prompt = self._next_prompt()
        match rng.randrange(4):
            case 0:
                self._check(prompt, self._cancelled(prompt))
            case 1:
                self._check(prompt, self._abandoned(prompt))
        self._check(prompt, self._whole(prompt))
        self._report.runs += 1

    def _next_prompt(self) -> list[int]:
        """Return a new conversation, the next turn of the last one, or that one edited."""
        rng = self._random
        match rng.randrange(3):
            case 0 if len(self._text) + 60 < self._target.context_size:
                return [*self._text, *self._pair.encode(rng.choice(prompts()).prompt)]
            case 1:
                return self._text[: max(1, rng.randrange(len(self._text)))]
            case _:
                return self._pair.encode(rng.choice(prompts()).prompt)

    @contextmanager
    def _rounds(self, prompt: list[int]) -> Iterator[Iterator[Round]]:
        rng = self._random
        settings = random_settings(rng)
        self._sampling = rng.choice((GREEDY, GREEDY, PENALISED))
        self._limit = rng.choice((rng.randint(1, 48), 2000 if self._target.context_size < 200 else 24))
        self._settings = settings
        self._report.modes[settings.mode] += 1
        task = self._pair.params(settings, self._limit, self._sampling)
        drawn = rng.random() < 0.25
        with patch("localspec.decoding.engine.RowProposer", drawing) if drawn else nullcontext():
            events = self._engine.rounds(prompt, settings, task, costs(), rng.randrange(10**9))
        with closing(events):
            yield (event for event in events if isinstance(event, Round))

    def _whole(self, prompt: list[int]) -> list[int]:
        with self._rounds(prompt) as rounds:
            found = [self._counted(round_) for round_ in rounds]
        tokens = [token for part in found for token in part]
        self._report.answers += 1
        self._report.tokens += len(tokens)
        self._text = [*prompt, *tokens]
        room = min(self._limit, self._target.context_size - len(prompt))
        if len(tokens) != len(self._oracle.plain(prompt, room, self._sampling)):
            self._report.differences.append(f"{self._settings}: an answer of another length")
        return tokens

    def _abandoned(self, prompt: list[int]) -> list[int]:
        self._report.closes += 1
        found: list[int] = []
        with self._rounds(prompt) as rounds:
            for _ in range(self._random.randrange(6)):
                found += self._counted(next(rounds, None))
        return found

    def _cancelled(self, prompt: list[int]) -> list[int]:
        found: list[int] = []

        def cancel() -> None:
            self._target.cancel()
            self._draft.cancel()

        timer = threading.Timer(self._random.random() * 0.04, cancel)
        timer.start()
        try:
            with self._rounds(prompt) as rounds:
                for round_ in rounds:
                    found += self._counted(round_)
            self._report.finished_first += 1
        except Cancelled:
            self._report.cancels += 1
        timer.join()
        self._target.resume()
        self._draft.resume()
        return found

    def _counted(self, round_: Round | None) -> tuple[int, ...]:
        if round_ is None:
            return ()
        self._report.origins[round_.stats.origin.value] += 1
        if self._settings.mode == "ssd":
            is_hit = round_.stats.origin is DraftOrigin.AHEAD
            self._report.hits += is_hit
            self._report.misses += not is_hit
        return round_.tokens

    def _check(self, prompt: list[int], found: list[int]) -> None:
        expected = self._oracle.plain(prompt, len(found), self._sampling) if found else []
        for place, (one, other) in enumerate(zip(expected, found, strict=False)):
            if one != other:
                gap = self._oracle.gap([*prompt, *expected[:place]], one, other, self._sampling)
                kind = "plain" if self._sampling == GREEDY else "penalised"
                self._report.differences.append(
                    f"{kind}, token {place} after {len(prompt)}, gap {gap:.6f}: {self._settings}"
                )
                return


def stress(target: Path, draft: Path, runs: int, seed: int = 0) -> Stress:
    """Do N random runs on engines with a roomy and with a tight context."""
    report = Stress()
    with (
        closing(Pair(target, draft)) as oracle,
        closing(Pair(target, draft)) as roomy,
        closing(Pair(target, draft, context=128)) as tight,
    ):
        engines = [Tormentor(pair, oracle, seed + place, report) for place, pair in enumerate((roomy, tight))]
        for number in range(runs):
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            engines[number % 3 == 2].run()
        faulthandler.cancel_dump_traceback_later()
    return report
