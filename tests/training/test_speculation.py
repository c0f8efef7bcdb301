"""The figures of the model card, on cases that can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from training import measure
from training.speculation import (
    FAN_OUTS,
    FanOut,
    GreedyRuns,
    greedy_fan_out,
    greedy_runs,
    power_law,
    sampled_fan_out,
    sampled_tokens_per_pass,
    softmax,
)


def test_greedy_runs_count_a_correction_after_every_run() -> None:
    # two accepted and one corrected, one accepted and one corrected, one corrected
    match = [True, True, False, True, False, False]
    assert greedy_runs(match, 2) == GreedyRuns(accepted=3, proposed=2 + 2 + 1, passes=3)


def test_sampled_tokens_per_pass_are_a_geometric_sum() -> None:
    acceptance = np.full(1000, 0.5)
    assert sampled_tokens_per_pass(acceptance, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125, abs=2e-3)
    assert sampled_tokens_per_pass(np.zeros(5), 3) == 1


def test_power_law_finds_its_own_parameters() -> None:
    law = power_law([0.8 * fan_out**-0.6 for fan_out in FAN_OUTS])
    assert law is not None
    assert (law.c, law.r) == (0.8, 0.6)
    assert power_law([0.5, 0.2, *[0.0] * (len(FAN_OUTS) - 2)]) is None


def test_greedy_fan_out_ranks_what_the_draft_missed() -> None:
    logits = np.array([[3, 2, 1, 0], [3, 2, 1, 0], [3, 2, 1, 0]], np.float32)
    fan_out = greedy_fan_out(logits, [0, 1, 3])
    assert fan_out.ranks == (2, 4)
    assert fan_out.greedy_misses()[:3] == [0.5, 0.5, 0.0]  # one draft finds rank 2, three find rank 4
    assert fan_out.rank_shares(4) == {2: 0.5, 3: 0.0, 4: 0.5}


def test_sampled_fan_out_is_what_drawing_gives() -> None:
    """Reject and draw as the engines do, and count how often the bonus token is among the drafts."""
    rng = np.random.default_rng(1)
    size, draws = 80, 20_000
    p, q = softmax(rng.normal(size=(1, size)) * 2), softmax(rng.normal(size=(1, size)) * 2)
    expected = sampled_fan_out(p, q)
    drafted = rng.choice(size, draws, p=q[0])
    rejected = drafted[rng.random(draws) >= (p[0] / q[0])[drafted]]
    residual = np.maximum(p - q, 0)[0]
    bonus = rng.choice(size, len(rejected), p=residual / residual.sum())
    order = np.argsort(-q[0])
    place = np.argsort(order)
    guesses_before = place[bonus] - (place[rejected] < place[bonus])
    assert len(rejected) / draws == pytest.approx(expected.weight, abs=0.02)
    for index, fan_out in enumerate(FAN_OUTS):
        hits = float((guesses_before < fan_out).mean())
        assert hits == pytest.approx(expected.hits[index] / expected.weight, abs=0.025)


def test_fan_outs_add_up() -> None:
    both = FanOut((2,), np.ones(len(FAN_OUTS)), 2.0) + FanOut((3,), np.ones(len(FAN_OUTS)), 2.0)
    assert both.ranks == (2, 3)
    assert both.sampled_misses() == [0.5] * len(FAN_OUTS)


@pytest.mark.slow
def test_a_pair_is_measured_end_to_end(demo_target: Path, demo_draft: Path, tmp_path: Path) -> None:
    options = ["--prompts", "1", "--tokens", "12", "--ppl-tokens", "40", "--threads", "1"]
    models = ["--target", str(demo_target), "--draft", str(demo_draft)]
    measure.main([str(tmp_path), str(tmp_path / "out"), *models, *options])
    report = json.loads((tmp_path / "out" / "measure.json").read_text(encoding="utf-8"))
    assert set(report["tasks"]) == set(measure.TASKS)
    assert all(kind["draft"] > 1 and kind["tokens"] >= 8 for kind in report["perplexity"].values())
    assert 0.5 < report["tasks"]["coding (templates)"]["sampled_acceptance"] <= 1
    text = (tmp_path / "out" / "measure.md").read_text(encoding="utf-8")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {5, 13, 16}


def test_a_missing_model_is_one_clear_line(demo_target: Path, tmp_path: Path) -> None:
    options = ["--target", str(demo_target), "--draft", str(tmp_path / "missing.gguf")]
    with pytest.raises(SystemExit, match=r"error: .*missing\.gguf"):
        measure.main([str(tmp_path), str(tmp_path / "out"), *options])
