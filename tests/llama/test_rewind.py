from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localspec.errors import EngineError
from localspec.llama.context import can_rewind
from localspec.llama.model import Model
from localspec.types import ModelOptions
from tests.llama.conftest import OpenContext

TOKENS = [(11 * number) % 250 + 7 for number in range(60)]


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_window"])
def test_attention_rewinds_and_branches(
    name: str, open_context: OpenContext, request: pytest.FixtureRequest
) -> None:
    model = Model.open(ModelOptions(path=request.getfixturevalue(name)))
    context = open_context(model, sequences=2)
    assert can_rewind(context)
    assert (context.length(), context.busy_s) == (0, 0.0)  # on a large model trying would take long
    model.close()


def test_a_sliding_window_is_kept_whole_for_branches(tiny_window: Path, open_context: OpenContext) -> None:
    model = Model.open(ModelOptions(path=tiny_window))
    context = open_context(model, sequences=2)
    context.evaluate(TOKENS * 8)
    context.share(0, 1, 20)  # far outside the window of the main sequence's last token
    branch = context.step([9], [1]).copy()
    fresh = open_context(model)
    fresh.evaluate(TOKENS[:20])
    assert np.allclose(fresh.evaluate([9]), branch, atol=1e-3)
    context.truncate(20)
    assert np.allclose(context.evaluate([9]), branch, atol=1e-3)
    model.close()


def test_a_recurrent_model_says_that_it_cannot(tiny_recurrent: Path, open_context: OpenContext) -> None:
    model = Model.open(ModelOptions(path=tiny_recurrent))
    context = open_context(model, sequences=3)
    assert not can_rewind(context)
    context.evaluate(TOKENS[:30])
    with pytest.raises(EngineError, match="cannot go back to token 29 of 30"):
        context.truncate(29)
    with pytest.raises(EngineError, match="cannot branch at token 29 of 30"):
        context.share(0, 1, 29)
    assert context.length() == 30
    model.close()


def test_a_refused_rewind_leaves_a_recurrent_model_as_it_was(
    tiny_recurrent: Path, open_context: OpenContext
) -> None:
    model = Model.open(ModelOptions(path=tiny_recurrent))
    context, fresh = open_context(model), open_context(model)
    for each in (context, fresh):
        each.evaluate(TOKENS[:30])
    with pytest.raises(EngineError):
        context.truncate(10)
    assert np.array_equal(context.evaluate([9]), fresh.evaluate([9]))
    context.truncate(0)
    first = open_context(model).evaluate(TOKENS[:30]).copy()
    assert np.array_equal(context.evaluate(TOKENS[:30]), first)
    model.close()


def test_only_an_empty_context_is_probed(llama_model: Model, open_context: OpenContext) -> None:
    context = open_context(llama_model)
    context.evaluate([1])
    with pytest.raises(ValueError, match="empty"):
        can_rewind(context)
