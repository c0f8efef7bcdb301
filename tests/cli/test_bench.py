"""The command `bench`, on models that answer from a script."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.app import comparison
from localspec.app import opening as app_opening
from localspec.app.comparison import MODES
from localspec.benchmark import llama_server
from localspec.cli import bench
from localspec.errors import StoreError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.types.models import ModelOptions
from localspec.types.request import Sampling
from tests.cli.bench_fakes import SPEEDS, Models, Rival
from tests.cli.conftest import Invoke
from tests.cli.requests import left_as_asked

PAIR = ("-m", "big.gguf", "-md", "small.gguf")
QUICK = (*PAIR, "--prompts", "demo", "--per-task", "2")


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Models:
    result = Models()
    result.install(monkeypatch.setattr)
    monkeypatch.setattr(app_opening, "computes_on_cpu", lambda _via: True)
    monkeypatch.setattr(app_opening, "placed", left_as_asked)  # there are no model files
    monkeypatch.setattr(bench, "machine_words", lambda _pair: "A processor, 2 cores")
    return result


def rows(out: str, task: str) -> dict[str, list[str]]:
    """Return the cells of a task's table by contender."""
    lines = out.split(f"### {task}\n")[1].partition("\n### ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row for row in cells[1:]}


def test_tables_go_to_the_output_and_all_else_next_to_it(models: Models, invoke: Invoke) -> None:
    outcome = invoke("bench", *QUICK, "--modes", "ssd,sd", "-n", "32")
    assert outcome.code == 0
    found = rows(outcome.out, "all")
    assert list(found) == ["off", "ssd", "sd"]
    assert [found[name][1].split()[0] for name in found] == ["6.0", "24.0", "12.0"]
    assert found["off"][2] == "-"
    assert found["ssd"][2].startswith("4.00 (")
    assert outcome.err == "timing 24 answers of off, ssd, sd\n"
    assert f"big + small; {2 * 4} prompts, at most 32 tokens, temperature 0. A processor" in outcome.out
    assert f"`localspec bench {' '.join(QUICK)} --modes ssd,sd -n 32`" in outcome.out
    assert models.closed


def test_all_contenders_are_asked_alike(models: Models, invoke: Invoke) -> None:
    invoke(
        "bench", *QUICK, "--modes", "sd", "--draft-length", "3", "--temp", "0.7", "--runs", "2", "-n", "32"
    )
    asked = [each for each in models.requests if not isinstance(each.prompt, str)]
    assert len(asked) == 3 + 3 * 8 * 2
    assert {each.sampling for each in asked} == {Sampling(temperature=0.7)}
    assert {each.max_tokens for each in asked[3:]} == {32}
    assert not any(each.reuses_cache for each in asked)
    lengths = {
        (each.settings.mode, each.settings.draft_length, each.settings.min_confidence) for each in asked
    }
    assert lengths == {("off", 12, None), ("sd", 12, None), ("sd", 3, 0.0)}


def test_without_modes_all_that_the_models_can_do(models: Models, invoke: Invoke) -> None:
    assert list(rows(invoke("bench", *QUICK).out, "coding")) == ["off", "ngram", "sd", "ssd"]
    models.modes = MODES[:3]
    assert list(rows(invoke("bench", *QUICK).out, "coding")) == ["off", "ngram", "sd"]
    assert "mode ssd is not possible" in invoke("bench", *QUICK, "--modes", "ssd").err


def test_a_draft_model_that_nobody_asks_stays_closed(models: Models, invoke: Invoke) -> None:
    invoke("bench", *QUICK, "--modes", "ngram")
    invoke("bench", *QUICK, "--modes", "sd")
    assert [options.draft is not None for options in models.opened] == [False, True]


@pytest.mark.usefixtures("models")
def test_one_object(invoke: Invoke) -> None:
    value = json.loads(invoke("bench", *QUICK, "--modes", "ngram", "-o", "json").out)
    assert (value["schema"], value["complete"], value["comparable"]) == (1, True, True)
    ratio = next(row for row in value["rows"] if (row["task"], row["contender"]) == ("all", "ngram"))
    assert ratio["against"]["value"] == pytest.approx(1.5)
    assert ratio["accepted_at"] == [1.0, 0.75, 0.5]


@pytest.mark.usefixtures("models")
def test_figures_for_a_spreadsheet(invoke: Invoke) -> None:
    found = list(csv.DictReader(io.StringIO(invoke("bench", *QUICK, "--modes", "sd", "-o", "csv").out)))
    assert [row["contender"] for row in found if row["task"] == "all"] == ["off", "sd"]


@pytest.mark.usefixtures("models")
def test_a_line_for_each_answer(invoke: Invoke) -> None:
    found = [json.loads(line) for line in invoke("bench", *QUICK, "-o", "jsonl").out.splitlines()]
    assert len(found) == 8 * 4
    assert {(run["contender"], run["tokens_per_s"]) for run in found} == set(SPEEDS.items())


@pytest.mark.usefixtures("models")
def test_a_drawing(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "speed.svg"
    outcome = invoke("bench", *QUICK, "--modes", "sd", "--plot", str(file))
    assert outcome.code == 0
    drawn = file.read_text(encoding="utf-8")
    assert drawn.startswith("<svg ")
    assert "12.0 tokens/s, ×2.00" in drawn
    assert os.name == "nt" or file.stat().st_mode & 0o777 == 0o644


@pytest.mark.usefixtures("models")
def test_a_drawing_that_fails_in_the_end_leaves_the_tables(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _text: str, **_how: int) -> None:
        raise StoreError(f"cannot write `{path}`: no space")

    monkeypatch.setattr(bench, "write_atomically", full)
    outcome = invoke("bench", *QUICK, "--modes", "sd", "--plot", str(tmp_path / "speed.svg"))
    assert outcome.code == 1
    assert "no space" in outcome.err
    assert rows(outcome.out, "all")["sd"][2].startswith("2.00")


def test_a_machine_that_changes_its_pace_gets_no_ratios(models: Models, invoke: Invoke) -> None:
    models.drift = 1.2
    outcome = invoke("bench", *QUICK, "--modes", "sd")
    assert outcome.code == 1
    assert "not compared: the machine's pace changed" in outcome.err
    assert rows(outcome.out, "all")["sd"][1:3] == ["12.0 (12.0-12.0)", "-"]


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_ctrl_c_prints_what_there_is(models: Models, invoke: Invoke) -> None:
    models.pressed_after = 2 + 5
    outcome = invoke("bench", *QUICK, "--modes", "sd", "-o", "json")
    value = json.loads(outcome.out)
    assert (outcome.code, value["complete"]) == (130, False)
    assert sum(row["answers"] for row in value["rows"] if row["task"] == "all") == 5
    assert outcome.err.endswith("stopped\n")
    assert models.cancelled.is_set()
    assert models.closed


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_a_second_ctrl_c_does_not_cost_what_was_measured(
    models: Models, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_again() -> None:
        models.closed = True
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(models, "close", press_again)
    models.pressed_after = 2 + 5
    before = signal.getsignal(signal.SIGINT)
    outcome = invoke("bench", *QUICK, "--modes", "sd", "-o", "json")
    assert (outcome.code, json.loads(outcome.out)["complete"], models.closed) == (130, False, True)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_ctrl_c_before_anything_is_measured(models: Models, invoke: Invoke) -> None:
    models.pressed_after = 0
    outcome = invoke("bench", *QUICK)
    assert (outcome.code, outcome.out) == (130, "")
    assert "stopped before anything was measured" in outcome.err


def test_prompts_that_do_not_fit_are_reported_before_anything_is_measured(
    models: Models, invoke: Invoke
) -> None:
    models.target = replace(models.target, context=1)
    outcome = invoke("bench", *QUICK)
    assert (outcome.code, outcome.out, models.requests) == (2, "", [])
    assert "a prompt of the task `coding` is 1 tokens" in outcome.err


def test_a_failure_leaves_what_was_measured(models: Models, invoke: Invoke) -> None:
    models.fails_after = 2 + 6
    outcome = invoke("bench", *QUICK, "--modes", "sd")
    assert outcome.code == 1
    assert outcome.err.endswith("error: out of memory\n")
    assert rows(outcome.out, "coding")["sd"][1] == "12.0"
    assert "Stopped before the end." in outcome.out


def test_answers_without_a_second_token_have_no_speed(models: Models, invoke: Invoke) -> None:
    models.tokens = 1
    outcome = invoke("bench", *QUICK, "--modes", "off")
    assert (outcome.code, outcome.out) == (1, "")
    assert "every answer ended with its first token" in outcome.err


@pytest.fixture
def rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return the flag's value that names a server."""
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(llama_server, "LlamaServer", Rival)
    return f"llama-server={program}"


@pytest.mark.usefixtures("models")
def test_against_a_server(invoke: Invoke, rival: str) -> None:
    flags = ("--modes", "sd", "--draft-length", "4", "--against", rival)
    found = rows(invoke("bench", *QUICK, *flags).out, "all")
    assert list(found) == [
        "off", "sd", "sd K=4", "llama-server", "llama-server draft", "llama-server draft K=4",
    ]  # fmt: skip
    assert found["llama-server"][2].startswith("2.00")
    assert found["llama-server"][6:] == ["-", "-", "-", "-", "-", "-", "5.0 GiB"]
    assert Rival.running == 0


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_ctrl_c_does_not_wait_for_a_server(
    models: Models, invoke: Invoke, rival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rival, "pressed", True)
    monkeypatch.setattr(Rival, "finished", 0)
    assert invoke("bench", *QUICK, "--modes", "off", "--against", rival).code == 130
    assert (Rival.finished, Rival.running) == (0, 0)
    assert not models.cancelled.is_set()


def test_the_machine_in_words() -> None:
    pair = OpenPlan(ModelOptions(Path("big.gguf"), threads=1))
    words = comparison.machine_words(pair)
    assert ", 1 of " in words
    assert "llama-cpp-python 0.3" in words
