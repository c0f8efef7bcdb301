"""Whole answers of an engine that drafts ahead: errors, cancels, slow prompts, later turns."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import pytest

from localspec.decoding.engine import Engine
from localspec.decoding.rounds import DecodeParams, Round
from localspec.errors import Cancelled, DraftError
from localspec.types.drafts import DraftOrigin
from localspec.types.request import EngineSettings
from tests.decoding.toys import (
    GREEDY,
    Gate,
    broken,
    drafters,
    greedy_text,
    latency_model,
)
from tests.fake_model import FakeModel

PROMPT = [1, 2, 3]
SETTINGS = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=4)

TASK = DecodeParams(GREEDY, "rejection", 4, 60, frozenset())
LONG = replace(TASK, max_tokens=4000)  # long enough for the draft model's thread to get its turn


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert drafters() == []


def decode(
    engine: Engine,
    prompt: Sequence[int] = PROMPT,
    params: DecodeParams = TASK,
    settings: EngineSettings = SETTINGS,
) -> Generator[Round, None, None]:
    for event in engine.rounds(prompt, settings, params, latency_model(), 0):
        if isinstance(event, Round):
            yield event


def test_an_engine_survives_an_error_of_its_draft_model() -> None:
    target, draft = FakeModel(), FakeModel(sequences=5)
    engine = Engine(target, draft)
    draft._delay = lambda: broken() if len(draft.calls) == 9 else None
    with pytest.raises(DraftError, match="the card fell out"):
        list(decode(engine, params=LONG))
    with pytest.raises(DraftError, match="the card fell out"):  # it is not tried again
        list(decode(engine))
    plain = replace(SETTINGS, mode="off")
    tokens = [token for round_ in decode(engine, settings=plain) for token in round_.tokens]
    assert tokens == greedy_text(target, PROMPT, 60)


def test_a_cancel_of_the_draft_model_ends_the_answer() -> None:
    target, draft = FakeModel(), FakeModel(sequences=5)
    engine = Engine(target, draft)
    draft._delay = lambda: draft.cancel() if len(draft.calls) == 5 else None
    with pytest.raises(Cancelled):
        list(decode(engine, params=LONG))
    draft._delay = None
    tokens = [token for round_ in decode(engine) for token in round_.tokens]
    assert tokens == greedy_text(target, PROMPT, 60)


def test_the_target_continues_alone_while_the_draft_model_still_reads() -> None:
    with Gate(free_calls=0) as gate:
        target, draft = FakeModel(), FakeModel(sequences=5, delay=gate)
        rounds = decode(Engine(target, draft), params=LONG)
        found: list[int] = []
        for _ in range(12):
            round_ = next(rounds)
            assert (len(round_.tokens), round_.stats.origin) == (1, DraftOrigin.NONE)
            found += round_.tokens
        gate.wait_until_closed()
        gate.open()
        for round_ in rounds:
            found += round_.tokens
            if round_.stats.origin is DraftOrigin.AHEAD:
                break
        else:
            pytest.fail("the draft model never joined in")
        rounds.close()
        assert found == greedy_text(target, PROMPT, len(found))


def test_the_next_answer_finds_what_the_draft_model_has_read() -> None:
    target, draft = FakeModel(), FakeModel(sequences=5)
    engine = Engine(target, draft)
    prompt = [number % 16 for number in range(300)]
    answer = [token for round_ in decode(engine, prompt) for token in round_.tokens]
    draft.calls.clear()
    assert [t for r in decode(engine, [*prompt, *answer, 3]) for t in r.tokens]
    assert max(draft.calls) < 100
