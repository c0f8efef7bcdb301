"""What was tuned for a pair reaches `run`, `chat` and the models."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localspec.app import opening
from localspec.app.opening import plan_to_open, reason
from localspec.cli.shared.arguments import add_answer_flags, verb_parser
from localspec.errors import UserError
from localspec.hardware import machine as machine_module
from localspec.hardware.device_info import Machine
from localspec.hardware.machine import facts_of
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.storage.pair_identity import Identity, identify
from localspec.storage.paths import config_dir, data_dir
from localspec.storage.tuned_settings import LoadOptions, TunedTask, keep, save_load_options
from localspec.types.request import EngineSettings, Mode
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime
from tests.cli.requests import found, left_as_asked, requested
from tests.hardware.machines import card, machine

HERE = machine((card(0, 24), 900), (card(1, 8), 300))
UNTUNED = EngineSettings(mode="sd", fallback="ngram")
CODING = TunedTask(
    "coding",
    EngineSettings(mode="sd", draft_length=5, fan_out_budget=20),
    1.8, 1.7, 1.9, 90.0, 50.0,
    (datetime.now(UTC) - timedelta(days=2, hours=1)).isoformat(),
    "sd runs at 1.80× plain decoding",
)  # fmt: skip
DIALOGUE = replace(
    CODING, task="dialogue", settings=EngineSettings(mode="off"), reason="nothing beats plain decoding"
)
CODE = ("Write a Python function.", "--profile", "coding")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Make two files that are good enough to be told from others, on a machine of the test's own."""
    monkeypatch.setattr(machine_module, "known_machine", lambda **_: HERE)
    for name in ("large", "small"):
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF" + name.encode() * 4000)
    return ("-m", str(tmp_path / "large.gguf"), "-md", str(tmp_path / "small.gguf"))


def asked_by(*flags: str) -> PairRequest:
    parser = verb_parser("run", "")
    add_answer_flags(parser)
    return requested(parser.parse_args(flags))


def unplaced(*flags: str) -> OpenPlan:
    request = asked_by(*flags)
    return as_asked(found(request), request)


def planned(request: PairRequest) -> OpenPlan:
    return plan_to_open(request, found(request), via=None, report=None).plan


def placed(monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], *flags: str) -> OpenPlan:
    """Return the pair as it is opened, where every placement is as the flags say."""
    monkeypatch.setattr(opening, "placed", left_as_asked)
    return planned(asked_by(*files, *flags))


def identity(files: tuple[str, ...], on: Machine = HERE) -> Identity:
    pair = unplaced(*files)
    return identify(pair.target, pair.draft, facts_of(on))


def test_run_uses_what_was_tuned_and_says_so(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...]
) -> None:
    keep(identity(files), CODING)
    outcome = invoke("run", *CODE, *files, "--json")
    [request] = fake.requests
    assert (request.settings, request.steps_down) == (CODING.settings, True)
    assert json.loads(outcome.out)["speculation"]["reason"] == "tuned 2 days ago: 1.8x plain (1.7-1.9)"
    assert fake.opened[0].max_fan_out >= CODING.settings.fan_out_budget
    assert outcome.err == ""


def test_chat_uses_what_was_tuned_for_each_line(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...]
) -> None:
    keep(identity(files), CODING)
    keep(identity(files), DIALOGUE)
    invoke("chat", *files, "--profile", "auto", piped=b"What should I cook?\nWrite a Python function.\n")
    assert [request.settings.mode for request in fake.requests] == ["off", "sd"]


def test_task_that_was_not_tuned_asks_the_cost_model(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...]
) -> None:
    keep(identity(files), CODING)
    invoke("run", "Hello", *files)
    assert fake.requests[0].settings == UNTUNED


@pytest.mark.parametrize(
    ("flags", "mode", "length"),
    [
        (("--draft-length", "3"), "sd", 3),
        (("--draft-length", "8"), "sd", 8),
        (("--mode", "sd"), "sd", 5),
        (("--mode", "ssd"), "ssd", 12),
        (("--mode", "off"), "off", 12),
    ],
)
def test_flags_go_before(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...], flags: tuple[str, ...], mode: Mode, length: int
) -> None:
    keep(identity(files), CODING)
    invoke("run", *CODE, *files, *flags)
    assert (fake.requests[0].settings.mode, fake.requests[0].settings.draft_length) == (mode, length)


def test_profile_of_ones_own_goes_before_the_tuner(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...]
) -> None:
    keep(identity(files), CODING)
    (config_dir() / "profiles").mkdir()
    text = 'title = "Mine"\ntask = "coding"\nspeculation.draft_length = 2'
    (config_dir() / "profiles" / "mine.toml").write_text(text, encoding="utf-8")
    invoke("run", "Hi", "--profile", "mine", *files)
    assert fake.requests[0].settings == replace(CODING.settings, draft_length=2)


def test_settings_of_another_driver_are_used_and_reported(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...]
) -> None:
    now = identity(files)
    keep(replace(now, machine=replace(now.machine, llama_cpp="0.1")), CODING)
    outcome = invoke("run", *CODE, *files)
    assert fake.requests[0].settings == CODING.settings
    [line] = outcome.err.splitlines()
    assert line.startswith("note: tuned settings for coding: tuned with llama-cpp-python 0.1")
    assert line.endswith("run `localspec tune --task coding`")


def test_settings_of_other_files_or_places_are_reported_and_not_used(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...]
) -> None:
    keep(identity(files), CODING)
    assert "another placement" in invoke("run", *CODE, *files, "-t", "3").err
    Path(files[1]).write_bytes(b"GGUF" + b"other" * 4000)
    assert "the file of the target has changed" in invoke("run", *CODE, *files).err
    assert [request.settings for request in fake.requests] == [UNTUNED] * 2


def test_damaged_file_is_reported_and_nothing_is_used(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...]
) -> None:
    (data_dir() / "tuned.json").write_text("{", encoding="utf-8")
    outcome = invoke("run", *CODE, *files)
    assert fake.requests[0].settings == UNTUNED
    assert [line for line in outcome.err.splitlines() if "tuned.json cannot be used" in line] != []
    assert (outcome.code, outcome.out) == (0, "Hello\n")


def test_pair_is_opened_as_was_found_best_unless_flags_say_otherwise(
    files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    best = LoadOptions(5, 2, 256, draft_flash_attention=True, draft_kv_type="q8_0", draft_on_cpu=True)
    given = ("-ub", "128", "-fa", "off", "-ctkd", "f16", "-t", "3", "-td", "1", "-devd", "CUDA1")
    for flags in ((), given):
        pair = unplaced(*files, *flags)
        now = identify(pair.target, pair.draft, facts_of(HERE))
        keep(now, CODING)
        save_load_options(now, best)
        opened = placed(monkeypatch, files, *flags)
        assert opened.draft is not None
        assert (opened.target.threads, opened.draft.threads) == ((3, 1) if flags else (5, 2))
        assert opened.draft.devices == (("CUDA1",) if flags else ())
        tuned = (opened.target.micro_batch, opened.draft.flash_attention, opened.draft.kv_type_v)
        assert tuned == ((128, False, "f16") if flags else (256, True, "q8_0"))


def test_a_tuned_cache_of_the_target_is_said_in_a_line(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...]
) -> None:
    keep(identity(files), CODING)
    save_load_options(identity(files), LoadOptions(target_kv_type="q8_0"))
    said = "note: the target's cache is q8_0"
    assert said in invoke("run", *CODE, *files).err
    plan = planned(asked_by(*files))
    assert (plan.target.kv_type_k, plan.target.kv_type_v) == ("q8_0", "q8_0")
    given = invoke("run", *CODE, *files, "-ctk", "f16")
    assert given.code == 0
    assert said not in given.err
    assert planned(asked_by(*files, "-ctk", "f16")).target.kv_type_v == "f16"
    assert fake.requests


def test_draft_model_gets_the_place_that_it_was_tuned_on(
    files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(identity(files), CODING)
    modes = []

    def place(files: PairFiles, request: PairRequest, **_here: object) -> OpenPlan:
        modes.append(request.mode)
        plan = as_asked(files, request)
        return plan if request.mode == "sd" else replace(plan, draft=None)

    monkeypatch.setattr(opening, "placed", place)
    assert planned(asked_by(*files)).draft == unplaced(*files).draft
    assert modes == [None, "sd"]


def test_draft_model_for_which_there_is_not_a_room_is_left_out(
    files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(files: PairFiles, request: PairRequest, **_here: object) -> OpenPlan:
        if request.mode == "sd":
            raise UserError("not enough memory for both")
        return replace(as_asked(files, request), draft=None)

    keep(identity(files), CODING)
    monkeypatch.setattr(opening, "placed", place)
    opened = planned(asked_by(*files, "--fan-out", "64"))
    assert (opened.draft, opened.max_fan_out) == (None, 64)


def test_pair_that_was_never_tuned_is_placed_as_asked(
    files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(identity(files), CODING)
    asked = (*files[:2], "--mode", "ngram")
    assert placed(monkeypatch, asked) == unplaced(*asked)


def test_what_calls_cost_is_kept_for_answers(
    fake: FakeRuntime, invoke: Invoke, files: tuple[str, ...]
) -> None:
    invoke("run", "Hi", *files)
    assert fake.opened[0].remembers_costs


def test_reason_reports_when_and_how_much() -> None:
    now = datetime.fromisoformat(CODING.measured_at) + timedelta(minutes=5)
    assert reason(CODING, now) == "tuned 5 minutes ago: 1.8x plain (1.7-1.9)"
    assert reason(DIALOGUE, now) == "tuned 5 minutes ago: nothing beats plain decoding"


def test_plan_is_asked_as_before_where_nothing_is_tuned(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[PairRequest] = []

    def placed(files: PairFiles, request: PairRequest, **_: object) -> OpenPlan:
        seen.append(request)
        return as_asked(files, request)

    monkeypatch.setattr(opening, "placed", placed)
    invoke("run", "Hi", "--mode", "ssd")
    assert [request.mode for request in seen] == ["ssd"]
    assert fake.opened[0].max_fan_out == 16
