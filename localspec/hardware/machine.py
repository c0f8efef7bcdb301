"""What is known of this machine: seen now, and measured once."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from localspec.errors import Cancelled, EngineDied, EngineError, LocalSpecError, StoreError, UserError
from localspec.hardware import devices, nvml
from localspec.hardware.bandwidth import Job, Measured, Refused, jobs, judge, measure
from localspec.hardware.child import values_of
from localspec.hardware.device_info import LinkRate, Machine, MemoryRate
from localspec.hardware.devices import PATIENCE_S, Sight
from localspec.storage import paths
from localspec.storage.tuned_settings import MachineFacts

Progress = Callable[[float], bool]
"""Is told how much is done, 0 to 1; its False stops the work."""


def see_devices() -> Machine:
    """Look at this machine without measuring anything."""
    return _judged(devices.look().machine)


def measure_rates(machine: Machine, seconds: float = 8.0, on_progress: Progress | None = None) -> Machine:
    """Return the machine with its rates measured anew; raises Cancelled once `on_progress` gives False.

    What cannot be measured is a note.
    """
    work = jobs(machine.devices)
    rates: list[MemoryRate] = []
    links: list[LinkRate] = []
    troubles: list[str] = []
    for done, answer in enumerate(_answers(work, seconds), 1):
        match answer:
            case MemoryRate():
                rates.append(answer)
            case LinkRate():
                links.append(answer)
            case Refused():
                troubles.append(f"{answer.job} could not be measured: {answer.reason}")
        if on_progress is not None and not on_progress(done / len(work)):
            raise Cancelled
    measured = replace(machine, rates=tuple(rates), links=tuple(links))
    return _judged(replace(measured, notes=(*machine.notes, *troubles)))


def known_machine(
    fresh: bool = False, on_progress: Progress | None = None, *, may_measure: bool = True, here: bool = False
) -> Machine:
    """Return this machine with its rates: those kept from an earlier time, or measured now and kept.

    `fresh` measures in any case; without `may_measure` rates that were not kept stay unknown; `here` looks
    at the devices in this process.
    """
    sight = devices.look(here=here)
    kept = None if fresh else recall(sight)
    if kept is not None or not may_measure:
        return _judged(kept or sight.machine)
    measured = measure_rates(sight.machine, on_progress=on_progress)
    if _is_complete(sight, measured):
        with suppress(StoreError, UserError):  # a full disk costs the measuring next time, nothing else
            keep(sight, measured)
    return measured


def _is_complete(sight: Sight, measured: Machine) -> bool:
    """Tell whether the rates are worth keeping: every device gave one."""
    return {rate.device for rate in measured.rates} == {device.id for device in sight.machine.devices}


def _answers(work: Sequence[Job], seconds: float) -> Iterator[Measured | Refused]:
    """Yield the answer to every job, each child going on where the one before has died."""
    left = tuple(work)
    while left:
        try:
            with closing(_begun(left, seconds * len(left) / len(work))) as values:
                for value in values:
                    left = left[1:]
                    yield value
            return
        except EngineDied as died:
            yield Refused(left[0], str(died))
            left = left[1:]
        except EngineError as error:  # no process, no llama.cpp: the next one would fare no better
            yield from (Refused(job, str(error)) for job in left)
            return


def _begun(work: Sequence[Job], seconds: float) -> Generator[Measured | Refused, None, None]:
    return values_of(measure, PATIENCE_S + 3 * seconds, work, seconds)


def _judged(machine: Machine) -> Machine:
    new = [note for note in judge(machine) if note not in machine.notes]
    return replace(machine, notes=(*machine.notes, *new))


SCHEMA = 1


def kept_file() -> Path:
    """Return where the rates are kept; the file itself may be missing."""
    return paths.data_dir() / "machine.json"


def keep(sight: Sight, measured: Machine) -> None:
    """Write down what was measured on the machine as it was seen; raises StoreError or UserError."""
    value = {
        "schema": SCHEMA,
        "seen": _seen(sight),
        "rates": [asdict(rate) for rate in measured.rates],
        "links": [asdict(link) for link in measured.links],
    }
    paths.write_atomically(kept_file(), json.dumps(value, indent=1) + "\n")


def recall(sight: Sight) -> Machine | None:
    """Return the machine with the rates that were kept for it; None if they are another's or damaged."""
    try:
        value = json.loads(kept_file().read_text(encoding="utf-8"))
        if value["schema"] != SCHEMA or value["seen"] != _seen(sight):
            return None
        rates = tuple(
            MemoryRate(str(rate["device"]), _positive(rate["read"]), _positive(rate["copy"]))
            for rate in value["rates"]
        )
        links = tuple(
            LinkRate(str(link["source"]), str(link["target"]), _positive(link["rate"]))
            for link in value["links"]
        )
    except (LocalSpecError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return replace(sight.machine, rates=rates, links=links) if rates else None


def _seen(sight: Sight) -> dict[str, object]:
    """Return everything that rates depend on, as JSON gives it back."""
    return {
        "devices": [
            [device.id, device.backend, device.name, device.cores, device.pcie_width, device.pcie_width_max]
            for device in sight.machine.devices
        ],
        "driver": sight.cards.driver,
        "llama_cpp_python": sight.found.version,
    }


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"not a rate: {value!r}")
    return float(value)


def facts_of(machine: Machine) -> MachineFacts:
    """Return the facts of a machine that was looked at; asks NVIDIA's driver alone, where it has cards."""
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
