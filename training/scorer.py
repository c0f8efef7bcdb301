"""One model on llama.cpp: logits of token sequences, and answers token by token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from localspec.types.request import Message
from training.speculation import softmax


class Scorer:
    """A model with an empty context of its own for every call; a context manager that frees both."""

    def __init__(self, path: Path, threads: int, context: int = 1024) -> None:
        # one plain way to compute, so that figures of different machines can be compared
        options = ModelOptions(path, context=context, threads=threads, devices=(), flash_attention=False)
        self._model = Model.open(options)
        self._context = Context(self._model, options, rows=context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()
        self._model.close()

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text; special tokens are read as such."""
        return self._model.vocabulary.tokenize(text, special=True)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self._model.vocabulary.decode(ids)

    def render(self, *messages: Message) -> str:
        """Return a conversation as the model's own chat template writes it."""
        return self._model.template.render(messages)

    def ends_turn(self, token: int) -> bool:
        """Tell whether a token ends the model's turn."""
        return token in self._model.end_tokens

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return a copy of the logits after every token, float32 (n, vocabulary)."""
        self._context.truncate(0)
        self._context.choose(None)
        return self._context.evaluate(ids, logits=len(ids)).logits.copy()

    def generate(
        self, prompt: Sequence[int], count: int, temperature: float, rng: np.random.Generator
    ) -> list[int]:
        """Return up to `count` tokens, the one that ends the turn included; temperature 0 is greedy."""
        self._context.truncate(0)
        self._context.choose(None)
        rows = self._context.evaluate(prompt).logits
        text: list[int] = []
        while len(text) < count and self._context.length() < self._context.context_size - 1:
            if temperature == 0:
                token = int(rows[0].argmax())
            else:
                token = int(rng.choice(rows.shape[1], p=softmax(rows, temperature)[0]))
            text.append(token)
            if self.ends_turn(token):
                break
            rows = self._context.evaluate([token]).logits
        return text
