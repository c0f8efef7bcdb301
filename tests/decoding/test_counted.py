"""What an answer counts is what it got, wherever in a draft it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from localspec.decoding.rounds import Round, RoundTimes, close_round, emitted_tokens
from localspec.decoding.tally import Stopwatch, Tally
from localspec.decoding.text import AnswerEvents, AnswerText, DecodeEvents
from localspec.types.drafts import Draft, DraftOrigin, Provenance, VerifyOutcome
from localspec.types.events import Finished, RoundDone, RoundStats, TextDelta
from localspec.types.request import EngineSettings
from tests.contract import GREEDY, OFF, Toy
from tests.decoding.toys import policy_of

WORD = "abcdefghijkl"


class Letters:
    """Spells each token as a letter."""

    has_pending = False

    def feed(self, token: int) -> str:
        return WORD[token]

    def flush(self) -> str:
        return ""

    def piece(self, token: int) -> bytes:
        return WORD[token].encode()


def rounds_of(sizes: Sequence[int], drafted: int, copied: int) -> Iterator[Round]:
    """Yield the word by rounds of N tokens, of which all but the last of each were drafted."""
    done = 0
    for number, size in enumerate(sizes):
        tokens, own = tuple(range(done, done + size)), Provenance.TARGET
        stats = RoundStats(
            max(size - 1, drafted if number else 0), size - 1, DraftOrigin.FRESH, 1.0, 0.0, 0.0, 0.0
        )
        stats = replace(stats, copied=min(copied, stats.drafted))
        done += size
        yield Round(tokens, (Provenance.ACCEPTED,) * (size - 1) + (own,), stats, done == len(WORD))


@pytest.mark.parametrize("copied", [0, 2])
@pytest.mark.parametrize("sizes", [(1, 5, 6), (1, 11), (1, 3, 1, 7), (1,) * 12])
@pytest.mark.parametrize("end", range(1, 12))
def test_what_an_answer_counts_is_what_it_got(sizes: Sequence[int], end: int, copied: int) -> None:
    """Tokens behind a stop string are neither written nor counted, wherever in a draft it ends."""
    tally = Tally(3, "sd")
    answer = AnswerEvents(AnswerText(Letters(), (WORD[end - 1 : end + 1],)), tally, frozenset(), Stopwatch())
    events = [*answer.events(iter_rounds(rounds_of(sizes, 6, copied))), *answer.finish("stop", 0)]
    *_, finished = events
    assert isinstance(finished, Finished)
    summary, told = finished.summary, [event for event in events if isinstance(event, RoundDone)]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == WORD[: end - 1]
    assert summary.tokens == sum(event.tokens for event in told) == end + 1
    assert summary.accepted == sum(event.stats.accepted for event in told[1:])
    assert summary.drafted == sum(event.stats.drafted for event in told[1:])
    assert summary.accepted == sum(summary.accepted_at) <= sum(summary.drafted_at) <= summary.drafted
    assert all(0 <= event.stats.copied <= event.stats.drafted for event in told)
    *whole, last = told
    assert all(event.tokens == event.stats.accepted + 1 for event in whole)
    if last.tokens == last.stats.accepted:  # the draft ended the answer: nothing of it was refused
        assert last.stats.drafted == last.stats.accepted


def iter_rounds(rounds: Iterator[Round]) -> DecodeEvents:
    yield from rounds


def test_tokens_after_a_circle_are_not_counted() -> None:
    tokens = (1, 2, 3, 4) * 100
    stats = RoundStats(len(tokens) - 1, len(tokens) - 1, DraftOrigin.FRESH, 1.0, 0.0, 0.0, 0.0)
    whole = Round(tokens, (Provenance.ACCEPTED,) * len(tokens), stats)
    single = [
        Round((token,), (Provenance.TARGET,), replace(stats, drafted=0, accepted=0)) for token in tokens
    ]

    def counted(rounds: Sequence[Round]) -> int:
        answer = AnswerEvents(AnswerText(Letters()), Tally(3, "sd"), frozenset(), Stopwatch())
        list(answer.events(iter_rounds(iter(rounds))))
        assert answer.ending == "circles"
        return answer.tally.tokens

    assert counted([whole]) == counted(single) < len(tokens)


def test_tokens_after_an_end_token_are_not_judged() -> None:
    text = Toy().answer([3, 1], OFF, GREEDY, 60)
    settings = EngineSettings(mode="sd", draft_length=8, min_confidence=0.0)
    seen = 0
    for place in range(1, 40):
        end = text[place]
        rounds = [*Toy(noise=0.1).rounds([3, 1], settings, GREEDY, 60, 0, frozenset([end]))]
        last = rounds[-1]
        seen += last.stats.accepted == len(last.tokens)
        assert last.tokens[-1] == end
        assert last.stats.accepted == last.stats.drafted or last.stats.accepted < len(last.tokens)
    assert seen > 5


def test_a_policy_learns_nothing_of_draft_tokens_behind_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, outcome = Draft((1, 2, 3, 4), None, DraftOrigin.FRESH), VerifyOutcome(4, 5)
    seen: list[tuple[RoundStats, int]] = []
    policy = policy_of()
    monkeypatch.setattr(policy, "observe", lambda round_, tokens: seen.append((round_, tokens)))
    tokens = emitted_tokens(draft, outcome, 10, frozenset({2}))
    close_round(draft, outcome, tokens, RoundTimes(1.0, 1.0, 0.0, 0.0), policy)
    [(stats, count)] = seen
    assert (tokens, stats.accepted, count) == ([1, 2], 2, 2)
