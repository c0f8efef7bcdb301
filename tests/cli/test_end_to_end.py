"""The command line on the bundled pair."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
QUESTION = "Tell me a story about a fox."


def test_all_modes_give_one_greedy_answer(invoke: Invoke, demo_target_q8: Path, demo_draft: Path) -> None:
    pair = ("-m", str(demo_target_q8), "-md", str(demo_draft))
    answers = {}
    for mode in ("off", "ngram", "sd", "ssd"):
        outcome = invoke("run", QUESTION, *pair, "--mode", mode, "--temp", "0", "-n", "48", "--json")
        assert outcome.code == 0, outcome.err
        value = json.loads(outcome.out)
        assert value["mode"] == mode
        answers[mode] = value["text"]
    assert answers["off"]
    assert set(answers.values()) == {answers["off"]}


def test_figures_add_up(invoke: Invoke) -> None:
    flags = ("--mode", "ssd", "--min-confidence", "0", "--temp", "0", "-n", "48", "--json")
    value = json.loads(invoke("run", QUESTION, *flags).out)
    timings, speculation = value["timings"], value["speculation"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert timings["predicted_n"] <= 48
    assert speculation["rounds"] <= timings["predicted_n"]
    assert timings["draft_n_accepted"] + speculation["rounds"] >= timings["predicted_n"] - 1
    assert speculation["accepted_length"] * speculation["rounds"] == timings["predicted_n"] - 1
    assert (value["finish_reason"] == "length") == (timings["predicted_n"] == 48)


def test_a_chat_remembers_and_reads_only_what_is_new(invoke: Invoke) -> None:
    outcome = invoke("chat", "--temp", "0", "-n", "16", piped=f"{QUESTION}\nGo on.\n/stats\n".encode())
    assert outcome.code == 0, outcome.err
    assert len(outcome.out.splitlines()) >= 2
    [prompt] = [line.split() for line in outcome.err.splitlines() if line.startswith("prompt ")]
    known, tokens = int(prompt[3]), int(prompt[1])
    assert 0 < known < tokens


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-m", "nowhere.gguf"], ["nowhere.gguf"]),
        (["-m", "."], ["."]),
        (["-m", "README.md"], ["README.md"]),
        (["-dev", "CUDA99"], ["CUDA99"]),
        (["-c", "64", "word " * 200], ["tokens", "64"]),
    ],
)
def test_bad_input(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("not a model", encoding="utf-8")
    outcome = invoke("run", "Hi", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    error, *hints = outcome.err.splitlines()
    assert error.startswith("error: ")
    assert [word for word in words if word not in error] == []
    assert len(hints) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one child alone")
@pytest.mark.parametrize("mode", ["off", "ssd"])
def test_ctrl_c_stops_an_answer(mode: str, demo_target: Path, demo_draft: Path) -> None:
    # counting continues until the context is full
    flags = ["--no-chat", "1 2 3 4 5 6 7 8", "--temp", "0", "-c", "16384", "--ignore-circles", "--mode", mode]
    pair = ["-m", str(demo_target), "-md", str(demo_draft)]
    command = [sys.executable, "-m", "localspec", "run", *flags, *pair]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (130, b"")
        assert (first + rest).endswith(b"\n")


def test_verify_finds_the_pair_exact(invoke: Invoke) -> None:
    outcome = invoke("verify", "--quick", "--tokens", "100", "--json")
    value = json.loads(outcome.out)
    assert (outcome.code, value["exact"]) == (0, True)
    assert [part["variant"] for part in value["greedy"]] == ["ngram", "sd", "ssd"]
    assert [part["drafted"] > 0 for part in value["greedy"]] == [True, True, True]
