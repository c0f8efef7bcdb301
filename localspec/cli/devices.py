"""`localspec devices`: list this machine's devices and their speed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from localspec import units
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import SUCCESS, ConsoleStatus, print_result, say
from localspec.hardware.device_info import DeviceInfo, DeviceUser, Machine, MemoryRate


def parser() -> Parser:
    """Return the parser of `localspec devices`."""
    result = verb_parser(
        "devices",
        "List the devices that models can use, with their memory, its use, and their speed. "
        "The speeds are measured once, in about ten seconds, and saved until the devices change.",
    )
    result.add_argument(
        "--measure",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="measure the speeds again, or not at all (default: only if unknown)",
    )
    return result.with_output()


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().read(argv)
    from localspec.hardware.machine import known_machine

    with ConsoleStatus() as status:
        on_progress = status.share_of("measuring the devices")  # Ctrl+C ends the measuring process at once
        machine = known_machine(bool(args.measure), on_progress, may_measure=args.measure is not False)
    print_result(asdict(machine), table(machine), as_json=args.json)
    for note in () if args.json else machine.notes:
        say(f"note: {note}")
    return SUCCESS


def table(machine: Machine) -> list[str]:
    """Return the lines that describe a machine, the name of each device above what is known of it."""
    rates = {rate.device: rate for rate in machine.rates}
    lines: list[str] = []
    for device in machine.devices:
        lines.append(f"{device.id}: {device.name}")
        rows = (*_rows(device, rates.get(device.id)), *_sums(device, machine))
        lines += [f"  {name:<9} {text}" for name, text in rows]
    return lines


def _rows(device: DeviceInfo, rate: MemoryRate | None) -> Iterator[tuple[str, str]]:
    yield "memory", f"{units.memory(device.memory_free, 0)} free of {units.memory(device.memory_total, 0)}"
    if rate is not None or device.theoretical_rate is not None:
        yield "speed", _speed(rate, device.theoretical_rate)
    if device.cores:
        yield "cores", str(device.cores)
    if device.round_trip_s is not None:
        wire = f", {units.bandwidth(rate.link)}" if rate is not None and rate.link else ""
        yield "link", f"round trip {device.round_trip_s * 1e3:.1f} ms{wire}"
    if device.pcie_width is not None:
        yield "link", _link(device)
    if state := _state(device):
        yield "state", state
    if device.users:
        yield "used by", ", ".join(_user(user) for user in device.users)
    if device.features:
        yield "built for", ", ".join(device.features)


def _sums(device: DeviceInfo, machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield how fast partial results are added up, each pair of devices at its first one."""
    for cost in machine.sums or ():
        if device.id == cost.devices[0]:
            rate = units.bandwidth(cost.rate)
            yield "sums", f"with {cost.devices[1]}: {cost.delay_s * 1e6:.0f} µs each, {rate} (-sm tensor)"


def _speed(rate: MemoryRate | None, possible: float | None) -> str:
    parts = []
    if rate is not None:
        parts = [f"reads {units.bandwidth(rate.read)}"]
    if possible is not None:
        share = f" ({rate.read / possible:.0%} reached)" if rate is not None else ""
        parts.append(f"{units.bandwidth(possible)} possible{share}")
    return ", ".join(parts)


def _link(device: DeviceInfo) -> str:
    generation = f" {device.pcie_generation} now" if device.pcie_generation else ""
    most = f" of {device.pcie_width_max}" if device.pcie_width_max else ""
    return f"PCIe{generation}, {device.pcie_width}{most} lanes"


def _state(device: DeviceInfo) -> str:
    parts = []
    if device.kind == "remote":
        parts.append("on another machine")
    if device.kind == "integrated":
        parts.append("shares the CPU's memory")
    if device.temperature_c is not None:
        parts.append(f"{device.temperature_c:.0f} °C")
    if device.power_limit_w is not None:
        parts.append(f"at most {device.power_limit_w:.0f} W")
    if device.drives_display:
        parts.append("drives a display")
    return ", ".join(parts)


def _user(user: DeviceUser) -> str:
    memory = f", {user.memory / 2**20:.0f} MiB" if user.memory is not None else ""
    return f"{user.name} (process {user.pid}{memory})"
