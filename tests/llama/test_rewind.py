from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from tests.llama.conftest import OpenContext

TOKENS = [(11 * number) % 250 + 7 for number in range(60)]


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_window"])
def test_attention_rewinds_and_branches(
    name: str, open_context: OpenContext, request: pytest.FixtureRequest
) -> None:
    model = Model.open(ModelOptions(path=request.getfixturevalue(name)))
    context = open_context(model, sequences=2)
    context.evaluate(TOKENS[:30])
    context.truncate(context.rewindable(7))
    context.share(0, 1, 5)
    branch = context.step([9], [1]).logits.copy()
    fresh = open_context(model)
    fresh.evaluate(TOKENS[:5])
    assert np.allclose(fresh.evaluate([9]).logits, branch, atol=1e-3)
    model.close()


def test_a_sliding_window_is_kept_whole_for_branches(tiny_window: Path, open_context: OpenContext) -> None:
    model = Model.open(ModelOptions(path=tiny_window))
    context = open_context(model, sequences=2)
    context.evaluate(TOKENS * 8)
    context.share(0, 1, 20)  # far outside the window of the main sequence's last token
    branch = context.step([9], [1]).logits.copy()
    fresh = open_context(model)
    fresh.evaluate(TOKENS[:20])
    assert np.allclose(fresh.evaluate([9]).logits, branch, atol=1e-3)
    context.truncate(20)
    assert np.allclose(context.evaluate([9]).logits, branch, atol=1e-3)
    model.close()
