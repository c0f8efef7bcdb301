"""What other programs read and what is found again by its name: both stay as they were recorded."""

from __future__ import annotations

import json
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import pytest

from localspec.demo import bundled_pair
from localspec.errors import EngineError
from localspec.hardware import machine as machine_module
from localspec.hardware.device_info import Machine
from localspec.hardware.placement import plan as plan_module
from localspec.storage.call_costs import costs_file, opening_key
from localspec.storage.config import read_config
from localspec.storage.pair_identity import Identity, MachineFacts, ModelFacts, identify
from localspec.storage.paths import config_dir, data_dir
from localspec.storage.tuned_settings import LoadOptions, find_load_options, save_load_options
from localspec.tuning.confirm import Entrant
from localspec.tuning.run_folder import digest
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request
from tests.cli.conftest import Invoke
from tests.cli.tuning_script import whole
from tests.hardware.machines import card, machine

KEPT = Path(__file__).parent / "kept"
FINGERPRINTS = ("c5b5611ac8e5659cf206661a30e561e8", "4f329af7c8661bc5719fc79b025ea49e")
PROCESSOR = MachineFacts("Intel(R) Xeon(R) Processor @ 2.80GHz", 2, (), "", "0.3.36")
SEAT = "the processor, all cores"
BUNDLED = Identity(
    PROCESSOR,
    ModelFacts("/models/demo-target.gguf", FINGERPRINTS[0], SEAT),
    ModelFacts("/models/demo-draft.gguf", FINGERPRINTS[1], SEAT),
    4096,
)
TARGET = ModelOptions(Path("target.gguf"), context=4096, gpu_layers=0, devices=())
DRAFT = ModelOptions(Path("draft.gguf"), context=4096, gpu_layers=0, devices=())
UNUSUAL_TARGET = ModelOptions(
    Path("target.gguf"),
    context=8192,
    gpu_layers=65,
    devices=("CUDA0", "CUDA1"),
    tensor_split=(3.0, 1.0),
    split_mode="row",
    main_gpu=1,
    output_at_home=True,
    kv_type_k="q8_0",
    kv_type_v="q4_0",
    flash_attention=True,
    batch=1024,
    micro_batch=256,
    threads=4,
    mmap=False,
    chat_template=Path("t.jinja"),
)
UNUSUAL_DRAFT = ModelOptions(
    Path("draft.gguf"), context=8192, gpu_layers=9, devices=("CUDA1",), flash_attention=False, threads=3
)
REQUEST = Request(
    (Message("system", "Be brief."), Message("user", "Hello")),
    settings=EngineSettings(mode="off"),
    max_tokens=96,
    seed=3,
)
KEPT_AT_FIRST = {
    "threads",
    "draft_threads",
    "micro_batch",
    "draft_flash_attention",
    "draft_kv_type",
    "draft_on_cpu",
}
BEST = Entrant("best", EngineSettings("ssd"), 12.5)


def recorded(name: str) -> object:
    return json.loads((KEPT / name).read_text("utf-8"))


@pytest.mark.parametrize(
    ("target", "draft", "max_fan_out", "together", "name"),
    [
        (TARGET, DRAFT, 16, True, "ade15eccfcdbda79-4cdb6624b90b6540.json"),
        (TARGET, DRAFT, 16, False, "ade15eccfcdbda79-b09ada8cab3a4307.json"),
        (TARGET, None, 24, False, "ade15eccfcdbda79-e176df802e6998e9.json"),
        (UNUSUAL_TARGET, UNUSUAL_DRAFT, 64, True, "ade15eccfcdbda79-40ad7101869eb1e7.json"),
    ],
)
def test_costs_are_found_under_the_names_that_they_were_kept_by(
    target: ModelOptions, draft: ModelOptions | None, max_fan_out: int, together: bool, name: str
) -> None:
    assert costs_file(BUNDLED, opening_key(target, draft, max_fan_out, together=together)).name == name


def test_what_a_run_keeps_is_found_under_its_name() -> None:
    place = digest(BUNDLED)
    assert place == "65d2d7a736e8b64e"
    assert digest(place, LoadOptions()) == "eba8cb9a141c976d"  # its costs
    assert digest(REQUEST) == "95f1505391fdfb8f"  # the trace of an answer
    assert digest("k", (REQUEST,), (BEST,), length=32) == "12d1fb469698bef4468ad703bf9184af"  # its runs


def test_the_bundled_pair_is_the_one_that_was_tuned() -> None:
    target, draft = bundled_pair()
    found = identify(
        ModelOptions(target, context=4096, devices=()),
        ModelOptions(draft, context=4096, devices=()),
        PROCESSOR,
    )
    assert (found.pair, found.context) == ("ade15eccfcdbda79", 4096)
    assert found.draft is not None
    assert (found.target.fingerprint, found.draft.fingerprint) == FINGERPRINTS
    assert (found.target.seat, found.draft.seat) == (SEAT, SEAT)


@pytest.mark.parametrize(
    ("name", "where", "flags"),
    [
        ("plan-processor.json", machine(), ()),
        ("plan-cards.json", machine((card(0, 24), 900), (card(1, 8), 300)), ("--mode", "ssd", "-td", "2")),
    ],
)
def test_a_plan_is_reported_as_ever(
    name: str, where: Machine, flags: tuple[str, ...], invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_options: object, **_how: object) -> NoReturn:
        raise EngineError("llama.cpp does not know GPUs that are not here")

    monkeypatch.setattr(machine_module, "known_machine", lambda **_: where)
    monkeypatch.setattr(plan_module, "exact", unknown)
    target, draft = bundled_pair()
    said = invoke("plan", "--json", "-m", str(target), "-md", str(draft), *flags)
    assert json.loads(said.out) == recorded(name)


def test_a_tuning_is_reported_as_ever(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.cli.tune.run", lambda *_: whole())
    said = invoke("tune", "--no-fit", "--json")
    value = json.loads(said.out.replace(str(bundled_pair()[0].parent), "/models"))
    assert value == recorded("tune.json")


def test_ways_to_open_a_pair_are_kept_as_ever() -> None:
    kept, file = recorded("workplaces.json"), data_dir() / "tuned.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept), "utf-8")
    best = LoadOptions(3, 1, 256, draft_flash_attention=True, draft_on_cpu=True)
    assert find_load_options(BUNDLED) == best
    save_load_options(BUNDLED, best)
    written = json.loads(file.read_text("utf-8"))
    for name, usual in asdict(LoadOptions()).items():
        if name not in KEPT_AT_FIRST:
            assert written["workplaces"][0]["workplace"].pop(name) == usual
    assert written == kept


def test_a_configuration_of_0_1_0_is_read() -> None:
    with tarfile.open(KEPT / "version-0.1.0.tar.gz") as archive:
        (path := config_dir() / "config.toml").parent.mkdir(parents=True, exist_ok=True)
        written = archive.extractfile("./config.toml")
        assert written is not None
        path.write_bytes(written.read())
    config = read_config(path)
    folder = Path("/opt/localspec/bundled-1")
    assert (config.target, config.draft) == (folder / "demo-target.gguf", folder / "demo-draft.gguf")
    assert config.context == 1024
