"""A weight rounded in training is what the file will hold."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from localspec.demo import bundled_pair

torch = pytest.importorskip("torch", exc_type=ImportError)

from training.rounding import as_q4_0  # noqa: E402 - it needs torch

Q4_0 = gguf.GGMLQuantizationType.Q4_0


def test_it_is_rounded_as_the_file_rounds_it() -> None:
    weight = np.random.default_rng(1).normal(size=(50, 96)).astype(np.float32)
    weight[3, :32] = 0
    stored = gguf.quants.dequantize(gguf.quants.quantize(weight, Q4_0), Q4_0)
    ours = as_q4_0(torch.from_numpy(weight)).numpy()
    np.testing.assert_allclose(ours, stored, atol=1e-6)
    assert np.abs(ours - weight).max() > 0.05


def test_it_learns_as_if_nothing_were_rounded() -> None:
    weight = torch.randn(4, 64, requires_grad=True)
    as_q4_0(weight).sum().backward()
    assert weight.grad is not None
    assert (weight.grad == 1).all()


def test_a_draft_s_embedding_is_written_in_fewer_bits(tmp_path: Path) -> None:
    from training import export_distilled
    from training.model import Checkpoint, Config, Model
    from training.scorer import Scorer

    target, path, out = bundled_pair()[0], tmp_path / "draft.pt", tmp_path / "draft.gguf"
    torch.manual_seed(1)
    Checkpoint(Model(Config(dim=64, layers=1, heads=1, ffn=64, context=64)), 0, 0.0).save(path)
    given = [str(path), "--target", str(target), "--out", str(out), "--type", "f32"]
    export_distilled.main([*given, "--embedding", "q4_0"])
    ids, trained = list(range(300, 340)), Checkpoint.load(path).model
    with Scorer(out, threads=1, context=64) as scorer, torch.no_grad():
        logits = torch.from_numpy(scorer.logits(ids).copy())
        as_it_is = (trained(torch.tensor([ids]))[0] - logits).std()
        trained.rounding = as_q4_0
        rounded = (trained(torch.tensor([ids]))[0] - logits).std()
    assert rounded < 0.3 * as_it_is
