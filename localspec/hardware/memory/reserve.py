"""`--reserve`: how much of each device's memory is left alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.errors import UserError
from localspec.hardware.device_info import Machine

Reserve = tuple[tuple[str, int], ...]

_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_UNITS = {
    "": 1, "b": 1, "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30, "t": 2**40,
    "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_EXAMPLE = "for instance --reserve 0=1GiB,1=2GiB,cpu=4GiB"


def parse_reserve(text: str) -> Reserve:
    """Return devices, as they are named in the text, with the bytes to leave free on each."""
    given: dict[str, int] = {}
    for part in text.split(","):
        device, equals, size = (word.strip() for word in part.partition("="))
        if not (device and equals):
            raise UserError(f"--reserve does not understand `{part.strip()}`", _EXAMPLE)
        if device in given:
            raise UserError(f"--reserve names {device} twice", "give one size for each device")
        given[device] = _bytes(size)
    return tuple(given.items())


def reserve_on(machine: Machine, given: Sequence[tuple[str, int]]) -> Reserve:
    """Return a reserve with ggml's names of the devices; a number counts the cards from 0."""
    cards = [device.id for device in machine.devices if device.kind != "cpu"]
    known = {device.id.lower(): device.id for device in machine.devices}
    known |= {str(number): name for number, name in enumerate(cards)}
    found: dict[str, int] = {}
    for name, size in given:
        device = known.get(name.lower())
        if device is None:
            there = ", ".join(f"{number} ({card})" for number, card in enumerate(cards))
            raise UserError(f"--reserve: there is no device {name}", f"devices: {there or 'no cards'}, cpu")
        if device in found:
            raise UserError(f"--reserve names {device} twice", "give one size for each device")
        found[device] = size
    return tuple(found.items())


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise UserError(f"--reserve: `{text}` is no size", _EXAMPLE)
    return int(float(found[1]) * unit)
