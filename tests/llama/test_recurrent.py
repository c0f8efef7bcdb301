"""Models that keep a recurrent state: where they go back to, and that they are right afterwards, bit for bit.

llama.cpp says yes to rollbacks that it computes wrong; every test of one fails without its guard.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from localspec.errors import Cancelled, EngineError, UserError
from localspec.gguf import CHECKPOINTS
from localspec.llama import recurrent
from localspec.llama.checkpoints import TAIL
from localspec.llama.library import Native, native
from localspec.llama.model import Model
from localspec.llama.recurrent import RecurrentContext, open_context
from localspec.types.candidates import Logits
from localspec.types.models import ModelOptions
from tests.llama.test_cancel import cancel_inside

TEXT = [(37 * number) % 8000 + 10 for number in range(400)]
PIECE = 48  # from 64 tokens in a call on, flash attention rounds in another way


@pytest.fixture(scope="module")
def model(made_hybrid: Path) -> Iterator[Model]:
    # otherwise the order of cells, which branches change, would round in another way
    exact = ModelOptions(made_hybrid, 1024, 0, kv_type_k="f32", kv_type_v="f32", flash_attention=False)
    options = replace(exact, threads=1)
    opened = Model.open(options)
    yield opened
    opened.close()


@pytest.fixture(params=["snapshots", "marks"])
def context(
    request: pytest.FixtureRequest, model: Model, monkeypatch: pytest.MonkeyPatch
) -> RecurrentContext:
    """A context of a target whose architecture has snapshots, and of one that reads again."""
    if request.param == "marks":
        monkeypatch.setattr(recurrent, "kept_states", lambda *_: (0, 1))
    return opened(model)


def opened(model: Model, sequences: int = 1) -> RecurrentContext:
    context = open_context(model, model.options, sequences=sequences)
    assert isinstance(context, RecurrentContext)
    return context


def after(model: Model, text: list[int]) -> Logits:
    """Return the logits after a text that a context of its own has read."""
    fresh = opened(model)
    for start in range(0, len(text), PIECE):
        rows = fresh.evaluate(text[start : start + PIECE]).logits.copy()
    fresh.close()
    row: Logits = rows[0]
    return row


def is_right(context: RecurrentContext, model: Model, text: list[int], sequence: int = 0) -> bool:
    """Return whether a context holds a text: the next token's logits say so."""
    assert context.length(sequence) == len(text)
    row = context.step([9], [sequence]).logits if sequence else context.evaluate([9]).logits
    return np.array_equal(row[0], after(model, [*text, 9]))


@pytest.mark.parametrize("accepted", range(6))
def test_rejected_tokens_are_removed_from_the_cache(
    context: RecurrentContext, model: Model, accepted: int
) -> None:
    context.evaluate(TEXT[:30])
    for start in (30, 100):  # a second round stands on the first
        text = TEXT[: context.length()] if start == 30 else [*TEXT[: 31 + accepted], 9]
        context.mark()
        context.evaluate(TEXT[start : start + 6], 6)
        context.truncate(len(text) + 1 + accepted)
        assert is_right(context, model, [*text, *TEXT[start : start + 1 + accepted]])


def test_all_of_the_last_call_is_not_taken_back(model: Model) -> None:
    context = opened(model)
    context.evaluate(TEXT[:20])
    context.evaluate(TEXT[20:23], 3)
    assert context.rewindable(20) == 0
    with pytest.raises(EngineError, match="cannot go back to token 20 of 23: it has a recurrent state"):
        context.truncate(20)
    assert is_right(context, model, TEXT[:23])


def test_calls_before_the_last_are_not_taken_back(model: Model) -> None:
    context = opened(model)
    context.evaluate(TEXT[:20])
    for token in TEXT[20:23]:
        context.evaluate([token])
    assert context.rewindable(21) == 0
    with pytest.raises(EngineError):
        context.truncate(21)
    assert is_right(context, model, TEXT[:23])


def test_a_call_is_taken_back_once(model: Model) -> None:
    context = opened(model)
    context.evaluate(TEXT[:20])
    context.evaluate(TEXT[20:26], 6)
    context.truncate(24)
    assert context.rewindable(23) == 0
    with pytest.raises(EngineError):
        context.truncate(23)
    assert is_right(context, model, TEXT[:24])


def test_no_more_is_taken_back_than_there_are_snapshots(model: Model) -> None:
    context = opened(model)
    context.evaluate(TEXT[:31])
    assert context.max_draft == 8
    assert (context.rewindable(23), context.rewindable(22)) == (23, 0)
    context.truncate(23)
    assert is_right(context, model, TEXT[:23])


def test_several_sequences_have_no_snapshots(model: Model) -> None:
    """Of an idle sequence, llama.cpp moves the state with others and leaves its snapshots behind."""
    context = opened(model, sequences=3)
    assert native().llama_n_rs_seq(context.pointer) == 0
    context.evaluate(TEXT[:20])
    context.mark()
    context.evaluate(TEXT[20:24], 4)
    context.truncate(22)  # what follows is read with the next call, and is no state to branch from
    assert not context.branchable(22)
    with pytest.raises(EngineError, match="cannot branch at token 22"):
        context.share(0, 1, 22)
    context.share(0, 1, 20)
    assert is_right(context, model, TEXT[:20], sequence=1)
    assert is_right(context, model, TEXT[:22])


@pytest.mark.parametrize("prompt", [0, 100])
def test_after_a_cancel_it_is_back_at_what_was_kept(
    context: RecurrentContext, model: Model, prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(0, prompt, 50):
        context.evaluate(TEXT[start : start + 50])
    context.evaluate(TEXT[prompt : prompt + 6], 6)
    cancel_inside(context, monkeypatch, call=0)
    with pytest.raises(Cancelled):
        context.evaluate(TEXT[200:203], 3)
    kept = max(0, prompt - TAIL)
    assert is_right(context, model, TEXT[:kept])


def test_a_cancelled_step_leaves_no_mark_that_it_may_have_moved(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = opened(model, sequences=3)
    context.evaluate(TEXT[:40])
    context.mark()
    context.share(0, 1, 40)
    cancel_inside(context, monkeypatch, call=0)
    with pytest.raises(Cancelled):
        context.step([5, 6], [1, 0])
    assert context.length(1) == 0
    assert is_right(context, model, TEXT[: 40 - TAIL])


def test_where_texts_begin_and_end_it_can_come_back(context: RecurrentContext, model: Model) -> None:
    context.evaluate(TEXT[:50])  # the first prompt
    for token in TEXT[50:80]:
        context.evaluate([token])
    context.evaluate(TEXT[80:120])  # the second
    for token in TEXT[120:140]:
        context.evaluate([token])
    assert [context.rewindable(length) for length in (110, 90, 79, 20)] == [120 - TAIL, 80, 50 - TAIL, 0]
    context.truncate(80)
    assert context.rewindable(79) == 50 - TAIL
    assert is_right(context, model, TEXT[:80])
    context.truncate(50 - TAIL)
    assert is_right(context, model, TEXT[: 50 - TAIL])


def test_of_too_many_checkpoints_the_one_goes_that_costs_least(model: Model) -> None:
    context = opened(model)
    for end in (20, 45, 50, 75, 100)[: CHECKPOINTS + 1]:
        context.evaluate(TEXT[context.length() : end])
        context.checkpoint()
    assert [context.rewindable(end) for end in (20, 45, 50, 75, 91)] == [20, 45, 45, 75, 75]


def test_branches_begin_at_marks_and_the_best_takes_the_place(model: Model) -> None:
    context = opened(model, sequences=4)
    context.evaluate(TEXT[:20])
    for token in TEXT[20:24]:
        context.mark()
        context.evaluate([token])
    for sequence, end in ((1, 20), (2, 22), (3, 24)):
        assert context.branchable(end)
        context.share(0, sequence, end)
    rows = context.step([300, 301, 302], [1, 2, 3]).logits
    for row, end, token in zip(rows, (20, 22, 24), (300, 301, 302), strict=True):
        assert np.array_equal(row, after(model, [*TEXT[:end], token]))
    context.truncate(22)
    context.share(2, 0, 23)
    assert is_right(context, model, [*TEXT[:22], 301])


def without_snapshots(
    _architecture: str, _sequences: int, longest_draft: int | None = None
) -> tuple[int, int]:
    """Stand in for `kept_states` of a target whose architecture has no snapshots."""
    return 0, int(longest_draft != 0)


def opened_for(model: Model, longest_draft: int) -> RecurrentContext:
    context = open_context(model, replace(model.options, longest_draft=longest_draft))
    assert isinstance(context, RecurrentContext)
    return context


def converse(context: RecurrentContext) -> None:
    """Read 120 tokens as two prompts with their answers, so that there are checkpoints."""
    for start, end in ((0, 48), (60, 100)):
        context.evaluate(TEXT[start:end])
        for token in TEXT[end : end + 12 if start == 0 else 120]:
            context.evaluate([token])


@pytest.mark.parametrize(("snapshots", "states"), [(0, 0), (2, 2), (8, 8), (30, 8)])
def test_a_target_keeps_as_many_states_as_its_longest_draft(
    model: Model, snapshots: int, states: int
) -> None:
    context = opened_for(model, snapshots)
    assert native().llama_n_rs_seq(context.pointer) == context.max_draft == states
    converse(context)
    assert is_right(context, model, TEXT[:120])


@pytest.mark.parametrize("architecture", ["with snapshots", "without snapshots"])
@pytest.mark.parametrize(("first", "then"), [(0, 2), (0, 8), (3, 8)])
def test_longer_drafts_are_allowed_without_reading_again(
    model: Model, monkeypatch: pytest.MonkeyPatch, architecture: str, first: int, then: int
) -> None:
    has_snapshots = architecture == "with snapshots"
    if not has_snapshots:
        monkeypatch.setattr(recurrent, "kept_states", without_snapshots)
    context = opened_for(model, first)
    converse(context)
    ends = [context.rewindable(end) for end in range(120)]
    assert context.rereads is not has_snapshots
    context.allow_drafts(then)
    assert context.max_draft == (then if has_snapshots else 8)
    assert context.rereads is not has_snapshots
    assert context.length() == 120
    assert [context.rewindable(end) for end in range(120)] == ends
    context.mark()
    context.evaluate(TEXT[200 : 201 + then], 1 + then)
    context.truncate(121)
    assert is_right(context, model, [*TEXT[:120], TEXT[200]])


def test_what_has_enough_states_is_not_exchanged(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    context = opened_for(model, 8)
    context.evaluate(TEXT[:30])
    with monkeypatch.context() as patched:
        patched.setattr(RecurrentContext, "close", None)
        for longest in (0, 3, 8, 40):
            context.allow_drafts(longest)
    assert is_right(context, model, TEXT[:30])


def test_drafts_can_become_longer_while_one_is_taken_back(model: Model) -> None:
    context = opened_for(model, 3)
    context.evaluate(TEXT[:30])
    context.evaluate(TEXT[30:34], 4)
    context.truncate(32)
    context.allow_drafts(8)
    assert is_right(context, model, TEXT[:32])


def test_a_text_that_cannot_be_saved_is_lost_with_the_old_states(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecurrentContext, "save", lambda *_: None)
    context = opened_for(model, 0)
    converse(context)
    context.allow_drafts(8)
    assert (context.length(), context.max_draft) == (0, 8)
    converse(context)
    assert is_right(context, model, TEXT[:120])


def creating(most: int, create: Native, model: Native, parameters: Native) -> Native:
    """Create a context, unless that has more than `most` snapshots."""
    return create(model, parameters) if parameters.n_rs_seq <= most else None


@pytest.mark.parametrize(("most", "allowed"), [(8, 8), (7, 4), (3, 2), (1, 1), (0, 0)])
def test_with_little_memory_drafts_are_shorter(
    model: Model, monkeypatch: pytest.MonkeyPatch, most: int, allowed: int
) -> None:
    context, api = opened_for(model, 0), native()
    converse(context)
    monkeypatch.setattr(api, "llama_init_from_model", partial(creating, most, api.llama_init_from_model))
    context.allow_drafts(8)
    monkeypatch.undo()
    assert context.max_draft == allowed
    assert is_right(context, model, TEXT[:120])


def test_with_no_memory_at_all_the_context_is_closed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    context, api = opened_for(model, 0), native()
    converse(context)
    monkeypatch.setattr(api, "llama_init_from_model", partial(creating, -1, api.llama_init_from_model))
    with pytest.raises(UserError):
        context.allow_drafts(8)
    with pytest.raises(EngineError, match="is closed"):
        context.evaluate([9])


def test_an_architecture_whose_snapshots_llama_cpp_refuses_reads_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native(), "llama_n_rs_seq", lambda _pointer: 0)
    context = opened_for(model, 0)
    context.evaluate(TEXT[:30])
    context.allow_drafts(8)
    assert (context.max_draft, context.rereads) == (8, True)
    context.mark()
    context.evaluate(TEXT[30:36], 6)
    context.truncate(32)
    assert is_right(context, model, TEXT[:32])


@pytest.mark.slow
@pytest.mark.parametrize("sequences", [1, 4])
def test_whatever_it_does_it_holds_the_text(context: RecurrentContext, model: Model, sequences: int) -> None:
    drawn = random.Random(sequences)
    context = context if sequences == 1 else opened(model, sequences)
    text = list[int]()
    for _ in range(100):
        action = drawn.choice(["read", "verify", "verify", "back", "back", "mark", "checkpoint", "branch"])
        if action in {"read", "verify"}:
            new = drawn.choices(range(10, 8000), k=drawn.choice([1, 3, 7, 40]) if action == "read" else 6)
            context.mark()
            rows = context.evaluate(new, len(new) if action == "verify" else 1).logits
            text += new
            assert np.array_equal(rows[-1], after(model, text))
        elif action == "back":
            text = text[: context.rewindable(drawn.randint(max(0, len(text) - 12), len(text)))]
            context.truncate(len(text))
        elif action == "mark":
            context.mark()
        elif action == "checkpoint":
            context.checkpoint()
        ends = [end for end in range(1, len(text) + 1) if sequences > 1 and context.branchable(end)]
        if action == "branch" and ends:
            end, branch = drawn.choice(ends), drawn.randrange(1, sequences)
            context.truncate(0, branch)
            context.share(0, branch, end)
            assert np.array_equal(context.step([77], [branch]).logits[0], after(model, [*text[:end], 77]))
        assert context.length() == len(text)
