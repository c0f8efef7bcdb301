"""Vectors of texts: those of llama-cpp-python on the same file, whatever a model's kind and pooling."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest

from localspec.errors import UserError
from localspec.inference.encoders import Embedder
from localspec.llama.embedding import EmbeddingModel, open_embedding_model
from localspec.types.models import ModelOptions, Pooling
from tests.llama import tiny

POOLINGS: tuple[Pooling, ...] = ("none", "mean", "cls", "last")
TEXTS = ("Hello there.", "the cat", "Hello there. " * 20)


def options(path: Path) -> ModelOptions:
    return ModelOptions(path=path, gpu_layers=0)


def pooled(path: Path, pooling: gguf.PoolingType = gguf.PoolingType.MEAN) -> Path:
    return tiny.llama(path, adjust=lambda recipe: recipe.writer.add_pooling_type(pooling))


def ending(path: Path) -> Path:
    """A model whose vectors are the state after EOS, as those of Qwen3-Embedding are."""

    def adjust(recipe: tiny.Recipe) -> None:
        recipe.writer.add_pooling_type(gguf.PoolingType.LAST)
        recipe.writer.add_add_eos_token(True)

    return tiny.llama(path, adjust=adjust)


def encoder(path: Path) -> Path:
    """A model that looks both ways, as embedding models of BERT's kind do."""
    return tiny.encoder(path, adjust=lambda recipe: recipe.writer.add_pooling_type(gguf.PoolingType.MEAN))


KINDS: dict[str, Callable[[Path], Path]] = {
    "none, so the mean": tiny.llama,
    "mean": lambda path: pooled(path, gguf.PoolingType.MEAN),
    "first": lambda path: pooled(path, gguf.PoolingType.CLS),
    "last": lambda path: pooled(path, gguf.PoolingType.LAST),
    "last, which is EOS": ending,
    "encoder": encoder,
}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path / "model.gguf")
    pooling = llama_cpp.LLAMA_POOLING_TYPE_MEAN if kind.startswith("none") else -1
    reference = llama_cpp.Llama(
        str(path),
        embedding=True,
        pooling_type=pooling,
        n_ctx=tiny.CONTEXT,
        n_ubatch=tiny.CONTEXT,
        verbose=False,
    )
    ours = open_embedding_model(options(path))
    try:
        for text in TEXTS:
            theirs = np.array(reference.embed(text, normalize=True))
            found = ours.embed(text)
            assert found.tokens == len(reference.tokenize(text.encode(), special=True))
            np.testing.assert_allclose(found.vector, theirs, atol=1e-3)  # attention in other steps
            assert np.linalg.norm(found.vector) == pytest.approx(1)
    finally:
        ours.close()
        reference.close()


@pytest.fixture
def opened(tmp_path: Path) -> EmbeddingModel:
    return open_embedding_model(options(pooled(tmp_path / "model.gguf")))


def test_a_vector_does_not_depend_on_the_texts_before(opened: EmbeddingModel) -> None:
    first = opened.embed(TEXTS[0]).vector
    opened.embed(TEXTS[2])
    assert (opened.embed(TEXTS[0]).vector == first).all()
    tokens = opened.embed(TEXTS[0]).tokens
    assert tokens == opened.embed(list(range(3, 3 + tokens))).tokens


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("long " * 5000, "reads at most 512"),
        ([], "without tokens"),
        ([10**6], "there is no token outside of 0 to"),
        ([-1], "there is no token outside of 0 to"),
    ],
)
def test_texts_that_have_no_vector_are_refused(
    opened: EmbeddingModel, text: str | list[int], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        opened.embed(text)


def test_a_model_that_ranks_is_refused(tmp_path: Path) -> None:
    path = pooled(tmp_path / "model.gguf", gguf.PoolingType.RANK)
    with pytest.raises(UserError, match="ranks texts"):
        open_embedding_model(options(path))


def test_a_process_that_dies_is_followed_by_another(tmp_path: Path) -> None:
    embedder = Embedder(options(pooled(tmp_path / "model.gguf")))
    try:
        before = embedder.embed(TEXTS[0]).vector
        embedder.close()
        assert (embedder.embed(TEXTS[0]).vector == before).all()
        assert embedder.info.context == tiny.CONTEXT
    finally:
        embedder.close()


def test_a_mistake_in_the_process_is_told_and_the_process_stays(tmp_path: Path) -> None:
    embedder = Embedder(options(pooled(tmp_path / "model.gguf")))
    try:
        with pytest.raises(UserError, match="reads at most") as failure:
            embedder.embed("long " * 5000)
        assert failure.value.hint == "shorten or split it"
        assert embedder.embed("short").tokens
    finally:
        embedder.close()
    with pytest.raises(UserError, match="is not a GGUF"):
        Embedder(ModelOptions(path=Path(__file__)))


def test_another_pooling_than_the_files(tmp_path: Path) -> None:
    path = pooled(tmp_path / "model.gguf", gguf.PoolingType.MEAN)
    found = {}
    for pooling in POOLINGS:
        with closing(open_embedding_model(options(path), pooling)) as model:
            found[pooling] = model.embed(TEXTS[0])
    vectors = found["none"].vectors
    assert len(vectors) == found["none"].tokens
    for pooling, expected in (("mean", vectors.mean(0)), ("cls", vectors[0]), ("last", vectors[-1])):
        np.testing.assert_allclose(found[pooling].vector, expected / np.linalg.norm(expected), atol=1e-5)
