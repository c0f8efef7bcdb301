"""Answers of real models in which grammars begin and end: the same text in every mode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.inference.runtime import Runtime
from localspec.types.request import EngineSettings, Grammar, Message, Request, Sampling, Trigger
from tests import made_models
from tests.inference.runtimes import GREEDY, MODES, OFF, QUESTION, answer, open_pair

LETTERS = "aeiot"
CALL = Grammar("lark", 'start: /[ ]?[xyz]{3}[0-9]/ "!" REST\nREST: /(.|\\n)*/')
TRIGGERS = (Trigger(rf"(?P<name>[{LETTERS}])\b", tuple((letter, CALL) for letter in LETTERS)),)
FOUND = re.compile(rf"[{LETTERS}] ?[xyz]{{3}}[0-9]!")
QUESTIONS = ((Message("user", "Tell me a story of the sea."),), QUESTION)
ASKED = Request(QUESTIONS[0], GREEDY, OFF, max_tokens=80, seed=1, triggers=TRIGGERS)
WITH_HEAD = ("off", "ngram", "sd")


@pytest.fixture(scope="module", params=["bundled", "hybrid", "windows", "mtp", "eagle3", "windows, mtp"])
def pair(
    request: pytest.FixtureRequest,
    demo_target_q8: Path,
    demo_draft: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Runtime, tuple[str, ...]]]:
    target, draft, modes = demo_target_q8, demo_draft, tuple[str, ...](MODES)
    folder = tmp_path_factory.mktemp("pair")
    match request.param:
        case "hybrid":
            target = request.getfixturevalue("made_hybrid")
            draft = made_models.hybrid(folder / "draft.gguf", kind="q4_0", head=False)
        case "windows":
            target = made_models.windowed(folder / "target.gguf")
            draft = made_models.attention(folder / "draft.gguf")
        case "mtp":
            target = draft = request.getfixturevalue("made_hybrid")
        case "eagle3":
            draft = request.getfixturevalue("made_eagle3")
        case "windows, mtp":
            target = draft = request.getfixturevalue("made_windowed_mtp")
    with open_pair(target, draft) as opened:
        yield opened, WITH_HEAD if request.param in {"mtp", "eagle3", "windows, mtp"} else modes


def ways(mode: str) -> EngineSettings:
    assert mode in MODES
    return EngineSettings(mode=mode, min_confidence=0.0, draft_length=4)


@pytest.mark.slow
def test_every_mode_writes_the_text_of_plain_decoding(pair: tuple[Runtime, tuple[str, ...]]) -> None:
    (runtime, modes), calls, accepted = pair, 0, 0
    for question in QUESTIONS:
        asked = replace(ASKED, prompt=question, reuses_cache=False)
        expected, _ = answer(runtime, asked)
        calls += len(FOUND.findall(expected))
        for mode in modes[1:]:
            found, end = answer(runtime, replace(asked, settings=ways(mode)))
            assert found == expected
            accepted += end.summary.accepted
    assert calls > 3
    assert accepted > 20


@pytest.fixture(scope="module")
def runtime(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


def test_one_seed_writes_one_text_with_match(runtime: Runtime) -> None:
    for seed in range(2):
        asked = replace(ASKED, sampling=Sampling(temperature=0.9), seed=seed)
        expected, _ = answer(runtime, asked)
        assert FOUND.search(expected)
        for mode in MODES[1:]:
            matching = replace(asked, settings=replace(ways(mode), acceptance="match"))
            assert answer(runtime, matching)[0] == expected


@pytest.mark.parametrize(
    ("begun", "is_bound"), [("The", True), ("The xy", True), ("The!", False), ("The xyz4!", True)]
)
def test_an_answer_goes_on_with_a_call_that_the_prompt_has_begun(
    runtime: Runtime, begun: str, is_bound: bool
) -> None:
    asked = replace(ASKED, prompt=(*QUESTIONS[0], Message("assistant", begun)), max_tokens=6)
    text, _ = answer(runtime, asked)
    assert bool(re.match(r" ?[xyz]{3}[0-9]!", f"{begun[3:]}{text}")) == is_bound


def test_an_expression_that_is_none_is_reported_before_the_first_event(runtime: Runtime) -> None:
    with pytest.raises(UserError, match="no regular expression"):
        next(runtime.generate(replace(ASKED, triggers=(Trigger("(", ()),))))
