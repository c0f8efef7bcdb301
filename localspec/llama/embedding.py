"""Embeddings: the vector of a text, by a model that was made for it, or the mean of any model's states.

Unpooled, they are the states themselves, one for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.errors import UserError
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.llama.pooling import MEAN, NONE, NUMBERS, RANK, PoolingContext
from localspec.types.models import ModelInfo, ModelOptions, Pooling


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of a text, of length 1, float32; `tokens` is the number that was read.

    Of a model that does not pool, `vectors` has one for each token, as it comes.
    """

    vectors: NDArray[np.float32]
    tokens: int

    @property
    def vector(self) -> NDArray[np.float32]:
        """Return the vector of the text."""
        first: NDArray[np.float32] = self.vectors[0]
        return first


class EmbeddingModel:
    """An open model that reads one text at a time, so that no vector depends on its company."""

    def __init__(self, model: Model, pooling: Pooling | None = None) -> None:
        """Make its context, with the file's pooling unless one is given.

        Raises UserError for a model that ranks, and EngineError.
        """
        self._model = model
        self._context = PoolingContext(model, None if pooling is None else NUMBERS[pooling])
        if self._context.pooling == NONE and pooling is None:
            self._context.close()
            self._context = PoolingContext(model, MEAN)
        if self._context.pooling == RANK:
            raise UserError(
                f"{model.name} ranks texts and has no vectors for them", "choose an embedding model"
            )
        self.context = self._context.size
        self._width: int = native().llama_model_n_embd_out(model.pointer)

    @property
    def info(self) -> ModelInfo:
        """The model's information."""
        return self._model.info(self.context)

    def embed(self, text: str | Sequence[int | str]) -> Embedding:
        """Return the vector of a text, or of tokens, also with texts among them, as they are.

        Raises UserError for one that is empty or too long.
        """
        vocabulary = self._model.vocabulary
        tokens = vocabulary.tokenize_to_embed(text) if isinstance(text, str) else self._joined(text)
        if not tokens:
            raise UserError("a text without tokens has no embedding", "leave it out")
        if len(tokens) > self.context:
            raise UserError(
                f"the text is too large: {len(tokens):,} tokens; {self._model.name} reads at most "
                f"{self.context:,}",
                "shorten or split it",
            )
        if not all(0 <= token < vocabulary.size for token in tokens):
            raise UserError(f"there is no token outside of 0 to {vocabulary.size - 1:,}", "send the text")
        if self._context.pooling == NONE:
            return Embedding(self._context.read_each(tokens, self._width), len(tokens))
        vector = self._context.read(tokens, self._width)
        length = float(np.linalg.norm(vector))
        return Embedding((vector / length if length else vector)[None], len(tokens))

    def _joined(self, parts: Sequence[int | str]) -> list[int]:
        tokens = list[int]()
        for part in parts:
            tokens += [part] if isinstance(part, int) else self._model.vocabulary.tokenize(part, special=True)
        return tokens

    def close(self) -> None:
        """Free context and model; a second call does nothing."""
        self._context.close()
        self._model.close()


def open_embedding_model(options: ModelOptions, pooling: Pooling | None = None) -> EmbeddingModel:
    """Open a file for embeddings; raises what `Model.open` raises, and UserError for a model that ranks."""
    model = Model.open(options, embeds=True)
    try:
        return EmbeddingModel(model, pooling)
    except BaseException:
        model.close()
        raise
