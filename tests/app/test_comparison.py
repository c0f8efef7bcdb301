"""Who takes part in a benchmark."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, cast

import pytest

from localspec.app import opening
from localspec.app.comparison import (
    MODES,
    check_fit,
    own,
    placed_pair,
    possible,
    servers,
    tuned_settings,
    ways,
)
from localspec.benchmark import llama_server
from localspec.benchmark.harness import Prompt
from localspec.chat.answer_settings import TunedChoice, TunedLookup
from localspec.child_process import ValuesOf
from localspec.cli.shared.console import exit_on_signals
from localspec.errors import UserError
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.inference.worker.client import Worker
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.storage.profiles import Speculation
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, TaskType
from tests.cli.bench_tables import REQUEST
from tests.cli.fake_runtime import FakeRuntime

BIG, SMALL = ModelOptions(Path("big.gguf")), ModelOptions(Path("small.gguf"))
PAIR = OpenPlan(BIG, SMALL)
FILES = PairFiles(BIG.path, SMALL.path)
CODING, STORY = Prompt("coding", "Sort."), Prompt("story", "Tell.")
SSD = EngineSettings(draft_length=3)


class Models(FakeRuntime):
    """Open models that can decode in every mode, or not."""

    modes = MODES


class Server:
    """Stands in for llama.cpp's server: keeps how it was started; `running` counts those that are."""

    started: ClassVar[list[tuple[Path, ModelOptions, ModelOptions | None, int | None]]] = []
    running = 0

    def __init__(
        self,
        name: str,
        program: Path,
        target: ModelOptions,
        draft: ModelOptions | None = None,
        draft_length: int | None = None,
    ) -> None:
        self.name = name
        Server.started.append((program, target, draft, draft_length))
        Server.running += 1

    def close(self) -> None:
        Server.running -= 1


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    Server.started, Server.running = [], 0
    monkeypatch.setattr(llama_server, "LlamaServer", Server)
    return Server


def recalling(**found: TunedChoice | None) -> TunedLookup:
    return found.__getitem__


def names(pair: OpenPlan, runtime: Worker, lengths: Sequence[int] = ()) -> list[str]:
    asked = replace(REQUEST, lengths=tuple(lengths), server=Path("llama-server"))
    with ExitStack() as stack:
        found = [each.name for each in servers(asked, pair, runtime, stack)]
        assert Server.running == len(found)
    assert Server.running == 0
    return found


def runtime(**able: object) -> Worker:
    models = Models()
    for name, value in able.items():
        setattr(models, name, value)
    return cast(Worker, models)


def test_modes_decide_themselves_before_fixed_lengths_do_not() -> None:
    asked = replace(REQUEST, modes=("off", "ngram", "sd", "tuned"), lengths=(2, 8))
    found = dict(ways(asked))
    assert list(found) == ["off", "ngram", "sd", "sd K=2", "sd K=8"]
    assert found["sd"] == EngineSettings(mode="sd")
    assert found["sd K=2"] == EngineSettings(mode="sd", draft_length=2, min_confidence=0.0)


def test_repetitions_and_flags_shape_our_ways() -> None:
    speculation = Speculation(acceptance="match", draft_temperature=1.2)
    asked = replace(
        REQUEST, modes=("off", "sd", "sd+ngram", "ssd+ngram"), lengths=(3,), speculation=speculation
    )
    found = dict(ways(asked))
    assert found["sd"] == EngineSettings(mode="sd", acceptance="match", draft_temperature=1.2)
    assert found["sd+ngram"] == replace(found["sd"], fallback="ngram")
    assert found["ssd+ngram K=3"] == replace(
        found["sd+ngram"], mode="ssd", draft_length=3, min_confidence=0.0
    )


def test_each_task_is_answered_as_it_was_tuned() -> None:
    models = Models()
    asked = replace(REQUEST, modes=("off", "tuned"), prompts=(CODING, Prompt("writing", "Tell.")))
    writing = EngineSettings(mode="ngram")
    contenders = list(own(cast(Worker, models), asked, {"coding": SSD, "writing": writing}))
    assert [each.name for each in contenders] == ["off", "tuned"]
    for question in asked.questions:
        contenders[1].answer(question.asked(5, 9))
    found = [(request.settings, request.max_tokens, request.seed) for request in models.requests]
    assert found == [(SSD, 9, 5), (writing, 9, 5)]


def test_tuned_settings_that_are_there() -> None:
    tuned_for = recalling(coding=TunedChoice(SSD, "tuned today", "another driver"))
    told: list[str] = []
    assert tuned_settings(tuned_for, (CODING, CODING), told.append) == {"coding": SSD}
    assert told == ["note: another driver"]


@pytest.mark.parametrize(
    ("prompt", "found", "complaint"),
    [
        (CODING, None, "there are no tuned settings for coding"),
        (CODING, TunedChoice(None, "", "tuned for other files"), "tuned for other files"),
        (STORY, None, "`story` is not a task that can be tuned"),
    ],
)
def test_tuned_settings_that_are_not(prompt: Prompt, found: TunedChoice | None, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as raised:
        tuned_settings(recalling(coding=found), (prompt,), print)
    assert "leave tuned out" in raised.value.hint


def test_default_modes_that_are_impossible_are_left_out_and_others_refused() -> None:
    usual = replace(REQUEST, modes=MODES, asked_modes=False)
    assert possible(usual, runtime()).modes == usual.modes
    assert possible(usual, runtime(modes=MODES[:3])).modes == ("off", "ngram", "sd")
    note = "its chat template is missing"
    alone = runtime(modes=("off", "ngram"), draft=None, notes=(note,))
    assert possible(usual, alone).modes == ("off", "ngram")
    for models, reason in (
        (alone, "mode sd is not possible: there is no draft model"),
        (runtime(modes=MODES[:3], notes=(note,)), "mode ssd is not possible: the draft is a head, or shares"),
    ):
        with pytest.raises(UserError, match=reason) as refused:
            possible(replace(usual, asked_modes=True), models)
        assert note not in str(refused.value)


def test_a_prompt_that_leaves_no_room_for_an_answer() -> None:
    class Counting(Models):
        """Counts a token for each letter."""

        def count_tokens(self, messages: Sequence[Message]) -> int:
            return sum(len(message.content) for message in messages)

    models = cast(Worker, Counting())  # whose context holds 512
    check_fit([Prompt("story", "x" * 400, "y" * 111)], models)
    with pytest.raises(UserError, match="task `story` is 512 tokens, but the context has 512 with") as raised:
        check_fit([CODING, Prompt("story", "Long " + "x" * 395, "y" * 112)], models)
    assert ": Long xxx" in raised.value.message
    assert "-c" in raised.value.hint


@pytest.mark.parametrize(
    ("modes", "mode", "has_draft"),
    [
        (("off",), "off", False),
        (("off", "ngram"), "ngram", False),
        (("off", "sd"), "sd", True),
        (("off", "ssd", "sd"), "ssd", True),
        (("off", "ngram", "ssd+ngram"), "ssd", True),
    ],
)
def test_models_sit_as_the_mode_needs_that_needs_most(
    monkeypatch: pytest.MonkeyPatch, modes: tuple[str, ...], mode: str, has_draft: bool
) -> None:
    def placed(files: PairFiles, request: PairRequest, *, via: ValuesOf | None, **_how: object) -> OpenPlan:
        asked.append((request.mode, via))
        return as_asked(files, replace(request, max_fan_out=5))

    asked: list[tuple[str | None, ValuesOf | None]] = []
    monkeypatch.setattr(opening, "placed", placed)
    models = runtime()
    pair, tuned = placed_pair(replace(REQUEST, modes=modes), PairRequest(), FILES, models, report=print)
    assert asked == [(mode, models.values_of)]
    assert (pair.draft is not None, pair.max_fan_out, tuned) == (has_draft, 5, {})


def test_tuned_settings_are_used_on_the_placement_that_they_hold_for(monkeypatch: pytest.MonkeyPatch) -> None:
    models = runtime()

    @dataclass(frozen=True)
    class Planned:
        """Stands in for a pair that was tuned."""

        plan: OpenPlan
        tuned_for: TunedLookup

    def plan_to_open(request: PairRequest, files: PairFiles, *, via: ValuesOf, **_how: object) -> Planned:
        assert (request.mode, via) == (None, models.values_of)
        known = recalling(coding=TunedChoice(SSD, "tuned today"))
        return Planned(as_asked(files, replace(request, max_fan_out=24)), known)

    monkeypatch.setattr(opening, "plan_to_open", plan_to_open)
    asked = replace(REQUEST, modes=("off", "ssd", "tuned"), prompts=(CODING,))
    pair, tuned = placed_pair(asked, PairRequest(), FILES, models, report=print)
    assert (pair.draft, pair.max_fan_out) == (SMALL, 24)
    assert not pair.remembers_costs  # what is compared is measured now
    assert tuned == {"coding": SSD}


@pytest.mark.usefixtures("server")
def test_a_server_plain_one_that_speculates_and_one_for_each_length() -> None:
    assert names(PAIR, runtime(), (2, 4)) == [
        "llama-server", "llama-server draft", "llama-server draft K=2", "llama-server draft K=4",
    ]  # fmt: skip
    program, plain = Path("llama-server"), replace(BIG, context=512)
    draft = replace(SMALL, context=512)
    assert Server.started == [
        (program, plain, None, None),
        (program, plain, draft, None),
        (program, plain, draft, 2),
        (program, plain, draft, 4),
    ]


def test_a_server_drafts_with_as_many_threads(server: type[Server]) -> None:
    names(replace(PAIR, draft=replace(SMALL, threads=3)), runtime())
    names(replace(PAIR, draft=replace(SMALL, threads=2)), runtime())
    assert [draft.threads for _, _, draft, _ in server.started if draft is not None] == [3, 2]


@pytest.mark.usefixtures("server")
def test_without_a_draft_model_the_server_is_plain() -> None:
    assert names(replace(PAIR, draft=None), runtime(draft=None), (2,)) == ["llama-server"]


def test_nothing_is_started_unasked(server: type[Server]) -> None:
    assert list(servers(REQUEST, PAIR, runtime(), ExitStack())) == []
    assert server.started == []


def test_every_tuned_task_is_recalled_once() -> None:
    asked: list[TaskType] = []

    def recall(task: TaskType) -> TunedChoice:
        asked.append(task)
        return TunedChoice(SSD, "")

    tuned_settings(recall, (CODING, Prompt("writing", "Tell."), CODING), print)
    assert asked == ["coding", "writing"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.usefixtures("server")
def test_a_request_to_end_ends_the_servers_too() -> None:
    def start_and_end(stack: ExitStack) -> None:
        stack.enter_context(exit_on_signals())
        assert len(list(servers(asked, PAIR, runtime(), stack))) == Server.running == 2
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # or this would end the tests
        signal.raise_signal(signal.SIGTERM)

    asked = replace(REQUEST, server=Path("llama-server"))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as left, ExitStack() as stack:
            start_and_end(stack)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (left.value.code, Server.running) == (143, 0)
