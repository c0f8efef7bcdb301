from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from localspec.child_process import values_of
from localspec.errors import Cancelled, EngineDied, EngineError, UserError
from localspec.hardware import devices, machine
from localspec.hardware.bandwidth import BandwidthJob, Job, Measured, SumJob
from localspec.hardware.device_info import DeviceInfo, Machine, MemoryRate, RateFailure, SumCost
from localspec.hardware.devices import DetectedMachine
from localspec.hardware.machine import known_machine, measure_rates
from localspec.hardware.nvml import Cards
from tests.hardware.cards import CPU, GIB, cuda, found

SEEN = Machine(
    (
        DeviceInfo("CUDA0", "gpu", "CUDA", "RTX 3090", 24 * GIB, 20 * GIB, theoretical_rate=936e9),
        DeviceInfo("CPU", "cpu", "CPU", "a processor", 64 * GIB, 48 * GIB, cores=8),
    )
)
SIGHT = DetectedMachine(SEEN, found(cuda(0), CPU), Cards(driver="580.1"))


def count_to(last: int) -> Iterator[int]:
    yield from range(last)


def print_and_count() -> Iterator[int]:
    os.write(1, b"noise of a driver\n")
    yield 1


def crash() -> Iterator[int]:
    yield 1
    os.write(2, b"CUDA error: an illegal memory access\n")
    os.abort()


def hang() -> Iterator[int]:
    yield os.getpid()
    time.sleep(600)


def complain() -> Iterator[int]:
    yield 1
    raise UserError("no such device", "name another")


def stumble() -> Iterator[int]:
    yield 1
    raise ZeroDivisionError("oh")


@pytest.mark.slow
def test_values_come_from_another_process() -> None:
    assert list(values_of(count_to, 60.0, 3)) == [0, 1, 2]
    assert next(values_of(hang, 60.0)) != os.getpid()


def test_what_native_code_prints_does_no_harm() -> None:
    assert list(values_of(print_and_count, 60.0)) == [1]


def test_a_child_that_dies_leaves_its_values_and_its_last_words() -> None:
    values = values_of(crash, 60.0)
    assert next(values) == 1
    with pytest.raises(EngineDied, match=r"an illegal memory access \(.+\)"):
        next(values)


@pytest.mark.slow
def test_a_child_that_hangs_is_ended() -> None:
    values = values_of(hang, 1.5)
    with pytest.raises(EngineDied, match=r"it took longer than 1\.5 s"):
        list(values)


@pytest.mark.skipif(sys.platform == "win32", reason="asks for a process by signal 0")
def test_who_wants_no_more_values_ends_the_child() -> None:
    values = values_of(hang, 60.0)
    pid = next(values)
    values.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_errors_of_the_child_are_raised_here() -> None:
    with pytest.raises(UserError) as caught:
        list(values_of(complain, 60.0))
    assert (caught.value.message, caught.value.hint) == ("no such device", "name another")
    with pytest.raises(EngineError, match="ZeroDivisionError: oh"):
        list(values_of(stumble, 60.0))


Child = Callable[[Sequence[Any]], Iterator[Measured]]


class Bench:
    """Stands in for the children that measure: each one runs `child` on the jobs it gets."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.child: Child = self.answers

    def __call__(
        self, _task: object, _timeout_s: float, work: Sequence[Job], _seconds: float
    ) -> Iterator[Measured]:
        self.starts.append(len(work))
        yield from self.child(work)

    def answers(self, work: Sequence[BandwidthJob]) -> Iterator[Measured]:
        for job in work:
            yield MemoryRate(job.device, 800e9)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    result = Bench()
    monkeypatch.setattr(machine, "values_of", result)
    monkeypatch.setattr(devices, "look", lambda **_how: SIGHT)
    return result


def test_devices_are_seen_without_measuring(bench: Bench) -> None:
    assert known_machine(may_measure=False) == SEEN
    assert bench.starts == []


@pytest.mark.usefixtures("bench")
def test_rates_of_all_devices_are_measured() -> None:
    told: list[float] = []

    def on_progress(fraction: float) -> bool:
        told.append(fraction)
        return True

    measured = measure_rates(SEEN, on_progress=on_progress)
    assert {rate.device for rate in measured.rates} == {"CPU", "CUDA0"}
    assert told == [0.5, 1.0]
    assert measured.notes == ()


def test_a_driver_that_dies_costs_one_figure_and_is_a_note(bench: Bench) -> None:
    def dying(work: Sequence[BandwidthJob]) -> Iterator[Measured]:
        for job in work:
            if job.device == "CUDA0":
                raise EngineDied("the probing process ended: SIGABRT")
            yield from bench.answers([job])

    bench.child = dying
    measured = measure_rates(SEEN)
    assert [rate.device for rate in measured.rates] == ["CPU"]
    assert bench.starts == [2]
    (note,) = measured.notes
    assert note == "the memory of CUDA0 could not be measured: the probing process ended: SIGABRT"


def test_measuring_that_cannot_even_begin_is_reported_for_everything(bench: Bench) -> None:
    def failing(work: Sequence[BandwidthJob]) -> Iterator[Measured]:
        yield from bench.answers(work[:0])
        raise EngineError("llama-cpp-python cannot be loaded")

    bench.child = failing
    measured = measure_rates(SEEN)
    assert measured.rates == ()
    assert len(measured.notes) == 2
    assert bench.starts == [2]


@pytest.mark.usefixtures("bench")
def test_measuring_can_be_stopped() -> None:
    with pytest.raises(Cancelled):
        measure_rates(SEEN, on_progress=lambda fraction: fraction < 0.4)


def test_a_slow_gpu_is_judged(bench: Bench) -> None:
    bench.child = lambda work: iter([MemoryRate("CUDA0", 100e9)])
    assert "11% of the 936 GB/s" in measure_rates(SEEN).notes[0]


def test_rates_are_kept_and_used_again(bench: Bench) -> None:
    first = known_machine()
    assert known_machine() == first
    assert len(bench.starts) == 1
    known_machine(fresh=True)
    assert len(bench.starts) == 2
    if os.name == "posix":
        assert machine.kept_file().stat().st_mode & 0o077 == 0


def test_free_memory_is_never_that_of_an_earlier_day(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    known_machine()
    fuller = replace(SEEN.devices[0], memory_free=GIB)
    monkeypatch.setattr(
        devices, "look", lambda **_how: replace(SIGHT, machine=Machine((fuller, SEEN.devices[1])))
    )
    assert known_machine().devices[0].memory_free == GIB
    assert len(bench.starts) == 1


@pytest.mark.parametrize(
    "changed",
    [
        replace(SIGHT, cards=Cards(driver="590.2")),
        replace(SIGHT, found=replace(SIGHT.found, version="0.3.37")),
        replace(SIGHT, machine=Machine(SEEN.devices[1:])),
        replace(SIGHT, machine=Machine((replace(SEEN.devices[0], pcie_width=1), SEEN.devices[1]))),
    ],
    ids=["driver", "llama-cpp-python", "a card less", "another slot"],
)
def test_a_changed_machine_is_measured_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, changed: DetectedMachine
) -> None:
    known_machine()
    monkeypatch.setattr(devices, "look", lambda **_how: changed)
    known_machine()
    assert len(bench.starts) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace('"schema": 1', '"schema": 2'),
        lambda text: text.replace("800000000000.0", "-5"),
        lambda text: text.replace("800000000000.0", '"fast"'),
        lambda text: text.replace("800000000000.0", "NaN"),
        lambda text: text.replace('"read"', '"reed"'),
    ],
)
def test_a_damaged_file_is_measured_again(bench: Bench, damage: Callable[[str], str]) -> None:
    known_machine()
    path = machine.kept_file()
    whole = path.read_text()
    path.write_text(damage(whole))
    assert path.read_text() != whole
    known_machine()
    assert len(bench.starts) == 2
    assert json.loads(path.read_text()) == json.loads(whole)


def test_rates_that_are_not_known_may_stay_so(bench: Bench) -> None:
    assert known_machine(may_measure=False) == SEEN
    assert bench.starts == []
    measured = known_machine()
    assert known_machine(may_measure=False) == measured


def test_what_could_be_measured_is_kept_and_what_could_not_is_marked(bench: Bench) -> None:
    def slow(work: Sequence[BandwidthJob]) -> Iterator[Measured]:
        for job in work:
            if job.device == "CUDA0":
                raise EngineDied("it took longer than 84 s")
            yield from bench.answers([job])

    bench.child = slow
    first, started = known_machine(), len(bench.starts)
    assert [rate.device for rate in first.rates] == ["CPU"]
    assert first.failures == (RateFailure("CUDA0", "it took longer than 84 s"),)
    assert known_machine() == known_machine(may_measure=False) == first
    assert len(bench.starts) == started
    bench.child = bench.answers
    assert known_machine(fresh=True).failures == known_machine().failures == ()


def test_where_nothing_could_be_measured_nothing_is_kept(bench: Bench) -> None:
    bench.child = lambda work: (job.failed("no room") for job in work)
    assert len(known_machine().failures) == 2
    assert not machine.kept_file().exists()


@pytest.mark.usefixtures("bench")
def test_a_disk_that_takes_nothing_costs_only_the_keeping() -> None:
    path = machine.kept_file()
    path.mkdir()
    assert known_machine().rates
    assert path.is_dir()


def with_sums(work: Sequence[Job]) -> Iterator[Measured]:
    for job in work:
        if isinstance(job, SumJob):
            yield SumCost(job.devices, 2e-5, 20e9)
        else:
            yield MemoryRate(job.device, 800e9)


@pytest.fixture
def two_cards(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A machine with two GPUs of one model, on which sums can be measured."""
    second = replace(SEEN.devices[0], id="CUDA1")
    seen = replace(SIGHT, machine=Machine((SEEN.devices[0], second, SEEN.devices[1])))
    monkeypatch.setattr(devices, "look", lambda **_how: seen)
    bench.child = with_sums
    return bench


def test_sums_over_equal_gpus_are_measured_and_kept(two_cards: Bench) -> None:
    measured = known_machine()
    assert measured.sums == (SumCost(("CUDA0", "CUDA1"), 2e-5, 20e9),)
    assert {rate.device for rate in measured.rates} == {"CPU", "CUDA0", "CUDA1"}
    assert known_machine() == known_machine(may_measure=False) == measured
    assert len(two_cards.starts) == 1


def test_sums_that_an_earlier_version_did_not_measure_are_measured_once(two_cards: Bench) -> None:
    measured = known_machine()
    path = machine.kept_file()
    value = json.loads(path.read_text())
    del value["sums"]
    path.write_text(json.dumps(value))
    earlier = known_machine(may_measure=False)
    assert (earlier.rates, earlier.sums) == (measured.rates, None)
    assert known_machine().sums == known_machine().sums == measured.sums
    assert len(two_cards.starts) == 2


def test_sums_that_cannot_be_measured_are_a_note(two_cards: Bench) -> None:
    def dying(work: Sequence[Job]) -> Iterator[Measured]:
        for job in work:
            if isinstance(job, SumJob):
                raise EngineDied("SIGABRT")
            yield from with_sums([job])

    two_cards.child = dying
    measured = known_machine()
    assert measured.sums == ()
    assert measured.notes == ("sums over CUDA0 and CUDA1 could not be measured: SIGABRT",)
    assert known_machine().sums == ()
    assert len(two_cards.starts) == 1


def test_sums_are_not_measured_for_different_gpus(bench: Bench) -> None:
    assert known_machine().sums == ()
    assert bench.starts == [2]
