from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.demo import bundled_pair
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Sampling
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime

PAIR = ("-m", "big.gguf", "-md", "small.gguf")
BIG, SMALL = ModelOptions(Path("big.gguf")), ModelOptions(Path("small.gguf"))


def test_without_models_the_bundled_pair_opens(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run", "Hi").code == 0
    [options] = fake.opened
    target, draft = bundled_pair()
    assert options.target == ModelOptions(target)
    assert options.draft == ModelOptions(draft)
    assert options.max_fan_out == 16


def test_a_target_alone_has_no_draft(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run", "Hi", "-m", "big.gguf").code == 0
    assert fake.opened[0].target == BIG
    assert fake.opened[0].draft is None


@pytest.mark.parametrize(("mode", "opens"), [("off", False), ("ngram", False), ("sd", True), ("auto", True)])
def test_a_draft_model_that_nobody_asks_stays_closed(
    fake: FakeRuntime, invoke: Invoke, mode: str, opens: bool
) -> None:
    assert invoke("run", "Hi", *PAIR, "--mode", mode).code == 0
    assert (fake.opened[0].draft is not None) == opens
    assert fake.opened[0].target.longest_draft == (0 if mode == "off" else None)


@pytest.mark.parametrize(
    ("flags", "target", "draft"),
    [
        (["-c", "1024"], replace(BIG, context=1024), replace(SMALL, context=1024)),
        (["--ctx-size", "0"], BIG, SMALL),
        (["-ngl", "7"], replace(BIG, gpu_layers=7), SMALL),
        (["--gpu-layers", "auto"], BIG, SMALL),
        (["--n-gpu-layers", "all"], BIG, SMALL),
        (["-ngl", "-1"], BIG, SMALL),
        (["-ngld", "0"], BIG, replace(SMALL, gpu_layers=0)),
        (["--gpu-layers-draft", "3"], BIG, replace(SMALL, gpu_layers=3)),
        (["-ts", "3,1"], replace(BIG, tensor_split=(3.0, 1.0)), SMALL),
        (["--tensor-split", "0.5/0.5"], replace(BIG, tensor_split=(0.5, 0.5)), SMALL),
        (["-sm", "row"], replace(BIG, split_mode="row"), SMALL),
        (["--split-mode", "none", "-mg", "1"], replace(BIG, split_mode="none", main_gpu=1), SMALL),
        (["--main-gpu", "2"], replace(BIG, main_gpu=2), SMALL),
        (["-dev", "CUDA0,CUDA1"], replace(BIG, devices=("CUDA0", "CUDA1")), SMALL),
        (["--device", "none"], replace(BIG, devices=()), SMALL),
        (["-devd", "CUDA1"], BIG, replace(SMALL, devices=("CUDA1",))),
        (["--device-draft", "cpu"], BIG, replace(SMALL, devices=())),
        (["-t", "4"], replace(BIG, threads=4), SMALL),
        (["--threads", "4"], replace(BIG, threads=4), SMALL),
        (["-td", "2"], BIG, replace(SMALL, threads=2)),
        (["-b", "256"], replace(BIG, batch=256, micro_batch=256), replace(SMALL, batch=256, micro_batch=256)),
        (["--ubatch-size", "64"], replace(BIG, micro_batch=64), replace(SMALL, micro_batch=64)),
        (["--swa-full"], replace(BIG, swa_full=True), replace(SMALL, swa_full=True)),
        (["--draft-length", "3"], replace(BIG, longest_draft=3), SMALL),
        (["-fa", "on"], replace(BIG, flash_attention=True), replace(SMALL, flash_attention=True)),
        (["--flash-attn", "off"], replace(BIG, flash_attention=False), replace(SMALL, flash_attention=False)),
        (["-fa", "auto"], BIG, SMALL),
        (["-ctk", "q8_0", "-ctv", "q4_0"], replace(BIG, kv_type_k="q8_0", kv_type_v="q4_0"), SMALL),
        (["-ctkd", "q8_0", "-ctvd", "bf16"], BIG, replace(SMALL, kv_type_k="q8_0", kv_type_v="bf16")),
        (["--no-mmap"], replace(BIG, mmap=False), replace(SMALL, mmap=False)),
    ],
)
def test_model_flags(
    fake: FakeRuntime, invoke: Invoke, flags: list[str], target: ModelOptions, draft: ModelOptions
) -> None:
    outcome = invoke("run", "Hi", *PAIR, *flags)
    assert outcome.code == 0, outcome.err
    assert (fake.opened[0].target, fake.opened[0].draft) == (target, draft)


@pytest.mark.parametrize("flag", ["--model-draft", "--spec-draft-model"])
def test_long_names_of_the_models(fake: FakeRuntime, invoke: Invoke, flag: str) -> None:
    assert invoke("run", "Hi", "--model", "big.gguf", flag, "small.gguf", "-td", "3").code == 0
    draft = fake.opened[0].draft
    assert (fake.opened[0].target, draft and draft.threads) == (BIG, 3)


@pytest.mark.parametrize(
    ("flags", "sampling"),
    [
        ([], Sampling()),
        (["--temp", "0"], Sampling(temperature=0)),
        (["--temperature", "1.5"], Sampling(temperature=1.5)),
        (["--top-k", "0", "--top-p", "1", "--min-p", "0"], Sampling(top_k=0, top_p=1, min_p=0)),
        (["--repeat-penalty", "1.1"], Sampling(repetition_penalty=1.1)),
        (["--presence-penalty", "-0.5"], Sampling(presence_penalty=-0.5)),
        (["--frequency-penalty", "0.5"], Sampling(frequency_penalty=0.5)),
        (["--repeat-last-n", "9"], Sampling(penalty_window=9)),
    ],
)
def test_sampling_flags(fake: FakeRuntime, invoke: Invoke, flags: list[str], sampling: Sampling) -> None:
    assert invoke("run", "Hi", *flags).code == 0
    assert fake.requests[0].sampling == sampling


SSD = EngineSettings(mode="ssd", fallback="ngram")


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (["--mode", "off"], replace(SSD, mode="off")),
        (["--mode", "ngram"], replace(SSD, mode="ngram")),
        (["--mode", "ssd"], SSD),
        (["--mode", "auto"], replace(SSD, mode="sd")),
        (["--draft-length", "5"], replace(SSD, mode="sd", draft_length=5)),
        (["--mode", "ssd", "--spec-draft-n-max", "5"], replace(SSD, draft_length=5)),
        (["--mode", "ssd", "--draft-max", "6"], replace(SSD, draft_length=6)),
        (["--mode", "ssd", "--draft", "7"], replace(SSD, draft_length=7)),
        (["--mode", "ssd", "--fan-out", "24"], replace(SSD, fan_out_budget=24)),
        (["--mode", "ssd", "--fan-out-shape", "uniform"], replace(SSD, fan_out_shape="uniform")),
        (["--mode", "ssd", "--draft-temperature", "0.7"], replace(SSD, draft_temperature=0.7)),
        (["--mode", "ssd", "--saguaro-c", "0.5"], replace(SSD, saguaro_c=0.5)),
        (["--mode", "ssd", "--acceptance", "match"], replace(SSD, acceptance="match")),
        (["--mode", "ssd", "--min-confidence", "0.4"], replace(SSD, min_confidence=0.4)),
        (["--mode", "ssd", "--spec-draft-p-min", "0.4"], replace(SSD, min_confidence=0.4)),
        (["--mode", "ssd", "--fallback", "just-in-time"], EngineSettings(mode="ssd")),
    ],
)
def test_speculation_flags(
    fake: FakeRuntime, invoke: Invoke, flags: list[str], settings: EngineSettings
) -> None:
    assert invoke("run", "Hi", *flags).code == 0
    assert fake.requests[0].settings == settings


def test_a_wide_fan_out_opens_room_for_it(fake: FakeRuntime, invoke: Invoke) -> None:
    invoke("run", "Hi", "--fan-out", "40")
    invoke("run", "Hi", "--fan-out", "4")
    assert [options.max_fan_out for options in fake.opened] == [40, 16]


def test_limits_stops_seeds_and_template_variables(fake: FakeRuntime, invoke: Invoke) -> None:
    kwargs = '{"enable_thinking": false, "level": 2}'
    invoke("run", "Hi", "-n", "9", "--stop", "A", "--stop", "B", "-s", "7", "--chat-template-kwargs", kwargs)
    [request] = fake.requests
    assert (request.max_tokens, request.stop, request.seed) == (9, ("A", "B"), 7)
    assert request.template_variables == (("enable_thinking", False), ("level", 2))


@pytest.mark.parametrize("seed", [0, 2**32, 2**53 + 1, 2**63 - 1, -5, -(2**63)])
def test_seeds_have_64_bits(fake: FakeRuntime, invoke: Invoke, seed: int) -> None:
    invoke("run", "-s", str(seed), "Hi")
    assert fake.requests[0].seed == seed


@pytest.mark.parametrize("flag", ["-n", "--predict", "--n-predict", "-s", "--seed"])
def test_minus_one_means_no_limit_and_no_seed(fake: FakeRuntime, invoke: Invoke, flag: str) -> None:
    assert invoke("run", "Hi", flag, "-1").code == 0
    assert (fake.requests[0].max_tokens, fake.requests[0].seed) == (None, None)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-c", "63"], ["-c/--ctx-size", "`63`", "64"]),
        (["-c", "many"], ["-c/--ctx-size", "`many`"]),
        (["-t", "-2"], ["-t/--threads", "0 to 1024"]),
        (["-td", "0"], ["-td/--threads-draft", "1 to 1024"]),
        (["-ngl", "most"], ["-ngl/--gpu-layers", "auto", "all"]),
        (["-ngl", "-2"], ["-ngl/--gpu-layers", "0 to 10000"]),
        (["-ts", "0,0"], ["-ts/--tensor-split", "3,1"]),
        (["-ts", "a,b"], ["-ts/--tensor-split", "3,1"]),
        (["-sm", "diagonal"], ["-sm/--split-mode", "layer"]),
        (["-dev", "CUDA0,,"], ["-dev/--device", "CUDA0,CUDA1"]),
        (["-n", "0"], ["-n/--predict", "1 to"]),
        (["-fa", "maybe"], ["-fa/--flash-attn", "on, off, auto"]),
        (["-ctk", "q3"], ["-ctk/--cache-type-k", "q8_0"]),
        (["--temp", "-1"], ["--temp", "0 to 100"]),
        (["--temp", "nan"], ["--temp", "0 to 100"]),
        (["--top-k", "1.5"], ["--top-k", "whole number"]),
        (["--top-p", "2"], ["--top-p", "0 to 1"]),
        (["--min-p", "x"], ["--min-p", "0 to 1"]),
        (["--repeat-penalty", "0"], ["--repeat-penalty", "0.01 to 10"]),
        (["--presence-penalty", "11"], ["--presence-penalty", "-10 to 10"]),
        (["-s", str(2**63)], ["-s/--seed", "-9223372036854775808 to 9223372036854775807"]),
        (["-s", "1.5"], ["-s/--seed", "whole number"]),
        (["--mode", "fast"], ["--mode", "ssd"]),
        (["--draft-length", "0"], ["--draft-length", "1 to 256"]),
        (["--draft-max", "0"], ["--draft-max", "1 to 256"]),
        (["--fan-out", "65"], ["--fan-out", "1 to 64"]),
        (["--saguaro-c", "1.1"], ["--saguaro-c", "0 to 1"]),
        (["--min-confidence", "2"], ["--min-confidence", "0 to 1"]),
        (["--chat-template-kwargs", "{"], ["--chat-template-kwargs", "not JSON"]),
        (["--chat-template-kwargs", "[1]"], ["--chat-template-kwargs", "JSON object"]),
        (["--chat-template-kwargs", '{"a": [1]}'], ["--chat-template-kwargs", "plain values"]),
        (["--stop", ""], ["--stop", "empty"]),
        (["-m"], ["-m/--model", "expected one argument"]),
        (["--temperatur", "1"], ["--temperatur"]),
        (["-md", "small.gguf"], ["-md", "no target"]),
        (["-m", "big.gguf", "--mode", "sd"], ["--mode sd needs a draft model"]),
        (["-m", "big.gguf", "--mode", "ssd"], ["--mode ssd needs a draft model"]),
        (["-m", "big.gguf", "-ngld", "3"], ["-ngld"]),
        (["-m", "big.gguf", "-td", "3"], ["-td"]),
        (["-m", "big.gguf", "-devd", "none"], ["-devd"]),
        (["-m", "big.gguf", "-ctkd", "f16"], ["-ctkd"]),
        (["-c", "64", "--draft-length", "64"], ["--draft-length 64", "context of 64"]),
        (["-ctv", "q8_0", "-fa", "off"], ["-ctv q8_0", "flash attention", "-fa off"]),
        (["-m", "big.gguf", "-md", "small.gguf", "-ctvd", "q4_0", "-fa", "off"], ["-ctvd q4_0", "-fa off"]),
        (["-b", "64", "-ub", "128"], ["-ub/--ubatch-size 128", "64"]),
        (["-sys", "a", "-sysf", "b"], ["-sys and -sysf"]),
        (["-sysf", "nowhere.txt"], ["nowhere.txt", "No such file"]),
        (["-p", "again"], ["given twice"]),
        (["--no-chat", "-sys", "a"], ["--no-chat", "system prompt"]),
        (["--no-chat", "--chat-template-kwargs", '{"a": 1}'], ["--no-chat", "template"]),
        (["--json", "--color"], ["--json and --color"]),
    ],
)
def test_a_mistake_gets_one_line_a_hint_and_code_2(
    fake: FakeRuntime, invoke: Invoke, flags: list[str], words: list[str]
) -> None:
    outcome = invoke("run", "Hi", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    error, *hints = outcome.err.splitlines()
    assert error.startswith("error: ")
    assert [word for word in words if word not in error] == []
    assert len(hints) <= 1
    assert all(hint.startswith("  hint: ") for hint in hints)
    assert fake.opened == []  # checked before anything heavy is touched


@pytest.mark.usefixtures("fake")
def test_a_system_prompt_file_that_is_not_text(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_bytes(b"ab\xfe")
    outcome = invoke("run", "Hi", "-sysf", str(file))
    assert outcome.code == 2
    assert "byte 0xfe at offset 2" in outcome.err
