"""What other drafts would bring, simulated on traces of a real pair.

python -m tests.benchmarks.trees -m TARGET -md DRAFT --prompts FOLDER --traces FOLDER

The first folder holds `gsm8k-test-200.jsonl`, `humaneval.jsonl` and `mt_bench.jsonl`; the second keeps what
is traced. The engine learns from one half of the answers and is measured on the other, then the other way
round; a line reports the mean, the least and the most against what the engine does by itself.

`second choices` is a tree whose branches end at once: the target judges another token beside one of a draft,
where that pays without Python's time. At 0.8 it is drawn from the rest of q, and judged by the rest of p.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from localspec.decoding import engine
from localspec.decoding.drafters.draft_worker import DraftReply
from localspec.decoding.drafters.drafter import Drafter
from localspec.decoding.drafters.model_drafter import ModelDrafter
from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.drafters.ssd import AheadDrafter
from localspec.decoding.measurements import CallCosts, Costs, Overhead, Trace, TraceSegment
from localspec.decoding.policy import AcceptanceCalibration, SpeculationPolicy
from localspec.decoding.prefixes import common_prefix
from localspec.llama.model import Model
from localspec.tuning.simulator import simulator
from localspec.tuning.simulator.replay import Shape, candidates, drawn_from, target_of, truncated
from localspec.tuning.simulator.simulator import Simulator
from localspec.types.drafts import Draft
from localspec.types.drafts import VerifyOutcome as Outcome
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Mode, Sampling
from tests.benchmarks.simulation import pair_parser, recorded

PASS_S, LONGEST = 0.025, 33
# A pass by its tokens, in passes of one, and draft steps in these: GPUs as `paced` has them; two GPUs as
# llama.cpp's pull requests 5351, 17505 and 28285 tell of them (8B Q4_0, 4B); the real pair on two busy cores,
# and with a target in BF16 on two others.
DEVICES: dict[str, tuple[dict[int, float], tuple[float, ...]]] = {
    "flat": ({1: 1.0, LONGEST: 1.64}, (0.1, 0.3)),
    "RTX 3090": ({1: 1.0, 2: 1.08, 4: 1.18, 8: 1.61, 16: 1.64, LONGEST: 2.4}, (0.1, 0.3)),
    "Jetson Orin": ({1: 1.0, 2: 1.31, 3: 1.37, 4: 1.7, 6: 2.0, 8: 2.68, LONGEST: 4.0}, (0.2,)),
    "two cores": ({1: 1.0, 2: 1.72, 3: 2.34, 5: 2.72, 6: 4.63, 8: 5.11, 16: 6.27, LONGEST: 12.0}, (0.4,)),
    "two cores, BF16": ({1: 1.0, 3: 1.0, 4: 1.04, 6: 1.14, 8: 1.55, 12: 1.82, 16: 2.3, LONGEST: 4.5}, (0.2,)),
}
MODES: tuple[Mode, ...] = ("off", "ngram", "sd", "ssd")
LIST_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s")


class Answer(NamedTuple):
    """A traced answer: which kind of text each place is, and where a second choice would be right."""

    tokens: list[int]
    kinds: list[str]
    seconds: list[bool]


ANSWERS: dict[tuple[int, ...], Answer] = {}  # by prompt
LEARNED: defaultdict[str, AcceptanceCalibration] = defaultdict(AcceptanceCalibration)


class Watched(Drafter):
    """A drafter that knows where in a traced answer it is: it sends second choices or learns by kind of text.

    The simulator counts leading tokens that are right, so a second choice that is right stands in the place
    of the first, and all else that is sent is behind it, as tokens that are wrong.
    """

    by_kind = False
    _policy: SpeculationPolicy
    _sent: list[Proposal]
    _chosen: Outcome | None = None

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt."""
        self.answer, self.place = ANSWERS[tuple(text)], 0
        super().begin(text)

    def commit(self, outcome: Outcome) -> None:
        """Follow the verdict: a right second choice is a bonus token with another behind it."""
        chosen, self._chosen = self._chosen, None
        self.place = min(self.place + outcome.accepted + 1, len(self.answer.tokens) - 1)
        if chosen is not None and outcome.accepted > chosen.accepted:
            super().commit(chosen)
            self._sent = []
            if isinstance(self, WatchedAhead):
                self.nothing_sent()
            outcome = Outcome(0, outcome.bonus)
        super().commit(outcome)
        if self.by_kind:
            self._policy.calibration = LEARNED[self.answer.kinds[self.place]]

    def widened(self, draft: Draft) -> Draft:
        """Return a draft with second choices, as far as they pay."""
        if self.by_kind:
            return draft
        count, policy, learned = len(draft.tokens), self._policy, LEARNED["second choices"].judged
        reach, worth, doubts = 1.0, list[tuple[float, int]](), list[float]()
        for position, proposal in enumerate(self._sent[:count]):
            doubts.append(1.0 - proposal.confidence)
            worth.append((reach * learned(doubts[-1]), position))
            reach *= policy.calibration.chance(proposal.confidence)
        worth.sort(reverse=True)
        earned = np.cumsum([0.0] + [chance * policy.seconds_per_token for chance, _ in worth]).tolist()
        values = [each - policy.verify(count + extra + 1) for extra, each in enumerate(earned)]
        sent = {position for _, position in worth[: values.index(max(values))]}
        answer = self.answer
        right = common_prefix(draft.tokens, answer.tokens[self.place :])
        stands = (
            right < count and self.place + right < len(answer.tokens) and answer.seconds[self.place + right]
        )
        for position, doubt in enumerate(doubts[: right + 1]):
            learned.observe(doubt, is_true=position == right and stands)
        tokens = draft.tokens
        if stands and right in sent:
            self._chosen = Outcome(right, answer.tokens[self.place + right])
            tokens = (*tokens[:right], self._chosen.bonus)
        return replace(draft, tokens=(*tokens, *[-1] * (count + len(sent) - len(tokens))), q=None)


class WatchedModel(Watched, ModelDrafter):
    """Drafts while the target waits."""

    def draft(self, limit: int) -> Draft:
        """Draft as long as it pays."""
        draft = super().draft(limit)
        if len(self._sent) < len(self._draft_state.proposals):
            state, sent = self._draft_state, len(self._sent)  # the simulator would look beyond
            unsent = state.proposals[sent:]
            state.proposals[sent] = self._proposer.unjudged(unsent, len(state.text) + sent)
        return self.widened(draft)


class WatchedAhead(Watched, AheadDrafter):
    """Drafts ahead."""

    def look_up(self, limit: int) -> Draft | None:
        """Return what can be sent at once."""
        return None if (draft := super().look_up(limit)) is None else self.widened(draft)

    def take(self, reply: DraftReply) -> Draft:
        """Return what was asked for."""
        return self.widened(super().take(reply))

    def nothing_sent(self) -> None:
        """Tell the worker of a bonus token behind which nothing was sent."""
        assert self._outcome is not None
        self._tell(self._outcome, 0)
        self._round += 1


def main() -> None:
    """Parse the arguments, trace what is not traced yet, and print a table for each temperature."""
    parser = pair_parser(__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--per-set", type=int, default=10)
    parser.add_argument("-n", "--tokens", type=int, default=96)
    args = parser.parse_args()
    for sampling in (Sampling(temperature=0.0), Sampling(temperature=0.8)):
        trace = noted(recorded(args, sampling), args.model_draft)
        print(f"\ntemperature {sampling.temperature:g}: {len(trace.segments)} answers, {trace.tokens} tokens")
        for name, (points, ratios) in DEVICES.items():
            for ratio in ratios:
                known, draws = costs(points, ratio), 1 if sampling.is_greedy else 3
                simulators = [Simulator(trace, known, seed) for seed in range(draws)]
                for mode in MODES[2 : 3 if name.startswith("two cores") else 4]:
                    print(f"{name}, a draft step is {ratio:g} of a pass, {mode}: ", end="")
                    report(simulators, EngineSettings(mode=mode), trace)


def report(simulators: Sequence[Simulator], usual: EngineSettings, trace: Trace) -> None:
    """Print what every way brings in one mode on one device."""
    even, odd = (range(first, len(trace.segments), 2) for first in (0, 1))

    def rates(settings: EngineSettings) -> list[float]:
        return [rate(each, settings, *fold) for each in simulators for fold in ((even, odd), (odd, even))]

    base, plain = rates(usual), rates(replace(usual, mode="off"))
    print(f"{fmean(base) / fmean(plain):.2f} times plain decoding", flush=True)
    ways = {f"draft length {length}": replace(usual, draft_length=length) for length in (8, 16, 24)}
    if usual.mode == "sd":
        fixed = replace(usual, min_confidence=0.0)
        ways |= {f"always {length}": replace(fixed, draft_length=length) for length in (1, 2, 4, 6, 8)}
    if usual.mode == "ssd":
        ways |= {f"{n} outcomes": replace(usual, fan_out_budget=n) for n in (8, 24)}
    if not trace.sampling.is_greedy:
        ways["match"] = replace(usual, acceptance="match")
        ways |= {f"draft heat {t:g}": replace(usual, draft_temperature=t) for t in (0.8, 0.9, 1.1, 1.25)}
    for name, settings in {"second choices": usual, "learned by kind": usual, **ways}.items():
        Watched.by_kind = name == "learned by kind"
        watched = (WatchedModel, WatchedAhead) if settings is usual else (ModelDrafter, AheadDrafter)
        with (
            patch.object(engine, "ModelDrafter", watched[0]),
            patch.object(simulator, "AheadDrafter", watched[1]),
        ):
            gains = [one / other - 1 for one, other in zip(rates(settings), base, strict=True)]
        print(f"  {name:18}{fmean(gains):+7.1%}   {min(gains):+.1%} to {max(gains):+.1%}", flush=True)


def rate(simulator: Simulator, settings: EngineSettings, known: Sequence[int], asked: Sequence[int]) -> float:
    """Return the tokens per second of some answers, after others were learned from."""
    LEARNED.clear()
    before = simulator(settings, known)
    LEARNED.clear()
    after = simulator(settings, [*known, *asked])
    return (after.tokens - before.tokens - len(asked)) / (after.decode_s - before.decode_s)


def costs(points: dict[int, float], ratio: float) -> Costs:
    """Return what calls take: a pass by its curve, a draft step 2% more for every further branch."""
    passes = np.interp(range(1, LONGEST + 1), list(points), list(points.values())) * PASS_S
    verify = tuple(enumerate(passes.tolist(), start=1))
    step = tuple((width, PASS_S * ratio * (0.98 + 0.02 * width)) for width in (1, 2, 4, 8, 16, 25))
    calls = tuple(CallCosts(64, together, verify, step) for together in (False, True))
    return Costs(calls, tuple(Overhead(mode, 4e-4, 2e-4, handoff_s=2e-4) for mode in MODES))


def noted(trace: Trace, draft: Path) -> Trace:
    """Note what is known of each answer of a trace, and return it."""
    model = Model.open(ModelOptions(draft), allocate=False)
    for number, segment in enumerate(trace.segments):
        tokens: list[int] = segment.tokens.tolist()
        pieces = [model.vocabulary.piece(token).decode("utf-8", "replace") for token in tokens]
        right = seconds(segment, trace.sampling, np.random.default_rng(number))
        ANSWERS[segment.prompt] = Answer(tokens, kinds(pieces), right)
    return trace


def kinds(pieces: Sequence[str]) -> list[str]:
    """Return of what kind the text is before each piece."""
    return [
        "code" if text.count("```") % 2 else "list" if LIST_ITEM.match(text.rpartition("\n")[2]) else "prose"
        for text in accumulate(pieces[:-1], initial="")
    ]


def seconds(segment: TraceSegment, sampling: Sampling, random: np.random.Generator) -> list[bool]:
    """Tell for each place whether a second choice is right, given that the first was rejected."""
    ids, logits = candidates(segment, sampling)
    is_token = ids == segment.tokens.astype(np.int64)[:, None]
    if sampling.is_greedy:
        return [bool(right) for right in is_token[:, 1]]
    q = drawn_from(truncated(logits, sampling), sampling.temperature, Shape(False, True))
    mine, rejected = (q * is_token).sum(axis=1), np.maximum(q - target_of(segment, ids), 0.0)
    mass = np.maximum(rejected.sum(axis=1), 1e-9)  # what q has more than p, so what p has more than q
    left = np.maximum(segment.target_of_token - mine, 0.0) / mass
    drawn = np.minimum(mine[:, None] / np.maximum(1.0 - q, 1e-9), left[:, None])
    chance = (rejected * drawn).sum(axis=1) / mass / np.maximum(left, 1e-9)
    return [bool(right) for right in random.random(len(chance)) < chance]


if __name__ == "__main__":
    main()
