"""A head's cache: what it is made of, and what must be gone of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.llama.context import Context
from localspec.llama.heads import HeadContext, HiddenStates
from localspec.llama.model import Model
from localspec.llama.recurrent import open_context
from localspec.types.models import ModelOptions
from tests.made_models import eagle3

pytestmark = pytest.mark.slow

TEXT = [700 + 37 * number % 6000 for number in range(40)]
CONTEXT = 256


def options(path: Path) -> ModelOptions:
    return ModelOptions(path=path, context=CONTEXT, gpu_layers=0, batch=64, micro_batch=64, threads=1)


@pytest.fixture(scope="module")
def mtp_models(made_hybrid: Path) -> Iterator[tuple[Model, Model]]:
    model = Model.open(options(made_hybrid), head=True)
    yield model, model
    model.close()


@pytest.fixture(scope="module")
def eagle3_models(demo_target_q8: Path, made_eagle3: Path) -> Iterator[tuple[Model, Model]]:
    models = Model.open(options(demo_target_q8)), Model.open(options(made_eagle3), head=True)
    yield models
    for model in models:
        model.close()


@pytest.fixture(scope="module")
def windowed_mtp_models(made_windowed_mtp: Path) -> Iterator[tuple[Model, Model]]:
    model = Model.open(options(made_windowed_mtp), head=True)
    yield model, model
    model.close()


@pytest.fixture(params=["mtp", "eagle3", "windowed_mtp"])
def models(request: pytest.FixtureRequest) -> tuple[Model, Model]:
    found: tuple[Model, Model] = request.getfixturevalue(f"{request.param}_models")
    return found


Pair = tuple[Context, HeadContext]
Row = NDArray[np.float32]


@pytest.fixture
def opened(models: tuple[Model, Model]) -> Iterator[Pair]:
    yield from open_pair(models)


def open_pair(models: tuple[Model, Model]) -> Iterator[Pair]:
    target = open_context(models[0], models[0].options)
    head = HeadContext(models[1], options(models[1].options.path), target)
    head.follow(on=True)
    yield target, head
    head.close()
    target.close()


def fresh_row(models: tuple[Model, Model], text: list[int]) -> Row:
    """Return what a new head says of the token after a text, of which the target lacks the last."""
    for target, head in open_pair(models):
        target.evaluate(text[:-1])
        return np.array(head.evaluate(text[head.length() :]).logits[-1])
    raise AssertionError


def drafted(head: HeadContext, text: list[int], count: int) -> tuple[list[int], Row]:
    """Return what a head drafts after a text, and what the first token was taken from."""
    row, draft = head.evaluate(text[head.length() :]).logits[-1], list[int]()
    first = row.copy()
    while True:
        draft.append(int(row.argmax()))
        if len(draft) == count:
            return draft, first
        row = head.evaluate(draft[-1:]).logits[-1]


def test_a_head_follows_the_context_that_has_taken_the_place_of_its_targets(
    models: tuple[Model, Model], opened: Pair
) -> None:
    target, head = opened
    text = [*TEXT, int(target.evaluate(TEXT).logits[-1].argmax())]
    drafted(head, text, 3)
    target.close()
    target._open_native()
    head.reopen()
    assert head.length() == 0
    head.follow(on=True)
    target.evaluate(TEXT)
    assert np.array_equal(drafted(head, text, 3)[1], fresh_row(models, text))


def test_a_head_that_has_drafted_says_what_a_new_one_says(models: tuple[Model, Model], opened: Pair) -> None:
    target, head = opened
    text = [*TEXT, int(target.evaluate(TEXT).logits[-1].argmax())]
    for count in (1, 3, 4, 2):
        draft, first = drafted(head, text, count)
        assert np.allclose(first, fresh_row(models, text), atol=1e-3)
        rows = target.evaluate([text[-1], *draft], count + 1).logits
        text += [*draft, int(rows[-1].argmax())]  # as if all were accepted: a hybrid need not go back


def test_drafted_states_are_dropped_once_the_target_continues(opened: Pair) -> None:
    target, head = opened
    text = [*TEXT, int(target.evaluate(TEXT).logits[-1].argmax())]
    draft, _ = drafted(head, text, 4)
    assert head.length() == len(text) + 3
    target.evaluate([text[-1], *draft], 5)
    assert head.length() == len(text)


def test_the_state_after_several_tokens_is_that_of_the_last(
    models: tuple[Model, Model], opened: Pair
) -> None:
    """llama.cpp hands out the first of them where states are `masked`."""
    target, head = opened
    target.evaluate(TEXT)
    following = head.evaluate([*TEXT[head.length() :], 500]).logits[-1].argmax()
    together = head.evaluate([int(following)]).logits[-1].copy()
    for other, alone in open_pair(models):
        other.evaluate(TEXT)
        alone.evaluate(TEXT, 0)
        assert alone.evaluate([500]).logits[-1].argmax() == following
        assert np.allclose(alone.evaluate([int(following)]).logits[-1], together, atol=1e-3)


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_rows_are_those_of_the_last_tokens(models: tuple[Model, Model], opened: Pair, wanted: int) -> None:
    """Of EAGLE-3 llama.cpp hands out the first ones unless all are wanted."""
    target, head = opened
    target.evaluate(TEXT)
    rows = head.evaluate([*TEXT, 500], wanted).logits.copy()
    for other, alone in open_pair(models):
        other.evaluate(TEXT)
        text = [*TEXT, 500]
        alone.evaluate(text[:-wanted], 0)
        one_by_one = [alone.evaluate([token]).logits[-1].copy() for token in text[-wanted:]]
        assert np.allclose(rows, one_by_one, atol=1e-3)


def test_long_prompts_are_read_along_in_pieces(models: tuple[Model, Model], opened: Pair) -> None:
    target, head = opened
    text = [900 + 31 * number % 6000 for number in range(150)]
    target.evaluate(text[:90], 0)
    assert head.length() >= 64
    target.evaluate(text[90:])
    row = head.evaluate([*text[head.length() :], 500]).logits[-1].copy()
    # pieces of 64 tokens and more are rounded otherwise
    assert np.abs(fresh_row(models, [*text, 500]) - row).max() < 0.02 * np.ptp(row)


def test_states_after_a_cut_are_not_used(eagle3_models: tuple[Model, Model]) -> None:
    for target, head in open_pair(eagle3_models):
        target.evaluate([*TEXT, 1, 2, 3])
        target.truncate(len(TEXT))
        target.evaluate([4, 5])
        row = head.evaluate([*[*TEXT, 4, 5][head.length() :], 500]).logits[-1].copy()
        assert np.allclose(row, fresh_row(eagle3_models, [*TEXT, 4, 5, 500]), atol=1e-3)


def test_drafts_after_a_cut_are_those_of_a_head_that_never_read_further(
    eagle3_models: tuple[Model, Model],
) -> None:
    text = [*TEXT[:30], 500]
    found = []
    for longest in (len(TEXT), 30):
        for target, head in open_pair(eagle3_models):
            target.evaluate(TEXT[:longest])
            target.truncate(30)
            found.append((drafted(head, text, 3)[0], head.evaluate([501]).logits[-1].copy()))
    assert found[0][0] == found[1][0]
    assert np.allclose(found[0][1], found[1][1], atol=1e-3)


def test_of_its_own_tokens_that_were_taken_back_no_state_is_left(opened: Pair) -> None:
    target, head = opened
    target.evaluate(TEXT)
    text = [*TEXT, 500]
    head.evaluate(text[head.length() :])
    rows = []
    for taken_back in (501, 502):
        head.evaluate([taken_back])
        head.truncate(len(text))
        rows.append(head.evaluate([503]).logits[-1].copy())
        head.truncate(len(text))
    assert np.allclose(rows[0], rows[1], atol=1e-3)


def test_tokens_that_are_read_without_logits_leave_no_state_after(
    models: tuple[Model, Model], opened: Pair
) -> None:
    target, head = opened
    target.evaluate(TEXT)
    head.evaluate([*TEXT[head.length() :], 500])  # whose state is not that of what follows
    head.evaluate([501, 502], 0)
    row = head.evaluate([503]).logits[-1].copy()
    for other, alone in open_pair(models):
        other.evaluate(TEXT)
        alone.evaluate([*TEXT[alone.length() :], 500])
        alone.evaluate([501, 502, 504], 0)
        alone.truncate(alone.length() - 1)
        assert np.allclose(alone.evaluate([503]).logits[-1], row, atol=1e-3)


def test_a_head_that_missed_a_part_starts_again(opened: Pair) -> None:
    target, head = opened
    target.evaluate(TEXT)
    head.follow(on=False)
    target.evaluate(TEXT)
    head.follow(on=True)
    target.evaluate(TEXT)
    assert head.length() == 2 * len(TEXT)
    assert np.isfinite(head.evaluate([*TEXT, 500]).logits).all()


def test_a_head_that_lacks_the_beginning_can_be_cut(opened: Pair) -> None:
    """The first token that it has is no sign of a window that has slid past the end."""
    target, head = opened
    head.follow(on=False)
    target.evaluate(TEXT)
    head.follow(on=True)
    target.evaluate([1, 2, 3, 4, 5])
    head.evaluate([*TEXT, 1, 2, 3, 4, 5, 500][head.length() :])
    assert head.length() == len(TEXT) + 6
    head.truncate(len(TEXT) + 3)
    assert head.length() == len(TEXT) + 3
    assert np.isfinite(head.evaluate([500]).logits).all()


def test_nothing_is_computed_for_a_head_that_does_not_follow(opened: Pair) -> None:
    target, head = opened
    head.follow(on=False)
    target.evaluate(TEXT)
    assert head.length() == 0


def test_a_head_keeps_as_many_tokens_as_asked(opened: Pair) -> None:
    target, head = opened
    head.follow(on=True, kept=1000)
    for _ in range(3):
        target.evaluate(TEXT)
    assert head.length() == 0
    rows = head.evaluate(3 * TEXT, 60).logits
    assert np.isfinite(rows).all()


def test_a_head_has_no_branches(opened: Pair) -> None:
    _, head = opened
    assert head.max_sequences == 1
    with pytest.raises(ValueError, match="no branches"):
        head.step([1, 2], [0, 1])


def test_a_head_may_draft_few_tokens_alone(demo_target_q8: Path, tmp_path: Path) -> None:
    few = eagle3(tmp_path / "few.gguf", drafted=50)
    models = Model.open(options(demo_target_q8)), Model.open(options(few), head=True)
    for target, head in open_pair(models):
        target.evaluate(TEXT)
        assert np.isfinite(head.evaluate([*TEXT, 500]).logits[-1]).sum() == 50
    for model in models:
        model.close()


def test_hidden_states_are_those_of_every_token(opened: Pair) -> None:
    target, head = opened
    states = HiddenStates(target, (target.model.layers,) if head.model is target.model else (1, 3))
    states.switch(on=True)
    text = TEXT[:20]  # more would be read in two calls by a target that forgets
    target.evaluate(text)
    assert states.last(len(text)).shape == (len(text), states.width)
    assert (np.abs(states.last(len(text))).sum(1) > 0).all()
