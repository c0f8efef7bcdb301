"""Reranking: how well a document answers a query, by a model that was made for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from localspec.errors import UserError
from localspec.gguf import is_reranker, read_model
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.llama.pooling import RANK, PoolingContext
from localspec.types.models import ModelInfo, ModelOptions

_PLACES = re.compile(r"\{(query|document)\}")
_PROBABILITIES = ("qwen3", "qwen3vl")  # whose scores llama.cpp puts through a softmax


@dataclass(frozen=True, slots=True)
class Relevance:
    """The score of a document, the higher the better, and the number of tokens that were read for it.

    It is a probability or, without `is_probability`, a logit.
    """

    score: float
    tokens: int
    is_probability: bool = False


class RankingModel:
    """An open model that reads a query with one document at a time."""

    def __init__(self, model: Model, template: str = "") -> None:
        """Make its context; raises EngineError. `template` is what the file writes around both texts."""
        self._model = model
        self._template = template
        self._context = PoolingContext(model, RANK)
        self._outputs: int = native().llama_model_n_cls_out(model.pointer)
        self._is_probability = model.header.architecture in _PROBABILITIES

    @property
    def info(self) -> ModelInfo:
        """The model's information."""
        return self._model.info(self._context.size)

    def score(self, query: str, document: str) -> Relevance:
        """Return the relevance of a document; raises UserError for texts that are too long."""
        tokens = self._from_template(query, document) if self._template else self._pair(query, document)
        if len(tokens) > self._context.size:
            raise UserError(
                f"the document is too large: {len(tokens):,} tokens with the query; {self._model.name} reads "
                f"at most {self._context.size:,}",
                "shorten or split it",
            )
        if not tokens:
            raise UserError("an empty document cannot be ranked", "leave it out")
        found = self._context.read(tokens, self._outputs)
        return Relevance(float(found[0]), len(tokens), self._is_probability)

    def _pair(self, query: str, document: str) -> list[int]:
        """Return query and document with the tokens that the vocabulary puts around and between them."""
        vocabulary = self._model.vocabulary
        sep = vocabulary.named_tokens["sep"]
        begin = vocabulary.bos if vocabulary.adds_bos else None
        end = (sep if vocabulary.eos is None else vocabulary.eos) if vocabulary.adds_eos else None
        between = sep if vocabulary.adds_sep else None
        first = vocabulary.tokenize(query)
        second = vocabulary.tokenize(document)
        parts = ([begin], first, [end, between], second, [end])
        return [token for token in chain.from_iterable(parts) if token is not None]

    def _from_template(self, query: str, document: str) -> list[int]:
        """Return the tokens of the file's template with both texts in their places.

        All is read at once, as the model was trained, unless a text spells control tokens: then it is read
        apart from the template, as plain text.
        """
        texts = {"query": query, "document": document}
        parts = _PLACES.split(self._template)
        whole = "".join(_filled(parts, texts))
        tokens = self._model.vocabulary.tokenize(whole, special=True)
        alone = self._model.vocabulary.tokenize("".join(parts[::2]), special=True)
        if self._controls(tokens) == self._controls(alone):
            return tokens
        of_parts = (
            self._model.vocabulary.tokenize(text, special=at % 2 == 0)
            for at, text in enumerate(_filled(parts, texts))
        )
        return [*chain.from_iterable(of_parts)]

    def _controls(self, tokens: Sequence[int]) -> int:
        return sum(token in self._model.vocabulary.control_tokens for token in tokens)

    def close(self) -> None:
        """Free context and model; a second call does nothing."""
        self._context.close()
        self._model.close()


def _filled(parts: Sequence[str], texts: dict[str, str]) -> list[str]:
    """Return the parts of a template, of which every second names a text, with the texts."""
    return [texts[part] if at % 2 else part for at, part in enumerate(parts)]


def open_ranking_model(options: ModelOptions) -> RankingModel:
    """Open a file for reranking; raises what `Model.open` raises, and UserError for one that cannot rank."""
    header = read_model(options.path)
    if not is_reranker(header):
        raise UserError(f"{header.name} has no head that ranks documents", "choose a reranking model")
    model = Model.open(options, embeds=True)
    try:
        return RankingModel(model, header.text("tokenizer.chat_template.rerank"))
    except BaseException:
        model.close()
        raise
