"""Every flag about models reaches the request, and the request says what it settles."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from localspec.app.opening import with_choice, with_config
from localspec.cli import plan, run, tune
from localspec.cli.bench.flags import parser as bench_parser
from localspec.cli.shared.arguments import Parser, pair_request
from localspec.errors import UserError
from localspec.models.names import Reference
from localspec.models.pair_request import ModelChoice, ModelRequest, PairRequest
from localspec.storage.paths import config_dir
from localspec.types.models import Adapter, TensorOverride

FLAGS = {
    "-m": "large.gguf",
    "-md": "small.gguf",
    "-hff": "file.gguf",
    "--chat-template-file": "own.jinja",
    "--lora-scaled": "/style.gguf:0.5",
    "-c": "2048",
    "-t": "5",
    "-td": "3",
    "-b": "1024",
    "-ub": "128",
    "-fa": "off",
    "-ctk": "q8_0",
    "-ctv": "q5_0",
    "-ctkd": "bf16",
    "-ctvd": "q4_0",
    "-ngl": "20",
    "-ngld": "9",
    "-ts": "3,1",
    "-sm": "row",
    "-mg": "1",
    "-dev": "CUDA0,CUDA1",
    "-devd": "none",
    "-ncmoe": "3",
    "-ot": "exps=CPU,output=CUDA0",
    "-ncmoed": "1",
    "-otd": "norm=CPU",
    "--reserve": "0=1GiB,cpu=2GiB",
    "--spec-type": "draft-mtp",
    "--draft-length": "7",
    "--fan-out": "32",
}
UNUSUAL = PairRequest(
    target=ModelRequest(
        "large.gguf",
        ("CUDA0", "CUDA1"),
        20,
        5,
        "q8_0",
        "q5_0",
        3,
        (TensorOverride("exps", "CPU"), TensorOverride("output", "CUDA0")),
        (Adapter(Path("/style.gguf").absolute(), 0.5),),
    ),
    draft=ModelRequest("small.gguf", (), 9, 3, "bf16", "q4_0", 1, (TensorOverride("norm", "CPU"),)),
    file="file.gguf",
    draft_kind="draft-mtp",
    chat_template=Path("own.jinja"),
    mode="sd",  # which --spec-type means
    draft_length=7,
    max_fan_out=32,
    context=2048,
    split_mode="row",
    main_gpu=1,
    tensor_split=(3.0, 1.0),
    flash_attention=False,
    swa_full=True,
    batch=1024,
    micro_batch=128,
    mmap=False,
    reserve=(("0", 2**30), ("cpu", 2**31)),
    plans=False,
)


def asked(*flags: str) -> PairRequest:
    return pair_request(run.parser().parse_args(["Hi", *flags]))


def test_every_flag_is_found_in_the_request() -> None:
    given = [word for flag in FLAGS.items() for word in flag]
    assert asked(*given, "--no-mmap", "--swa-full", "--no-fit") == UNUSUAL


def test_no_field_of_the_request_was_left_out() -> None:
    usual = PairRequest()
    same = {each.name for each in fields(usual) if getattr(usual, each.name) == getattr(UNUSUAL, each.name)}
    assert same == {"own_head", "in_company", "kv_unified"}  # which no flag here says
    same = {
        each.name for each in fields(UNUSUAL.target) if getattr(UNUSUAL.target, each.name) == each.default
    }
    assert same == set()
    same = {each.name for each in fields(UNUSUAL.draft) if getattr(UNUSUAL.draft, each.name) == each.default}
    assert same == {"adapters"}  # which only the target has


@pytest.mark.parametrize("parser", [run.parser, plan.parser, tune.parser, bench_parser])
def test_without_flags_nothing_is_settled(parser: object) -> None:
    made: Parser = parser()  # type: ignore[operator]
    request = pair_request(made.parse_args([]))
    assert request == PairRequest()
    assert request.fixed == ()


def test_models_of_the_hub_are_references() -> None:
    request = asked("-hf", "a/b:Q8_0", "-hfd", "c/d")
    assert (request.target.name, request.draft.name) == (Reference("a/b", "Q8_0"), Reference("c/d"))


def test_whatever_is_fastest_is_not_a_mode() -> None:
    assert asked("--mode", "auto") == asked()


def test_a_mistake_in_reserve_is_reported_before_anything_is_opened() -> None:
    with pytest.raises(UserError, match="--reserve does not understand"):
        asked("--reserve", "much")


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """A config.toml that names a pair and a context."""
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    target, draft = (tmp_path / name for name in ("a.gguf", "b.gguf"))
    config_dir().mkdir(parents=True, exist_ok=True)
    text = f'[models]\ntarget = "{target}"\ndraft = "{draft}"\ncontext = 512\n'
    (config_dir() / "config.toml").write_text(text, encoding="utf-8")
    return tmp_path


def test_config_toml_says_what_flags_leave_open(configured: Path) -> None:
    found = with_config(PairRequest())
    assert (found.target.name, found.draft.name) == (str(configured / "a.gguf"), str(configured / "b.gguf"))
    assert (found.context, with_config(PairRequest(context=0)).context) == (512, 0)
    named = asked("-m", "other.gguf")
    assert with_config(named) == named  # its context is that of its own models


@pytest.mark.usefixtures("configured")
def test_a_choice_keeps_what_is_not_about_models() -> None:
    choice = ModelChoice(Path("/c.gguf"), Path("/d.gguf"))
    found = with_choice(replace(UNUSUAL, context=None), choice)
    assert (found.target.name, found.draft.name) == ("/c.gguf", "/d.gguf")
    assert (found.file, found.draft_kind, found.chat_template, found.context) == (None, None, None, 512)
    assert (found.target.threads, found.draft.threads, found.mode) == (5, 3, "sd")
    kept = with_choice(UNUSUAL, choice, keeps_template=True)
    assert kept.chat_template == Path("own.jinja")


def test_a_choice_without_a_draft_asks_for_nothing_that_takes_one() -> None:
    found = with_choice(UNUSUAL, ModelChoice(Path("/c.gguf"), None))
    assert (found.draft, found.mode, found.own_head) == (ModelRequest(), None, False)


def test_devices_of_other_machines_are_left_after() -> None:
    request = asked("-dev", "RPC0,CUDA0", "-devd", "CUDA1").without_remote_devices()
    assert (request.target.devices, request.draft.devices) == (None, ("CUDA1",))
