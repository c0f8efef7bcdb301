"""The engines' protocol, held against the real context: by mypy, and by looking at it."""

from __future__ import annotations

import inspect

from localspec.decoding.model import LanguageModel
from localspec.llama.context import Context


def as_language_model(context: Context) -> LanguageModel:
    return context


def test_the_context_has_every_verb_of_the_protocol() -> None:
    verbs = [name for name in vars(LanguageModel) if not name.startswith("_")]
    assert "evaluate" in verbs
    for name in verbs:
        asked, given = getattr(LanguageModel, name), getattr(Context, name)
        assert isinstance(asked, property) == isinstance(given, property), name
        if not isinstance(asked, property):
            parameters = (list(inspect.signature(verb).parameters) for verb in (asked, given))
            assert len({tuple(names) for names in parameters}) == 1, name
