"""Heads by the command line: found by themselves, named in llama.cpp's words, or told why not."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

from localspec.tuning.export import Exported, flags
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime

PAIR = ("-m", "big.gguf", "-md", "small.gguf")


@pytest.mark.parametrize(
    ("words", "mode", "fallback"),
    [
        ("none", "off", None),
        ("draft-simple", "sd", None),
        ("ngram-simple", "ngram", None),
        ("ngram-map-k4v", "ngram", None),
        ("draft-simple,ngram-mod", "sd", "ngram"),
    ],
)
def test_llamacpps_kinds_of_speculation(
    fake: FakeRuntime, invoke: Invoke, words: str, mode: str, fallback: str | None
) -> None:
    assert invoke("run", "Hi", *PAIR, "--spec-type", words).code == 0
    settings = fake.requests[0].settings
    assert settings.mode == mode
    assert fallback is None or settings.fallback == fallback


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("draft-dflash", "`draft-dflash` is not one of none, draft-simple, draft-mtp, draft-eagle3"),
        ("draft-mtp,draft-eagle3", "one draft at a time, not draft-eagle3 and draft-mtp"),
        ("draft-mtp", "--spec-type draft-mtp does not fit small.gguf: that is draft-simple"),
    ],
)
def test_kinds_that_cannot_be(fake: FakeRuntime, invoke: Invoke, words: str, told: str) -> None:
    outcome = invoke("run", "Hi", *PAIR, "--spec-type", words)
    assert outcome.code == 2
    assert told in outcome.err
    assert fake.opened == []


@pytest.mark.parametrize(("mode", "opens"), [("sd", True), ("auto", True), ("off", False), ("ngram", False)])
def test_a_head_in_the_targets_file_is_found(
    fake: FakeRuntime, invoke: Invoke, made_hybrid: Path, mode: str, opens: bool
) -> None:
    assert invoke("run", "Hi", "-m", str(made_hybrid), "--mode", mode, "--no-fit").code == 0
    draft = fake.opened[0].draft
    assert (draft is not None) == opens
    assert draft is None or draft.path == made_hybrid


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("mode", "told"), [("ssd", True), ("sd", False), ("auto", False)])
def test_a_head_that_is_to_draft_ahead_takes_turns_and_that_is_reported(
    invoke: Invoke, made_hybrid: Path, mode: str, told: bool
) -> None:
    outcome = invoke("run", "Hi", "-m", str(made_hybrid), "--mode", mode, "--no-fit")
    assert outcome.code == 0
    assert ("note: a head waits for its target's states" in outcome.err) == told


@pytest.mark.slow
def test_a_head_for_another_target_is_rejected(
    fake: FakeRuntime, invoke: Invoke, made_hybrid: Path, made_eagle3: Path
) -> None:
    outcome = invoke("run", "Hi", "-m", str(made_hybrid), "-md", str(made_eagle3))
    assert outcome.code == 2
    assert "made-eagle3.gguf cannot draft for made-hybrid.gguf: it reads layers 1, 3, 5" in outcome.err
    assert fake.opened == []


def test_a_head_of_an_unknown_kind_is_left_out(
    fake: FakeRuntime, invoke: Invoke, demo_target: Path, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "assistant.gguf", "gemma4-assistant")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    outcome = invoke("run", "Hi", "-m", str(demo_target), "-md", str(tmp_path / "assistant.gguf"))
    assert outcome.code == 0
    assert "note: assistant is a Gemma 4 assistant, which LocalSpec does not support yet" in outcome.err
    assert fake.opened[0].draft is None


@pytest.mark.slow
def test_an_answer_that_a_head_has_drafted(invoke: Invoke, made_hybrid: Path) -> None:
    outcome = invoke("run", "Hi", "-m", str(made_hybrid), "--spec-type", "draft-mtp", "--min-confidence", "0",
                     "--temp", "0", "-n", "30", "--json")  # fmt: skip
    assert outcome.code == 0, outcome.err
    value = json.loads(outcome.out)
    assert value["mode"] == "sd"
    assert value["timings"]["draft_n_accepted"] > 0


@pytest.mark.slow
def test_heads_in_the_flags_of_llamacpps_server(
    made_hybrid: Path, demo_target: Path, made_eagle3: Path
) -> None:
    settings = EngineSettings(mode="sd")
    own, options = ModelOptions(made_hybrid), ModelOptions(demo_target)
    words = dict(flags(Exported("own", settings, own, own)))
    assert words["--spec-type"] == "draft-mtp"
    assert "--spec-draft-model" not in words
    words = dict(flags(Exported("eagle", settings, options, ModelOptions(made_eagle3))))
    assert words["--spec-type"] == "draft-eagle3"
    assert words["--spec-draft-model"] == str(made_eagle3)
