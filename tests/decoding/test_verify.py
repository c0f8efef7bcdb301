from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.decoding import verify as module
from localspec.decoding.sampling import distribution, draft_distribution, draw, one_point
from localspec.decoding.verify import verify, verify_greedily
from localspec.types.candidates import FullRow, FullRows, top_candidates
from localspec.types.drafts import Distribution, Draft, VerifyOutcome
from localspec.types.request import Acceptance, EngineSettings, Sampling
from tests.chi_square import chi_square_p_value

VOCABULARY = 5
ROUNDS = 6000
PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)

Drafter = Callable[[tuple[int, ...], np.random.Generator], tuple[int, Distribution | None]]


def logits_of(text: tuple[int, ...], model: int) -> NDArray[np.float32]:
    """Give every text its own row of logits."""
    return np.random.default_rng((model, *text)).normal(scale=1.2, size=VOCABULARY).astype(np.float32)


def memoised(p: Callable[[tuple[int, ...]], Distribution]) -> Callable[[tuple[int, ...]], Distribution]:
    known: dict[tuple[int, ...], Distribution] = {}

    def recall(text: tuple[int, ...]) -> Distribution:
        if text not in known:
            known[text] = p(text)
        return known[text]

    return recall


def target_of(sampling: Sampling = PLAIN) -> Callable[[tuple[int, ...]], Distribution]:
    return memoised(lambda text: distribution(FullRow(logits_of(text, 1)), sampling, text))


def drawing(q_of: Callable[[tuple[int, ...]], Distribution]) -> Drafter:
    remembered = memoised(q_of)

    def draft(text: tuple[int, ...], rng: np.random.Generator) -> tuple[int, Distribution]:
        q = remembered(text)
        return draw(q, rng.random()), q

    return draft


def tempered(c: float = 1.0, kept: int = VOCABULARY, model: int = 2) -> Drafter:
    settings = EngineSettings(draft_temperature=1.2, saguaro_c=c, fan_out_budget=1)  # two tokens are weighted

    def q_of(text: tuple[int, ...]) -> Distribution:
        ids, logits = top_candidates(logits_of(text, model)[None], kept)
        return draft_distribution(ids[0], logits[0], PLAIN, settings, text)

    return drawing(q_of)


def one_hot(text: tuple[int, ...], _: np.random.Generator) -> tuple[int, None]:
    return int(logits_of(text, 2).argmax()), None


def by_lot(_: tuple[int, ...], rng: np.random.Generator) -> tuple[int, None]:
    return int(rng.integers(VOCABULARY)), None


def draft_of(drafter: Drafter, length: int, rng: np.random.Generator) -> Draft:
    tokens: tuple[int, ...] = ()
    q: list[Distribution] = []
    for _ in range(length):
        token, drawn_from = drafter(tokens, rng)
        tokens += (token,)
        if drawn_from is not None:
            q.append(drawn_from)
    return Draft(tokens, tuple(q) if q else None)


def always(p: Distribution) -> Callable[[int], Distribution]:
    return lambda _: p


def after(
    tokens: tuple[int, ...], p: Callable[[tuple[int, ...]], Distribution]
) -> Callable[[int], Distribution]:
    return lambda accepted: p(tokens[:accepted])


def first_two_tokens(
    p: Callable[[tuple[int, ...]], Distribution], drafter: Drafter, acceptance: Acceptance, seed: int = 0
) -> NDArray[np.int64]:
    """Count the first two emitted tokens over many rounds of two draft tokens."""
    draft_rng, rng = np.random.default_rng((seed, 1)), np.random.default_rng((seed, 2))
    counts = np.zeros((VOCABULARY, VOCABULARY), dtype=np.int64)
    for _ in range(ROUNDS):
        draft = draft_of(drafter, 2, draft_rng)
        outcome = verify(draft, after(draft.tokens, p), acceptance, rng)
        text = (*draft.tokens[: outcome.accepted], outcome.bonus)
        if len(text) == 1:
            text += (draw(p(text), rng.random()),)
        counts[text[0], text[1]] += 1
    return counts


def expected_shares(p: Callable[[tuple[int, ...]], Distribution]) -> NDArray[np.float64]:
    def dense(text: tuple[int, ...]) -> NDArray[np.float64]:
        row = np.zeros(VOCABULARY)
        found = p(text)
        row[slice(None) if found.ids is None else found.ids] = found.probs
        return row

    first = dense(())
    return np.stack([first[token] * dense((token,)) for token in range(VOCABULARY)])


def p_value(
    drafter: Drafter, acceptance: Acceptance = "rejection", sampling: Sampling = PLAIN, seed: int = 0
) -> float:
    p = target_of(sampling)
    return chi_square_p_value(first_two_tokens(p, drafter, acceptance, seed), expected_shares(p))


EXACT_DRAFTERS = {
    "q over everything": tempered(),
    "q truncated": tempered(kept=2),
    "q equal to p": drawing(target_of()),
    "saguaro": tempered(c=0.3),
    "saguaro at zero": tempered(c=0.0),
    "one-hot": one_hot,
    "one-hot, chosen by lot": by_lot,
}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", EXACT_DRAFTERS.values(), ids=EXACT_DRAFTERS)
@pytest.mark.parametrize("acceptance", ["rejection", "match"])
@pytest.mark.parametrize(
    "sampling",
    [PLAIN, replace(PLAIN, top_k=3, temperature=1.3), replace(PLAIN, presence_penalty=1.0, top_p=0.85)],
    ids=["plain", "top-k", "penalty and top-p"],
)
def test_emitted_tokens_follow_the_target(
    drafter: Drafter, acceptance: Acceptance, sampling: Sampling
) -> None:
    assert p_value(drafter, acceptance, sampling) > 1e-3


def scaled(factor: float) -> Drafter:
    honest = tempered()

    def draft(text: tuple[int, ...], rng: np.random.Generator) -> tuple[int, Distribution]:
        token, q = honest(text, rng)
        assert q is not None
        return token, Distribution(q.ids, q.probs * factor)

    return draft


def claiming_everything(drawn: Drafter) -> Drafter:
    """Draw from one q, and claim another."""
    claimed = tempered()

    def draft(text: tuple[int, ...], rng: np.random.Generator) -> tuple[int, Distribution | None]:
        return drawn(text, rng)[0], claimed(text, rng)[1]

    return draft


WRONG_DRAFTERS = {
    "q scaled": scaled(0.85),
    "truncation forgotten": claiming_everything(tempered(kept=2)),
    "down-weighting forgotten": claiming_everything(tempered(c=0.3)),
}


@pytest.mark.parametrize("drafter", WRONG_DRAFTERS.values(), ids=WRONG_DRAFTERS)
def test_the_statistics_notice_a_wrong_q(drafter: Drafter) -> None:
    assert p_value(drafter) < 1e-6


def test_the_statistics_notice_a_wrong_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "residual", lambda p, _: p)
    assert p_value(tempered()) < 1e-6


def first_token_p_value(
    draft: Callable[[float], Draft], verifying: Callable[[float], module.Uniforms]
) -> float:
    """Test the first emitted token when `draft` and `verifying` are given the same uniform."""
    p = target_of()
    rng = np.random.default_rng(5)
    counts = np.zeros(VOCABULARY, dtype=np.int64)
    for _ in range(ROUNDS):
        uniform = rng.random()
        drafted = draft(uniform)
        outcome = verify(drafted, always(p(())), "rejection", verifying(uniform))
        counts[drafted.tokens[0] if outcome.accepted else outcome.bonus] += 1
    return chi_square_p_value(counts, p(()).probs)


def test_the_statistics_notice_a_shared_random_stream() -> None:
    q = distribution(FullRow(logits_of((), 2)), PLAIN, ())

    def draft(uniform: float) -> Draft:
        return Draft((draw(q, uniform),), (q,))

    fresh = np.random.default_rng(6)
    assert first_token_p_value(draft, lambda _: fresh) > 1e-3
    assert first_token_p_value(draft, Repeated) < 1e-6


def test_the_statistics_notice_a_draft_dropped_for_its_own_value() -> None:
    q = distribution(FullRow(logits_of((), 2)), PLAIN, ())
    dropped = int(q.probs.argmax())

    def choosy(uniform: float) -> Draft:
        token = draw(q, uniform)
        return Draft() if token == dropped else Draft((token,), (q,))

    fresh = np.random.default_rng(6)
    assert first_token_p_value(choosy, lambda _: fresh) < 1e-6


class Repeated:
    """Give the same number always."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        return self._value


@pytest.mark.parametrize("uniform", [0.0, 0.5, float(np.nextafter(1.0, 0.0))])
@pytest.mark.parametrize(
    "q", [None, (one_point(3),), (Distribution(np.array([3, 1]), np.array([0.9, 0.1])),)]
)
def test_a_token_that_the_target_never_writes_is_never_accepted(
    uniform: float, q: tuple[Distribution, ...] | None
) -> None:
    p = Distribution(np.array([1, 2]), np.array([0.5, 0.5]))
    outcome = verify(Draft((3,), q), always(p), "rejection", Repeated(uniform))
    assert outcome.accepted == 0
    assert outcome.bonus in (1, 2)


@pytest.mark.parametrize("acceptance", ["rejection", "match"])
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("uniform", [0.0, 0.3, float(np.nextafter(1.0, 0.0))])
def test_a_greedy_target_decides_alone(acceptance: Acceptance, sampled: bool, uniform: float) -> None:
    text = (4, 7, 1, 9)
    even = Distribution(np.arange(10), np.full(10, 0.1))
    for wrong in range(4):
        tokens = tuple(token if place != wrong else 0 for place, token in enumerate(text[:3]))
        draft = Draft(tokens, (even,) * 3 if sampled else None)
        outcome = verify(draft, lambda i: one_point(text[i]), acceptance, Repeated(uniform))
        assert outcome == VerifyOutcome(wrong, text[wrong])


@pytest.mark.parametrize("acceptance", ["rejection", "match"])
def test_the_target_is_asked_up_to_the_first_rejection_only(acceptance: Acceptance) -> None:
    asked: list[int] = []

    def target(position: int) -> Distribution:
        asked.append(position)
        return one_point(5)

    assert verify(Draft((5, 6, 5)), target, acceptance, Repeated(0.5)) == VerifyOutcome(1, 5)
    assert asked == [0, 1]


@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
def test_the_best_logits_decide_up_to_the_first_rejection_only(wrong: int) -> None:
    text, rows = (4, 7, 1, 9), np.zeros((4, 10), np.float32)
    rows[range(4), text] = 1.0
    rows[wrong + 1 :] = np.nan  # no one looks
    tokens = tuple(token if place != wrong else 0 for place, token in enumerate(text[:3]))
    assert verify_greedily(Draft(tokens), FullRows(rows)) == VerifyOutcome(wrong, text[wrong])


@pytest.mark.parametrize("acceptance", ["rejection", "match"])
def test_the_empty_draft_is_plain_decoding(acceptance: Acceptance) -> None:
    p = Distribution(np.array([8, 2]), np.array([0.5, 0.5]))
    assert verify(Draft(), always(p), acceptance, Repeated(0.6)) == VerifyOutcome(0, 2)


def test_an_honest_draft_is_accepted_as_often_as_p_and_q_overlap() -> None:
    p = Distribution(None, np.array([0.5, 0.3, 0.2]))
    q = Distribution(None, np.array([0.2, 0.3, 0.5]))
    draft_rng, rng = np.random.default_rng(1), np.random.default_rng(2)
    accepted = sum(
        verify(Draft((draw(q, draft_rng.random()),), (q,)), always(p), "rejection", rng).accepted
        for _ in range(ROUNDS)
    )
    assert chi_square_p_value([accepted, ROUNDS - accepted], [0.7, 0.3]) > 1e-3
