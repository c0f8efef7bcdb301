"""A saved and restored context gives the same logits, bit for bit, wherever the text continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from localspec.errors import Cancelled, EngineError
from localspec.llama import recurrent
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.recurrent import open_context
from localspec.types.candidates import Logits
from localspec.types.models import ModelOptions
from localspec.types.saved_states import SavedState
from tests.llama.test_cancel import cancel_inside

TEXT = [(37 * number) % 240 + 10 for number in range(400)]
OTHER = [(53 * number) % 240 + 10 for number in range(300)]
PIECE = 40  # from 64 tokens in a call on, flash attention rounds in another way


@dataclass(frozen=True)
class Kind:
    """A kind of cache."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    states: tuple[int, int] | None = None  # that stand for kept_states


EXACT: dict[str, Any] = {"kv_type_k": "f32", "kv_type_v": "f32", "flash_attention": False}
KINDS = {
    "attention": Kind("demo_target_q8"),
    "transposed values": Kind("demo_target_q8", {"flash_attention": False}),
    "quantised": Kind("demo_target_q8", {"kv_type_k": "q8_0", "kv_type_v": "q8_0", "flash_attention": True}),
    "sliding window": Kind("tiny_window", EXACT),
    "snapshots": Kind("made_hybrid", EXACT),
    "marks": Kind("made_hybrid", EXACT, (0, 1)),
    "recurrent": Kind("tiny_recurrent", EXACT),
}
Opener = Callable[..., Context]


@pytest.fixture(scope="module", params=KINDS)
def opener(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Opens contexts of one kind, which are closed with their model."""
    kind = KINDS[request.param]
    options = ModelOptions(request.getfixturevalue(kind.model), 512, threads=1, **kind.options)
    with pytest.MonkeyPatch.context() as patched, closing(Model.open(options)) as model:
        if kind.states is not None:
            patched.setattr(recurrent, "kept_states", lambda *_: kind.states)
        yield lambda sequences=1: open_context(model, options, sequences=sequences)


def read(context: Context, text: list[int]) -> None:
    for start in range(0, len(text), PIECE):
        context.evaluate(text[start : start + PIECE], 0)


def is_right(context: Context, fresh: Context) -> None:
    """Compare what follows three tokens more."""
    assert context.length() == fresh.length()
    for tokens in ([9, 11], [13]):
        found, expected = (each.evaluate(tokens, len(tokens)).logits for each in (context, fresh))
        assert same(found, expected, context)


def same(found: Logits, expected: Logits, context: Context) -> bool:
    """Compare logits; cells that a window has not left behind may stand elsewhere, which rounds otherwise."""
    return np.array_equal(found, expected) or (context._window > 0 and np.allclose(found, expected, 0, 1e-4))


def anything(_size: int) -> bool:
    return True


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0, 1, 90], ids=lambda cut: f"{cut} tokens shorter")
def test_a_restored_text_continues_as_if_nothing_had_happened(opener: Opener, cut: int) -> None:
    context, fresh = opener(), opener()
    for each in (context, fresh):
        read(each, TEXT[:150])
        each.checkpoint()
        each.evaluate(TEXT[150:155], 5)
    saved = context.save(anything)
    assert saved is not None
    assert saved.length == context.length() == 155
    context.truncate(0)
    read(context, OTHER[:100])
    context.restore(saved, TEXT)
    ends = [each.rewindable(155 - cut) for each in (context, fresh)]
    assert ends[0] == ends[1] or cut < 90 or context._window  # what it kept for long came along
    for each, end in zip((context, fresh), ends, strict=True):
        each.truncate(end)
        read(each, TEXT[end : 155 - cut])
    is_right(context, fresh)
    context.restore(saved, TEXT)  # as often as one likes
    assert context.length() == 155


def test_tokens_outside_a_window_are_processed_again(tiny_window: Path) -> None:
    options = ModelOptions(tiny_window, 1024, threads=1, **EXACT)
    with closing(Model.open(options)) as model:
        context = open_context(model, options)
        read(context, TEXT[:160])
        saved = context.save(anything)
        assert saved is not None
        context.restore(saved, TEXT)
        assert [context.rewindable(length) for length in (160, 159, 158, 1)] == [160, 159, 0, 0]
        with pytest.raises(EngineError, match="cannot go back to token 158 of 160"):
            context.truncate(158)
        read(context, OTHER[:100])
        context.truncate(180)  # nothing is lost that came later
        fresh = open_context(model, options)
        read(fresh, TEXT[:160] + OTHER[:20])
        is_right(context, fresh)
        context.truncate(0)
        assert context.rewindable(5) == 5


def test_rejected_tokens_are_not_saved(opener: Opener) -> None:
    context, fresh = opener(), opener()
    for each in (context, fresh):
        read(each, TEXT[:200])
        each.mark()
        each.evaluate(TEXT[200:206], 6)
        each.truncate(203)
    saved = context.save(anything)
    assert saved is not None
    read(context, OTHER[:100])
    context.restore(saved, TEXT)
    read(context, TEXT[context.length() : 203])  # what was still to be read again is not among it
    is_right(context, fresh)


def test_a_state_after_an_abort_is_right(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    context, fresh = opener(), opener()
    read(context, TEXT[:160])
    with monkeypatch.context() as patched:
        cancel_inside(context, patched, call=0)
        with pytest.raises(Cancelled):
            context.evaluate(TEXT[160:200])
    length = context.length()
    saved = context.save(anything)
    read(context, OTHER[:50])
    if saved is None:
        assert length == 0  # a recurrent state that was never kept
        return
    context.restore(saved, TEXT)
    assert context.length() == length
    read(context, TEXT[length:200])
    read(fresh, TEXT[:length])
    read(fresh, TEXT[length:200])
    is_right(context, fresh)


def test_branches_end_and_begin_again(opener: Opener) -> None:
    context, fresh = opener(3), opener(3)
    for each in (context, fresh):
        read(each, TEXT[:100])
        each.share(0, 1, 100)
    context.step([9, 10], [1, 1])
    saved = context.save(anything)
    assert saved is not None
    read(context, OTHER[:150])
    context.share(0, 2, context.length())
    context.restore(saved, TEXT)
    assert [context.length(sequence) for sequence in range(3)] == [100, 0, 0]
    context.share(0, 1, 100)
    assert same(context.step([9], [1]).logits, fresh.step([9], [1]).logits, context)


def test_without_memory_nothing_is_saved(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    context, asked = opener(), list[int]()
    assert context.save(anything) is None  # there is nothing
    read(context, TEXT[:50])

    def no_room(size: int) -> bool:
        asked.append(size)
        return False

    assert context.save(no_room) is None
    assert asked[0] > 0
    full = psutil.virtual_memory()._replace(available=asked[0])
    monkeypatch.setattr(psutil, "virtual_memory", lambda: full)
    assert context.save(anything) is None
    assert context.length() == 50


def test_what_llama_cpp_does_not_take_leaves_nothing(opener: Opener) -> None:
    context, fresh = opener(), opener()
    read(context, TEXT[:100])
    context.restore(SavedState(100, np.zeros(1000, np.uint8)), TEXT)
    assert context.length() == 0
    for each in (context, fresh):
        read(each, OTHER[:90])
    is_right(context, fresh)


@pytest.mark.slow
def test_memory_goes_back_to_the_system(demo_target_q8: Path) -> None:
    options = ModelOptions(demo_target_q8, 2048, threads=1)
    with closing(Model.open(options)) as model:
        context = open_context(model, options)
        context.evaluate(TEXT * 5, 0)
        process = psutil.Process()
        before = process.memory_info().rss
        kept = [context.save(anything) for _ in range(10)]
        size = sum(each.size for each in kept if each is not None)
        assert process.memory_info().rss - before > 0.9 * size > 50e6
        kept.clear()
        assert process.memory_info().rss - before < 0.1 * size
