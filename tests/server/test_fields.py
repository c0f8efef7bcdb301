"""Fields of requests that would change an answer are obeyed, or refused by their name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.types.request import Grammar, Infill
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels

USER = {"role": "user", "content": "Hi"}
CHAT, BARE, CLAUDE, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    BARE: {"prompt": "Hi"},
    CLAUDE: {"messages": [USER], "max_tokens": 9},
    RESPONSES: {"input": "Hi"},
}
SCHEMA = {"type": "object"}
FORM = {"type": "json_schema", "schema": SCHEMA}


@pytest.fixture(scope="module")
def telling() -> Iterator[tuple[Served, TellingModels]]:
    models = TellingModels()
    with serving(lambda: models) as served:
        yield served, models


@pytest.fixture
def served(telling: tuple[Served, TellingModels]) -> Served:
    telling[1].requests.clear()
    telling[1].texts = ["{}"]
    return telling[0]


@pytest.fixture
def models(telling: tuple[Served, TellingModels]) -> TellingModels:
    return telling[1]


def test_an_answer_that_goes_on_may_be_asked_for_in_vllms_words(served: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    reply = served.chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert reply.status_code == 200
    both = served.chat(messages=messages, continue_final_message=True, add_generation_prompt=True)
    assert both.status_code == 400
    assert "cannot both be true" in both.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "value", "off"),
    [
        ("dry_multiplier", 0.8, 0), ("xtc_probability", 0.5, 0.0), ("mirostat", 2, 0),
        ("typical_p", 0.9, 1.0),
        ("min_tokens", 5, 0), ("best_of", 3, 1), ("top_n_sigma", 1.5, -1),
        ("add_generation_prompt", False, True), ("guided_json", {}, None), ("functions", [{"name": "f"}], []),
        ("post_sampling_probs", True, False),
        ("stop_token_ids", [3], []), ("samplers", ["temperature", "top_k"], None),
        ("samplers", ["mirostat"], None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ASKED)
def test_what_is_not_offered_is_refused_by_name_where_it_is_switched_on(
    served: Served, models: TellingModels, path: str, name: str, value: object, off: object
) -> None:
    refused = served.post(path, {**ASKED[path], name: value})
    assert (refused.status_code, name in refused.json()["error"]["message"]) == (400, True)
    assert not models.requests
    assert served.post(path, {**ASKED[path], name: off}).status_code == 200


@pytest.mark.parametrize(
    ("path", "more", "name"),
    [
        (CHAT, {"echo": True}, "echo"),
        (CHAT, {"suffix": "x"}, "suffix"),
        (CHAT, {"json_schema": SCHEMA, "response_format": FORM}, "json_schema"),
        (CHAT, {"json_schema": SCHEMA, "grammar": 'root ::= "a"'}, "grammar"),
        (CHAT, {"n_predict": 3, "max_tokens": 4}, "n_predict"),
        (CHAT, {"reasoning_effort": 3}, "reasoning_effort"),
        (BARE, {"echo": True, "logprobs": 1}, "echo"),
        (BARE, {"prompt": []}, "prompt"),
        (BARE, {"prompt": [65, "b"]}, "prompt"),
        (BARE, {"prompt": ["a"] * 65}, "prompt"),
        (RESPONSES, {"top_logprobs": 3}, "top_logprobs"),
        (RESPONSES, {"prompt": {"id": "p"}}, "prompt"),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}, "include"),
        (CLAUDE, {"output_config": {"format": {"type": "xml"}}}, "response_format"),
        (CLAUDE, {"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
)
def test_what_makes_no_sense_at_a_path_is_refused(
    served: Served, path: str, more: dict[str, object], name: str
) -> None:
    reply = served.post(path, {**ASKED[path], **more})
    assert (reply.status_code, name in reply.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"reasoning_effort": "low"}),
        (RESPONSES, {"reasoning": {"effort": "low", "summary": "auto"}}),
        (CLAUDE, {"output_config": {"effort": "low"}}),
    ],
)
def test_an_effort_reaches_the_template(
    served: Served, models: TellingModels, path: str, more: dict[str, Any]
) -> None:
    served.post(path, {**ASKED[path], **more})
    none = json.loads(json.dumps(more).replace("low", "none"))
    served.post(path, {**ASKED[path], **none})
    named = {"chat_template_kwargs": {"reasoning_effort": "high"}}
    served.post(path, {**ASKED[path], **more, **named})
    variables = [dict(request.template_variables) for request in models.requests]
    assert variables == [
        {"reasoning_effort": "low"},
        {"enable_thinking": False},
        {"reasoning_effort": "high"},
    ]


NAMES = (
    "reasoning_budget",
    "reasoning_budget_tokens",
    "thinking_budget",
    "thinking_budget_tokens",
    "thinking_token_budget",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", ASKED)
def test_a_budget_for_thinking_has_many_names(
    served: Served, models: TellingModels, path: str, name: str
) -> None:
    for budget in (77, -1, 0):
        assert served.post(path, {**ASKED[path], name: budget}).status_code == 200
    assert [request.thinking_budget for request in models.requests] == [77, -1, 0]
    assert dict(models.requests[-1].template_variables) == {"enable_thinking": False}
    assert served.post(path, {**ASKED[path], name: -2}).status_code == 400
    assert served.post(path, {**ASKED[path], name: "many"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "more", "budget"),
    [
        (CHAT, {"reasoning_effort": "none"}, 0),
        (CHAT, {"reasoning_effort": "minimal"}, 512),
        (CHAT, {"reasoning_effort": "low"}, 1024),
        (CHAT, {"reasoning_effort": "high"}, None),
        (CHAT, {"reasoning_effort": "low", "reasoning_budget": 5}, 5),
        (CHAT, {"think": False}, 0),
        (CHAT, {"think": "low"}, 1024),
        (CHAT, {"enable_thinking": False}, 0),
        (CHAT, {"thinking": {"type": "disabled"}}, 0),
        (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 9}}, 9),
        (CHAT, {"thinking": False}, 0),
        (CHAT, {"reasoning": {"enabled": False}}, 0),
        (CHAT, {"reasoning": {"effort": "minimal"}}, 512),
        (CHAT, {"reasoning": {"max_tokens": 9, "exclude": True}}, 9),
        (CHAT, {"reasoning": {"effort": "none"}, "thinking_budget_tokens": 9}, 9),
        (CHAT, {"think": False, "chat_template_kwargs": {"enable_thinking": True}}, None),
        (RESPONSES, {"reasoning": {"effort": "low"}}, 1024),
        (CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": 2048}}, 2048),
        (CLAUDE, {"thinking": {"type": "disabled"}}, 0),
        (CLAUDE, {"thinking": {"type": "adaptive"}}, None),
        ("/api/chat", {"messages": [USER], "think": False}, 0),
        ("/api/chat", {"messages": [USER], "think": True}, None),
        ("/api/chat", {"messages": [USER], "think": "low"}, 1024),
    ],
)
def test_what_says_how_long_to_think_is_a_budget(
    served: Served, models: TellingModels, path: str, more: dict[str, Any], budget: int | None
) -> None:
    assert served.post(path, {**ASKED.get(path, {}), **more}).status_code == 200
    assert models.requests[-1].thinking_budget == budget


@pytest.mark.parametrize(
    "more", [{"think": False}, {"enable_thinking": False}, {"thinking": {"type": "disabled"}}]
)
def test_a_template_hears_that_nothing_is_to_be_thought(
    served: Served, models: TellingModels, more: dict[str, Any]
) -> None:
    for extra in ({}, {"chat_template_kwargs": {"a": 1}}):
        assert served.post(CHAT, {**ASKED[CHAT], **more, **extra}).status_code == 200
    plain, extended = (dict(request.template_variables) for request in models.requests)
    assert (plain, extended) == ({"enable_thinking": False}, {"enable_thinking": False, "a": 1})


@pytest.mark.parametrize(
    "more", [{"think": 3}, {"enable_thinking": "no"}, {"thinking": "off"}, {"reasoning": []}]
)
def test_a_switch_of_thinking_that_is_none_is_refused(served: Served, more: dict[str, Any]) -> None:
    reply = served.post(CHAT, {**ASKED[CHAT], **more})
    assert (reply.status_code, "is not true or false" in reply.text) == (400, True)


@pytest.mark.parametrize("path", ASKED)
def test_a_client_can_keep_its_conversation_off_the_disk(
    served: Served, models: TellingModels, path: str
) -> None:
    for retention in ("in_memory", "in-memory", "24h", None):
        more = {"prompt_cache_retention": retention}
        assert served.post(path, {**ASKED[path], **more}).status_code == 200
    assert [request.kept_as for request in models.requests] == [None, None, "", ""]


@pytest.mark.parametrize("path", ASKED)
def test_names_of_other_programs_mean_the_same_at_every_path(
    served: Served, models: TellingModels, path: str
) -> None:
    more = {"n_predict": 9, "repetition_penalty": 1.5, "top_k": -1, "min_p": 0.25, "seed": 3}
    served.post(path, {**ASKED[path], **more, "json_schema": SCHEMA, "stop": ["x"]})
    (request,) = models.requests
    sampling = request.sampling
    assert (sampling.repetition_penalty, sampling.top_k, sampling.min_p) == (1.5, 0, 0.25)
    assert (request.seed, request.stop) == (3, ("x",))
    assert request.max_tokens == 9
    assert request.grammar == Grammar("json_schema", json.dumps(SCHEMA))


def test_with_a_limit_of_nothing_the_prompt_is_read(served: Served, models: TellingModels) -> None:
    for path, name in ((CHAT, "n_predict"), (CHAT, "max_tokens"), (RESPONSES, "max_output_tokens")):
        assert served.post(path, {**ASKED[path], name: 0}).status_code == 200
    assert len(models.reads) == 3
    assert not models.requests


def test_json_objects_of_a_schema(served: Served, models: TellingModels) -> None:
    served.post(CHAT, {**ASKED[CHAT], "json_schema": SCHEMA, "response_format": {"type": "json_object"}})
    assert models.requests[0].grammar == Grammar("json_schema", json.dumps(SCHEMA))


def test_anthropics_format_is_a_schema(served: Served, models: TellingModels) -> None:
    for more in ({"output_config": {"format": FORM}}, {"output_format": FORM}):
        assert served.post(CLAUDE, {**ASKED[CLAUDE], **more}).status_code == 200
    assert [request.grammar for request in models.requests] == 2 * [
        Grammar("json_schema", json.dumps(SCHEMA))
    ]


def test_steps_that_samplers_do_not_list_are_left_out(served: Served, models: TellingModels) -> None:
    more = {"samplers": ["dry", "top_k", "xtc", "temperature"], "top_p": 0.5, "temperature": 0.3, "top_k": 7}
    served.post(CHAT, {**ASKED[CHAT], **more, "repeat_penalty": 1.2})
    sampling = models.requests[0].sampling
    assert (sampling.top_k, sampling.top_p, sampling.min_p, sampling.temperature) == (7, 1, 0, 0.3)
    assert sampling.repetition_penalty == 1


@pytest.mark.parametrize("streams", [False, True])
def test_a_bare_text_is_echoed_filled_and_given_as_tokens(
    served: Served, models: TellingModels, streams: bool
) -> None:
    models.texts = ["!"]
    body = {"prompt": [[72, 105], "You"], "echo": True, "suffix": "end", "stream": streams, "n": 2}
    reply = served.post(BARE, {**body, "stream_options": {"include_usage": True}})
    if streams:
        frames = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        choices = [choice for frame in frames for choice in frame["choices"]]
        texts = ["".join(each["text"] for each in choices if each["index"] == index) for index in range(4)]
        usage = frames[-1]["usage"]
    else:
        texts, usage = [choice["text"] for choice in reply.json()["choices"]], reply.json()["usage"]
    assert texts == ["Hi!", "Hi!", "You!", "You!"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2 * 10, 4)
    assert [request.prompt for request in models.requests] == ["Hi", "Hi", "You", "You"]
    assert {request.infill for request in models.requests} == {Infill("end")}
