"""The paths that clients of OpenAI, Anthropic, llama-server and Ollama ask at, and what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from localspec.server import about
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels
from tests.server.test_doors import CHAT, FOR_EVER, connected, is_idle, sent
from tests.server.turning_models import TurningModels
from tests.waiting import until

HI: Any = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
TEXT: Any = {"prompt": "Hi", "n_predict": 3}
TOOL: Any = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture(scope="module")
def made_up() -> Iterator[Served]:
    with serving(TurningModels) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", HI),
        ("//v1/chat/completions/", HI),
        ("/v1/v1/chat/completions", HI),
        ("/completions", TEXT),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 3}),
        ("/completion", TEXT),
        ("/v1/completion/", TEXT),
        ("/messages", HI),
        ("/v1/v1/messages", HI),
        ("/messages/count_tokens", HI),
        ("/responses", {"input": "Hi", "max_output_tokens": 3}),
        ("/v1/tokenize", {"content": "Hi"}),
        ("/v1/apply-template", HI),
        ("/api/chat", {**HI, "options": {"num_predict": 3}}),
        ("/api/generate/", {"prompt": "Hi", "options": {"num_predict": 3}}),
    ],
)
def test_base_urls_are_given_in_many_ways(made_up: Served, path: str, body: object) -> None:
    assert made_up.post(path, body).status_code == 200


def test_the_tokens_of_a_prompt_are_counted_alike_for_every_protocol(made_up: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Two words"}]}
    counts = [
        made_up.post("/v1/chat/completions/input_tokens", body).json()["input_tokens"],
        made_up.post("/messages/count_tokens", body).json()["input_tokens"],
    ]
    with openai.OpenAI(base_url=f"{made_up.url}/v1", api_key="none", max_retries=0) as client:
        counts.append(client.responses.input_tokens.count(input="Two words").input_tokens)
    assert len(set(counts)) == 1
    assert counts[0] >= 2


@pytest.mark.parametrize(
    "path",
    ["/health", "/v1/health/", "/models", "/v1/models/", "/props", "/slots", "/v1/metrics", "/api/tags"],
)
def test_what_is_told_is_told_at_every_such_path(made_up: Served, path: str) -> None:
    assert made_up.client.get(path).status_code == 200
    assert made_up.client.head(path).status_code == 200


def test_one_model_can_be_asked_for(made_up: Served) -> None:
    with openai.OpenAI(base_url=f"{made_up.url}/v1", api_key="none", max_retries=0) as client:
        assert client.models.retrieve("coding").id == "coding"
        assert "coding" in {model.id for model in client.models.list()}
        with pytest.raises(openai.NotFoundError, match="there is no model gpt-5; there are general, "):
            client.models.retrieve("gpt-5")
    with anthropic.Anthropic(base_url=made_up.url, api_key="none", max_retries=0) as other:
        assert other.models.retrieve("coding").display_name
        assert "coding" in {model.id for model in other.models.list()}


def test_replies_name_the_program_and_streams_their_times(made_up: Served) -> None:
    fingerprint = made_up.chat(**HI).json()["system_fingerprint"]
    assert re.fullmatch(r"b\d{5}-localspec-\d.*", fingerprint)  # llama-server's clients read its build
    body = {**HI, "stream": True, "stream_options": {"include_usage": True}}
    *_, last = _events(made_up.post(CHAT, body).text)
    assert last["usage"]["completion_tokens"] == last["timings"]["predicted_n"] == 3


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_slots_are_a_list_of_what_is_answered(made_up: Served) -> None:
    slots = made_up.client.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert not any(slot["is_processing"] for slot in slots)
    with connected(made_up) as client:
        client.sendall(sent(FOR_EVER))
        until(lambda: made_up.client.get("/slots").json()[0]["is_processing"])
        slots = made_up.client.get("/slots").json()
        assert slots[0]["state"] == "answering"
        assert slots[0]["next_token"][0]["n_remain"] == -1
        assert not any(slot["is_processing"] for slot in slots[1:])
    until(lambda: is_idle(made_up))


def test_props_name_slots_and_defaults(made_up: Served) -> None:
    props = made_up.client.get("/props").json()
    assert props["total_slots"] == 4
    usual = props["default_generation_settings"]
    assert usual["n_ctx"] == 512
    assert {"temperature", "repeat_penalty", "repeat_last_n", "seed", "n_predict"} <= usual["params"].keys()
    assert props["saved"]["count"] >= 0


def test_metrics_have_help_and_every_counter_from_the_start() -> None:
    with serving(TurningModels) as served:
        before = served.client.get("/metrics").text.splitlines()
        assert served.chat(**HI).status_code == 200
        after = served.client.get("/metrics").text.splitlines()
    names = [line.split()[0] for line in before if not line.startswith("#")]
    assert names == [line.split()[0] for line in after if not line.startswith("#")]
    for name in names:
        assert any(line.startswith(f"# HELP {name} ") for line in before)
        assert sum(line.startswith(f"# TYPE {name} ") for line in before) == 1
    for name in ("localspec_tokens_total", "llamacpp:tokens_predicted_total"):
        assert f"{name} 0" in before
        assert f"{name} 3" in after


def test_a_native_completion_says_how_it_was_made(made_up: Served) -> None:
    whole = made_up.post("/completion", {**TEXT, "temperature": 0, "seed": 7}).json()
    assert (whole["content"], whole["stop"], whole["stop_type"]) == ("HHH", True, "limit")
    assert (whole["tokens"], whole["truncated"], whole["has_new_line"]) == ([], False, False)
    settings = whole["generation_settings"]
    assert (settings["temperature"], settings["seed"], settings["n_predict"]) == (0, 7, 3)
    events = _events(made_up.post("/completion", {**TEXT, "stream": True}).text)
    assert "".join(event["content"] for event in events) == "HHH"
    assert [event["stop"] for event in events[-2:]] == [False, True]  # texts may share an event
    assert events[-1]["timings"]["predicted_n"] == 3


def test_a_native_completion_gives_tokens_and_probabilities(served: Served) -> None:
    body = {"prompt": "the sea", "n_predict": 4, "n_probs": 2, "return_tokens": True, "temperature": 0}
    whole = served.post("/completion", body).json()
    assert len(whole["tokens"]) == whole["tokens_predicted"] == 4
    assert [each["id"] for each in whole["completion_probabilities"]] == whole["tokens"]
    for each in whole["completion_probabilities"]:
        assert each["top_logprobs"][0]["id"] == each["id"]  # the best, at temperature 0
        assert len(each["top_logprobs"]) == 2
    events = _events(served.post("/completion", {**body, "stream": True}).text)
    assert [token for event in events for token in event["tokens"]] == whole["tokens"]
    text = served.post("/detokenize", {"tokens": whole["tokens"]}).json()["content"]
    assert text == whole["content"]


def test_ollama_chats_come_in_lines(made_up: Served) -> None:
    body = {**HI, "model": "coding:latest", "options": {"num_predict": 2}}
    lines = [json.loads(line) for line in made_up.post("/api/chat", body).text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == "HH"
    assert [line["done"] for line in lines[-2:]] == [False, True]  # texts may share a line
    assert (lines[-1]["model"], lines[-1]["done_reason"], lines[-1]["eval_count"]) == ("coding", "length", 2)
    whole = made_up.post("/api/chat", {**body, "stream": False}).json()
    assert whole["message"] == {"role": "assistant", "content": "HH"}
    text = made_up.post("/api/generate", {"prompt": "Hi", "options": {"num_predict": 2}, "stream": False})
    assert text.json()["response"] == "HH"
    raw = {"prompt": "Xx", "raw": True, "options": {"num_predict": 2}, "stream": False}
    assert made_up.post("/api/generate", raw).json()["response"] == "XX"


def test_ollama_clients_load_models_by_asking_nothing(made_up: Served) -> None:
    for path, body in (("/api/chat", {"messages": []}), ("/api/generate", {"model": "coding"})):
        reply = made_up.post(path, body).json()
        assert (reply["done"], reply["done_reason"]) == (True, "load")


def test_ollama_clients_get_thinking_and_calls_apart() -> None:
    with serving(lambda: TellingModels(texts=[f"<think>Hm.</think>Let me look.\n{CALL}"])) as served:
        body = {"messages": HI["messages"], "tools": [{"type": "function", "function": TOOL}]}
        whole = served.post("/api/chat", {**body, "stream": False}).json()["message"]
        lines = [json.loads(line)["message"] for line in served.post("/api/chat", body).text.splitlines()]
        [call] = whole["tool_calls"]
        assert call["function"] == {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}
        assert (whole["thinking"], whole["content"].strip()) == ("Hm.", "Let me look.")
        streamed = [call for line in lines for call in line.get("tool_calls", [])]
        assert [call["function"] for call in streamed] == [call["function"]]
        back = [{"role": "assistant", **whole}, {"role": "tool", "tool_name": "weather", "content": "Sun."}]
        reply = served.post("/api/chat", {**body, "messages": [*HI["messages"], *back], "stream": False})
        assert reply.status_code == 200
        models = served.service.queue.models
        assert isinstance(models, TellingModels)
        prompt = models.requests[-1].prompt
        assert isinstance(prompt, tuple)
        *_, asked, result = prompt
        assert (result.tool_call_id, result.content) == (asked.tool_calls[0].id, "Sun.")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollama_clients_get_log_probabilities(served: Served, path: str) -> None:
    asked = {**HI, "prompt": "the sea", "options": {"num_predict": 4, "temperature": 0}}
    asked |= {"logprobs": True, "top_logprobs": 2}
    whole = served.post(path, {**asked, "stream": False}).json()
    said = whole.get("response") or whole["message"]["content"]
    assert "".join(each["token"] for each in whole["logprobs"]).strip() == said.strip()
    for each in whole["logprobs"]:
        assert each["top_logprobs"][0]["token"] == each["token"]
        assert len(each["top_logprobs"]) == 2
    lines = [json.loads(line) for line in served.post(path, asked).text.splitlines()]
    streamed = [each["token"] for line in lines for each in line.get("logprobs", [])]
    assert streamed == [each["token"] for each in whole["logprobs"]]
    assert "logprobs" not in served.post(path, {**asked, "logprobs": False}).text


@pytest.mark.parametrize(
    ("option", "field", "value"),
    [
        ("temperature", "temperature", 0.5),
        ("repeat_penalty", "repetition_penalty", 1.5),
        ("repeat_last_n", "penalty_window", 7),
    ],
)
def test_ollama_options_reach_the_models(made_up: Served, option: str, field: str, value: float) -> None:
    options = {option: value, "num_predict": 1}
    assert made_up.post("/api/chat", {**HI, "options": options, "stream": False}).status_code == 200
    models = made_up.service.queue.models
    assert isinstance(models, TurningModels)
    assert getattr(models.requests[-1].sampling, field) == value


def test_ollama_clients_hear_what_there_is(made_up: Served) -> None:
    [first, *_] = made_up.client.get("/api/tags").json()["models"]
    assert {"name", "model", "modified_at", "size", "digest", "details"} <= first.keys()
    shown = made_up.post("/api/show", {"model": f"{first['name']}:latest"}).json()
    assert "tools" in shown["capabilities"]
    assert any(name.endswith(".context_length") for name in shown["model_info"])
    missing = made_up.post("/api/show", {"model": "llama3"})
    assert (missing.status_code, missing.json().keys()) == (404, {"error"})
    [running] = made_up.client.get("/api/ps").json()["models"]
    assert running["context_length"] == 512
    version = made_up.client.get("/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 13, 4]  # the oldest that Codex takes
    images = {"prompt": "Hi", "images": ["x"], "raw": True}
    assert made_up.post("/api/generate", images).json()["error"].startswith("the request holds images")


def test_the_page_needs_nothing_from_elsewhere(made_up: Served) -> None:
    reply = made_up.client.get("/")
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in reply.headers["content-security-policy"]
    assert reply.text == Path(about.__file__).with_name("page.html").read_text("utf-8")
    assert "://" not in reply.text
    assert len(reply.text) < 10_000
