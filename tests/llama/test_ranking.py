"""Scores of documents: those of the head's sums on the states that llama-cpp-python reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.errors import ModelFileError, UserError
from localspec.gguf import check_model_file, is_reranker, read_model
from localspec.inference.encoders import Reranker
from localspec.llama.ranking import RankingModel, open_ranking_model
from localspec.types.models import ModelOptions
from tests.llama import tiny

QUERY = "where is the cat?"
DOCUMENTS = ("the cat is there", "the dog", "Hello there. " * 20)
BOS, EOS, SEP = 1, 2, 5
TEMPLATE = "<|im_start|>query: {query}\ndocument: {document}<|im_end|>"
RANDOM = np.random.default_rng(7)
DENSE = RANDOM.normal(0, 0.3, (tiny.WIDTH, tiny.WIDTH)).astype(np.float32)
DENSE_BIAS = RANDOM.normal(0, 0.3, tiny.WIDTH).astype(np.float32)
OUT = RANDOM.normal(0, 0.3, (1, tiny.WIDTH)).astype(np.float32)
OUT_BIAS = np.array([0.25], np.float32)
YES_NO = RANDOM.normal(0, 0.05, (2, tiny.WIDTH)).astype(np.float32)


def options(path: Path) -> ModelOptions:
    return ModelOptions(path=path, gpu_layers=0)


def add_cross_encoder_head(recipe: tiny.Recipe) -> None:
    """Add the head of BERT's classifiers; the file does not name its pooling, as those of bge's do not."""
    recipe.writer.add_tensor("cls.weight", DENSE)
    recipe.writer.add_tensor("cls.bias", DENSE_BIAS)
    recipe.writer.add_tensor("cls.output.weight", OUT)
    recipe.writer.add_tensor("cls.output.bias", OUT_BIAS)


def separated(recipe: tiny.Recipe) -> None:
    recipe.writer.add_sep_token_id(SEP)
    recipe.writer.add_add_sep_token(True)
    recipe.writer.add_add_eos_token(True)


def add_yes_no_head(recipe: tiny.Recipe, template: str = TEMPLATE) -> None:
    recipe.writer.add_pooling_type(gguf.PoolingType.RANK)
    recipe.writer.add_classifier_output_labels(["yes", "no"])
    recipe.writer.add_tensor("cls.output.weight", YES_NO)
    recipe.writer.add_string("tokenizer.chat_template.rerank", template)


def cross_encoder(path: Path) -> Path:
    def adjust(recipe: tiny.Recipe) -> None:
        separated(recipe)
        add_cross_encoder_head(recipe)

    return tiny.encoder(path, adjust=adjust)


@contextmanager
def opened(path: Path) -> Iterator[RankingModel]:
    with closing(open_ranking_model(options(path))) as model:
        yield model


def state(path: Path, tokens: Sequence[int], pooling: gguf.PoolingType) -> NDArray[np.float32]:
    """Return the state of a text in a model without a head, as llama-cpp-python reads it."""
    with closing(
        llama_cpp.Llama(
            str(path), embedding=True, pooling_type=pooling, n_ctx=512, n_ubatch=512, verbose=False
        )
    ) as model:
        model._batch.reset()
        model._batch.add_sequence(tokens, 0, logits_all=True)
        call = model._ctx.encode if pooling == gguf.PoolingType.CLS else model._ctx.decode
        call(model._batch)
        found = llama_cpp.llama_get_embeddings_seq(model._ctx.ctx, 0)
        return np.ctypeslib.as_array(found, (tiny.WIDTH,)).copy()


def tokens_of(path: Path, text: str, *, special: bool = False) -> list[int]:
    with closing(llama_cpp.Llama(str(path), vocab_only=True, verbose=False)) as model:
        return list(model.tokenize(text.encode(), add_bos=False, special=special))


def test_a_cross_encoder_scores_as_its_head_says(tmp_path: Path) -> None:
    path = cross_encoder(tmp_path / "ranks.gguf")
    plain = tiny.encoder(tmp_path / "plain.gguf")
    with opened(path) as model:
        for document in DOCUMENTS:
            parts = [tokens_of(plain, text) for text in (QUERY, document)]
            tokens = [BOS, *parts[0], EOS, SEP, *parts[1], EOS]
            hidden = np.tanh(DENSE @ state(plain, tokens, gguf.PoolingType.CLS) + DENSE_BIAS)
            found = model.score(QUERY, document)
            assert found.score == pytest.approx(
                float((OUT @ hidden + OUT_BIAS)[0]), abs=0.01
            )  # attention in other steps
            assert (found.tokens, found.is_probability) == (len(tokens), False)


def test_a_model_of_yes_and_no_scores_with_the_template_of_its_file(tmp_path: Path) -> None:
    path = tiny.thinker(tmp_path / "ranks.gguf", adjust=add_yes_no_head)
    plain = tiny.thinker(tmp_path / "plain.gguf")
    with opened(path) as model:
        for document in DOCUMENTS:
            text = f"<|im_start|>query: {QUERY}\ndocument: {document}<|im_end|>"
            tokens = tokens_of(plain, text, special=True)
            logits = YES_NO @ state(plain, tokens, gguf.PoolingType.LAST)
            expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            found = model.score(QUERY, document)
            assert found.score == pytest.approx(float(expected[0]), abs=0.01)  # attention in other steps
            assert (found.tokens, found.is_probability) == (len(tokens), True)


def test_a_document_writes_no_control_tokens_and_fills_no_other_place(tmp_path: Path) -> None:
    path = tiny.thinker(tmp_path / "ranks.gguf", adjust=add_yes_no_head)
    with opened(path) as model:
        tokens = model._from_template("a {document}", "b<|im_end|> {query}")
        whole = model._model.vocabulary.decode(tokens, special=True)
        assert whole == "<|im_start|>query: a {document}\ndocument: b<|im_end|> {query}<|im_end|>"
        assert [token for token in tokens if token in model._model.vocabulary.control_tokens] == [3, 4]


def test_a_score_does_not_depend_on_the_documents_before(tmp_path: Path) -> None:
    for path in (
        cross_encoder(tmp_path / "a.gguf"),
        tiny.thinker(tmp_path / "b.gguf", adjust=add_yes_no_head),
    ):
        with opened(path) as model:
            first = model.score(QUERY, DOCUMENTS[0])
            model.score(QUERY, DOCUMENTS[2])
            assert model.score(QUERY, DOCUMENTS[0]) == first


def test_a_document_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with (
        opened(cross_encoder(tmp_path / "ranks.gguf")) as model,
        pytest.raises(UserError, match="tokens with the query"),
    ):
        model.score(QUERY, "long " * 5000)


def test_only_a_model_with_a_head_ranks(tmp_path: Path) -> None:
    plain = tiny.encoder(tmp_path / "plain.gguf")
    assert not is_reranker(read_model(plain))
    with pytest.raises(UserError, match="no head that ranks"):
        open_ranking_model(options(plain))
    ranks = cross_encoder(tmp_path / "ranks.gguf")
    assert is_reranker(read_model(ranks))
    with pytest.raises(ModelFileError, match="is a reranking model"):
        check_model_file(ranks)


def test_another_process_scores_and_is_followed_by_another(tmp_path: Path) -> None:
    path = cross_encoder(tmp_path / "ranks.gguf")
    with closing(Reranker(options(path))) as reranker:
        first = reranker.score(QUERY, DOCUMENTS[0])
        reranker.close()
        assert reranker.score(QUERY, DOCUMENTS[0]) == first
        with pytest.raises(UserError, match="too large"):
            reranker.score(QUERY, "long " * 5000)
