"""How far a cache type moves the target's distribution, and that no run is silent about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import log
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import TunableModels
from localspec.inference.runtime import Runtime
from localspec.storage import tuned_settings
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.distribution_shift import RecordedAnswer, read_answer, recorded_answer, shift
from localspec.tuning.events import LoadOptionsChosen
from localspec.tuning.load_options import MachineLimits
from localspec.tuning.run import TuningRun
from localspec.tuning.trace import trace
from localspec.types.models import KvType, ModelOptions
from tests.inference.runtimes import greedy
from tests.tuning.fake_models import TRACED, FakeModels
from tests.tuning.test_tune import identity, planned

Logits = NDArray[np.float32]


class Scripted:
    """A target with logits by place, whatever it reads."""

    def __init__(self, rows: Logits) -> None:
        self._rows = rows

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        yield from self._rows[: len(tokens)]


def scripted(seed: int, noise: float = 0.0, vocabulary: int = 20) -> Runtime:
    rows = np.random.default_rng(1).normal(0, 2, (12, vocabulary))
    rows += np.random.default_rng(seed).normal(0, 1, rows.shape) * noise
    return cast("Runtime", Scripted(rows.astype(np.float32)))


ANSWER = RecordedAnswer((5, 6, 7), (1, 2, 3, 4, 5, 6))


def probabilities(runtime: Runtime) -> NDArray[np.float64]:
    """Return the distributions before the answer's tokens; the last prompt token decides the first."""
    rows = np.stack([row.astype(np.float64) for row in runtime.score(range(8))])[2:]
    weights = np.exp(rows)
    found: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return found


def test_the_divergence_is_that_of_the_distributions_before_each_token() -> None:
    usual, other = scripted(2), scripted(2, 0.5)
    before = read_answer(usual, ANSWER)
    found = shift([before], [read_answer(other, ANSWER, before.ids)])
    p, q = probabilities(usual), probabilities(other)
    expected = (p * np.log(p / q)).sum(axis=1)
    assert found.tokens == len(ANSWER.tokens) == len(expected)
    assert found.mean == pytest.approx(expected.mean(), rel=1e-4)
    assert found.high == pytest.approx(np.quantile(expected, 0.99), rel=1e-4)
    assert found.changed == (p.argmax(axis=1) != q.argmax(axis=1)).mean() > 0


def test_tokens_that_are_no_candidates_count_as_one() -> None:
    usual, other = scripted(2, vocabulary=400), scripted(2, 0.5, vocabulary=400)
    before = read_answer(usual, ANSWER)
    assert before.ids.shape == (6, 32)
    found = shift([before], [read_answer(other, ANSWER, before.ids)])
    p, q = probabilities(usual), probabilities(other)
    assert 0 < found.mean < (p * np.log(p / q)).sum(axis=1).mean()


def test_the_same_target_does_not_move() -> None:
    before = read_answer(scripted(2), ANSWER)
    again = read_answer(scripted(2), ANSWER, before.ids)
    assert shift([before], [again]) == replace(shift([before], [before]), mean=0.0, high=0.0, changed=0.0)


def test_a_real_cache_of_8_bits_moves_a_little(demo_target: Path) -> None:
    def opened(kind: KvType) -> Runtime:
        options = ModelOptions(demo_target, context=512, threads=1, kv_type_k=kind, kv_type_v=kind)
        return Runtime.open(OpenPlan(replace(options, flash_attention=True)))

    with opened("f16") as usual:
        answer = recorded_answer(trace(usual, greedy(max_tokens=24)))
        before = read_answer(usual, answer)
        assert before.best.tolist() == list(answer.tokens)  # greedily chosen
        assert shift([before], [read_answer(usual, answer, before.ids)]).mean < 1e-9
    with opened("q8_0") as smaller:
        found = shift([before], [read_answer(smaller, answer, before.ids)])
    assert 1e-9 < found.mean < 0.1
    assert found.mean <= found.high
    assert found.tokens == 24


class Timed(FakeModels):
    """Models that are twice as fast with a smaller cache, which moves their distribution."""

    @contextmanager
    def opened(self, options: LoadOptions) -> Iterator[TunableModels]:
        is_smaller = options.target_kv_type == "q8_0"
        self.second = 0.2 if is_smaller else 0.3
        self.slowness = 0.5 if is_smaller else 1.0
        with self as models:
            yield models


def chosen_by(tmp_path: Path, *, allows: bool) -> tuple[LoadOptionsChosen, list[LoadOptions], TuningRun]:
    plan, models, opened = planned(tmp_path, quick=False), Timed(), list[LoadOptions]()

    def open_models(options: LoadOptions) -> object:
        opened.append(options)
        return models.opened(options)

    limits = MachineLimits(2, draft_on_card=True, target_on_card=True, allows_cache_types=allows)
    run = TuningRun(plan, open_models, identity(plan), limits)  # type: ignore[arg-type]
    events = run.events()
    event = next(event for event in events if isinstance(event, LoadOptionsChosen))
    events.close()  # type: ignore[attr-defined]
    return event, opened, run


def test_the_choice_of_another_cache_says_how_far_it_moves(tmp_path: Path) -> None:
    event, opened, run = chosen_by(tmp_path, allows=True)
    assert event.workplace == LoadOptions(target_kv_type="q8_0")
    assert event.shift is not None
    assert event.shift.tokens == 4 * TRACED
    expected = 0.6 * log(0.6 / 0.7) + 0.3 * log(0.3 / 0.2)
    assert event.shift.mean == pytest.approx(expected)
    assert event.shift.changed == 0.0
    assert [each.target_kv_type for each in opened[-2:]] == ["f16", "q8_0"]  # one after the other
    assert run.state.opened == event
    kept = run.folder.state.read()
    assert kept is not None
    assert kept.opened == event
    assert tuned_settings.find_load_options(run._identity) == event.workplace


def test_without_the_flag_no_cache_type_is_tried(tmp_path: Path) -> None:
    event, opened, _ = chosen_by(tmp_path, allows=False)
    assert {each.target_kv_type for each in (event.workplace, *opened)} == {"f16"}
    assert event.shift is None
