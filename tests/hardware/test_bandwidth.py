from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from localspec.errors import EngineError
from localspec.hardware.bandwidth import BandwidthJob, Rate, Rates, jobs, judge, measure, typical_s
from localspec.hardware.device_info import DeviceInfo, Machine, MemoryRate, RateFailure
from localspec.llama import buffers

GIB, SIZE = 2**30, 2**26
CPU = DeviceInfo("CPU", "cpu", "CPU", "a processor", 64 * GIB, 48 * GIB, cores=8)
CARD = DeviceInfo("CUDA0", "gpu", "CUDA", "RTX 3090", 24 * GIB, 20 * GIB, theoretical_rate=936e9)


def test_every_device_is_measured() -> None:
    work = jobs((CARD, replace(CARD, id="CUDA1"), CPU))
    assert [job.device for job in work] == ["CPU", "CUDA0", "CUDA1"]
    assert jobs((CPU,)) == (BandwidthJob("CPU", 2**29),)
    assert jobs(()) == ()


def test_blocks_leave_room_on_a_full_gpu() -> None:
    full = replace(CARD, memory_free=100 * 2**20)
    for job in jobs((full, CPU)):
        if job.device == "CUDA0":
            assert 2 * job.size <= full.memory_free


def test_the_cpu_is_really_measured() -> None:
    (rate,) = measure((BandwidthJob("CPU", SIZE),), 0.01)
    assert isinstance(rate, MemoryRate)
    assert rate.device == "CPU"
    assert rate.weights is not None
    assert rate.further is not None
    assert 1e8 < rate.weights < 4 * rate.read < 1e13
    assert 0 <= rate.further < 100  # other programs may be at work


def test_what_a_device_refuses_does_not_stop_the_rest() -> None:
    first, second = measure((BandwidthJob("CUDA7", SIZE), BandwidthJob("CPU", SIZE)), 0.01)
    assert isinstance(first, RateFailure)
    assert "no device is called 'CUDA7'" in first.reason
    assert isinstance(second, MemoryRate)


def test_a_full_device_is_not_judged_by_its_cache() -> None:
    (answer,) = measure((BandwidthJob("CPU", 2**20),), 0.01)
    assert answer == RateFailure("CPU", "too little memory is free")


class FakeBuffers:
    """A block that is read in a known time."""

    opened = 0

    def __init__(self, device: str, size: int, passes: int = 1) -> None:
        if device == "CUDA9":
            raise EngineError("CUDA9 has no room")
        self.device, self.bytes = device, size
        type(self).opened += 1

    def __enter__(self) -> FakeBuffers:
        return self

    def __exit__(self, *_error: object) -> None:
        type(self).opened -= 1

    def read_s(self) -> float:
        return 2**-10


def test_rates_follow_from_bytes_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "Buffers", FakeBuffers)
    measured, refused = measure((BandwidthJob("CUDA0", SIZE, 4), BandwidthJob("CUDA9", SIZE)), 0.0)
    assert measured == MemoryRate("CUDA0", 2.0**36)
    assert refused == RateFailure("CUDA9", "CUDA9 has no room")
    assert FakeBuffers.opened == 0


class PacedBuffers(FakeBuffers):
    """A block of a device that reads N bytes per second, on a clock of its own."""

    rate = 1e9
    now = 0.0

    def __init__(self, device: str, size: int, passes: int = 1) -> None:
        super().__init__(device, size, passes)
        self.passes = passes

    def read_s(self) -> float:
        PacedBuffers.now += self.bytes * self.passes / self.rate
        return self.bytes / self.rate


@pytest.mark.parametrize(("rate", "most_s"), [(4e11, 1.5), (4e9, 1.5), (1e9, 1.5), (2e8, 4.0)])
def test_a_slow_device_is_measured_with_blocks_that_fit_the_time(
    rate: float, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "Buffers", PacedBuffers)
    monkeypatch.setattr("localspec.hardware.bandwidth.time.perf_counter", lambda: PacedBuffers.now)
    monkeypatch.setattr(PacedBuffers, "rate", rate)
    started = PacedBuffers.now
    assert list(measure((BandwidthJob("V", 2**30, 4),), 1.0)) == [MemoryRate("V", rate)]
    assert PacedBuffers.now - started < most_s


class FarBuffers(PacedBuffers):
    """A block of another machine, 20 ms away, whose CPU takes half as long for each further token."""

    trip_s, line = 0.02, 1e8

    def __init__(self, device: str, size: int, passes: int = 1, *, quantised: bool = False) -> None:
        super().__init__(device, size, passes)
        self.speed = self.rate / 2 if quantised else self.rate

    def read_s(self, tokens: int = 1) -> float:
        taken = self.bytes / self.speed * (1 + 0.5 * (tokens - 1)) + self.trip_s / self.passes
        PacedBuffers.now += taken * self.passes
        return taken

    def fetch_s(self, size: int) -> float:
        return self.trip_s + size / self.line


def test_another_machine_is_measured_without_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "Buffers", FarBuffers)
    monkeypatch.setattr("localspec.hardware.bandwidth.time.perf_counter", lambda: PacedBuffers.now)
    monkeypatch.setattr(PacedBuffers, "rate", 2e10)
    (found,) = measure((BandwidthJob("RPC0", 2**28, 4, is_remote=True),), 1.0)
    assert isinstance(found, MemoryRate)
    assert found.read == pytest.approx(2e10, rel=0.01)
    assert found.link == pytest.approx(1e8, rel=0.01)
    assert found.weights == pytest.approx(1e10, rel=0.01)
    assert found.further == pytest.approx(0.5, rel=0.01)


def test_what_could_not_be_measured_is_taken_for_no_faster_than_the_cpu() -> None:
    plain = replace(CARD, theoretical_rate=None)
    failed = (RateFailure("CUDA0", "it took longer than 84 s"),)
    seen = Machine((plain, CPU), (MemoryRate("CPU", 30e9),))
    assert Rates(seen).of["CUDA0"].read > 200e9
    assert Rates(replace(seen, failures=failed)).of["CUDA0"].read == 30e9
    known = replace(seen, devices=(CARD, CPU), failures=failed)
    assert Rates(known).of["CUDA0"].read > 600e9  # its maker's figure says more


def test_one_hiccup_does_not_count_and_neither_does_the_first_time() -> None:
    times = iter([9.0, 1.0, 7.0, 1.0])
    assert typical_s(lambda: next(times), 0.0) == 1.0


def test_time_that_is_left_is_used_within_reason() -> None:
    calls = count(1)
    assert typical_s(lambda: float(next(calls)), 3600.0) == 14.0  # the middle of 2 to 26


def machine(card: DeviceInfo, read: float = 850e9) -> Machine:
    return Machine(
        devices=(card, CPU),
        rates=(MemoryRate("CUDA0", read), MemoryRate("CPU", 30e9)),
    )


def test_a_healthy_machine_has_no_notes() -> None:
    assert judge(machine(replace(CARD, pcie_width=16, pcie_width_max=16))) == ()
    assert judge(Machine((CARD, CPU))) == ()


def test_a_gpu_far_below_its_rate_is_reported_with_numbers() -> None:
    (note,) = judge(machine(CARD, read=300e9))
    assert "CUDA0 reads its memory at 300 GB/s, 32% of the 936 GB/s that a RTX 3090 can reach" in note


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_link_with_fewer_lanes_is_reported(lanes: int) -> None:
    (note,) = judge(machine(replace(CARD, pcie_width=lanes, pcie_width_max=16)))
    assert f"{lanes} of its 16 PCIe lanes" in note


@pytest.mark.parametrize(("cores", "rate"), [(0, 25e9), (2, 14e9), (16, 25e9)])
def test_a_few_cores_get_through_less_than_their_memory(cores: int, rate: float) -> None:
    processor = replace(CPU, cores=cores)
    assert Rates(Machine(devices=(processor,))).of["CPU"] == Rate(rate, "kind")
