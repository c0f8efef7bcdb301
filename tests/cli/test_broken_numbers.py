"""A model file whose header holds numbers that no model has."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFValueType

from localspec.cli.main import main
from tests.models.test_gguf_broken import with_value

NUMBERS = [
    ("embedding_length", 1e308, GGUFValueType.FLOAT64),
    ("feed_forward_length", 3e38, GGUFValueType.FLOAT32),
    ("context_length", 1e308, GGUFValueType.FLOAT64),
    ("block_count", -1e308, GGUFValueType.FLOAT64),
    ("attention.head_count", 2**64 - 1, GGUFValueType.UINT64),
    ("attention.key_length", -(2**63), GGUFValueType.INT64),
]


@pytest.mark.parametrize(("key", "value", "kind"), NUMBERS)
@pytest.mark.parametrize("verb", ["show", "plan", "pair", "run"])
def test_a_number_beyond_all_models_is_reported_in_a_line(
    verb: str,
    key: str,
    value: float,
    kind: GGUFValueType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    path = with_value(tmp_path / "a.gguf", f"llama.{key}", value, kind)
    arguments = {"plan": ["-m", str(path)], "run": ["hello", "-m", str(path)]}
    assert main([verb, *arguments.get(verb, [str(path)])]) == 2
    out, err = capsys.readouterr()
    error, hint = err.splitlines()
    assert out == ""
    assert error == f"error: {path} has a broken GGUF header: llama.{key} is {value:g}"
    assert hint == "  hint: download the file again"


@pytest.mark.parametrize(("key", "value", "kind"), NUMBERS)
def test_among_other_models_it_is_listed_with_the_reason(
    key: str, value: float, kind: GGUFValueType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_value(tmp_path / "a.gguf", f"llama.{key}", value, kind)
    assert main(["models", str(tmp_path)]) == 0
    reason = f"has a broken GGUF header: llama.{key} is {value:g}; download the file again"
    assert f"cannot be used: {reason}\n" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("key", [name for name, *_ in NUMBERS])
def test_what_is_not_a_number_crashes_nothing(
    key: str, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_value(tmp_path / "a.gguf", f"llama.{key}", value, GGUFValueType.FLOAT64)
    for arguments in (["show", str(path)], ["plan", "-m", str(path)], ["models", str(tmp_path)]):
        assert main(arguments) in {0, 2}
        assert "unexpected" not in capsys.readouterr().err
