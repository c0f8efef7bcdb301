from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec.errors import ContextFullError, EngineError
from localspec.llama.library import Native, native
from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from tests.llama.conftest import OpenContext

TOKENS = [(7 * number) % 250 + 7 for number in range(100)]
# with keys and values in full precision, and so without flash attention, chunks of any size agree closely
EXACT: dict[str, object] = {"kv_type_k": "f32", "kv_type_v": "f32", "flash_attention": False}


@pytest.fixture(scope="module")
def q8(demo_target_q8: Path) -> Iterator[Model]:
    model = Model.open(ModelOptions(path=demo_target_q8))
    yield model
    model.close()


def test_rows_have_the_vocabularys_width(llama_model: Model, open_context: OpenContext) -> None:
    context = open_context(llama_model)
    rows = context.evaluate(TOKENS[:10], logits=3).logits
    assert rows.shape == (3, context.vocabulary_size) == (3, llama_model.vocabulary.size)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert context.evaluate(TOKENS[:2], logits=0).logits.shape == (0, context.vocabulary_size)
    assert context.length() == 12


def test_rows_are_in_the_order_of_the_tokens(q8: Model, open_context: OpenContext) -> None:
    together = open_context(q8).evaluate(TOKENS[:12], logits=5).logits.copy()
    one_by_one = open_context(q8)
    one_by_one.evaluate(TOKENS[:7], logits=0)
    for row, token in zip(together, TOKENS[7:12], strict=True):
        assert np.array_equal(one_by_one.evaluate([token]).logits[0], row)


def test_rows_of_one_call_do_not_linger_in_the_next(q8: Model, open_context: OpenContext) -> None:
    context = open_context(q8, sequences=2, rows=4)
    context.evaluate(TOKENS[:4], logits=4)
    found = context.evaluate(TOKENS[4:14], logits=2).logits.copy()
    context.step([1, 2, 3, 4], [1, 1, 1, 1])
    context.evaluate(TOKENS[14:24], logits=0)
    fresh = open_context(q8)
    fresh.evaluate(TOKENS[:4])
    assert np.array_equal(fresh.evaluate(TOKENS[4:14], logits=2).logits, found)


@pytest.mark.parametrize("run", [1, 2, 6])
def test_the_main_sequence_is_read_on_after_branches(run: int, q8: Model, open_context: OpenContext) -> None:
    context = open_context(q8, sequences=4)
    context.evaluate(TOKENS[:4])
    context.step([1, 2, 3], [1, 2, 3])
    context.step([5], [1])
    found = [
        context.evaluate(TOKENS[4 : 4 + run], run).logits.copy(),
        context.evaluate(TOKENS[10:13], 3).logits.copy(),
    ]
    for sequence in range(1, 4):
        context.truncate(0, sequence)
    fresh = open_context(q8)
    fresh.evaluate(TOKENS[:4])
    assert np.array_equal(fresh.evaluate(TOKENS[4 : 4 + run], run).logits, found[0])
    assert np.array_equal(fresh.evaluate(TOKENS[10:13], 3).logits, found[1])


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 65, 96, 97])
@pytest.mark.parametrize("logits", [0, 1, 20])
def test_long_inputs_are_read_in_chunks(
    llama_model: Model, open_context: OpenContext, count: int, logits: int
) -> None:
    context = open_context(llama_model, **EXACT)
    logits = min(logits, count)
    decode, sizes = context._decode, []

    def counting(pointer: object, batch: Native) -> int:
        sizes.append(batch.n_tokens)
        code: int = decode(pointer, batch)
        return code

    context._decode = counting
    rows = context.evaluate(TOKENS[:count], logits).logits
    assert rows.shape[0] == logits
    assert context.length() == count
    assert sum(sizes) == count
    assert max(sizes) <= 32
    whole = open_context(llama_model, **EXACT | {"batch": 128, "micro_batch": 128})
    assert np.allclose(rows, whole.evaluate(TOKENS[:count], logits).logits, atol=1e-3)


def test_more_rows_than_a_micro_batch(llama_model: Model, open_context: OpenContext) -> None:
    rows = open_context(llama_model, rows=64, **EXACT).evaluate(TOKENS, logits=60).logits
    whole = open_context(llama_model, rows=100, **EXACT | {"batch": 128, "micro_batch": 128})
    assert np.allclose(rows, whole.evaluate(TOKENS, logits=60).logits, atol=1e-3)


def test_branches_equal_sequential_evaluation_bit_by_bit(q8: Model, open_context: OpenContext) -> None:
    prefix, branches = TOKENS[:40], [TOKENS[40 + 4 * number : 44 + 4 * number] for number in range(6)]
    context = open_context(q8, sequences=7)
    context.evaluate(prefix)
    for sequence in range(1, 7):
        context.share(0, sequence, len(prefix))
    found = [context.step(list(tokens), range(1, 7)).logits.copy() for tokens in zip(*branches, strict=True)]
    assert [context.length(sequence) for sequence in range(7)] == [40, *[44] * 6]
    main = open_context(q8)
    main.evaluate(prefix)
    for number, branch in enumerate(branches):
        for depth, token in enumerate(branch):
            assert np.array_equal(main.evaluate([token]).logits[0], found[depth][number])
        main.truncate(len(prefix))


def test_a_sequence_named_twice_continues_itself(q8: Model, open_context: OpenContext) -> None:
    context = open_context(q8, sequences=3)
    context.evaluate(TOKENS[:20])
    for sequence in (1, 2):
        context.share(0, sequence, 20)
    rows = context.step([11, 12, 13, 14], [1, 2, 1, 1]).logits.copy()
    assert [context.length(sequence) for sequence in range(3)] == [20, 23, 21]
    assert np.array_equal(context.evaluate([11, 13, 14], logits=3).logits, rows[[0, 2, 3]])


def test_a_branch_becomes_the_main_sequence(q8: Model, open_context: OpenContext) -> None:
    context = open_context(q8, sequences=3)
    context.evaluate(TOKENS[:20])
    context.share(0, 1, 20)
    context.step([11], [1])
    context.step([12], [1])
    context.share(1, 0, 22)
    context.truncate(20, 1)
    assert [context.length(0), context.length(1)] == [22, 20]
    found = context.evaluate([13]).logits.copy()
    fresh = open_context(q8)
    fresh.evaluate(TOKENS[:20])
    assert np.array_equal(fresh.evaluate([11, 12, 13]).logits, found)


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_window"])
def test_truncate_and_evaluate_again(
    name: str, open_context: OpenContext, request: pytest.FixtureRequest
) -> None:
    model = Model.open(ModelOptions(path=request.getfixturevalue(name)))
    context = open_context(model)
    context.evaluate(TOKENS[:60])
    first = context.evaluate(TOKENS[60:70], logits=10).logits.copy()
    context.truncate(20)
    context.evaluate(TOKENS[50:60])
    context.truncate(20)
    context.evaluate(TOKENS[20:60])
    assert np.allclose(context.evaluate(TOKENS[60:70], logits=10).logits, first, atol=1e-3)
    context.truncate(0)
    assert context.length() == 0
    context.evaluate(TOKENS[:60])
    assert np.allclose(context.evaluate(TOKENS[60:70], logits=10).logits, first, atol=1e-3)
    model.close()


def test_a_full_context_is_rejected_before_anything_is_read(
    llama_model: Model, open_context: OpenContext
) -> None:
    context = open_context(llama_model, context=50, sequences=2)
    assert context.context_size == 50
    with pytest.raises(ContextFullError, match="51 tokens long; llama holds 50"):
        context.evaluate(TOKENS[:51])
    assert context.length() == 0
    context.evaluate(TOKENS[:50])
    context.share(0, 1, 49)
    context.step([1], [1])
    with pytest.raises(ContextFullError, match="the conversation would be 51"):
        context.evaluate([1])
    with pytest.raises(ContextFullError, match="branch 1 would be 51"):
        context.step([1], [1])
    assert [context.length(0), context.length(1)] == [50, 50]
    context.truncate(49)
    assert context.evaluate([1]).logits.shape[0] == 1


def test_a_larger_context_is_advised_where_the_model_was_trained_for_one(
    llama_model: Model, open_context: OpenContext
) -> None:
    most = llama_model.training_context
    hints = []
    for size in (most - 1, most):
        with pytest.raises(ContextFullError) as refused:
            open_context(llama_model, context=size).evaluate([1] * (size + 1))
        hints.append(refused.value.hint)
    assert hints == ["shorten the text or open the model with a larger context", "shorten the text"]


def test_no_free_cell_leaves_everything_as_it_was(llama_model: Model, open_context: OpenContext) -> None:
    context = open_context(llama_model, context=200, sequences=4)
    context.evaluate(TOKENS)
    before = context.evaluate([9]).logits.copy()
    context.truncate(100)

    def fill() -> None:
        for _ in range(200):  # three branches that share nothing, longer than the cells that are there
            context.step([1, 1, 1], [1, 2, 3])

    with pytest.raises(ContextFullError, match="no space for another token"):
        fill()
    assert context.length(0) == 100
    assert context.length(1) == context.length(2) == context.length(3) < 200
    for sequence in (1, 2, 3):
        context.truncate(0, sequence)
    assert np.allclose(context.evaluate([9]).logits, before, atol=1e-3)


def test_calls_that_make_no_sense(llama_model: Model, open_context: OpenContext) -> None:
    context = open_context(llama_model, sequences=3, rows=8)
    context.evaluate(TOKENS[:10])
    context.share(0, 1, 10)
    nonsense: list[Callable[[], object]] = [
        lambda: context.evaluate([]),
        lambda: context.evaluate([1, 2], logits=3),
        lambda: context.evaluate(TOKENS, logits=9),
        lambda: context.evaluate([1], logits=-1),
        lambda: context.step([], []),
        lambda: context.step([1, 2], [0]),
        lambda: context.step([1] * 9, [0] * 9),
        lambda: context.step([1], [3]),
        lambda: context.step([1], [-1]),
        lambda: context.truncate(11),
        lambda: context.truncate(-1),
        lambda: context.truncate(0, 3),
        lambda: context.share(0, 2, 11),
        lambda: context.share(0, 1, 9),
        lambda: context.share(0, 3, 5),
        lambda: context.share(-1, 1, 5),
        lambda: context.length(3),
        lambda: context.set_threads(0),
    ]
    for use in nonsense:
        with pytest.raises(ValueError, match=r"\w"):
            use()
    assert [context.length(sequence) for sequence in range(3)] == [10, 10, 0]


def test_tokens_outside_the_vocabulary_change_nothing(llama_model: Model, open_context: OpenContext) -> None:
    context = open_context(llama_model, sequences=2)
    context.evaluate(TOKENS[:10])
    expected = context.evaluate([9]).logits.copy()
    context.truncate(10)
    for token in (-1, llama_model.vocabulary.size, 10**6):
        with pytest.raises(EngineError):
            context.evaluate([token])
        with pytest.raises(EngineError):
            context.step([token], [1])
    assert [context.length(0), context.length(1)] == [10, 0]
    assert np.array_equal(context.evaluate([9]).logits, expected)


def test_native_time_is_counted(llama_model: Model, open_context: OpenContext) -> None:
    context = open_context(llama_model)
    assert context.busy_s == 0.0
    context.evaluate(TOKENS)
    read = context.busy_s
    assert read > 0.0
    context.step([1], [0])
    assert context.busy_s > read


def test_threads_can_be_changed(llama_model: Model, open_context: OpenContext) -> None:
    context = open_context(llama_model)
    before = context.evaluate(TOKENS[:20]).logits.copy()
    context.set_threads(2)
    context.truncate(0)
    assert np.allclose(context.evaluate(TOKENS[:20]).logits, before, atol=1e-3)


def test_a_call_gets_threads_by_its_size(
    llama_model: Model, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = open_context(llama_model)
    given = list[int]()
    set_threads = native().llama_set_n_threads

    def recorded(pointer: int, threads: int, several: int) -> None:
        assert threads == several
        given.append(threads)
        set_threads(pointer, threads, several)

    monkeypatch.setattr(native(), "llama_set_n_threads", recorded)
    context.set_threads(3, several=2, few=4)
    for count in (1, 4, 5, 20, 5, 1):
        context.evaluate(TOKENS[:count])
    assert given == [3, 2, 3]
