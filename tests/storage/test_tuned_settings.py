"""Tuned settings on disk: what holds, what has gone stale, and what happens to the file."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import ModelFileError, StoreError
from localspec.hardware.device_info import DeviceInfo, Machine
from localspec.hardware.machine import facts_of
from localspec.storage import json_file, tuned_settings
from localspec.storage.pair_identity import Identity, MachineFacts, fingerprint, identify
from localspec.storage.paths import data_dir
from localspec.storage.tuned_settings import (
    LoadOptions,
    TunedTask,
    everything,
    find_load_options,
    forget,
    keep,
    recall,
    save_load_options,
)
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings

MACHINE = MachineFacts("A processor", 8, ("CUDA0: A card",), "550.1", "0.3.36")
SETTINGS = EngineSettings(mode="sd", draft_length=5, min_confidence=0.25, acceptance="match")
CODING = TunedTask(
    "coding", SETTINGS, 1.4, 1.3, 1.5, 70.0, 50.0, "2026-01-02T03:04:05+00:00", "sd runs at 1.40 x"
)
WRITING = replace(CODING, task="writing", settings=EngineSettings(mode="off"))


@pytest.fixture
def target(tmp_path: Path) -> ModelOptions:
    return options(tmp_path / "target.gguf", b"large")


@pytest.fixture
def draft(tmp_path: Path) -> ModelOptions:
    return options(tmp_path / "draft.gguf", b"small")


def options(path: Path, content: bytes) -> ModelOptions:
    path.write_bytes(b"GGUF" + content * 4000)
    return ModelOptions(path, context=8192, devices=("CUDA0",), gpu_layers=33)


def identity(target: ModelOptions, draft: ModelOptions | None, machine: MachineFacts = MACHINE) -> Identity:
    return identify(target, draft, machine)


def tuned_file() -> Path:
    return data_dir() / "tuned.json"


def test_what_is_kept_is_recalled_for_the_same_pair_and_task(
    target: ModelOptions, draft: ModelOptions
) -> None:
    here = identity(target, draft)
    keep(here, CODING)
    keep(here, WRITING)
    found = recall(identity(target, draft), "coding")
    assert (found.tuned, found.stale, found.settings) == (CODING, (), SETTINGS)
    assert recall(here, "writing").settings == WRITING.settings
    assert recall(here, "math") == tuned_settings.SavedTuning()
    assert recall(identity(target, None), "coding").tuned is None
    assert tuned_file().stat().st_mode & 0o777 == 0o600


def test_tuning_again_replaces_and_another_placement_is_kept_next_to(
    target: ModelOptions, draft: ModelOptions
) -> None:
    here, there = identity(target, draft), identity(replace(target, gpu_layers=20), draft)
    keep(here, CODING)
    keep(there, replace(CODING, gain=2.0))
    keep(here, replace(CODING, gain=3.0))
    kept, note = everything()
    assert [each.tuned.gain for each in kept] == [2.0, 3.0]
    assert note == ""
    assert [recall(each, "coding").tuned for each in (there, here)] == [each.tuned for each in kept]
    newer = identity(target, draft, replace(MACHINE, driver="560.2"))
    keep(newer, replace(CODING, gain=4.0, measured_at="2027-01-01"))
    assert len(everything()[0]) == 2
    assert recall(here, "coding").stale == ("tuned with driver 560.2, now 550.1",)


@pytest.mark.parametrize(
    ("machine", "change"),
    [
        ({"driver": "560.2"}, "tuned with driver 550.1, now 560.2"),
        ({"llama_cpp": "0.4.0"}, "tuned with llama-cpp-python 0.3.36, now 0.4.0"),
        ({"cores": 4}, "tuned on another CPU: A processor, 8 cores"),
        ({"devices": ()}, "tuned with CUDA0: A card, now the processor alone"),
    ],
)
def test_a_changed_machine_is_noticed(
    target: ModelOptions, draft: ModelOptions, machine: dict[str, object], change: str
) -> None:
    keep(identity(target, draft), CODING)
    found = recall(identity(target, draft, replace(MACHINE, **machine)), "coding")  # type: ignore[arg-type]
    assert found.stale == (change,)
    assert found.tuned == CODING
    assert found.settings is None


def test_another_placement_is_noticed(target: ModelOptions, draft: ModelOptions) -> None:
    keep(identity(target, draft), CODING)
    [change] = recall(identity(replace(target, gpu_layers=20), draft), "coding").stale
    assert change == (
        "another placement: the target was on CUDA0 (33 layers), all cores, now CUDA0 (20 layers), all cores"
    )
    [change] = recall(identity(target, replace(draft, devices=(), threads=3)), "coding").stale
    assert change.endswith("now the processor, 3 threads")
    [change] = recall(identity(replace(target, context=40_000), draft), "coding").stale
    assert change == "tuned for a context of up to 16,384 tokens, now up to 65,536 tokens"
    assert not recall(identity(replace(target, context=16_000), draft), "coding").stale  # costs are alike
    [change] = recall(identity(replace(target, kv_type_k="q8_0"), draft), "coding").stale
    assert "cache q8_0/f16" in change


def test_a_changed_file_is_noticed_and_a_moved_one_is_the_same(
    target: ModelOptions, draft: ModelOptions, tmp_path: Path
) -> None:
    keep(identity(target, draft), CODING)
    moved = replace(target, path=target.path.rename(tmp_path / "moved.gguf"))
    assert recall(identity(moved, draft), "coding").settings == SETTINGS
    draft.path.write_bytes(b"GGUF" + b"other" * 4000)
    found = recall(identity(moved, draft), "coding")
    assert found.stale == ("the file of the draft model has changed",)
    other = options(tmp_path / "unknown.gguf", b"unknown")
    assert recall(identity(other, draft), "coding").tuned is None


def test_of_several_that_do_not_fit_the_closest_and_newest_is_named(
    target: ModelOptions, draft: ModelOptions
) -> None:
    far = identity(replace(target, gpu_layers=10), draft, replace(MACHINE, driver="1"))
    near, newer = (identity(replace(target, gpu_layers=layers), draft) for layers in (20, 21))
    keep(far, replace(CODING, measured_at="2026-03-01"))
    keep(newer, replace(CODING, measured_at="2026-02-01"))
    keep(near, replace(CODING, measured_at="2026-01-01"))
    found = recall(identity(target, draft), "coding")
    assert found.tuned is not None
    assert found.tuned.measured_at == "2026-02-01"


def test_settings_are_forgotten_by_task_or_all(target: ModelOptions, draft: ModelOptions) -> None:
    here, alone = identity(target, draft), identity(target, None)
    for where in (here, alone):
        keep(where, CODING)
        keep(where, WRITING)
        save_load_options(where, LoadOptions(threads=3))
    assert forget(here, "coding") == 1
    assert recall(here, "coding").tuned is None
    assert recall(here, "writing").tuned == WRITING
    assert find_load_options(here) is not None
    elsewhere = identity(target, draft, replace(MACHINE, cores=2))
    assert forget(elsewhere) == 1
    assert find_load_options(here) is None
    assert [each.identity for each in everything()[0]] == [alone, alone]
    assert find_load_options(alone) is not None


def test_a_workplace_is_recalled_only_where_it_holds(target: ModelOptions, draft: ModelOptions) -> None:
    here = identity(target, draft)
    best = LoadOptions(6, 2, 256, draft_flash_attention=True, draft_kv_type="q8_0", draft_on_cpu=True)
    save_load_options(here, LoadOptions())
    save_load_options(here, best)
    assert find_load_options(here) == best
    assert find_load_options(identity(target, draft, replace(MACHINE, driver="560"))) is None


@pytest.mark.parametrize(
    "content", ["", "{", '{"schema": 2}', '{"schema": 1, "tasks": [{}]}', "[" * 100_000, "\udcff"]
)
def test_a_damaged_or_newer_file_is_as_good_as_none_and_is_set_aside(
    target: ModelOptions, draft: ModelOptions, content: str
) -> None:
    here = identity(target, draft)
    tuned_file().write_bytes(content.encode("utf-8", "surrogateescape"))
    assert recall(here, "coding").tuned is None
    found, note = everything()
    assert not found
    assert note.startswith(f"the tuned settings in {tuned_file()} cannot be used: ")
    keep(here, CODING)
    assert recall(here, "coding") == tuned_settings.SavedTuning(CODING)
    assert tuned_file().with_suffix(".unread").read_bytes() == content.encode("utf-8", "surrogateescape")


def test_programs_that_write_at_once_lose_nothing(target: ModelOptions, draft: ModelOptions) -> None:
    places = [identity(replace(target, gpu_layers=layers), draft) for layers in range(8)]
    writers = [threading.Thread(target=keep, args=(place, CODING)) for place in places]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {each.identity for each in everything()[0]} == set(places)


def test_a_disk_that_cannot_be_written_is_one_clear_error(
    target: ModelOptions, draft: ModelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("cannot write: no space")

    here = identity(target, draft)
    keep(here, CODING)
    before = tuned_file().read_text()
    monkeypatch.setattr(json_file, "write_atomically", refuse)
    with pytest.raises(StoreError, match="no space"):
        keep(here, WRITING)
    assert tuned_file().read_text() == before
    assert recall(here, "coding").tuned == CODING


def test_a_fingerprint_reports_files_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    content = bytearray(os.urandom(3_000_000))
    path.write_bytes(content)
    first = fingerprint(path)
    content[1_500_000:1_600_000] = os.urandom(100_000)
    path.write_bytes(content)
    second = fingerprint(path)
    path.write_bytes(content[:-1])
    assert len({first, second, fingerprint(path)}) == 3

    copy = tmp_path / "copy.gguf"
    copy.write_bytes(content)
    assert fingerprint(copy) == second


def test_a_model_in_several_files_changes_with_any_of_them(tmp_path: Path) -> None:
    parts = [tmp_path / f"model-{number:05d}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF" + part.name.encode())
    first = fingerprint(parts[0])
    parts[1].write_bytes(b"GGUF another")
    assert fingerprint(parts[0]) != first
    parts[1].unlink()
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        fingerprint(parts[0])


def test_small_and_empty_files_have_fingerprints(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    found = []
    for content in (b"", b"G", b"GGUF"):
        path.write_bytes(content)
        found.append(fingerprint(path))
    assert len({*found}) == 3


def test_a_pair_has_a_name_for_its_files(target: ModelOptions, draft: ModelOptions) -> None:
    here = identity(target, draft)
    assert here.pair == identity(replace(target, gpu_layers=1), draft, replace(MACHINE, cores=1)).pair
    assert len({here.pair, identity(target, None).pair, identity(draft, target).pair}) == 3
    assert here.pair.isalnum()


def test_the_facts_of_a_machine_are_what_speed_depends_on() -> None:
    machine = Machine((
        DeviceInfo("Vulkan0", "integrated", "Vulkan", "A chip", 1, 1),
        DeviceInfo("CPU", "cpu", "CPU", "A processor", 64, 32, cores=8),
    ))  # fmt: skip
    facts = facts_of(machine)
    assert (facts.processor, facts.cores, facts.devices, facts.driver) == (
        "A processor", 8, ("Vulkan0: A chip",), "",
    )  # fmt: skip
    assert facts.llama_cpp.startswith("0.")
