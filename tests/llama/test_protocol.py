"""The engines' protocol, held against the real context: by mypy, and by looking at it."""

from __future__ import annotations

import inspect

from localspec.decoding.model import LanguageModel
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.llama.conftest import OpenContext


def as_language_model(context: Context) -> LanguageModel:
    return context


def test_the_context_has_every_verb_of_the_protocol(llama_model: Model, open_context: OpenContext) -> None:
    names = [name for name in vars(LanguageModel) if not name.startswith("_")]
    assert "evaluate" in names
    context = open_context(llama_model)
    for name in names:
        asked, given = getattr(LanguageModel, name), getattr(context, name)
        assert callable(asked) == callable(given), name
        if callable(asked):
            parameters = (
                list(inspect.signature(verb).parameters) for verb in (asked, getattr(Context, name))
            )
            assert len(set(map(tuple, parameters))) == 1, name
