"""llama-server's own `/completion`: several prompts, chosen fields, the progress of reading, figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import Served, serving
from tests.server.turning_models import TurningModels

PATH = "/completion"
ASK: dict[str, Any] = {"prompt": "Hi there", "n_predict": 3}


@pytest.fixture(scope="module")
def made_up() -> Iterator[Served]:
    with serving(TurningModels) as running:
        yield running


def chunks(served: Served, **body: object) -> list[dict[str, Any]]:
    text = served.post(PATH, ASK | {"stream": True} | body).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_several_prompts_have_a_list_of_answers(made_up: Served) -> None:
    replies = made_up.post(PATH, ASK | {"prompt": ["Hi", "Oh no", "Yes"]}).json()
    assert [reply["content"] for reply in replies] == ["HHH", "OOO", "YYY"]
    assert [reply["index"] for reply in replies] == [0, 1, 2]
    assert [reply["prompt"] for reply in replies] == ["Hi", "Oh no", "Yes"]
    assert made_up.post(PATH, ASK | {"prompt": ["Hi"]}).json()["content"] == "HHH"
    assert made_up.post(PATH, ASK | {"prompt": {"prompt_string": "Hi"}}).json()["content"] == "HHH"
    with_image = {"prompt_string": "Hi", "multimodal_data": ["aGk="]}
    assert made_up.post(PATH, ASK | {"prompt": with_image}).status_code == 400
    last = [chunk for chunk in chunks(made_up, prompt=["Hi", "Oh no"]) if chunk["stop"]]
    assert [(chunk["index"], chunk["prompt"]) for chunk in last] == [(0, "Hi"), (1, "Oh no")]


def test_only_the_wanted_fields_come_back(made_up: Served) -> None:
    wanted = ["content", "generation_settings/n_predict", "timings/predicted_n", "nothing", "content/of/it"]
    reply = made_up.post(PATH, ASK | {"response_fields": wanted}).json()
    assert reply == {"content": "HHH", "generation_settings/n_predict": 3, "timings/predicted_n": 3}
    *others, last = chunks(made_up, response_fields=["tokens_predicted"])
    assert last == {"tokens_predicted": 3}
    assert "".join(chunk["content"] for chunk in others) == "HHH"
    assert made_up.post(PATH, ASK | {"response_fields": "content"}).status_code == 400


def test_a_stream_tells_how_much_of_the_prompt_was_read(made_up: Served) -> None:
    all_chunks = chunks(made_up, return_progress=True)
    told = [chunk["prompt_progress"] for chunk in all_chunks if "prompt_progress" in chunk]
    assert told[-1]["processed"] == told[-1]["total"] > 0
    assert all(each["time_ms"] >= 0 and each["cache"] == 0 for each in told)
    assert not any("prompt_progress" in chunk for chunk in chunks(made_up))


@pytest.mark.parametrize(("path", "is_chat"), [("/v1/chat/completions", True), ("/v1/completions", False)])
def test_an_answer_tells_how_it_came_about(path: str, is_chat: bool, made_up: Served) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if is_chat else {"prompt": "Hi"}
    body = asked | {"max_tokens": 3, "seed": 7, "verbose": True}
    prompt = made_up.post("/apply-template", asked).json()["prompt"] if is_chat else "Hi"
    told = made_up.post(path, body).json()["__verbose"]
    assert told["prompt"] == prompt
    assert (told["content"], told["stop_type"], told["tokens_predicted"]) == ("HHH", "limit", 3)
    assert told["generation_settings"]["seed"] == 7
    lines = made_up.post(path, body | {"stream": True}).text.splitlines()
    streamed = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    (chunk,) = (chunk for chunk in streamed if "__verbose" in chunk)
    assert chunk["__verbose"]["content"] == "HHH"
    assert "__verbose" not in made_up.post(path, body | {"verbose": False}).json()


def test_a_stream_of_a_chat_begins_with_its_role_and_no_text(made_up: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True}
    lines = made_up.post("/v1/chat/completions", body).text.splitlines()
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert all(delta["content"] for delta in deltas[1:-1])


def test_a_chat_tells_it_too(made_up: Served) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi there"}], "max_tokens": 2, "stream": True}
    text = made_up.chat(**asked, return_progress=True).text
    assert '"prompt_progress":{"total":' in text
    assert "prompt_progress" not in made_up.chat(**asked).text


def test_tokens_and_texts_may_be_one_prompt(made_up: Served) -> None:
    tokens = made_up.post("/tokenize", {"content": "Hi"}).json()["tokens"]
    whole = made_up.post(PATH, ASK | {"prompt": [*tokens, " there"]}).json()
    assert whole["prompt"] == made_up.post("/detokenize", {"tokens": tokens}).json()["content"] + " there"
    both = made_up.post(PATH, ASK | {"prompt": [[*tokens, " there"], "Oh"]}).json()
    assert [reply["prompt"] for reply in both] == [whole["prompt"], "Oh"]
    assert made_up.post(PATH, ASK | {"prompt": ["Hi", 3.5]}).status_code == 400


def test_the_figures_have_llama_servers_names(made_up: Served) -> None:
    made_up.post(PATH, ASK)
    lines = made_up.client.get("/metrics").text.splitlines()
    figures = {name: float(value) for name, value in (line.split(" ") for line in lines if line[0] != "#")}
    speeds = ("prompt_tokens_seconds", "predicted_tokens_seconds", "n_busy_slots_per_decode")
    for name in ("n_tokens_max", "spec_decode_num_drafts_total", *speeds):
        assert f"llamacpp:{name}" in figures
    assert figures["llamacpp:n_tokens_max"] >= 5


@pytest.mark.parametrize("path", ["/v1/props", "/props", "/v1/audio/transcriptions"])
def test_what_llama_server_offers_beyond_is_refused_by_name(made_up: Served, path: str) -> None:
    reply = made_up.post(path, {})
    assert reply.status_code == 501
    assert reply.json()["error"]["type"] == "not_supported_error"
    assert "is not offered" in reply.json()["error"]["message"]
    assert made_up.client.get("/lora-adapters").json() == []


def test_slots_are_saved_only_where_a_folder_is_named(made_up: Served) -> None:
    reply = made_up.post("/slots/0?action=save", {"filename": "a.bin"})
    assert reply.status_code == 501
    assert "--slot-save-path" in reply.json()["error"]["message"]
