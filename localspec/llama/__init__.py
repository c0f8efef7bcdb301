"""llama.cpp behind a small face; nothing native is loaded before first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.llama.backends import BackendDevice as BackendDevice
    from localspec.llama.backends import devices as devices
    from localspec.llama.backends import memory_of as memory_of
    from localspec.llama.context import Context as Context
    from localspec.llama.context import Rewind as Rewind
    from localspec.llama.context import probe as probe
    from localspec.llama.library import physical_cores as physical_cores
    from localspec.llama.model import Model as Model
    from localspec.llama.model import check_model_file as check_model_file
    from localspec.llama.template import ChatTemplate as ChatTemplate
    from localspec.llama.template import trailing_spaces as trailing_spaces
    from localspec.llama.vocabulary import Detokenizer as Detokenizer
    from localspec.llama.vocabulary import Vocabulary as Vocabulary
    from localspec.llama.vocabulary import compare_vocabularies as compare_vocabularies

_HOMES = {
    "BackendDevice": "backends",
    "ChatTemplate": "template",
    "Context": "context",
    "Detokenizer": "vocabulary",
    "Model": "model",
    "Rewind": "context",
    "Vocabulary": "vocabulary",
    "check_model_file": "model",
    "compare_vocabularies": "vocabulary",
    "devices": "backends",
    "memory_of": "backends",
    "physical_cores": "library",
    "probe": "context",
    "trailing_spaces": "template",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
