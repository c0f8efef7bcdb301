from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localspec.errors import UserError
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from tests.llama import tiny
from tests.llama.conftest import OpenContext

TOKENS = [(7 * number) % 250 + 7 for number in range(30)]


@pytest.mark.parametrize(
    ("sequences", "options", "words"),
    [
        (0, {}, "0 sequences"),
        (257, {}, "257 sequences"),
        (1, {"context": -5}, "-5 tokens"),
        (1, {"batch": 0}, "batches of 0"),
        (1, {"micro_batch": -1}, "and -1 tokens"),
        (1, {"threads": -1}, "-1 threads"),
        (1, {"kv_type_v": "q8_0", "flash_attention": False}, "need flash attention"),
    ],
)
def test_sizes_that_cannot_work(
    llama_model: Model, sequences: int, options: dict[str, object], words: str
) -> None:
    settings = ModelOptions(path=llama_model.options.path, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=words):
        Context(llama_model, settings, sequences=sequences)


def test_as_many_sequences_as_there_can_be(llama_model: Model, open_context: OpenContext) -> None:
    context = open_context(llama_model, sequences=256, batch=16, micro_batch=8, context=64)
    context.evaluate(TOKENS[:5])
    for sequence in range(1, 256):
        context.share(0, sequence, 5)
    assert context.step([9] * 255, range(1, 256)).logits.shape[0] == 255
    assert context.max_sequences == 256


@pytest.mark.parametrize("kind", ["bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_types_of_the_kv_cache(target_model: Model, open_context: OpenContext, kind: str) -> None:
    plain = open_context(target_model, context=256).evaluate(TOKENS[:30]).logits.copy()
    context = open_context(target_model, context=256, kv_type_k=kind, kv_type_v=kind, flash_attention=True)
    found = context.evaluate(TOKENS[:30]).logits
    assert not np.array_equal(found, plain)
    assert np.corrcoef(found[0], plain[0])[0, 1] > 0.9


def test_a_kv_type_that_does_not_fit_the_heads(
    tmp_path: Path, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "HEADS", 4)  # 16 values a head, where a block of q8_0 holds 32
    model = Model.open(ModelOptions(path=tiny.llama(tmp_path / "narrow.gguf")))
    with pytest.raises(UserError, match=r"cannot use keys as q8_0, values as f16: .*block size"):
        open_context(model, kv_type_k="q8_0")
    model.close()
