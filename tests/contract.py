"""What every way of decoding must keep: subclass `EngineContract`, set `settings`, and pytest runs it all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest

from localspec.benchmark.statistics import ks_uniform_p_value, randomised_pit
from localspec.decoding.constraint import TokenRules
from localspec.decoding.drafters.prompt_lookup import longest_draft
from localspec.decoding.engine import Engine
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.sampling import distribution, probability
from localspec.errors import Cancelled
from localspec.types.candidates import FullRow
from localspec.types.drafts import Distribution, DraftOrigin
from localspec.types.request import EngineSettings, Mode, Sampling
from tests.chi_square import chi_square_p_value
from tests.fake_model import FakeModel, Hold, Pacing

GREEDY = Sampling(temperature=0.0)
PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
OFF = EngineSettings(mode="off")
SIGNIFICANT = 1e-4
"""A correct engine falls below it once in so many looks; the tests believe only what a second one confirms.

Seeds do not make two runs equal: what is drafted, and so which numbers are drawn, follows measured times.
"""
LOOKS = (77, 1077)  # first seeds
NO_END: frozenset[int] = frozenset()


def latency_model() -> LatencyModel:
    """Return costs under which long drafts pay."""
    return LatencyModel(CostCurve({1: 1.0, 9: 1.1}), CostCurve({1: 0.02, 17: 0.03}))


@dataclass
class Toy:
    """A pair of fake models on paced devices, so that a drafter has time to work ahead, and its engine."""

    vocabulary: int = 16
    noise: float = 1.0
    sharpness: float = 1.5
    context: int = 4096
    rules: TokenRules | None = None
    answer_start: int = 0
    chooses: bool = False
    target: FakeModel = field(init=False)
    draft: FakeModel = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        """Make the models."""
        model = partial(
            FakeModel,
            self.vocabulary,
            sharpness=self.sharpness,
            context=self.context,
            chooses=self.chooses,
        )
        slow, fast = Hold(Pacing(4e-4, 0.0)), Hold(Pacing(2e-5, 0.0))
        self.target, self.draft = model(hold=slow), model(noise=self.noise, sequences=18, hold=fast)
        self.engine = Engine(self.target, self.draft)

    def rounds(
        self,
        prompt: Sequence[int],
        settings: EngineSettings,
        sampling: Sampling,
        tokens: int,
        seed: int = 0,
        end_tokens: frozenset[int] = NO_END,
    ) -> Generator[Round, None, None]:
        """Decode an answer."""
        longest = longest_draft(settings)
        params = DecodeParams(sampling, settings.acceptance, longest, tokens, end_tokens, self.rules)
        params = replace(params, answer_start=self.answer_start)
        for event in self.engine.rounds(prompt, settings, params, latency_model(), seed):
            if isinstance(event, Round):
                yield event

    def answer(
        self, prompt: Sequence[int], settings: EngineSettings, sampling: Sampling, tokens: int, seed: int = 0
    ) -> list[int]:
        """Return the tokens of an answer."""
        return [
            token
            for round_ in self.rounds(prompt, settings, sampling, tokens, seed)
            for token in round_.tokens
        ]

    def exact(self, text: Sequence[int], sampling: Sampling) -> Distribution:
        """Return the exact distribution of the token after a text."""
        rules = self.rules or TokenRules()
        row = rules.biased(FullRow(self.target.logits_after(text))).logits
        p = distribution(FullRow(row), sampling, text[self.answer_start :], rules.mask(text))
        ids = np.arange(self.vocabulary) if p.ids is None else p.ids
        return Distribution(ids[p.probs > 0], p.probs[p.probs > 0])

    def by_disagreement(self, text: Sequence[int], sampling: Sampling) -> Distribution:
        """Return the exact distribution, sorted by how much the target prefers a token to the draft.

        Mistakes of speculative decoding favour one end of that order, where the test then sees them.
        """
        p = self.exact(text, sampling)
        ids = np.arange(self.vocabulary) if p.ids is None else p.ids
        order = np.argsort(np.log(p.probs) - self.draft.logits_after(text)[ids])
        return Distribution(ids[order], p.probs[order])


class EngineContract:
    """The contract; `settings` say how to decode, and `sampling` how the sampled tests draw."""

    settings: EngineSettings
    sampling = PLAIN

    def test_greedy_text_is_that_of_plain_decoding(self) -> None:
        for seed in range(6):
            prompt = random.Random(seed).choices(range(16), k=5 + 7 * seed)
            expected = Toy().answer(prompt, OFF, GREEDY, 80)
            assert Toy().answer(prompt, self.settings, GREEDY, 80) == expected

    @pytest.mark.slow
    def test_first_tokens_follow_the_exact_distribution(self) -> None:
        toy, prompt, length, answers = Toy(vocabulary=4), [1, 2, 3], 3, 600
        texts = list(itertools.product(range(4), repeat=length))
        expected = []
        for text in texts:
            chance = 1.0
            for position, token in enumerate(text):
                chance *= probability(toy.exact([*prompt, *text[:position]], self.sampling), token)
            expected.append(chance)

        def p_value(first_seed: int) -> float:
            counts = dict.fromkeys(texts, 0)
            for seed in range(first_seed, first_seed + answers):
                counts[tuple(toy.answer(prompt, self.settings, self.sampling, length, seed))] += 1
            return chi_square_p_value(list(counts.values()), expected)

        assert any(p_value(first_seed) > SIGNIFICANT for first_seed in LOOKS)

    @pytest.mark.slow
    def test_every_sampled_token_follows_the_target(self) -> None:
        assert any(self.lowest_p_value(first_seed=first_seed) > SIGNIFICANT for first_seed in LOOKS)

    def lowest_p_value(self, tokens: int = 2000, first_seed: int = LOOKS[0]) -> float:
        """Return how likely the least likely tokens are, of all and of those of each origin."""
        values = self.uniform_values(tokens, first_seed)
        pooled = [value for found in values.values() for value in found]
        return min(ks_uniform_p_value(found) for found in [*values.values(), pooled])

    def uniform_values(self, tokens: int, first_seed: int = LOOKS[0]) -> dict[DraftOrigin, list[float]]:
        """Return for each origin of a round's draft the randomised PIT of its tokens: uniform if exact."""
        toy, uniforms = Toy(), np.random.default_rng([99, first_seed])
        found: dict[DraftOrigin, list[float]] = {}
        for seed in range(-(-tokens // 400)):
            text = [seed % 16, 1, 2]
            for round_ in toy.rounds(text[:], self.settings, self.sampling, 400, first_seed + seed):
                for token in round_.tokens:
                    p = toy.by_disagreement(text, self.sampling)
                    value = randomised_pit(p, token, uniforms.random())
                    found.setdefault(round_.stats.origin, []).append(value)
                    text.append(token)
        return found

    def test_answers_keep_their_limit(self) -> None:
        for tokens in (1, 2, 3, 7):
            assert len(Toy().answer([1, 2], self.settings, self.sampling, tokens)) == tokens

    def test_an_answer_ends_at_its_end_token_and_not_later(self) -> None:
        text = Toy().answer([3, 1], OFF, GREEDY, 60)
        end = text[20]
        rounds = Toy().rounds([3, 1], self.settings, GREEDY, 60, 0, frozenset([end]))
        assert [token for round_ in rounds for token in round_.tokens] == text[: text.index(end) + 1]

    def test_an_answer_ends_with_the_context(self) -> None:
        toy = Toy(context=40)
        assert len(toy.answer([1] * 10, self.settings, self.sampling, 100)) == 30

    def test_a_later_turn_reads_only_what_changed(self) -> None:
        toy = Toy()
        prompt = [index % 16 for index in range(200)]
        answer = toy.answer(prompt, self.settings, GREEDY, 30)
        follow_up = [*prompt, *answer, 5, 6, 7]
        assert toy.engine.decoder.cached(follow_up) >= len(prompt) + len(answer) - 1
        edited = [*prompt[:150], 3, 3, *prompt[152:]]
        assert toy.engine.decoder.cached(edited) == 150
        for text in (follow_up, edited, follow_up):
            toy.target.calls.clear()
            toy.draft.calls.clear()
            assert toy.answer(text, self.settings, GREEDY, 20) == Toy().answer(text, OFF, GREEDY, 20)
            assert max(toy.target.calls) <= len(text) - 150
            assert max(toy.draft.calls, default=0) <= len(text) - 150 + 20

    def test_a_cancel_leaves_the_engine_clean(self) -> None:
        import pytest  # of the client that runs the contract; LocalSpec itself does not depend on it

        toy, prompt = Toy(), [1, 2, 3, 4]
        expected = Toy().answer(prompt, OFF, GREEDY, 60)
        for after in (1, 3, 8):
            found: list[int] = []
            rounds = toy.rounds(prompt, self.settings, GREEDY, 60)
            while len(found) < after:
                found += next(rounds).tokens
            toy.target.cancel()
            with pytest.raises(Cancelled):
                next(rounds)
            assert found == expected[: len(found)]
        assert toy.answer(prompt, self.settings, GREEDY, 60) == expected

    def test_an_abandoned_answer_leaves_the_engine_clean(self) -> None:
        toy, prompt = Toy(), [1, 2, 3, 4]
        for _ in range(3):
            rounds = toy.rounds(prompt, self.settings, self.sampling, 60)
            next(rounds)
            next(rounds)
            rounds.close()
        assert toy.answer(prompt, self.settings, GREEDY, 60) == Toy().answer(prompt, OFF, GREEDY, 60)

    def test_other_modes_may_take_turns_with_it(self) -> None:
        toy = Toy()
        modes: tuple[Mode, ...] = ("sd", "ssd", "ngram", "off", "ssd", "sd")
        for turn, mode in enumerate(modes):
            prompt = [turn, *range(turn, 12)]
            assert toy.answer(prompt, replace(self.settings, mode=mode), GREEDY, 25) == toy.answer(
                prompt, self.settings, GREEDY, 25
            )
