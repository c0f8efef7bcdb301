"""Window-sized caches: the same logits as full ones, whatever is taken back, edited, saved or cancelled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from localspec.errors import Cancelled, ContextFullError
from localspec.gguf import CHECKPOINTS
from localspec.llama import checkpoints
from localspec.llama.backends import breakdown
from localspec.llama.checkpoints import TAIL
from localspec.llama.context import Context
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.llama.recurrent import open_context
from localspec.llama.windowed import WindowedContext
from localspec.types.candidates import Logits
from localspec.types.models import ModelOptions
from localspec.types.saved_states import SavedState
from tests.llama import tiny
from tests.llama.test_cancel import cancel_inside

CONTEXT, WINDOW = 1024, 16
OPTIONS: dict[str, Any] = {
    "threads": 1, "micro_batch": 32, "kv_type_k": "f32", "kv_type_v": "f32", "flash_attention": False,
}  # fmt: skip


@pytest.fixture(scope="module", params=[WINDOW, 100])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny.sliding_window(tmp_path_factory.mktemp("tiny") / "window.gguf", request.param)
    with closing(Model.open(ModelOptions(path, CONTEXT, **OPTIONS))) as opened:
        yield opened


def windowed(model: Model) -> WindowedContext:
    context = open_context(model, model.options)
    assert isinstance(context, WindowedContext)
    assert context.is_windowed
    return context


def full(model: Model) -> Context:
    context = open_context(model, ModelOptions(model.options.path, CONTEXT, swa_full=True, **OPTIONS))
    assert not context.is_windowed
    return context


class Story:
    """The same text in both caches, and what both say about it."""

    def __init__(self, model: Model, seed: int) -> None:
        self.small, self.whole = windowed(model), full(model)
        self.random = random.Random(seed)
        self.text: list[int] = []
        self.saved: list[tuple[list[int], SavedState]] = []
        self.returns = 0  # to a checkpoint

    def tokens(self, most: int) -> list[int]:
        return [self.random.randrange(10, 250) for _ in range(self.random.randint(1, most))]

    def read(self, tokens: list[int], logits: int) -> None:
        same(*(each.evaluate(tokens, logits).logits for each in (self.small, self.whole)))
        self.text += tokens

    def cut(self, length: int) -> None:
        """Go back as the loop does: as far as the cache can, and read the rest again."""
        end = self.small.rewindable(length)
        self.returns += 0 < end < length
        self.small.truncate(end)
        self.whole.truncate(length)
        if end < length:
            self.small.evaluate(self.text[end:length], 0)
        del self.text[length:]

    def step(self) -> None:
        what = self.random.choice(("verify", "verify", "prompt", "prompt", "edit", "save", "restore"))
        if len(self.text) > CONTEXT - 250:
            self.cut(self.random.randrange(0, 60))
        if what == "verify":
            run = self.tokens(13)
            kept = len(self.text) + self.random.randint(1, len(run))
            self.read(run, len(run))
            assert self.small.rewindable(kept) == kept, "a verification can always be taken back"
            self.cut(kept)
        elif what == "prompt":
            self.read(self.tokens(120), 1)
        elif what == "edit" and self.text:
            self.cut(self.random.randrange(len(self.text) // 4, len(self.text)))
        elif what == "save" and self.text:
            found = self.small.save(lambda _size: True)
            assert found is not None
            self.saved = [*self.saved[-2:], (self.text.copy(), found)]
        elif what == "restore" and self.saved:
            self.text, found = self.random.choice(self.saved)
            self.text = self.text.copy()
            self.small.restore(found, self.text)
            self.whole.truncate(0)
            self.whole.evaluate(self.text, 0)
        assert self.small.length() == self.whole.length() == len(self.text)


def same(found: Logits, expected: Logits) -> None:
    assert np.allclose(found, expected, 0, 2e-3), float(np.abs(found - expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_logits_are_those_of_a_full_cache_in_any_story(model: Model, seed: int) -> None:
    story = Story(model, seed)
    for _ in range(400):
        story.step()
    story.read([9, 11, 13], 3)
    assert story.returns > 1


def test_without_asking_for_the_first_position_the_logits_are_wrong(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "rewindable", lambda _context, length: length)
    story = Story(model, 0)

    def tell() -> None:
        for _ in range(150):
            story.step()

    with pytest.raises(AssertionError):
        tell()


def test_a_verification_within_a_micro_batch_can_be_taken_back_without_a_spare_cell(tmp_path: Path) -> None:
    path = tiny.sliding_window(tmp_path / "window.gguf", 252)  # with a micro-batch of 4: 256 cells
    options = ModelOptions(path, CONTEXT, **OPTIONS | {"micro_batch": 4})
    with closing(Model.open(options)) as opened:
        context, dice = windowed(opened), random.Random(1)
        assert context.max_draft == 3
        context.evaluate([number % 200 + 10 for number in range(300)], 1)
        while context.length() < CONTEXT - 10:
            before = context.length()
            context.evaluate([9, 11, 13, 15], 4)
            kept = before + dice.randint(1, 4)
            assert context.rewindable(kept) == kept
            context.truncate(kept)


def test_a_turn_that_replaces_the_last_answer_processes_only_itself_again(model: Model) -> None:
    context = windowed(model)
    prompt = [number % 200 + 10 for number in range(400)]
    context.evaluate(prompt, 1)
    for token in range(400):
        context.evaluate([token % 200 + 20], 1)  # an answer with thoughts that the next prompt leaves out
    assert context.rewindable(len(prompt)) == len(prompt) - TAIL


def has_checkpoint(context: Context) -> bool:
    """Return whether a prompt can be reached again after a text that is longer than the cache's windows."""
    context.truncate(0)
    context.evaluate([number % 200 + 10 for number in range(100)], 1)
    context.evaluate([number % 200 + 20 for number in range(400)], 0)
    return context.rewindable(100) > 0


@pytest.mark.parametrize("kind", [windowed, full])
def test_a_restored_text_can_end_otherwise(model: Model, kind: Callable[[Model], Context]) -> None:
    """Its last answer may be replaced, or spelled with other tokens."""
    context, prompt = kind(model), [number % 200 + 10 for number in range(400)]
    context.evaluate(prompt, 1)
    for token in range(60):
        context.evaluate([token + 20], 1)
    saved = context.save(lambda _size: True)
    assert saved is not None
    context.truncate(0)
    context.restore(saved, prompt)
    assert context.rewindable(len(prompt) + 1) >= len(prompt) - TAIL


def test_a_text_whose_checkpoint_cannot_be_made_is_read_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = windowed(model)
    monkeypatch.setattr(native(), "llama_state_seq_get_data_ext", lambda *_: 0)
    assert not has_checkpoint(context)


def test_a_text_whose_checkpoint_cannot_be_restored_is_read_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(model, 0)
    for _ in range(4):
        story.read([number % 200 + 10 for number in range(120)], 1)
    monkeypatch.setattr(native(), "llama_state_seq_set_data_ext", lambda *_: 0)
    end = story.small.rewindable(200)
    assert 0 < end < 200
    story.small.truncate(end)
    assert story.small.length() == 0
    story.whole.truncate(0)
    story.read([number % 200 + 30 for number in range(120)], 1)


def test_of_a_prompt_that_does_not_fit_no_part_is_read(model: Model) -> None:
    context = windowed(model)
    context.evaluate([9] * 40, 1)
    with pytest.raises(ContextFullError):
        context.evaluate([11] * (CONTEXT - 40 + TAIL // 2), 1)
    assert context.length() == 40


def test_checkpoints_are_bounded_in_number_and_bytes(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    context = windowed(model)
    for _ in range(2 * CHECKPOINTS):
        context.evaluate([number % 200 + 10 for number in range(60)], 1)
    kept = context._checkpoints
    assert len(kept) == CHECKPOINTS
    size = max(state.nbytes for state in kept.values())
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 2 * size)
    context.evaluate([number % 200 + 10 for number in range(60)], 1)
    assert len(kept) == 2


def test_no_checkpoint_is_made_where_memory_is_short(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    context = windowed(model)
    short = psutil.virtual_memory()._replace(available=1000)
    assert has_checkpoint(context)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: short)
    assert not has_checkpoint(context)


def test_a_cancelled_prompt_continues_where_it_was(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    small, whole = windowed(model), full(model)
    text = [number % 200 + 10 for number in range(500)]
    small.evaluate(text[:200], 1)
    cancel_inside(small, monkeypatch, 3)
    with pytest.raises(Cancelled):
        small.evaluate(text[200:], 1)
    done = small.length()
    assert 200 <= done < 500
    whole.evaluate(text[:done], 0)
    same(small.evaluate(text[done : done + 3], 3).logits, whole.evaluate(text[done : done + 3], 3).logits)


def test_a_windowed_cache_takes_less_memory(tmp_path: Path) -> None:
    path = tiny.sliding_window(tmp_path / "window.gguf", 64)
    sizes = []
    for swa_full in (False, True):
        options = ModelOptions(path, 4096, threads=1, swa_full=swa_full)
        with closing(Model.open(options)) as opened, closing(open_context(opened, options)) as context:
            sizes.append(sum(cache for _, cache, _ in breakdown(context.pointer).values()))
    assert sizes[0] < 0.7 * sizes[1]
