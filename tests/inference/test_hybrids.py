"""Conversations with models that forget say what plain decoding with full caches says, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from localspec.decoding import conversations, loop
from localspec.decoding.engine import Engine
from localspec.llama import recurrent
from localspec.llama.library import native
from tests import made_models
from tests.inference.hybrid_turns import ALTERNATING, LONGEST, MODES, opened, talk

TURNS = 8
Pair = tuple[Engine, Engine]
ALONE, WITH_DRAFT, AHEAD = ["off", "ngram"], ["sd", "sd + ngram"], ["ssd", "ssd + ngram"]
MODES_OF = {
    "attention": ALONE + WITH_DRAFT + AHEAD,
    "attention, target without snapshots": ALONE + WITH_DRAFT + AHEAD,
    "hybrid": WITH_DRAFT + AHEAD,
    "windows": ALONE + WITH_DRAFT + AHEAD,
    "mtp": WITH_DRAFT,
    "windows, mtp": WITH_DRAFT,
    "windows, eagle3": WITH_DRAFT,
}


@pytest.fixture(scope="module")
def pair(
    request: pytest.FixtureRequest, made_hybrid: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    draft, target = tmp_path_factory.mktemp("draft") / "draft.gguf", made_hybrid
    match request.param:
        case "hybrid":
            made_models.hybrid(draft, kind="q4_0", head=False)
        case "windows":
            target = made_models.windowed(draft.with_name("target.gguf"))
            made_models.attention(draft)
        case "mtp":
            draft = made_hybrid
        case "windows, mtp":
            target = draft = request.getfixturevalue("made_windowed_mtp")
        case "windows, eagle3":
            target, draft = request.getfixturevalue("made_windowed_eagle3")
        case _:
            made_models.attention(draft)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "READ_CHUNK", LONGEST)
        if "without" in request.param:
            patched.setattr(recurrent, "kept_states", lambda *_: (0, 1))
        with opened(target, draft) as engines:
            yield engines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "mode"), [(pair, mode) for pair, modes in MODES_OF.items() for mode in modes], indirect=["pair"]
)
def test_every_answer_is_that_of_plain_decoding(pair: Pair, mode: str) -> None:
    engine, plain = pair
    engine.forget()
    found = talk(engine, plain, [MODES[mode]], seed=5, turns=TURNS)
    assert not found.wrong
    assert found.answers == TURNS
    assert found.reused > found.prompts / 3  # what was said before is not read again
    if mode != "off":
        assert 0 < found.accepted < found.drafted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "mode"), [(pair, modes[-1]) for pair, modes in MODES_OF.items()], indirect=["pair"]
)
def test_conversations_alternately_are_not_read_again(
    pair: Pair, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, plain = pair
    monkeypatch.setattr(conversations, "FEWEST", 8)
    engine.forget()
    engine.conversations.keep(2**30)
    try:
        found = talk(engine, plain, [MODES[mode]], seed=3, turns=3 * TURNS, conversations=3)
        assert engine.conversations.figures().count >= 2
    finally:
        engine.conversations.keep(0)
    assert not found.wrong
    assert found.reused > found.prompts / 3


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["hybrid", "windows", "windows, mtp", "windows, eagle3"], indirect=True)
@pytest.mark.parametrize("function", ["get_data", "set_data"])
def test_answers_are_right_where_llama_cpp_fails_to_copy_a_state(
    pair: Pair, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, plain = pair
    engine.forget()
    failing = Mock(return_value=0)
    monkeypatch.setattr(native(), f"llama_state_seq_{function}_ext", failing)
    found = talk(engine, plain, ALTERNATING, seed=6, turns=3 * TURNS)
    assert failing.call_count > 1
    assert not found.wrong
    assert found.answers == 3 * TURNS


@pytest.mark.slow
@pytest.mark.parametrize("pair", MODES_OF, indirect=True)
def test_modes_alternate_within_conversations(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head misses what the target reads in other modes, and what a saved cache brings back."""
    engine, plain = pair
    monkeypatch.setattr(conversations, "FEWEST", 8)
    engine.forget()
    engine.conversations.keep(2**30)
    try:
        found = talk(engine, plain, ALTERNATING, seed=1, turns=3 * TURNS, conversations=3)
    finally:
        engine.conversations.keep(0)
    assert not found.wrong
    assert found.reused > found.prompts / 3
    assert 0 < found.accepted < found.drafted
