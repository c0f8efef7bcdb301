from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from localspec.errors import Cancelled
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from tests.llama.conftest import OpenContext

TOKENS = [(11 * number) % 250 + 7 for number in range(400)]


def cancel_inside(context: Context, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Raise the flag when the given native call has begun, when nothing in Python can notice it."""
    real: Callable[..., int] = context._decode
    calls = iter(range(1000))

    def decode(*arguments: object) -> int:
        if next(calls) == call:
            context.cancel()
        return real(*arguments)

    monkeypatch.setattr(context, "_decode", decode)


def test_native_code_stops_and_the_state_stays_clean(
    target_model: Model, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = open_context(target_model)
    expected = open_context(target_model).evaluate(TOKENS).logits.copy()
    cancel_inside(context, monkeypatch, call=3)
    with pytest.raises(Cancelled):
        context.evaluate(TOKENS)
    assert context.length() == 3 * 32
    assert np.array_equal(context.evaluate(TOKENS[96:]).logits, expected)


def test_a_cancelled_step_leaves_every_branch_as_it_was(
    target_model: Model, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = open_context(target_model, sequences=4)
    context.evaluate(TOKENS[:50])
    for sequence in (1, 2, 3):
        context.share(0, sequence, 50)
    expected = context.step([8, 9, 10, 11], [1, 2, 3, 1]).logits.copy()
    for sequence in (1, 2, 3):
        context.truncate(50, sequence)
    cancel_inside(context, monkeypatch, call=0)
    with pytest.raises(Cancelled):
        context.step([8, 9, 10, 11], [1, 2, 3, 1])
    assert [context.length(sequence) for sequence in range(4)] == [50] * 4
    assert np.array_equal(context.step([8, 9, 10, 11], [1, 2, 3, 1]).logits, expected)


def test_cancel_from_another_thread_while_a_prompt_is_read(
    target_model: Model, open_context: OpenContext
) -> None:
    context = open_context(target_model, micro_batch=8)
    expected = open_context(target_model, micro_batch=8).evaluate(TOKENS).logits.copy()
    started, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        started.wait()
        context.cancel()
        go_on.set()

    decode, calls = context._decode, []

    def pausing(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) == 3:
            started.set()
            go_on.wait()
        code: int = decode(*arguments)
        return code

    context._decode = pausing
    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Cancelled):
        context.evaluate(TOKENS)
    thread.join()
    assert context.length() == 16
    assert np.array_equal(context.evaluate(TOKENS[16:]).logits, expected)


def test_a_cancel_between_calls_stops_the_next_and_only_that(
    llama_model: Model, open_context: OpenContext
) -> None:
    context = open_context(llama_model)
    context.cancel()
    with pytest.raises(Cancelled):
        context.evaluate([1, 2])
    assert context.length() == 0
    assert context.evaluate([1, 2]).logits.shape[0] == 1


def test_a_pending_cancel_keeps_out_of_native_code(
    llama_model: Model, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = open_context(llama_model, sequences=2)
    calls: list[object] = []

    def decode(*arguments: object) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(context, "_decode", decode)
    uses: list[Callable[[], object]] = [lambda: context.evaluate([1]), lambda: context.step([1], [1])]
    for use in uses:
        context.cancel()
        with pytest.raises(Cancelled):
            use()
    assert calls == []


def test_a_cancel_can_be_taken_back(llama_model: Model, open_context: OpenContext) -> None:
    context = open_context(llama_model)
    context.cancel()
    context.resume()
    assert context.evaluate([1]).logits.shape[0] == 1


def test_cancelling_one_context_leaves_the_other_alone(llama_model: Model, open_context: OpenContext) -> None:
    one, other = open_context(llama_model), open_context(llama_model)
    one.cancel()
    assert other.evaluate([1]).logits.shape[0] == 1
    with pytest.raises(Cancelled):
        one.evaluate([1])


def test_a_cancelled_recurrent_model_starts_again(
    tiny_recurrent: object, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model.open(ModelOptions(path=tiny_recurrent))  # type: ignore[arg-type]
    expected = open_context(model).evaluate(TOKENS[:60]).logits.copy()
    context = open_context(model)
    cancel_inside(context, monkeypatch, call=1)
    with pytest.raises(Cancelled):
        context.evaluate(TOKENS[:60])
    assert context.length() == 0
    assert np.array_equal(context.evaluate(TOKENS[:60]).logits, expected)
    model.close()
