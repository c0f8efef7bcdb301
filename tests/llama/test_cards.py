"""What contexts do on GPUs, where nothing stops a call and first calls compile; tests wind the clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localspec.llama import context as module
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.llama.conftest import OpenContext

TOKENS = [(11 * number) % 250 + 7 for number in range(900)]


class Card:
    """A device on which a call takes as long as a test says, of the CPU's results."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
        self.now = 0.0
        self.sizes: list[int] = []
        self.seconds: Callable[[int], float] = lambda _count: 0.0
        self.during: Callable[[], object] = lambda: None
        self._patch = monkeypatch
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(model, "cards", ("Toy0",))
        monkeypatch.setattr(model, "_devices", ("a toy (Toy0)",))

    def computes(self, context: Context) -> Context:
        real: Callable[..., int] = context._decode

        def decode(pointer: int, batch: object) -> int:
            self.sizes.append(batch.n_tokens)  # type: ignore[attr-defined]
            self.now += self.seconds(self.sizes[-1])
            self.during()
            return real(pointer, batch)

        self._patch.setattr(context, "_decode", decode)
        return context


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, target_model: Model) -> Card:
    return Card(monkeypatch, target_model)


def opened(card: Card, model: Model, open_context: OpenContext) -> Context:
    return card.computes(open_context(model, batch=512, micro_batch=512))


def test_a_fast_gpu_soon_reads_whole_micro_batches(
    card: Card, target_model: Model, open_context: OpenContext
) -> None:
    context = opened(card, target_model, open_context)
    card.seconds = lambda count: count * 5e-5
    context.evaluate(TOKENS)
    assert card.sizes == [64, 128, 256, 452]
    context.truncate(0)
    context.evaluate(TOKENS)
    assert card.sizes[4:] == [512, 388]


@pytest.mark.slow
def test_a_slow_gpu_reads_pieces_that_end_within_the_time_of_a_cancel(
    card: Card, target_model: Model, open_context: OpenContext
) -> None:
    context = opened(card, target_model, open_context)
    card.seconds = lambda count: count * 1e-3  # half a second for a micro-batch
    best = context.evaluate(TOKENS)[0].best()
    assert max(card.sizes) * 1e-3 <= module.STOPPABLE_S
    card.seconds = lambda count: count * 1e-2
    context.truncate(0)
    context.evaluate(TOKENS)
    assert set(card.sizes[-3:]) <= {32, 900 % 32}  # and no smaller, where weights are what takes long
    whole = open_context(target_model, batch=512, micro_batch=512).evaluate(TOKENS)
    assert best == whole[0].best()


def test_a_slow_first_call_is_made_up_for(card: Card, target_model: Model, open_context: OpenContext) -> None:
    context = opened(card, target_model, open_context)
    card.seconds = lambda count: count * 5e-5 + (30.0 if len(card.sizes) == 1 else 0.0)
    context.evaluate(TOKENS)
    assert card.sizes == [64, 32, 64, 128, 256, 356]


def test_what_the_cpu_computes_too_is_read_as_asked(
    card: Card, target_model: Model, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_model, "_devices", ("a toy (Toy0)", "CPU"))
    context = opened(card, target_model, open_context)
    card.seconds = lambda _count: 1.0  # copying weights to the GPU, however few the tokens
    context.evaluate(TOKENS)
    assert card.sizes == [512, 388]


def test_a_call_unlike_any_before_that_takes_long_is_reported_while_it_lasts(
    card: Card, target_model: Model, open_context: OpenContext
) -> None:
    context = opened(card, target_model, open_context)
    told: list[float | None] = []
    card.during = lambda: told.append(context.first_call_s())
    for seconds in (1.0, 30.0, 0.2, 30.0, 1.0):
        card.seconds = lambda _count, seconds=seconds: seconds  # type: ignore[misc]
        context.evaluate(TOKENS[: 2 if seconds == 0.2 else 1])
    assert told == [None, None, None, None, None]  # one token has been decoded before, and two were fast
    card.seconds = lambda _count: 40.0
    context.evaluate(TOKENS[:3])
    assert told[-1] == 40.0
    assert context.first_call_s() is None


def test_the_very_first_call_is_reported_and_the_cpu_compiles_nothing(
    card: Card, target_model: Model, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = opened(card, target_model, open_context)
    told: list[float | None] = []
    card.during = lambda: told.append(context.first_call_s())
    card.seconds = lambda _count: 9.0
    context.evaluate(TOKENS[:5])
    monkeypatch.setattr(target_model, "cards", ())
    context.evaluate(TOKENS[:6])
    assert told == [9.0, None]
