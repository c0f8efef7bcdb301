from __future__ import annotations

import pytest

from localspec.errors import EngineError, UserError
from localspec.llama import backends
from localspec.llama.buffers import Buffers, PartialSums

SIZE = 2**22


def test_reading_takes_time() -> None:
    with Buffers("CPU", SIZE, passes=3) as block:
        assert block.bytes == SIZE
        assert 0 < block.read_s() < 60


def test_sizes_are_whole_rows() -> None:
    with Buffers("CPU", 100_000) as block:
        assert block.bytes % (4 * 4096) == 0
        assert 0 < block.bytes <= 100_000


def test_an_unknown_device_is_reported() -> None:
    with pytest.raises(UserError, match="no device is called 'CUDA7'"):
        Buffers("CUDA7", SIZE)


def test_memory_that_is_not_there_is_rejected() -> None:
    with pytest.raises(EngineError, match="CPU has no space"):
        Buffers("CPU", 2**50)


def test_a_closed_block_can_be_closed_again() -> None:
    block = Buffers("CPU", SIZE)
    block.close()
    block.close()


def test_summing_takes_time_and_more_for_more() -> None:
    small, large = (fastest(size) for size in (2**14, 2**24))
    assert 0 < small < large < 60


def fastest(size: int) -> float:
    with PartialSums("CPU", "CPU", size) as parts:
        return min(parts.sum_s() for _ in range(3))


def test_parts_that_no_device_takes_are_rejected() -> None:
    with pytest.raises(UserError, match="no device is called 'CUDA7'"):
        PartialSums("CPU", "CUDA7", SIZE)
    with pytest.raises(EngineError, match="CPU has no space"):
        PartialSums("CPU", "CPU", 2**50)


def test_the_build_is_described() -> None:
    assert "CPU" in backends.names()
    assert {device.backend for device in backends.devices()} <= {*backends.names()}
    assert backends.version() == "0.3.36"


def test_build_features_are_grouped_by_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        @staticmethod
        def llama_print_system_info() -> bytes:
            return b"CUDA : ARCHS = 860,890 | USE_GRAPHS = 1 | CPU : AVX2 = 1 | AVX512 = 0 | OPENMP = 1 | "

    monkeypatch.setattr(backends, "native", Api)
    assert backends.features() == {"CUDA": ("ARCHS = 860,890", "USE_GRAPHS"), "CPU": ("AVX2", "OPENMP")}
