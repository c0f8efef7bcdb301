"""Settings for other programs: what they read is what was meant."""

from __future__ import annotations

import configparser
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

import pytest

from localspec.errors import UserError
from localspec.llama.overrides import experts_override
from localspec.storage.profiles import read_profile
from localspec.tuning.export import Exported, ExportForm, export, flags
from localspec.types.models import ModelOptions, TensorOverride
from localspec.types.request import EngineSettings, Fallback

TARGET = ModelOptions(
    Path("/models/it's a large one.gguf"),
    context=8192,
    gpu_layers=34,
    devices=("CUDA0", "CUDA1"),
    tensor_split=(20.0, 14.0),
    kv_type_k="q8_0",
    flash_attention=True,
    threads=6,
    mmap=False,
)
DRAFT = ModelOptions(Path("/models/small.gguf"), devices=(), kv_type_v="q4_0")
SSD = EngineSettings(mode="ssd", draft_length=6, draft_temperature=1.25, saguaro_c=0.7, fan_out_budget=12)
SD = EngineSettings(mode="sd", draft_length=4, acceptance="match", min_confidence=0.35)
CODING = Exported("my coding", SSD, TARGET, replace(DRAFT, threads=2))
MIXTURE = replace(
    TARGET,
    tensor_split=(),
    output_at_home=True,
    experts_at_home=20,
    overrides=(experts_override([20], ["ffn_up_exps"]), TensorOverride("shexp", "CUDA1")),
    swa_full=True,
    batch=4096,
    micro_batch=4096,
)
EVERY = [
    CODING,
    replace(CODING, settings=SD),
    replace(CODING, settings=EngineSettings(mode="ngram", draft_length=9), draft=None),
    replace(CODING, settings=EngineSettings(mode="off")),
    Exported("bare", SD, ModelOptions(Path("/a.gguf")), ModelOptions(Path("/b.gguf"))),
    Exported("experts in RAM", SD, MIXTURE, replace(DRAFT, devices=("CUDA0",), experts_at_home=3)),
    Exported("one", SD, replace(TARGET, split_mode="none", main_gpu=1, flash_attention=False), DRAFT),
    Exported("divided", SD, replace(TARGET, split_mode="tensor", tensor_split=(2.0, 1.0)), DRAFT),
]


def meant(exported: Exported) -> list[str]:
    return [word for pair in flags(exported) for word in pair if word]


def by_shell(command: str) -> list[str]:
    """What a shell gives a program of that name."""
    asked = command.replace("llama-server \\", "asked \\")
    script = f"asked() {{ printf '%s\\0' \"$@\"; }}\n{asked}"
    told = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return told.stdout.split("\0")[:-1]


def comments(text: str, mark: str = "#") -> str:
    return " ".join(line for line in text.splitlines() if line.startswith(mark))


def test_a_command_line_says_where_everything_sits_and_how_far_to_draft() -> None:
    assert dict(flags(replace(CODING, settings=SD))) == {
        "--model": "/models/it's a large one.gguf",
        "--ctx-size": "8192",
        "--device": "CUDA0,CUDA1",
        "--gpu-layers": "34",
        "--tensor-split": "20,14",
        "--threads": "6",
        "--batch-size": "2048",
        "--ubatch-size": "512",
        "--cache-type-k": "q8_0",
        "--cache-type-v": "f16",
        "--flash-attn": "on",
        "--load-mode": "none",
        "--parallel": "1",
        "--spec-draft-model": "/models/small.gguf",
        "--spec-draft-device": "none",
        "--spec-draft-ngl": "0",
        "--spec-draft-threads": "2",
        "--spec-draft-type-k": "f16",
        "--spec-draft-type-v": "q4_0",
        "--spec-type": "draft-simple",
        "--spec-draft-n-max": "4",
        "--spec-draft-p-min": "0.35",
    }


def test_a_split_by_tensor_is_spelled_as_llama_server_does() -> None:
    found = dict(flags(EVERY[-1]))
    assert (found["--split-mode"], found["--tensor-split"]) == ("tensor", "2,1")


def test_experts_windows_and_batches_are_where_the_plan_has_them() -> None:
    found = dict(flags(replace(CODING, settings=SD, target=MIXTURE, draft=replace(DRAFT, experts_at_home=3))))
    assert found["--n-cpu-moe"] == "20"
    assert found["--override-tensor"] == (
        r"^(output|token_embd)\.=CPU,^blk\.(20)\.(ffn_up_exps)\.=CPU,shexp=CUDA1"
    )
    assert list(found).index("--override-tensor") < list(found).index("--n-cpu-moe")  # the first counts
    assert found["--swa-full"] == ""
    assert (found["--batch-size"], found["--ubatch-size"]) == ("4096", "4096")
    assert found["--load-mode"] == "none"
    assert found["--spec-draft-n-cpu-moe"] == "3"


@pytest.mark.parametrize("pattern", [r"blk\.[0-9]{1,2}\.ffn", "a=b"])
def test_an_override_that_a_list_cannot_hold_is_rejected(pattern: str) -> None:
    target = replace(TARGET, overrides=(TensorOverride(pattern, "CPU"),))
    with pytest.raises(UserError, match="cannot be given"):
        export("llama-server", replace(CODING, target=target))
    assert export("toml", replace(CODING, target=target)) == export("toml", CODING)


def test_without_drafting_there_is_not_a_draft_model() -> None:
    for exported in EVERY[2:4]:
        assert not any(flag.startswith("--spec-draft") for flag, _ in flags(exported))
    assert dict(flags(EVERY[2]))["--spec-ngram-simple-size-m"] == "9"
    assert dict(flags(EVERY[3]))["--spec-type"] == "none"
    assert "drafting does not pay here" in export("llama-server", EVERY[3])


@pytest.mark.skipif(sys.platform == "win32", reason="the command is for a POSIX shell")
@pytest.mark.parametrize("exported", EVERY)
def test_a_shell_reads_the_flags_back(exported: Exported) -> None:
    assert by_shell(export("llama-server", exported)) == meant(exported)


@pytest.mark.parametrize("exported", EVERY)
def test_llama_swap_reads_the_flags_back(exported: Exported) -> None:
    yaml = pytest.importorskip("yaml")
    [(name, model)] = yaml.safe_load(export("llama-swap", exported))["models"].items()
    assert name == exported.name
    assert shlex.split(model["cmd"]) == ["llama-server", "--port", "${PORT}", *meant(exported)]


@pytest.mark.parametrize("exported", EVERY)
def test_preset_ini_reads_the_flags_back(exported: Exported) -> None:
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=(";", "#"))
    parser.read_string(export("preset.ini", exported))
    assert parser.sections() == [exported.name]
    found = [(f"--{key}", value) for key, value in parser[exported.name].items()]
    assert found == [(flag, value or "true") for flag, value in flags(exported)]


@pytest.mark.parametrize("exported", EVERY)
def test_a_profile_reads_the_settings_back(exported: Exported, tmp_path: Path) -> None:
    text = export("toml", exported)
    settings = asdict(exported.settings)
    expected = {name: value for name, value in settings.items() if value is not None}
    assert tomllib.loads(text) == {"speculation": expected}
    path = tmp_path / "mine.toml"
    path.write_text(f'title = "Mine"\ntask = "coding"\n\n{text}')
    assert read_profile(path).speculation.apply(EngineSettings()) == exported.settings


@pytest.mark.parametrize("form", ["llama-server", "preset.ini", "llama-swap"])
def test_what_cannot_be_said_stands_in_comments(form: ExportForm) -> None:
    mark = ";" if form == "preset.ini" else "#"
    said = comments(export(form, CODING), mark)
    for words in (
        "draft ahead (ssd)",
        "fan-out of 12 (best-first)",
        "C of 0.7",
        "temperature of 1.25",
        "costs",
    ):
        assert words in said
    assert comments(export(form, replace(CODING, settings=SD)), mark) == ""


@pytest.mark.parametrize("settings", [SD, SSD])
def test_repetitions_next_to_a_draft_model_have_no_counterpart(settings: EngineSettings) -> None:
    def said(fallback: Fallback) -> str:
        changed = replace(CODING, settings=replace(settings, fallback=fallback))
        return comments(export("llama-server", changed))

    assert "repetitions of the text" in said("ngram")
    assert "repetitions" not in said("just-in-time")


def test_paths_that_a_format_cannot_hold_are_rejected() -> None:
    def at(path: str) -> Exported:
        return replace(CODING, target=replace(TARGET, path=Path(path)))

    for path in ("/a;b.gguf", "/a #1.gguf", "/trailing.gguf "):
        with pytest.raises(UserError, match="preset"):
            export("preset.ini", at(path))
        assert path in export("llama-server", at(path))
    with pytest.raises(UserError, match="macro"):
        export("llama-swap", at("/${HOME}/a.gguf"))
    for form in get_args(ExportForm):
        if form != "toml":
            with pytest.raises(UserError, match="cannot be written"):
                export(form, at("/two\nlines.gguf"))


def test_every_flag_is_one_of_the_pinned_llama_cpp() -> None:
    library = Path(sysconfig.get_path("platlib")) / "lib" / "libllama-common.so"
    if not library.exists():
        pytest.skip("this build of llama-cpp-python has no common library")
    known = library.read_bytes()
    used = {flag for exported in EVERY for flag, _ in flags(exported)}
    values = {value for exported in EVERY for flag, value in flags(exported) if flag == "--spec-type"}
    assert {flag for flag in used if b"\0" + flag.encode() + b"\0" not in known} == set()
    assert {value for value in values - {"none"} if b"\0" + value.encode() + b"\0" not in known} == set()
