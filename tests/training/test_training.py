"""The whole kit on a minute pair, where the `train` extra is installed."""

from __future__ import annotations

import random
import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from training.documents import Document
from training.made.coding import made_coding

torch = pytest.importorskip("torch", exc_type=ImportError)
pytest.importorskip("tokenizers", exc_type=ImportError)

SHAPE = "--dim 32 --layers 2 --ffn 64 --head-dim 16 --context 64 --seq 32 --batch-tokens 256 --tokens 20000"
OPTIONS = [*SHAPE.split(), "--device", "cpu", "--fp32", "--accumulate", "2", "--log-every", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which a pair has been trained and exported."""
    from training import export_gguf, train

    folder = tmp_path_factory.mktemp("training")
    documents: list[Document] = list(made_coding(random.Random(1), 400))
    for name, part in (("corpus.txt", documents[40:]), ("corpus-heldout.txt", documents[:40])):
        (folder / name).write_text("".join(document.packed() for document in part), encoding="utf-8")
    data = ["--data", str(folder)]
    train.main(["tokenizer", *data, "--vocab", "400"])
    train.main(["encode", *data])
    train.main(["target", *data, "--out", str(folder), *OPTIONS])
    train.main(["draft", *data, "--out", str(folder), "--teacher", str(folder / "target.pt"), *OPTIONS])
    tokenizer = ["--tokenizer", str(folder / "tokenizer.json"), "--type", "f32"]
    for name in ("target", "draft"):
        export_gguf.main([str(folder / f"{name}.pt"), *tokenizer, "--out", str(folder / f"{name}.gguf")])
    return folder


@pytest.mark.parametrize("name", ["target", "draft"])
def test_training_lowers_the_loss(folder: Path, name: str) -> None:
    losses = re.findall(r"loss ([\d.]+)", (folder / f"{name}.log").read_text(encoding="utf-8"))
    assert float(losses[-1]) < float(losses[0]) - 0.5


def test_mixing_follows_the_repeats() -> None:
    from training.encode import mix

    documents = [Document("a", ""), Document("b", ""), Document("c", "")]
    order, counts = mix(documents, [10, 20, 30], {"a": 2, "b": 0}, random.Random(0))
    assert sorted(order) == [0, 0, 2]
    assert [counts[kind].tokens_mixed for kind in "abc"] == [20, 0, 30]


def test_windows_are_visited_once_in_a_pass(tmp_path: Path) -> None:
    from training.loop import Batches

    np.arange(2000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    batches = Batches(tmp_path / "train.bin", seed=1)
    rows = np.concatenate([batches.take(6, 100) for _ in range(3)])
    assert (rows == rows[:, :1] + np.arange(101)).all()
    assert len(set(rows[:, 0])) == len(rows) == 18
    assert len(set(rows[:, 0] % 100)) == 1


def test_llama_cpp_computes_what_was_trained(folder: Path) -> None:
    from training.model import Checkpoint
    from training.scorer import Scorer

    model = Checkpoint.load(folder / "target.pt").model.eval()
    with Scorer(folder / "target.gguf", threads=1, context=64) as scorer:
        ids = scorer.tokenize("<|im_start|>user\nWrite a Python function that reverses a string.<|im_end|>\n")
        theirs = scorer.logits(ids)
    with torch.no_grad():
        ours = model(torch.tensor([ids]))[0].numpy()
    assert np.abs(ours - theirs).max() < 0.01


def test_target_and_draft_share_their_vocabulary(folder: Path) -> None:
    readers = [gguf.GGUFReader(folder / f"{name}.gguf") for name in ("target", "draft")]
    tokens = [reader.fields["tokenizer.ggml.tokens"].contents() for reader in readers]
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 400


def test_a_run_needs_an_end(folder: Path) -> None:
    from training import train

    with pytest.raises(SystemExit, match="the run has no end"):
        train.main(["target", "--data", str(folder), "--out", str(folder / "out")])
