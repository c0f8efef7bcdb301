"""Greedy answers of the bundled pair are those of plain decoding, to the token.

The target is a Q8_0 copy, whose kernels give the same bits at every batch width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.decoding.rounds import DecodeParams
from localspec.decoding.verify import Uniforms, judge
from localspec.demo import prompts
from localspec.types.candidates import Rows
from localspec.types.drafts import Draft, VerifyOutcome
from localspec.types.request import Mode
from tests.benchmarks.exactness import compare
from tests.benchmarks.pair import Pair
from tests.benchmarks.stress import stress

ONE_OF_EACH = prompts()[::13]
TOKENS = 64


@pytest.fixture(scope="module")
def pair(demo_target_q8: Path, demo_draft: Path) -> Iterator[Pair]:
    with closing(Pair(demo_target_q8, demo_draft)) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ngram", "sd", "ssd"])
def test_every_mode_writes_what_plain_decoding_writes(pair: Pair, mode: Mode) -> None:
    assert len({item.task for item in ONE_OF_EACH}) == 4
    found = compare(pair, ONE_OF_EACH, mode, TOKENS)
    assert found.differences == []
    assert found.tokens > 100
    assert found.accepted > (0 if mode == "ngram" else 40)
    assert (found.hits > 0) == (mode == "ssd")


def test_a_mistake_would_be_seen(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(
        draft: Draft, rows: Rows, text: list[int], params: DecodeParams, random: Uniforms
    ) -> VerifyOutcome:
        outcome = judge(draft, rows, text, params, random)
        rejected = draft.tokens[outcome.accepted :]
        return replace(outcome, bonus=rejected[0]) if rejected else outcome

    monkeypatch.setattr(pair.engine.decoder, "_judge", trusting)
    found = compare(pair, ONE_OF_EACH, "sd", TOKENS)
    assert found.differences
    assert all(difference.expected != difference.found for difference in found.differences)


@pytest.mark.slow
def test_random_settings_delays_cancels_and_turns_change_nothing(
    demo_target_q8: Path, demo_draft: Path
) -> None:
    found = stress(demo_target_q8, demo_draft, runs=20, seed=3)
    assert found.differences == []
    assert found.runs == 20
    assert min(found.hits, found.misses, found.closes, found.cancels + found.finished_first) > 0
