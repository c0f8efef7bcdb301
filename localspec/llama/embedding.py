"""Embeddings: the vector of a text, by a model that was made for it, or the mean of any model's states."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.errors import EngineError, UserError
from localspec.llama import library
from localspec.llama.context import context_parameters
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.types.models import ModelInfo, ModelOptions

LONGEST = 8192  # tokens of a text, unless the model was trained for fewer
# llama.h, enum llama_pooling_type
_NONE = 0
_MEAN = 1
_RANK = 4


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of a text, of length 1, float32; `tokens` is the number that was read."""

    vector: NDArray[np.float32]
    tokens: int


class EmbeddingModel:
    """An open model that reads one text at a time, so that no vector depends on its company."""

    def __init__(self, model: Model) -> None:
        """Make its context; raises UserError for a model that ranks, and EngineError."""
        self._model = model
        api = native()
        self.context = min(model.training_context or LONGEST, LONGEST)
        self._pointer = self._open(None)
        if api.llama_pooling_type(self._pointer) == _NONE:
            self._free()
            self._pointer = self._open(_MEAN)
        if api.llama_pooling_type(self._pointer) == _RANK:
            raise UserError(
                f"{model.name} ranks texts and has no vectors for them", "choose an embedding model"
            )
        self._width: int = api.llama_model_n_embd_out(model.pointer)
        encodes = api.llama_model_has_encoder(model.pointer) and not api.llama_model_has_decoder(
            model.pointer
        )
        self._call = api.llama_encode if encodes else api.llama_decode

    @property
    def info(self) -> ModelInfo:
        """The model's information."""
        return self._model.info(self.context)

    def embed(self, text: str | Sequence[int | str]) -> Embedding:
        """Return the vector of a text, or of tokens, also with texts among them, as they are.

        Raises UserError for one that is empty or too long.
        """
        vocabulary = self._model.vocabulary
        api = native()
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
        api.llama_memory_clear(api.llama_get_memory(self._pointer), True)
        ids = (ctypes.c_int32 * len(tokens))(*tokens)  # which the batch only points to
        if (code := self._call(self._pointer, api.llama_batch_get_one(ids, len(tokens)))) != 0:
            raise EngineError(f"llama.cpp could not read a text of {len(tokens):,} tokens (code {code})")
        found = api.llama_get_embeddings_seq(self._pointer, 0)
        if not found:
            raise EngineError(f"llama.cpp gave no embedding with {self._model.name}")
        vector = np.ctypeslib.as_array(found, (self._width,)).astype(np.float32)
        length = float(np.linalg.norm(vector))
        if not np.isfinite(length):
            raise EngineError(f"{self._model.name} gave an embedding that is no vector of numbers")
        return Embedding(vector / length if length else vector, len(tokens))

    def _joined(self, parts: Sequence[int | str]) -> list[int]:
        tokens = list[int]()
        for part in parts:
            tokens += [part] if isinstance(part, int) else self._model.vocabulary.tokenize(part, special=True)
        return tokens

    def close(self) -> None:
        """Free context and model; a second call does nothing."""
        self._free()
        self._model.close()

    def _open(self, pooling: int | None) -> int:
        parameters = context_parameters(self._model.options, self.context, 1, 1)
        # a model that looks both ways has to read all of a text in one call
        parameters.n_batch = parameters.n_ubatch = parameters.n_outputs_max = self.context
        parameters.embeddings = True
        if pooling is not None:
            parameters.pooling_type = pooling
        with library.problems_of_this_thread() as problems:
            pointer: int | None = native().llama_init_from_model(self._model.pointer, parameters)
        if not pointer:
            raise EngineError(
                f"llama.cpp cannot embed with {self._model.name}: {library.last_problem(problems)}"
            )
        self._free = weakref.finalize(self, native().llama_free, pointer)
        return pointer


def open_embedding_model(options: ModelOptions) -> EmbeddingModel:
    """Open a file for embeddings; raises what `Model.open` raises, and UserError for a model that ranks."""
    model = Model.open(options, embeds=True)
    try:
        return EmbeddingModel(model)
    except BaseException:
        model.close()
        raise
