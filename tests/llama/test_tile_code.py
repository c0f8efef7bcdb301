"""A compiler that spoils the code for AMX is known by its version, and such code is not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.llama import tile_code
from localspec.llama.model import _parameters
from localspec.types.models import ModelOptions


@pytest.mark.parametrize(
    ("compiler", "is_broken"),
    [
        ("GCC: (Debian 12.2.0-14+deb12u1) 12.2.0", True),
        ("GCC: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", True),
        ("GCC: (GNU) 10.2.1 20210110", True),
        ("GCC: (GNU) 12.4.0", False),
        ("GCC: (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0", False),
        ("GCC: (Debian 14.2.0-19) 14.2.0", False),
        ("clang version 17.0.6", False),
    ],
)
def test_a_library_is_judged_by_its_compiler(tmp_path: Path, compiler: str, is_broken: bool) -> None:
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"\x7fELF\0_Z24ggml_backend_amx_mul_matPK19\0" + compiler.encode() + b"\0")
    assert tile_code.holds_broken_tiles(library) is is_broken
    library.write_bytes(b"\x7fELF\0" + compiler.encode() + b"\0")  # without such code
    assert not tile_code.holds_broken_tiles(library)


def test_only_cpus_with_tiles_matter(tmp_path: Path) -> None:
    flags = tmp_path / "cpuinfo"
    assert not tile_code.has_tiles(flags)
    flags.write_text("flags\t: fpu avx512f avx_vnni\n")
    assert not tile_code.has_tiles(flags)
    flags.write_text("flags\t: fpu avx512f amx_tile amx_int8\n")
    assert tile_code.has_tiles(flags)


@pytest.mark.parametrize("is_broken", [True, False])
def test_broken_code_is_not_run(monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    monkeypatch.setattr(tile_code, "is_broken", lambda: is_broken)
    parameters, _ = _parameters(ModelOptions(path=Path("model.gguf")))
    assert parameters.use_extra_bufts is not is_broken
