"""Machines that files describe: what they may say, and which mistakes are found where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.app.recommendation import recommend
from localspec.errors import UserError
from localspec.hardware.bandwidth import Rates
from localspec.hardware.described import MAX_GPUS, read_machine
from localspec.hardware.device_info import DescribedMachine, Machine
from localspec.hardware.placement.place import place
from localspec.models.catalogue import shipped
from tests.hardware.machines import DESCRIBED, GIB, LARGE, SMALL, asking, described

Write = Callable[[str], Machine]
FULL = """
name = "Ryzen 7 5800X"
memory = "64 GB"
free = "50 GB"
cores = 8
rate = "51.2 GB/s"
measured = "40 GB/s"

[[gpu]]
name = "RTX 3060"
memory = "12 GB"
free = "11 GB"
rate = "360 GB/s"
measured = "330 GB/s"
pcie = "4 x16"
display = true

[[gpu]]
id = "CUDA1"
memory = "24GiB"
pcie = "PCIe 3.0 x8"
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def machine(text: str) -> Machine:
        path = tmp_path / "machine.toml"
        path.write_text(text, encoding="utf-8")
        return read_machine(path)

    return machine


def test_a_file_becomes_a_machine(write: Write) -> None:
    machine = write(FULL)
    assert isinstance(machine, DescribedMachine)
    first, second, processor = machine.devices
    assert (first.id, first.kind, first.name) == ("GPU0", "gpu", "RTX 3060")
    assert (first.memory_total, first.memory_free) == (12 * GIB, 11 * GIB)
    assert (first.theoretical_rate, first.drives_display) == (360e9, True)
    assert (first.pcie_generation, first.pcie_width) == (4, 16)
    assert (second.id, second.memory_total, second.drives_display) == ("CUDA1", 24 * GIB, None)
    assert (second.pcie_generation, second.pcie_width) == (3, 8)
    assert (processor.id, processor.kind, processor.name) == ("CPU", "cpu", "Ryzen 7 5800X")
    assert (processor.memory_total, processor.memory_free) == (64 * GIB, 50 * GIB)
    assert (processor.cores, processor.theoretical_rate) == (8, 51.2e9)
    assert [(rate.device, rate.read) for rate in machine.rates] == [("GPU0", 330e9), ("CPU", 40e9)]


def test_memory_alone_is_a_machine(write: Write) -> None:
    (processor,) = write('memory = "16 GB"').devices
    assert (processor.memory_total, processor.memory_free) == (16 * GIB, 12 * GIB)
    assert processor.cores == 8
    assert write('memory = "4 GB"').devices[0].memory_free == 2 * GIB


def test_a_driver_takes_its_share_of_a_gpu(write: Write) -> None:
    card = write('memory = "64 GB"\n[[gpu]]\nmemory = "24 GB"').devices[0]
    assert card.memory_free == pytest.approx(23.4 * GIB, rel=0.001)  # what an RTX 3090 shows


def test_a_unified_gpu_shares_memory_and_rate(write: Write) -> None:
    machine = write('memory = "128 GB"\nrate = "256 GB/s"\n[[gpu]]\nunified = true')
    card, processor = machine.devices
    assert (card.kind, card.memory_total, card.theoretical_rate) == ("integrated", 96 * GIB, 256e9)
    assert processor.theoretical_rate == 128e9  # the CPU cannot use all of it
    own = write('memory = "128 GB"\n[[gpu]]\nunified = true\nmemory = "110 GB"\nrate = "256 GB/s"')
    assert own.devices[0].memory_total == 110 * GIB
    assert own.devices[1].theoretical_rate == 128e9


def test_measured_rates_come_before_stated_ones(write: Write) -> None:
    rates = Rates(write(FULL))
    assert (rates.of["GPU0"].read, rates.of["GPU0"].origin) == (330e9, "measured")
    assert rates.of["CUDA1"].origin == "kind"
    stated = Rates(write('memory = "64 GB"\n[[gpu]]\nmemory = "12 GB"\nrate = "360 GB/s"'))
    assert stated.of["GPU0"].origin == "theoretical"


GPU = 'memory = "64 GB"\n\n[[gpu]]\nmemory = "12 GB"\n'


@pytest.mark.parametrize(
    ("text", "line", "words", "hint"),
    [
        ("", 0, "`memory` is missing from the file", 'memory = "64 GB"'),
        ("cores = 8", 0, "`memory` is missing from the file", 'memory = "64 GB"'),
        ('memroy = "64 GB"', 1, "there is no key `memroy`", "did you mean `memory`?"),
        ("memory = 64", 1, "`memory` has to be a text, not 64", "in quotes"),
        ('memory = "64"', 1, "`memory` has to be a size from 256 MB to 64 TB, not `64`", "unit"),
        ('memory = "-64 GB"', 1, "not `-64 GB`", "64 GB"),
        ('memory = "0 GB"', 1, "not `0 GB`", "64 GB"),
        ('memory = "64 potatoes"', 1, "not `64 potatoes`", "64 GB"),
        ('memory = "99999999999999999 TB"', 1, "from 256 MB to 64 TB", "64 GB"),
        ('memory = "64 GB"\nfree = "65 GB"', 2, "at most all of the memory, not `65 GB`", "free ="),
        ('memory = "64 GB"\ncores = 0', 2, "`cores` has to be a whole number from 1 to 1024, not 0", ""),
        ('memory = "64 GB"\ncores = "8"', 2, "`cores` has to be a whole number", ""),
        ('memory = "64 GB"\nrate = "fast"', 2, "from 0.1 GB/s to 100 TB/s, not `fast`", "360 GB/s"),
        ('memory = "64 GB"\nrate = "360"', 2, "not `360`", "360 GB/s"),
        ('memory = "64 GB"\ngpu = "RTX 3060"', 2, "`gpu` has to be a list of tables: [[gpu]]", ""),
        ('memory = "64 GB"\n[gpu]\nmemory = "12 GB"', 2, "has to be a list of tables: [[gpu]]", ""),
        ('memory = "64 GB"\n\n[[gpu]]', 3, "`memory` is missing from the table [[gpu]]", "64 GB"),
        (GPU + 'memory = "12 GB"', 5, "overwrite", "remove one of them"),
        (GPU + "vram = 12", 5, "there is no key `vram`", "known: display"),
        (GPU + "cores = 8", 5, "there is no key `cores`", "known: display"),
        (GPU + 'pcie = "4"', 5, "`pcie` has to be a link such as 4 x16, not `4`", "4 x16"),
        (GPU + 'pcie = "9 x16"', 5, "not `9 x16`", "4 x16"),
        (GPU + 'display = "yes"', 5, "`display` has to be true or false", ""),
        (GPU + 'id = "CPU"', 5, "`id` cannot be `CPU`: another device has this name", ""),
        (GPU + 'id = "1"', 5, "`id` cannot be `1`", "letters"),
        (GPU + 'id = "GPU0,GPU1"', 5, "`id` cannot be `GPU0,GPU1`", "letters"),
        (GPU + 'id = "GPU1"\n[[gpu]]\nmemory = "8 GB"', 6, "`id` cannot be `GPU1`", ""),
        (GPU + f'name = "{"x" * 61}"', 5, "at most 60 characters, not 61", ""),
        (GPU + 'name = "a\\nb"', 5, "`name` has to be one line of plain text", ""),
        (GPU + 'unified = true\nfree = "13 GB"', 6, "`free` has to be a size", "free ="),
        ('memory = "8 GB"\n[[gpu]]\nunified = true\nmemory = "12 GB"', 4, "no more memory than", ""),
        ('memory = "64 GB"\n' + '[[gpu]]\nmemory = "8 GB"\n' * 1000, 2, "there are 1,000 GPUs", ""),
        ("memory: 64 GB", 1, "", "with = instead of :"),
        ("memory = 64 GB", 1, "", "valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_line(write: Write, text: str, line: int, words: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        write(text)
    place = f"machine.toml, line {line}: " if line else "machine.toml: "
    assert place in refused.value.message
    assert words in refused.value.message
    assert hint in refused.value.hint
    assert "\n" not in str(refused.value)


def test_llama_cpp_has_a_limit_of_gpus(write: Write) -> None:
    card = '[[gpu]]\nmemory = "8 GB"\n'
    assert len(write('memory = "64 GB"\n' + card * MAX_GPUS).devices) == MAX_GPUS + 1
    with pytest.raises(UserError, match=r"there are 17 GPUs, and llama\.cpp uses at most 16"):
        write('memory = "64 GB"\n' + card * (MAX_GPUS + 1))


def test_what_is_no_file_is_a_mistake(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(bytes(range(256)))
    for path in (tmp_path, tmp_path / "missing.toml", binary):
        with pytest.raises(UserError, match=path.name):
            read_machine(path)


def test_the_names_of_the_file_work_as_devices(write: Write) -> None:
    machine = write(FULL)
    found = place(machine, SMALL, None, asking(devices=("CUDA1",), reserve=(("gpu0", GIB), ("1", GIB))))
    assert found.target.devices == ("CUDA1",)
    with pytest.raises(UserError, match="no device is called 'CUDA0'") as refused:
        place(machine, SMALL, None, asking(devices=("CUDA0",)))
    assert refused.value.hint == "devices: GPU0, CUDA1, CPU"


def test_a_plan_for_a_described_machine_does_not_speak_of_this_one(write: Write) -> None:
    for text in ('memory = "64 GB"', GPU):
        told = "\n".join(place(write(text), LARGE, SMALL, asking()).reasons)
        assert "was not measured" in told
        assert "this build of llama.cpp" not in told
        assert "`localspec devices`" not in told


def test_there_are_twelve_machines() -> None:
    assert len(DESCRIBED) == 12


@pytest.mark.parametrize("name", DESCRIBED)
def test_described_machines_get_a_recommendation(name: str) -> None:
    machine = described(name)
    cards = [device for device in machine.devices if device.kind != "cpu"]
    stated = [int(part.removesuffix("gb")) for part in name.split("-") if part.endswith("gb")]
    memories = [round(device.memory_total / GIB) for device in machine.devices]
    own = memories[:-1] if any(device.kind == "gpu" for device in cards) else memories[-1:]
    assert own == stated
    best = recommend(machine, shipped().pairs[:12], ())[0]
    assert best.placement is not None
    assert best.placement.tokens_per_s
