"""Tiny models of each kind of memory, and the bundled target, opened once for a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localspec.llama import recurrent
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from tests.llama import tiny

ChatMl = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

OpenContext = Callable[..., Context]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.llama(tmp_path_factory.mktemp("tiny") / "llama.gguf", template=ChatMl)


@pytest.fixture(scope="session")
def tiny_window(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.sliding_window(tmp_path_factory.mktemp("tiny") / "window.gguf")


@pytest.fixture(scope="session")
def tiny_recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.recurrent(tmp_path_factory.mktemp("tiny") / "recurrent.gguf")


@pytest.fixture(scope="module")
def llama_model(tiny_llama: Path) -> Iterator[Model]:
    model = Model.open(ModelOptions(path=tiny_llama))
    yield model
    model.close()


@pytest.fixture(scope="module")
def target_model(demo_target: Path) -> Iterator[Model]:
    model = Model.open(ModelOptions(path=demo_target))
    yield model
    model.close()


@pytest.fixture
def open_context() -> Iterator[OpenContext]:
    """Open contexts with small batches that are closed when the test ends; the models stay open."""
    opened: list[Context] = []

    def build(model: Model, *, sequences: int = 1, rows: int = 32, **options: object) -> Context:
        chosen = {"batch": 64, "micro_batch": 32, "threads": 1, **options}
        settings = ModelOptions(path=model.options.path, **chosen)  # type: ignore[arg-type]
        context = recurrent.open_context(model, settings, sequences=sequences, rows=rows)
        opened.append(context)
        return context

    yield build
    for context in opened:
        context.close()
