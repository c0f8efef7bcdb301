"""Grammars, biases and log-probabilities on the bundled pair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.errors import UserError
from localspec.inference.runtime import Runtime
from localspec.types.events import TokenScore, TokensScored
from localspec.types.request import EngineSettings, Grammar, Message, Mode, Request, Sampling
from tests.inference.runtimes import GREEDY, MODES, answer, open_pair, text_of

SCHEMA = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "kind": {"enum": ["alpha", "beta_two"]},
                "even": {"type": "boolean"},
            },
            "required": ["name", "kind", "even"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_pattern": " ?"},
        }
    ),
)
WARM = Sampling(temperature=1.0)
ASKED = Request((Message("user", "Who are you?"),), WARM, max_tokens=60, seed=1)


@pytest.fixture(scope="module")
def runtime(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


def ways(mode: Mode) -> EngineSettings:
    return EngineSettings(mode=mode, min_confidence=0.0, draft_length=4)


@pytest.mark.parametrize("mode", MODES)
def test_every_answer_is_what_the_schema_says(runtime: Runtime, mode: Mode) -> None:
    for seed in range(4):
        text, end = answer(runtime, replace(ASKED, settings=ways(mode), grammar=SCHEMA, seed=seed))
        assert end.reason == "stop"
        value = json.loads(text)
        assert list(value) == ["name", "kind", "even"]
        assert (value["kind"] in {"alpha", "beta_two"}, type(value["even"])) == (True, bool)


def test_greedy_text_is_that_of_plain_decoding(runtime: Runtime) -> None:
    bias = ((runtime.encode("{")[-1], 1.0),)
    greedy = replace(ASKED, sampling=GREEDY, grammar=SCHEMA, logit_bias=bias)
    expected, _ = answer(runtime, replace(greedy, settings=ways("off")))
    for mode in MODES[1:]:
        text, end = answer(runtime, replace(greedy, settings=ways(mode)))
        assert text == expected
        assert end.summary.accepted > 0


def test_a_banned_token_is_never_written(runtime: Runtime) -> None:
    plain = replace(ASKED, sampling=GREEDY, settings=ways("sd"), max_tokens=40)
    tokens = [token for token, *_ in runtime.generate_tokens(plain)]
    banned = tokens[3]
    without = [token for token, *_ in runtime.generate_tokens(replace(plain, logit_bias=((banned, -100.0),)))]
    assert without[:3] == tokens[:3]
    assert banned not in without


@pytest.mark.parametrize("mode", ["off", "sd"])
def test_log_probabilities_are_those_that_score_gives(runtime: Runtime, mode: Mode) -> None:
    request = replace(ASKED, settings=ways(mode), top_logprobs=2, grammar=SCHEMA)
    events = list(runtime.generate(request))
    scores = [score for event in events if isinstance(event, TokensScored) for score in event.scores]
    assert b"".join(score.data for score in scores).decode() == text_of(events)
    prompt = runtime.encode(request.prompt)
    tokens = [score.token for score in scores]
    rows = list(map(np.array, runtime.score([*prompt, *tokens])))[len(prompt) - 1 :]
    for score, row in zip(scores, rows, strict=False):
        logits = row.astype(np.float64)
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert score.logprob == pytest.approx(logprobs[score.token], abs=0.1)
        assert score.top[0][2] == pytest.approx(logprobs.max(), abs=0.1)
        assert len(score.top) == 2
    assert isinstance(scores[0], TokenScore)


def test_scores_end_where_the_text_does(runtime: Runtime) -> None:
    plain = replace(ASKED, sampling=GREEDY, settings=ways("sd"), top_logprobs=0)
    whole = text_of(list(runtime.generate(plain)))
    stopped = list(runtime.generate(replace(plain, stop=(whole[8:12],))))
    scores = [score for event in stopped if isinstance(event, TokensScored) for score in event.scores]
    assert len(b"".join(score.data for score in scores)) < 12
    assert all(not score.top for score in scores)
    unasked = runtime.generate(replace(plain, top_logprobs=None))
    assert not any(isinstance(event, TokensScored) for event in unasked)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Request("a", logit_bias=((8192, 1.0),)), "no token 8192"),
        (Request("a", logit_bias=((1, float("nan")),)), "logit_bias.*not nan"),
        (Request("a", top_logprobs=65), "top_logprobs"),
        (Request("a", grammar=Grammar("gbnf", "root ::= (")), "cannot be used"),
    ],
)
def test_what_cannot_be_is_rejected_before_the_first_event(
    runtime: Runtime, wrong: Request, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        next(runtime.generate(wrong))
