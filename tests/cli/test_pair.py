"""Drafts for a target: from the disk, from the catalogue, and measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.app import recommendation
from localspec.app.opening import open_placed
from localspec.app.recommendation import DraftMatch, Target, families, partners
from localspec.benchmark.gain import MeasuredSpeedup, measure
from localspec.cli import pair as verb
from localspec.errors import EngineDied, EngineError
from localspec.hardware import machine as machine_module
from localspec.models.catalogue import Catalogue, approximate_shape
from localspec.models.pairing import PairingVerdict
from localspec.types.events import Finished, GenerationEvent, Summary
from localspec.types.request import EngineSettings, Mode, Request
from tests.cli.choosing import entry, on_disk, pair
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime
from tests.hardware.machines import card, cpu, machine
from tests.llama import tiny

ONE_CARD = machine((card(0, 24), 900))
BIG, SMALL, OTHER = entry("big", 14), entry("small", 0.6), entry("other", 0.5, family="two", vocabulary=90000)
KNOWN = Catalogue("2026-01-01", (BIG, SMALL, OTHER), (pair(BIG, SMALL), pair(entry("odd", 9), OTHER)))
SHAPE = approximate_shape(BIG)
TARGET = Target("big", SHAPE, Path("/models/big.gguf"))
FITS, DIFFERS = (
    PairingVerdict(True, "the same 32,000 tokens", 23.3),
    PairingVerdict(False, "token 9 differs", 23.3),
)


def found(*local: object, target: Target = TARGET, verdict: PairingVerdict = FITS) -> tuple[DraftMatch, ...]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recommendation, "may_serve", lambda _one, _other: verdict)
        return partners(target, ONE_CARD, local, KNOWN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "words"),
    [("off", "plain decoding"), ("sd", "taking turns (SD)"), ("ssd", "drafting ahead (SSD)")],
)
def test_the_mode_is_reported_in_words(mode: Mode, words: str) -> None:
    (partner,) = found()
    assert partner.placement is not None
    shown = replace(partner, placement=replace(partner.placement, mode=mode))
    assert any(f", {words}, about" in line for line in verb.lines(TARGET, (shown,), {}))


def test_smaller_models_on_disk_are_judged_and_placed() -> None:
    small = on_disk("mine", approximate_shape(SMALL))
    large = on_disk("large", approximate_shape(entry("x", 30)))
    unreadable = on_disk("bad", None, problem="broken")
    first, *rest = found(small, large, unreadable)
    assert (first.name, first.verdict, first.problem) == ("mine", FITS, "")
    assert first.tokens_per_s > 0
    assert [partner.name for partner in rest] == ["user/small-GGUF:Q4_K_M"]


def test_what_is_not_a_smaller_than_the_target_is_not_a_draft() -> None:
    alike = on_disk("alike", SHAPE)
    assert [partner.name for partner in found(alike)] == ["user/small-GGUF:Q4_K_M"]
    little = replace(TARGET, shape=approximate_shape(entry("little", 0.6)))
    assert found(alike, target=little) == ()


def test_what_differs_comes_last_without_a_place() -> None:
    partner = found(on_disk("mine", approximate_shape(SMALL)), verdict=DIFFERS)[-1]
    assert (partner.name, partner.placement, partner.verdict.fits) == ("mine", None, False)


def test_the_catalogue_offers_drafts_of_the_same_size_of_vocabulary() -> None:
    (partner,) = found()
    assert (partner.name, partner.path) == ("user/small-GGUF:Q4_K_M", None)
    assert partner.verdict.size_ratio == pytest.approx(14 / 0.6)
    assert "once both are on disk" in partner.verdict.reason


def test_the_head_of_one_target_is_not_offered_to_others() -> None:
    head = entry("head", 0.5, head=True, layers=1, file="eagle3-head.gguf")
    known = Catalogue("2026-01-01", (BIG, SMALL, head), (pair(BIG, SMALL), pair(BIG, head, name="headed")))
    names = [partner.name for partner in partners(TARGET, ONE_CARD, (), known)]
    assert names == ["user/small-GGUF:Q4_K_M"]


def test_a_known_file_settles_the_family() -> None:
    own = replace(SHAPE, vocabulary_family="BPE-1-abc")
    shape = replace(approximate_shape(OTHER), vocabulary_family="BPE-1-abc")
    known = on_disk("user/other-GGUF:Q4_K_M", shape)
    assert families(Target("x", own, None), (known,), KNOWN) == {"two"}
    assert families(Target("x", own, None), (), KNOWN) == {"one"}
    assert families(Target("x", replace(own, vocabulary=5), None), (), KNOWN) == set()


def test_without_the_targets_file_nothing_is_called_unfit() -> None:
    target = replace(TARGET, path=None)
    names = [partner.name for partner in found(on_disk("mine", approximate_shape(OTHER)), target=target)]
    assert names == ["user/small-GGUF:Q4_K_M"]
    here = on_disk("user/small-GGUF:Q4_K_M", approximate_shape(SMALL))
    (partner,) = found(here, target=target, verdict=DIFFERS)
    assert (partner.path, partner.verdict.fits) == (here.path, True)


def test_a_draft_without_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommendation, "may_serve", lambda _one, _other: FITS)
    tight, local = machine(processor=cpu(10)), (on_disk("mine", approximate_shape(entry("m", 3))),)
    (partner,) = partners(TARGET, tight, local, KNOWN_NONE)
    assert partner.placement is None
    assert "it does not fit on any device" in partner.problem


KNOWN_NONE = Catalogue("2026-01-01", (), ())


class Timed(FakeRuntime):
    """Models whose answers take given times, by mode; the first of each compiles something."""

    def __init__(self, seconds: dict[Mode, float], chosen: Mode = "sd", tokens: int = 51) -> None:
        super().__init__()
        self.seconds, self.chosen, self.tokens = seconds, chosen, tokens

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        return replace(settings or EngineSettings(), mode=self.chosen), "measured"

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        mode = request.settings.mode
        compiles_s = 0.0 if any(each.settings.mode == mode for each in self.requests) else 50.0
        self.requests.append(request)
        noise = 1 + 0.05 * (len(self.requests) % 3)
        drafted = 0 if mode == "off" else 40
        yield Finished(
            "stop",
            Summary(
                tokens=self.tokens,
                decode_s=noise * self.seconds[mode] + compiles_s,
                drafted=drafted,
                accepted=drafted // 2,
            ),
        )


def test_a_gain_is_measured_on_interleaved_answers() -> None:
    models, progress = Timed({"off": 2.0, "sd": 1.0}), list[float]()
    gain = measure(models, progress.append)
    assert gain.is_gain
    assert gain.ratio == pytest.approx(2.0, rel=0.1)
    assert (gain.mode, gain.acceptance, gain.answers) == ("sd", 0.5, 6)
    assert (progress[:4], progress[-1]) == ([0.0, 0.0, 0.0, 1 / 12], 1.0)
    assert progress == sorted(progress)
    assert "faster: 4" in str(gain)
    modes = [request.settings.mode for request in models.requests][2:]
    assert modes[:4] == ["off", "sd", "sd", "off"]
    assert len({request.prompt for request in models.requests}) == len(modes) / 2
    assert not any(request.steps_down for request in models.requests)


def test_no_gain_is_reported_plainly() -> None:
    slower = measure(Timed({"off": 1.0, "sd": 2.0}), lambda _: None)
    assert not slower.is_gain
    assert str(slower).startswith("no gain, it slows answers down: 2")
    alike = MeasuredSpeedup("sd", 10, 10.1, 1.01, 0.96, 1.06, 0.3, 6)
    assert str(alike).startswith("no significant gain")


def test_a_draft_that_is_expected_to_lose_has_to_show_it() -> None:
    models = Timed({"off": 1.0, "sd": 1.1}, chosen="off")
    assert measure(models, lambda _: None).mode == "sd"


def test_answers_too_short_to_measure_are_rejected() -> None:
    with pytest.raises(EngineError, match="too short"):
        measure(Timed({"off": 1.0, "sd": 1.0}, tokens=3), lambda _: None)


@pytest.fixture
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "known_machine", lambda **_: machine())


@pytest.mark.usefixtures("this_machine")
def test_the_verb_on_the_bundled_pair(invoke: Invoke) -> None:
    outcome = invoke("pair", "demo-target")
    assert outcome.code == 0
    assert "demo-draft\n    vocabulary: the same 8,192 tokens" in outcome.out
    assert "3.1 times" in outcome.out
    assert "here: on CPU" in outcome.out
    value = json.loads(invoke("pair", "demo-target", "--json").out)
    verdict = value["drafts"][0]["verdict"]
    assert (value["schema"], verdict["fits"], verdict["difference"]) == (1, True, None)


@pytest.mark.usefixtures("this_machine")
def test_a_target_without_drafts(invoke: Invoke, tmp_path: Path) -> None:
    target = tiny.llama(tmp_path / "tiny.gguf", extra=900)
    outcome = invoke("pair", str(target))
    assert outcome.code == 1
    assert "No draft model" in outcome.out
    assert "Mode ngram needs no draft model" in outcome.out


@pytest.mark.usefixtures("this_machine")
def test_targets_that_are_not_here(invoke: Invoke) -> None:
    assert "demo-target" in invoke("pair", "demo-targt").err
    assert "Qwen/Qwen3-0.6B-GGUF:Q8_0  (not on disk)" in invoke("pair", "qwen3-8b").out
    outcome = invoke("pair", "Qwen/Qwen3-8B-GGUF", "--measure")
    assert outcome.code == 2
    assert "localspec pull Qwen/Qwen3-8B-GGUF:Q4_K_M" in outcome.err


@pytest.mark.usefixtures("this_machine")
def test_measuring_on_the_command_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Timed({"off": 2.0, "sd": 1.0, "ssd": 1.0})
    monkeypatch.setattr(verb, "open_placed", lambda *_pair: models)
    monkeypatch.setattr(verb, "busy_cores", lambda: (1.5, "a game (process 7)"))
    outcome = invoke("pair", "demo-target", "--measure")
    assert "measured: faster: " in outcome.out
    assert models.closed
    assert "other programs use 1.5 cores, a game (process 7) the most" in outcome.err
    monkeypatch.setattr(verb, "busy_cores", lambda: (0.1, "a clock"))

    def dies(*_pair: object) -> None:
        raise EngineDied("the models' process was killed")

    monkeypatch.setattr(verb, "open_placed", dies)
    outcome = invoke("pair", "demo-target", "--measure")
    assert outcome.code == 0
    assert "other programs" not in outcome.err
    assert "measured: failed: the models' process was killed" in outcome.out


@pytest.mark.slow
@pytest.mark.usefixtures("this_machine")
def test_the_bundled_pair_really_runs(
    monkeypatch: pytest.MonkeyPatch, demo_target: Path, demo_draft: Path
) -> None:
    monkeypatch.setattr("localspec.benchmark.gain.PROMPTS", 2)
    monkeypatch.setattr("localspec.benchmark.gain.TOKENS", 24)
    target = recommendation.find_target(str(demo_target), (), KNOWN_NONE)
    draft = on_disk("draft", recommendation.find_target(str(demo_draft), (), KNOWN_NONE).shape)
    (partner,) = partners(target, machine(), (replace(draft, path=demo_draft),), KNOWN_NONE)
    assert partner.placement is not None
    models = open_placed(demo_target, demo_draft, partner.placement)
    try:
        gain = measure(models, lambda _: None)
    finally:
        models.close()
    assert gain.answers == 2
    assert gain.plain > 0
    assert gain.together > 0


def test_the_head_in_a_target_s_own_file_is_a_draft_for_it(invoke: Invoke, made_hybrid: Path) -> None:
    outcome = invoke("pair", str(made_hybrid))
    assert outcome.code == 0
    assert "  its own MTP head\n    vocabulary: its own, in the same file\n" in outcome.out
