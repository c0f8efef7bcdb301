"""A backend beside those of the build: a tiny one in C, and everything that is none."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.app.checks.examine import examine
from localspec.cli.main import main
from localspec.errors import UserError
from localspec.hardware import devices
from localspec.storage.paths import config_dir

SOURCE = """
#include <stddef.h>
static const char *name(void *reg) { return "Toy"; }
static size_t count(void *reg) { return 0; }
struct reg { int api; const char *(*name)(void *); size_t (*count)(void *); void *device, *proc, *context; };
static struct reg toy = {API, name, count, NULL, NULL, NULL};
void *ggml_backend_init(void) { return &toy; }
"""
CC = shutil.which("cc")
needs_compiler = pytest.mark.skipif(CC is None or sys.platform == "win32", reason="needs a C compiler")


def toy(folder: Path, api: int) -> Path:
    """Build a backend without devices for a version of ggml's interface."""
    assert CC is not None
    source, library = folder / "toy.c", folder / "libtoy.so"
    source.write_text(SOURCE.replace("API", str(api)))
    subprocess.run([CC, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.slow
@needs_compiler
def test_a_backend_is_loaded_next_to_those_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = toy(tmp_path, 2)
    monkeypatch.setenv("GGML_BACKEND_PATH", str(library))
    assert devices.look().found.backends[-2:] == ("CPU", "Toy")
    seen = next(check for check in examine() if check.name == "llama.cpp")
    assert seen.text.endswith(f"`{library}` is loaded as well, but finds no GPU")
    assert seen.verdict == "warn"


@pytest.mark.slow
@needs_compiler
def test_the_configuration_names_a_backend_too_and_an_empty_variable_takes_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = toy(config_dir(), 2)
    (config_dir() / "config.toml").write_text(f"backend = '{library.name}'")
    assert devices.look().found.backends[-2:] == ("CPU", "Toy")
    monkeypatch.setenv("GGML_BACKEND_PATH", "")
    assert devices.look().found.backends[-1:] == ("CPU",)


@needs_compiler
def test_a_backend_of_another_version_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_BACKEND_PATH", str(toy(tmp_path, 1)))
    with pytest.raises(UserError, match=r"libtoy\.so: incompatible API version \(backend: 1, current: 2\)"):
        devices.look()


@pytest.mark.parametrize("verb", [["run", "Hello"], ["--list-devices"], ["devices"], ["plan"]])
def test_a_path_that_is_none_is_one_line_in_every_verb(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GGML_BACKEND_PATH", str(tmp_path / "nowhere.so"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert main(verb) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 2  # what is wrong, and what to do
    assert f"GGML_BACKEND_PATH names no file: {tmp_path / 'nowhere.so'}" in told


@pytest.mark.slow
def test_a_file_that_is_not_a_library_is_reported_with_the_setting_that_names_it() -> None:
    (config_dir() / "config.toml").write_text("backend = 'notes.txt'")
    (config_dir() / "notes.txt").write_text("not a library")
    with pytest.raises(UserError, match=r"`backend` in .*config\.toml names cannot be loaded: .*notes\.txt"):
        devices.look()
    failed = next(check for check in examine() if check.verdict == "fail")
    assert "notes.txt" in failed.text
    assert "README" in failed.mend
