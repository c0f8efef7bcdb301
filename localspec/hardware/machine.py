"""What is known of this machine: seen now, and measured once; or of a machine that a file describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.child_process import ValuesOf, values_of
from localspec.errors import Cancelled, EngineDied, EngineError, StoreError, UserError
from localspec.hardware import devices, nvml
from localspec.hardware.bandwidth import Job, Measured, SumJob, equal_pairs, jobs, judge, measure
from localspec.hardware.described import read_machine
from localspec.hardware.device_info import Machine, MemoryRate, RateFailure, SumCost, SumFailure
from localspec.hardware.devices import TIMEOUT_S, DetectedMachine
from localspec.storage.json_file import JsonFile
from localspec.storage.pair_identity import MachineFacts
from localspec.storage.paths import data_dir

SCHEMA = 1
_last: list[Machine] = []  # that was asked for here
_PATIENCE_S = 2 * TIMEOUT_S  # a GPU may have to make its programs, and then compute with them
Progress = Callable[[float], bool]
"""Gets the share that is done, 0 to 1; False stops the work."""


def measure_rates(machine: Machine, seconds: float = 8.0, on_progress: Progress | None = None) -> Machine:
    """Return the machine with its rates measured again; raises Cancelled when `on_progress` returns False.

    Failed measurements become notes.
    """
    pairs = tuple(map(SumJob, equal_pairs(machine.devices)))
    work: tuple[Job, ...] = (*jobs(machine.devices), *pairs)
    answers: list[Measured] = []
    for answer in _answers(work, seconds):
        answers.append(answer)
        if on_progress is not None and not on_progress(len(answers) / len(work)):
            raise Cancelled
    rates = tuple(answer for answer in answers if isinstance(answer, MemoryRate))
    failures = tuple(answer for answer in answers if isinstance(answer, RateFailure))
    sums = tuple(answer for answer in answers if isinstance(answer, SumCost))
    notes = (*machine.notes, *(str(answer) for answer in answers if isinstance(answer, SumFailure)))
    return _judged(replace(machine, rates=rates, failures=failures, sums=sums, notes=notes))


def known_machine(
    fresh: bool = False,
    on_progress: Progress | None = None,
    *,
    may_measure: bool = True,
    via: ValuesOf | None = None,
    again: bool = True,
) -> Machine:
    """Return this machine with its rates: saved ones, or measured now and saved.

    `fresh` always measures; without `may_measure`, rates that were not saved stay unknown; `via` looks at
    the devices as in `devices.look`. Without `again`, the last result is reused: a server that this program
    uses answers no other client.
    """
    if _last and not again:
        return _last[0]
    sight = devices.look(via=via)
    kept = None if fresh else recall(sight)
    is_whole = kept is not None and (kept.sums is not None or not equal_pairs(kept.devices))
    if is_whole or not may_measure:
        _last[:] = [_judged(kept or sight.machine)]
        return _last[0]
    measured = measure_rates(sight.machine, on_progress=on_progress)
    if measured.rates:
        with suppress(StoreError, UserError):  # a full disk costs the measuring next time, nothing else
            keep(sight, measured)
    return measured


def machine_to_plan(description: Path | None) -> Machine:
    """Return the machine that a file describes; without a file this one, as it is known without measuring.

    Raises UserError.
    """
    return known_machine(may_measure=False) if description is None else read_machine(description)


def _answers(work: Sequence[Job], seconds: float) -> Iterator[Measured]:
    """Yield the answer to every job, each child continuing where the one before has died."""
    left = tuple(work)
    while left:
        try:
            share_s = seconds * len(left) / len(work)
            with closing(values_of(measure, _PATIENCE_S + 3 * share_s, left, share_s)) as values:
                for value in values:
                    left = left[1:]
                    yield value
            return
        except EngineDied as died:
            yield left[0].failed(str(died))
            left = left[1:]
        except EngineError as error:  # no process, no llama.cpp: the next one would fare no better
            yield from (job.failed(str(error)) for job in left)
            return


def _judged(machine: Machine) -> Machine:
    new = [note for note in judge(machine) if note not in machine.notes]
    return replace(machine, notes=(*machine.notes, *new))


@dataclass(frozen=True, slots=True)
class _Kept:
    """The rates of a machine, and everything that they depend on."""

    seen: object
    rates: tuple[MemoryRate, ...]
    failures: tuple[RateFailure, ...] = ()
    sums: tuple[SumCost, ...] | None = None  # in files of versions that measured none


def kept_file() -> Path:
    """Return the path of the saved rates; the file may be missing."""
    return data_dir() / "machine.json"


def keep(sight: DetectedMachine, measured: Machine) -> None:
    """Save the rates of a machine; raises StoreError or UserError."""
    _file().write(_Kept(_seen(sight), measured.rates, measured.failures, measured.sums))


def recall(sight: DetectedMachine) -> Machine | None:
    """Return the machine with its saved rates; None if they are damaged or another machine's."""
    try:
        kept = _file().read()
    except UserError:
        return None
    if kept is None or kept.seen != _seen(sight):
        return None
    return replace(sight.machine, rates=kept.rates, failures=kept.failures, sums=kept.sums)


def _file() -> JsonFile[_Kept]:
    return JsonFile(kept_file(), _Kept, SCHEMA, is_sound=_is_sound)


def _is_sound(kept: _Kept) -> bool:
    sums = kept.sums or ()
    rates = [*(rate.read for rate in kept.rates), *(cost.rate for cost in sums)]
    return bool(kept.rates) and min(rates) > 0 and all(cost.delay_s >= 0 for cost in sums)


def _seen(sight: DetectedMachine) -> dict[str, object]:
    """Return everything that rates depend on, as JSON gives it back."""
    return {
        "devices": [
            [device.id, device.backend, device.name, device.cores, device.pcie_width, device.pcie_width_max]
            for device in sight.machine.devices
        ],
        "driver": sight.cards.driver,
        "llama_cpp_python": sight.found.version,
    }


def facts_of(machine: Machine) -> MachineFacts:
    """Return the facts of a machine that was looked at; asks NVIDIA's driver alone, where it has GPUs."""
    from importlib.metadata import PackageNotFoundError, version  # 15 ms that a plan does without

    processor = next((device for device in machine.devices if device.kind == "cpu"), None)
    has_cuda = any(device.backend == "CUDA" for device in machine.devices)
    llama_cpp = ""
    with suppress(PackageNotFoundError):
        llama_cpp = version("llama-cpp-python")
    return MachineFacts(
        processor="" if processor is None else processor.name,
        cores=0 if processor is None else processor.cores,
        devices=tuple(f"{each.id}: {each.name}" for each in machine.devices if each.kind != "cpu"),
        driver=nvml.look().driver if has_cuda else "",
        llama_cpp=llama_cpp,
    )
