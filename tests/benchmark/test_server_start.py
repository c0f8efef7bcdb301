"""How llama-server is opened: its flags and its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.benchmark.llama_server import _environment, target_flags
from localspec.types.models import ModelOptions


@pytest.mark.parametrize(("given", "said"), [(None, None), (True, "on"), (False, "off")])
def test_flash_attention_is_as_ours(given: bool | None, said: str | None) -> None:
    flags = dict(target_flags(ModelOptions(Path("model.gguf"), flash_attention=given)))
    assert flags.get("--flash-attn") == said


def test_threads_spin_as_ours_unless_someone_says_otherwise() -> None:
    assert _environment({"PATH": "/bin", "LLAMA_ARG_THREADS": "3"}) == {
        "PATH": "/bin",
        "GOMP_SPINCOUNT": "1000",
    }
    assert _environment({"GOMP_SPINCOUNT": "7"}) == {"GOMP_SPINCOUNT": "7"}


def test_a_home_that_no_one_has_stays_as_written() -> None:
    flags = dict(target_flags(ModelOptions(Path("~nobody-of-that-name/model.gguf"))))
    assert flags["--model"].endswith("/~nobody-of-that-name/model.gguf")
