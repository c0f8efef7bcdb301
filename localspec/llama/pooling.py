"""A context that reads one text at a time and gives a vector for it, which depends on no other text."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.errors import EngineError
from localspec.llama import library
from localspec.llama.context import context_parameters
from localspec.llama.library import Native, native
from localspec.llama.model import Model
from localspec.types.models import Pooling

LONGEST = 8192  # tokens of a text, unless the model was trained for fewer
# llama.h, enum llama_pooling_type
NONE = 0
MEAN = 1
CLS = 2
LAST = 3
RANK = 4
NUMBERS: Mapping[Pooling, int] = {"none": NONE, "mean": MEAN, "cls": CLS, "last": LAST}


class PoolingContext:
    """A context of an open model, with the pooling that its file names or that is given."""

    def __init__(self, model: Model, pooling: int | None = None) -> None:
        """Make it; raises EngineError."""
        api = native()
        self._model = model
        self.size = min(model.training_context or LONGEST, LONGEST)
        self._pointer = self._open(pooling)
        self._free = weakref.finalize(self, api.llama_free, self._pointer)
        self.pooling: int = api.llama_pooling_type(self._pointer)
        encodes = api.llama_model_has_encoder(model.pointer) and not api.llama_model_has_decoder(
            model.pointer
        )
        self._call = api.llama_encode if encodes else api.llama_decode

    def read(self, tokens: Sequence[int], width: int) -> NDArray[np.float32]:
        """Return the vector of a text of at most `size` tokens; raises EngineError."""
        self._compute(tokens)
        return self._vectors(native().llama_get_embeddings_seq(self._pointer, 0), (width,))

    def read_each(self, tokens: Sequence[int], width: int) -> NDArray[np.float32]:
        """Return a vector for each token of a text, where nothing is pooled; raises EngineError."""
        self._compute(tokens)
        return self._vectors(native().llama_get_embeddings(self._pointer), (len(tokens), width))

    def _compute(self, tokens: Sequence[int]) -> None:
        api = native()
        api.llama_memory_clear(api.llama_get_memory(self._pointer), True)
        ids = (ctypes.c_int32 * len(tokens))(*tokens)  # which the batch only points to
        if (code := self._call(self._pointer, api.llama_batch_get_one(ids, len(tokens)))) != 0:
            raise EngineError(f"llama.cpp could not read a text of {len(tokens):,} tokens (code {code})")

    def _vectors(self, found: Native, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if not found:
            raise EngineError(f"llama.cpp gave nothing for a text with {self._model.name}")
        vectors = np.ctypeslib.as_array(found, shape).astype(np.float32)
        if not np.isfinite(vectors).all():
            raise EngineError(f"{self._model.name} gave for a text what is no number")
        return vectors

    def close(self) -> None:
        """Free it; a second call does nothing."""
        self._free()

    def _open(self, pooling: int | None) -> int:
        parameters = context_parameters(self._model.options, self.size, 1, 1)
        # a model that looks both ways has to read all of a text in one call
        parameters.n_batch = parameters.n_ubatch = parameters.n_outputs_max = self.size
        parameters.embeddings = True
        if pooling is not None:
            parameters.pooling_type = pooling
        with library.problems_of_this_thread() as problems:
            pointer: int | None = native().llama_init_from_model(self._model.pointer, parameters)
        if not pointer:
            raise EngineError(
                f"llama.cpp cannot read texts with {self._model.name}: {library.last_problem(problems)}"
            )
        return pointer
