"""Target and draft vocabularies that differ by the ids that fill up a matrix."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.decoding.engine import Engine
from localspec.decoding.rounds import DecodeParams, Round
from localspec.types.request import EngineSettings, Mode, Sampling
from tests.contract import GREEDY, NO_END, PLAIN, latency_model
from tests.fake_model import FakeModel


def answer(target: FakeModel, draft: FakeModel | None, mode: Mode, sampling: Sampling) -> list[int]:
    settings = EngineSettings(mode=mode, min_confidence=0.0, draft_length=4)
    params = DecodeParams(sampling, "rejection", 4, 60, NO_END)
    events = Engine(target, draft).rounds([1, 2, 3], settings, params, latency_model(), 5)
    return [token for event in events if isinstance(event, Round) for token in event.tokens]


@pytest.mark.parametrize("mode", ["sd", "ssd"])
@pytest.mark.parametrize("sampling", [GREEDY, PLAIN])
@pytest.mark.parametrize(("ids", "draft_ids"), [(12, 16), (16, 12)])
def test_ids_that_one_model_lacks_harm_nothing(
    mode: Mode, sampling: Sampling, ids: int, draft_ids: int
) -> None:
    target, draft = FakeModel(ids, sharpness=0.7), FakeModel(draft_ids, sharpness=0.7, sequences=9)
    tokens = answer(target, draft, mode, sampling)
    assert len(tokens) == 60
    assert max(tokens) < ids
    if sampling is GREEDY:
        assert tokens == answer(FakeModel(ids, sharpness=0.7), None, "off", sampling)
    elif ids > draft_ids:
        assert max(tokens) >= draft_ids  # the target did write what the draft model cannot read
    assert max(np.concatenate([draft.tokens(0), [0]])) < draft_ids
