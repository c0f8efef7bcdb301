"""The plan on the command line: from flags to constraints, from a placement to options, and in words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from localspec.app import opening
from localspec.app.opening import find_files, with_config
from localspec.cli import plan, recommend
from localspec.cli.shared.arguments import add_answer_flags, pair_request, verb_parser
from localspec.cli.shared.console import SIMPLER, say
from localspec.cli.shared.opening import TERMINAL, check_explained
from localspec.errors import EngineError, UserError
from localspec.hardware import devices as devices_module
from localspec.hardware import machine as machine_module
from localspec.hardware.described import GPU_KEYS, MACHINE_KEYS
from localspec.hardware.device_info import Machine
from localspec.hardware.memory.needs import LayerSplit, by_shares
from localspec.hardware.placement import plan as plan_module
from localspec.hardware.placement.candidates import Placement
from localspec.hardware.placement.explain import TARGET_PARTS
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.hardware.placement.place import lines, place
from localspec.hardware.placement.plan import on_machine, placed_as
from localspec.models import shape
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape
from tests.cli.conftest import Invoke
from tests.hardware.machines import HUGE, LARGE, SMALL, asking, beside, card, cpu, machine

BIG_AND_SMALL = machine((card(0, 24), 900), (card(1, 8), 300))
PAIR = ("-m", "large.gguf", "-md", "small.gguf")


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Stand in for this machine and for the headers of two files."""

    def read_shape(path: Path, _overrides: object = ()) -> ModelShape:
        return LARGE if path.name == "large.gguf" else SMALL

    monkeypatch.setattr(machine_module, "known_machine", lambda **_: BIG_AND_SMALL)
    monkeypatch.setattr(shape, "read_shape", read_shape)
    monkeypatch.setattr(plan_module, "read_shape", read_shape)
    monkeypatch.setattr(plan_module, "exact", unknown)  # there is no file to ask about
    return BIG_AND_SMALL


def unknown(*_options: object, **_how: object) -> NoReturn:
    raise EngineError("llama.cpp does not know")


def nothing_seen(*_task: object, **_options: object) -> Iterator[Any]:
    return iter(())


def parsed(*flags: str) -> tuple[OpenPlan, OpenPlan]:
    """Return a pair as the flags say, and as it is placed."""
    parser = verb_parser("run", "")
    add_answer_flags(parser)
    args = parser.parse_args([*PAIR, *flags])
    request = with_config(pair_request(args))
    files = find_files(request, TERMINAL)
    check_explained(request, explain=args.explain)
    report = say if args.explain else None
    return as_asked(files, request), opening.placed(
        files, request, via=nothing_seen, report=report, explain=args.explain
    )


@pytest.mark.usefixtures("invented")
def test_a_pair_gets_the_devices_of_the_plan() -> None:
    _, pair = parsed()
    assert (pair.target.devices, pair.target.gpu_layers, pair.target.tensor_split) == (("CUDA0",), 65, ())
    assert pair.target.context == 8192
    assert pair.draft is not None
    assert (pair.draft.devices, pair.draft.gpu_layers) == (("CUDA1",), 29)
    assert (pair.target.threads, pair.draft.threads) == (1, 1)


@pytest.mark.usefixtures("invented")
def test_without_a_plan_options_stay_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "computes_on_cpu", lambda _via: False)
    before, after = parsed("--no-fit", "-ngl", "99")
    assert after == before
    with pytest.raises(UserError, match="cannot be combined"):
        parsed("--no-fit", "--explain")


def test_layers_of_a_split_reach_llama_cpp_as_planned() -> None:
    where = machine((card(0, 24), 900), (card(1, 16), 500), (card(2, 8), 250))
    found = place(where, HUGE, None, asking())
    pair = placed_as(found, options())
    assert pair.target.devices is not None
    assert pair.target.gpu_layers is not None
    divided = by_shares(pair.target.devices, pair.target.tensor_split, pair.target.gpu_layers, 80)
    assert divided == LayerSplit(found.target.devices, found.target.layers)


def test_an_output_layer_that_stays_here_reaches_llama_cpp_as_planned() -> None:
    for link, at_home in ((12e6, True), (12e9, False)):
        found = place(beside(link, 3e-3), LARGE, None, asking())
        pair = placed_as(found, replace(options(), target=replace(options().target, output_at_home=True)))
        assert (pair.target.devices, pair.target.gpu_layers) == (("RPC0",), 65)
        assert pair.target.output_at_home == at_home
        told = "\n".join(lines(found, explain=True))
        assert (
            "The output layer stays here: 20 KiB a token over the network instead of 500 KiB." in told
        ) == at_home
        assert "target on RPC0 (64 layers) and the CPU (the output layer)" in told or at_home


def test_a_part_with_the_cpu_reaches_llama_cpp_as_planned() -> None:
    found = place(machine((card(0, 12), 360)), LARGE, None, asking())
    pair = placed_as(found, options())
    assert pair.target.gpu_layers == sum(found.target.layers) + 1
    assert pair.target.gpu_layers < 64


def test_without_gpus_threads_and_modes_stay_with_the_runtime() -> None:
    given = options(draft=True)
    pair = placed_as(place(machine(), SMALL, SMALL, asking()), given)
    assert pair.target == replace(given.target, context=8192, devices=(), gpu_layers=0)
    assert pair.draft is not None
    assert pair.draft.threads == 0


def test_a_draft_on_the_cpu_gets_the_cores_that_feeding_a_gpu_leaves() -> None:
    where = machine((card(0, 24), 300), processor=cpu(60, 32), rate=120)
    pair = placed_as(place(where, LARGE, SMALL, asking()), options(draft=True))
    assert pair.draft is not None
    assert (pair.target.threads, pair.draft.threads) == (1, 31)


def test_a_draft_without_a_place_stays_closed() -> None:
    found = place(BIG_AND_SMALL, LARGE, SMALL, asking(mode="off"))
    assert placed_as(found, options(draft=True)).draft is None


def options(*, draft: bool = False) -> OpenPlan:
    request = with_config(asked_by("-m", "large.gguf", *(["-md", "small.gguf"] if draft else [])))
    return as_asked(find_files(request, TERMINAL), request)


def asked_by(*flags: str) -> PairRequest:
    return pair_request(plan.parser().parse_args(flags))


@pytest.mark.parametrize("number", ["2", "5"])
def test_a_main_device_that_is_not_there_is_rejected(number: str) -> None:
    asked = asked_by(*PAIR, "-sm", "none", "-mg", number)
    with pytest.raises(UserError, match=f"-mg {number} names no device"):
        on_machine(asked, BIG_AND_SMALL)


@pytest.mark.parametrize(
    ("able", "flags", "refused"),
    [
        ((), [], "CUDA0"),
        (("CUDA0",), [], "CUDA1"),
        (("CUDA0",), ["-dev", "CUDA0"], None),
        (("CUDA0", "CUDA1"), [], None),
        ((), ["-dev", "none"], None),
        ((), ["-ngl", "0"], None),
    ],
)
def test_rows_are_split_only_where_the_backend_can(
    able: tuple[str, ...], flags: list[str], refused: str | None
) -> None:
    devices = tuple(replace(each, splits_rows=each.id in able) for each in BIG_AND_SMALL.devices)
    asked = asked_by(*PAIR, "-sm", "row", *flags)
    ask = partial(on_machine, asked, replace(BIG_AND_SMALL, devices=devices))
    if refused is None:
        ask()
        return
    with pytest.raises(UserError, match=f"-sm row: the backend of {refused} cannot") as caught:
        ask()
    assert caught.value.hint == "use -sm layer"


@pytest.mark.usefixtures("invented")
def test_the_main_device_is_the_first_of_those_that_are_left() -> None:
    _, pair = parsed("-sm", "none", "-mg", "1")
    assert (pair.target.devices, pair.target.main_gpu) == (("CUDA1",), 0)


@pytest.mark.usefixtures("invented")
def test_the_verb_reports_who_sits_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(PAIR) == 0
    out = capsys.readouterr().out
    assert out.startswith("plan: drafting ahead (SSD), about ")
    assert "so it drafts while the target verifies: SSD." in out
    assert "more, which --explain lists" in out


def test_explain_lists_all_that_was_not_taken(invented: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    plan.main((*PAIR, "--explain"))
    out = capsys.readouterr().out
    rejected = place(invented, LARGE, SMALL, asking()).rejected
    assert len(rejected) > 5
    for other in rejected:
        assert f"{other.description}" in out
        assert other.reason in out
    assert "which --explain lists" not in out


@pytest.mark.usefixtures("invented")
def test_explained_plans_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    parsed("--explain")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "not taken:" in captured.err


@pytest.mark.usefixtures("invented")
def test_json_holds_the_whole_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main((*PAIR, "--json")) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == 1
    assert value["target"]["devices"] == ["CUDA0"]
    assert value["draft"]["needs"][0].keys() == {"device", "weights", "cache", "compute", "experts"}
    assert value["mode"] == "ssd"
    assert len(value["rejected"]) > 5


@pytest.mark.usefixtures("invented")
def test_what_fits_nowhere_is_a_mistake_with_ways_out() -> None:
    with pytest.raises(UserError, match="GiB are needed") as refused:
        plan.main((*PAIR, "--reserve", "0=23GiB,1=7GiB,cpu=27GiB"))
    assert "ways out" in refused.value.hint


def test_a_plan_of_the_bundled_pair_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(("--json",)) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["target"]["context"] == 1024
    assert value["tokens_per_s"] > 0


TOWER = """
memory = "64 GB"

[[gpu]]
name = "RTX 3090"
memory = "24 GB"
rate = "936 GB/s"
"""


@pytest.fixture
def tower(tmp_path: Path) -> str:
    path = tmp_path / "tower.toml"
    path.write_text(TOWER, encoding="utf-8")
    return str(path)


@pytest.fixture
def nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every question about devices fail."""

    def fail(*_args: object, **_kwargs: object) -> NoReturn:
        raise AssertionError("the devices of this machine were asked")

    monkeypatch.setattr(machine_module, "known_machine", fail)
    monkeypatch.setattr(devices_module, "look", fail)
    monkeypatch.setattr(plan_module, "exact", fail)


@pytest.mark.usefixtures("invented", "nobody_to_ask")
def test_a_described_machine_is_planned_for_without_asking_this_one(
    tower: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.main((*PAIR, "--machine", tower)) == 0
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()[:2]
    assert first == f"for the machine in {tower}, not this one:"
    assert second.startswith("plan: ")
    assert "fits on GPU0 (23.4 GiB free, 1.0 GiB of it reserved)" in captured.out
    assert captured.err == ""


@pytest.mark.usefixtures("invented", "nobody_to_ask")
def test_flags_take_the_names_of_described_devices(tower: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("-dev", "GPU0", "-devd", "none", "-ts", "1", "--reserve", "gpu0=2GiB,cpu=1GiB")
    assert plan.main((*PAIR, "--machine", tower, "--json", *flags)) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["target"]["devices"] == ["GPU0"]
    with pytest.raises(UserError, match="no device is called 'CUDA0'"):
        plan.main((*PAIR, "--machine", tower, "-dev", "CUDA0"))


@pytest.mark.usefixtures("invented", "nobody_to_ask")
def test_a_mistake_in_a_described_machine_is_one_line(tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "tower.toml"
    path.write_text('memory = "64 potatoes"', encoding="utf-8")
    for command in (("plan", *PAIR), ("recommend",)):
        outcome = invoke(*command, "--machine", str(path))
        assert (outcome.code, outcome.out) == (2, "")
        error, hint = outcome.err.splitlines()
        assert error.startswith(f"error: {path}, line 1: `memory` has to be a size")
        assert hint.startswith("  hint: ")


@pytest.mark.parametrize("verb", [plan, recommend])
def test_help_names_every_key_of_a_described_machine(verb: ModuleType) -> None:
    words = set(re.findall(r"\w+", verb.parser().format_help()))
    assert {*MACHINE_KEYS, *GPU_KEYS} <= words


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_to_ask")
def test_the_catalogue_is_ranked_for_a_described_machine(tower: str, invoke: Invoke) -> None:
    outcome = invoke("recommend", "--machine", tower)
    assert outcome.code == 0
    assert outcome.out.startswith(f"for the machine in {tower}, not this one:\n\n1. ")
    assert "GPU0" in outcome.out


@pytest.mark.usefixtures("invented")
def test_explain_draws_the_memory_of_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main((*PAIR, "--explain")) == 0
    out = capsys.readouterr().out
    drawn = out.partition("\nmemory:\n")[2]
    assert [line.partition(" ")[0] for line in re.findall(r"^  (\S.*)$", drawn, re.MULTILINE)[:3]] == [
        "CUDA0",
        "CUDA1",
        "CPU",
    ]
    assert "█ weights " in drawn
    assert "-c 16384 (twice the context) takes" in drawn
    plan.main(PAIR)
    assert "\nmemory:\n" not in capsys.readouterr().out


def test_bars_have_a_character_of_ascii_for_each_of_theirs() -> None:
    characters = [*(part.character for part in TARGET_PARTS), *"■▚░·×"]
    simple = [character.encode("ascii", SIMPLER) for character in characters]
    assert b"?" not in simple
    assert len(set(simple)) == len(simple)


def test_a_placement_is_words_without_alternatives() -> None:
    found: Placement = place(machine(), SMALL, None, asking())
    assert not found.rejected
    assert "not taken:" not in lines(found, explain=True)
