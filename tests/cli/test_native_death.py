"""What ends native code ends no command: one line says what was wrong, and with which file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from gguf.gguf_writer import GGUFValue

from tests.llama import tiny

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="native code ends otherwise there")
ROOT = Path(__file__).parents[2]
LAYERS = ("llama.block_count", 1024, GGUFValueType.UINT32)
ALIGNMENT = ("general.alignment", 8, GGUFValueType.UINT32)
EPSILON = ("llama.attention.layer_norm_rms_epsilon", float("nan"), GGUFValueType.FLOAT32)
NEGATIVE = ("llama.attention.layer_norm_rms_epsilon", -1.0, GGUFValueType.FLOAT32)
Change = tuple[str, float, GGUFValueType]


def broken(path: Path, key: str, value: float, kind: GGUFValueType) -> Path:
    """Write a tiny model whose header says something that stops llama.cpp."""

    def change(recipe: tiny.Recipe) -> None:
        recipe.writer.kv_data[0][key] = GGUFValue(value, kind, None)

    return tiny.llama(path, adjust=change)


def called(*arguments: object, first: str = "") -> subprocess.CompletedProcess[str]:
    """Call the command line in a process of its own, which a failing test ends."""
    code = f"import resource, sys; {first}\nfrom localspec.__main__ import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("change", [LAYERS, ALIGNMENT])
def test_a_file_that_stops_llama_cpp_while_it_is_opened(tmp_path: Path, change: Change) -> None:
    path = broken(tmp_path / "broken.gguf", *change)
    done = called("run", "-m", path, "Hi")
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert error.startswith(f"error: {path} cannot be opened: ")
    assert error.endswith("(SIGABRT)")
    assert "download it again" in hint


@pytest.mark.slow
@pytest.mark.parametrize("verb", [("run", "Hi", "-m"), ("show",), ("plan", "-m")])
def test_more_experts_in_use_than_there_are(tmp_path: Path, verb: tuple[str, ...]) -> None:
    done = called(*verb, tiny.mixture(tmp_path / "broken.gguf", used=100))
    assert (done.returncode, done.stdout) == (2, "")
    assert "100 of 4 experts" in done.stderr or "n_expert_used" in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("change", [EPSILON, NEGATIVE])
def test_a_file_that_stops_llama_cpp_while_it_answers(tmp_path: Path, change: Change) -> None:
    done = called("run", "-m", broken(tmp_path / "broken.gguf", *change), "Hi")
    error, hint = done.stderr.splitlines()[-2:]
    assert (done.returncode, done.stdout) == (1, "")
    assert error.startswith("error: the model process stopped itself: ops.cpp:")
    assert "the model's file may be damaged" in hint


@pytest.mark.slow
def test_a_tensor_of_a_type_that_cannot_be_computed_with(tmp_path: Path) -> None:
    def change(recipe: tiny.Recipe) -> None:
        recipe.writer.tensors[0]["blk.0.attn_norm.weight"].dtype = GGMLQuantizationType.I32

    done = called("run", "-m", tiny.llama(tmp_path / "broken.gguf", adjust=change), "Hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert "unsupported types" in done.stderr.splitlines()[1]  # behind a note about the template


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["chat", "verify", "bench", "tune"])
def test_every_verb_that_opens_models_lives_on(tmp_path: Path, verb: str) -> None:
    path = broken(tmp_path / "broken.gguf", *ALIGNMENT)
    done = called(verb, "-m", path)
    assert done.returncode == 2
    assert f"error: {path} cannot be opened: " in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is Linux's")
@pytest.mark.parametrize("megabytes", [300, 600])
def test_memory_that_does_not_do_is_reported_in_a_line(demo_target: Path, megabytes: int) -> None:
    limit = f"resource.setrlimit(resource.RLIMIT_AS, ({megabytes << 20}, {megabytes << 20}))"
    done = called("run", "-m", demo_target, "-n", "2", "Hi", first=limit)
    assert done.returncode in (0, 1, 2)
    assert [line[:7] for line in done.stderr.splitlines()] in ([], ["error: "], ["error: ", "  hint:"])


@pytest.mark.slow
def test_v_reports_what_the_engine_logs(demo_target: Path) -> None:
    done = called("run", "-v", "-m", demo_target, "--mode", "off", "-n", "1", "Hi")
    assert done.returncode == 0
    assert "INFO localspec.llama.cpp: llama_model_loader: " in done.stderr


@pytest.mark.slow
def test_layers_that_are_not_there_are_reported_before_anything_is_opened(tmp_path: Path) -> None:
    path = broken(tmp_path / "broken.gguf", "llama.block_count", 1000, GGUFValueType.UINT32)
    for verb in (("show",), ("plan", "-m")):
        done = called(*verb, path)
        assert done.returncode == 0
        assert "the header claims 1,000 layers, and 2 are there" in done.stdout
    assert "layers, and" not in called("show", tiny.llama(tmp_path / "fine.gguf")).stdout
