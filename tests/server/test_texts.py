"""What llama-server answers about texts, on the bundled pair; and tools that it has to call."""

from __future__ import annotations

import json
from typing import Any, cast

import openai
import pytest

from localspec.inference.runtime import Runtime
from localspec.types.request import Message, Request
from tests.server.running import Served

pytestmark = pytest.mark.filterwarnings("ignore:llama_token_get_attr is deprecated")  # llguidance

TEXT = "<|im_start|>naïve ☃"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bonn", "Köln"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": PARAMETERS}}
    for name in ("weather", "tides")
]


def models(served: Served) -> Runtime:
    opened = served.service.queue.models
    assert isinstance(opened, Runtime)
    return opened


def test_texts_become_tokens_and_come_back(served: Served) -> None:
    tokens = served.post("/tokenize", {"content": TEXT}).json()["tokens"]
    assert tokens == [token for token, _ in models(served).tokenize(TEXT)]
    assert served.post("/detokenize", {"tokens": tokens}).json() == {"content": TEXT}
    apart = served.post("/tokenize", {"content": TEXT, "parse_special": False}).json()["tokens"]
    assert len(apart) > len(tokens)
    pieces = served.post("/tokenize", {"content": TEXT, "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    assert (
        b"".join(
            bytes(piece["piece"]) if isinstance(piece["piece"], list) else piece["piece"].encode()
            for piece in pieces
        )
        == TEXT.encode()
    )


def test_a_template_is_shown_with_tools(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Rain?"}], "tools": TOOLS, "model": "general"}
    told = served.post("/apply-template", body).json()["prompt"]
    system = served.service.profiles["general"].system_prompt
    prompt = (Message("system", system), Message("user", "Rain?"))
    assert told == models(served).render(
        Request(prompt, tools=tuple(json.dumps(tool, ensure_ascii=False) for tool in TOOLS))
    )
    assert '"name": "tides"' in told


def test_a_gap_needs_a_vocabulary_for_it(served: Served) -> None:
    reply = served.post("/infill", {"input_prefix": "def add(", "input_suffix": "\n", "n_predict": 4})
    assert reply.status_code == 400
    assert "cannot fill a gap" in reply.json()["error"]["message"]


def test_a_gap_is_filled(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = models(served)._target_model.vocabulary
    monkeypatch.setattr(
        vocabulary, "infill", lambda text, gap, room: vocabulary.tokenize(f"{text}|{gap.suffix}")
    )
    body = {"input_prefix": "def add", "prompt": "(", "input_suffix": "\n", "n_predict": 5, "temperature": 0}
    body |= {"input_extra": [{"text": "x = 1"}]}
    whole = served.post("/infill", body).json()
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 5)
    events = served.post("/infill", {**body, "stream": True}).text.split("\n\n")
    pieces = [json.loads(event.removeprefix("data: ")) for event in events if event]
    assert "".join(piece["content"] for piece in pieces) == whole["content"] != ""
    assert [piece["stop"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "tides"}}])
def test_a_call_that_is_required_is_made_and_valid(served: Served, choice: object) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        for seed in range(3):
            reply = client.chat.completions.create(
                model="coding",
                messages=[{"role": "user", "content": "Rain?"}],
                tools=TOOLS,
                tool_choice=cast(Any, choice),
                seed=seed,
                temperature=1,
                frequency_penalty=1,  # calls that repeat themselves would be ended
                max_tokens=600,  # for the most calls that are allowed
            )
            calls: Any = reply.choices[0].message.tool_calls
            assert len(calls) in (range(1, 9) if choice == "required" else (1,))
            for call in calls:
                assert call.function.name in {"tides"} | ({"weather"} if choice == "required" else set())
                arguments = json.loads(call.function.arguments)
                assert arguments.keys() == {"city", "days"}
                assert arguments["city"] in {"Bonn", "Köln"}
                assert 1 <= arguments["days"] <= 9
            assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("tool_calls", None)
