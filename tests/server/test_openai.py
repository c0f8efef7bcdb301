"""OpenAI's protocol, with the real client where it matters and with what other clients send."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from localspec.inference.runtime import Runtime
from localspec.types.request import EngineSettings, Message, Request, Sampling
from tests.inference.runtimes import text_of
from tests.server.running import Served, serving
from tests.server.turning_models import TurningModels

pytestmark = pytest.mark.filterwarnings("ignore:llama_token_get_attr is deprecated")  # llguidance
SAID = "Write a Python function that adds two numbers."
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_client_chats(served: Served, client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="coding", messages=[{"role": "user", "content": SAID}], temperature=0, max_tokens=24
    )
    (choice,) = reply.choices
    assert choice.message.content == expected(served)
    assert choice.finish_reason == "length"
    assert reply.model == "coding"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 24
    assert reply.usage.total_tokens == 24 + reply.usage.prompt_tokens


def expected(served: Served) -> str:
    """The same answer by the models alone."""
    models = served.service.queue.models
    assert isinstance(models, Runtime)
    system = served.service.profiles["coding"].system_prompt
    prompt = (Message("system", system), Message("user", SAID))
    request = Request(prompt, Sampling(temperature=0), EngineSettings(mode="off"), 24)
    return text_of(list(models.generate(request)))


def test_a_stream_says_the_same(served: Served, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="coding",
        messages=[{"role": "user", "content": SAID}],
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == expected(served)
    assert len([delta for delta in deltas if delta.content]) > 1
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 24


def test_a_bare_text_is_continued(client: openai.OpenAI) -> None:
    text = "def add(a, b):\n"
    reply = client.completions.create(model="auto", prompt=text, temperature=0, max_tokens=8)
    again = client.completions.create(model="auto", prompt=[text], temperature=0, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in again) == reply.choices[0].text != ""


def test_tokens_are_continued_as_their_text_or_refused(served: Served) -> None:
    body = {"temperature": 0, "max_tokens": 8}
    text = "def add(a, b):\n"
    asked = {"content": text, "add_special": True}
    tokens = served.post("/tokenize", asked).json()["tokens"]
    replies = [served.post("/v1/completions", {**body, "prompt": each}).json() for each in (text, tokens)]
    assert replies[0]["choices"][0]["text"] == replies[1]["choices"][0]["text"] != ""
    assert replies[0]["usage"]["prompt_tokens"] == replies[1]["usage"]["prompt_tokens"] == len(tokens)
    letters = [served.post("/tokenize", {"content": letter}).json()["tokens"][-1] for letter in "def"]
    assert served.post("/v1/completions", {**body, "prompt": letters}).status_code == 400
    assert served.post("/v1/completions", {**body, "prompt": [10**9]}).status_code == 400


def test_timings_tell_of_speculation(served: Served) -> None:
    body: dict[str, object] = {"messages": [{"role": "user", "content": SAID}], **GREEDY}
    body["speculative"] = {"mode": "sd", "min_confidence": 0.2}
    reply = served.chat(**body).json()
    assert reply["timings"]["draft_n"] >= reply["timings"]["draft_n_accepted"] > 0
    body["speculative"] = {"mode": "off"}
    assert served.chat(**body).json()["timings"]["draft_n"] == 0


def test_several_answers_differ_by_their_seed(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "n": 3, "seed": 7}
    body |= {"max_tokens": 12, "temperature": 1.0, "speculative": {"mode": "off"}}
    reply = served.chat(**body).json()
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert reply["usage"]["completion_tokens"] == 36
    alone = served.chat(**body | {"n": 1, "seed": 8}).json()
    assert alone["choices"][0]["message"]["content"] == texts[1]


def test_stop_ends_an_answer(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": SAID}], "temperature": 0}
    text = served.chat(**body | {"max_tokens": 24}).json()
    word = text["choices"][0]["message"]["content"].split()[2]
    reply = served.chat(**body | {"stop": word}).json()
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert word not in reply["choices"][0]["message"]["content"]


HI = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": None, "stop": None, "seed": None, "stream": None, "max_completion_tokens": 4},
        {"max_tokens": 4, "user": "me", "metadata": {}, "service_tier": "auto", "unheard_of": [1]},
        {"max_tokens": 4, "stop": [], "logprobs": False, "response_format": {"type": "text"}},
        {"max_tokens": 4, "chat_template_kwargs": {"enable_thinking": False}, "seed": -1},
        {"max_tokens": 4, "messages": [{"role": "developer", "content": "Be brief."}, HI]},
        {"max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"max_tokens": 4, "model": "gpt-4o-mini"},
    ],
)
def test_fields_that_clients_send_are_accepted(served: Served, more: dict[str, object]) -> None:
    body = {"model": "auto", "messages": [HI], "temperature": 0, **more}
    reply = served.chat(**body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(("seed", "expected"), [(-1, None), (None, None), (7, 7)])
def test_seed_minus_one_is_a_random_one_as_in_llama_cpp(seed: int | None, expected: int | None) -> None:
    models = TurningModels()
    with serving(lambda: models) as served:
        assert served.chat(model="general", messages=[HI], max_tokens=1, seed=seed).status_code == 200
    assert models.requests[-1].seed == expected


@pytest.mark.parametrize("seed", [2**50 + 1, 2**53 + 1, 2**63 - 1, -2, -(2**63)])
def test_seeds_have_64_bits(served: Served, seed: int) -> None:
    body = {"model": "auto", "messages": [HI], "max_tokens": 9, "seed": seed, "speculative": {"mode": "off"}}
    texts = [served.chat(**body).json()["choices"][0]["message"]["content"] for _ in range(2)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**400, 1.5, "7", True])
def test_other_seeds_are_rejected(served: Served, seed: object) -> None:
    reply = served.chat(model="auto", messages=[HI], max_tokens=2, seed=seed)
    assert reply.status_code == 400, reply.text
    assert "seed" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"messages": []}, "messages is missing or empty"),
        ({"messages": None}, "messages is missing or empty"),
        ({"messages": [{"role": "king", "content": "Hi"}]}, "messages[0].role is not one of system"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role is missing"),
        ({"temperature": "hot"}, "temperature is not a number"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens is not a whole number"),
        ({"n": 99}, "n is not a number from 1 to 8"),
        ({"stop": [""]}, "stop has to be a text"),
        ({"stop": 7}, "stop has to be a text"),
        ({"speculative": {"mode": "warp"}}, "speculative.mode is not one of off"),
        ({"speculative": {"draft_length": 100_000}}, "draft_length"),
        ({"chat_template_kwargs": {"a": []}}, "chat_template_kwargs has to be"),
    ],
)
def test_invalid_requests_are_rejected_in_one_sentence(
    served: Served, more: dict[str, object], says: str
) -> None:
    body = {"messages": [HI], "max_tokens": 4, **more}
    for stream in (False, True):
        reply = served.chat(**body | {"stream": stream})
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert says in reply.json()["error"]["message"]
        assert "\n" not in reply.json()["error"]["message"]


def test_the_client_understands_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="shorten it"):
        client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "word " * 3000}])
    with pytest.raises(openai.InternalServerError, match="start it with --embeddings FILE"):
        client.embeddings.create(model="auto", input="Hi")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe{}", b'{"messages": NaN}', b'{"messages": [{', b"9" * 10_000),
        b"[" * 99999,
        b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',  # half a character, not as an escape
    ],
)
def test_malformed_bodies_are_rejected(served: Served, data: bytes) -> None:
    reply = served.client.post("/v1/chat/completions", content=data)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_kept_to(client: openai.OpenAI, stream: bool) -> None:
    said = openai.types.chat.ChatCompletionUserMessageParam(role="user", content="Who is Bob?")
    reply = client.chat.completions.create(
        model="auto",
        messages=[said],
        temperature=1,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        stream=stream,
    )
    if isinstance(reply, openai.Stream):
        text = "".join(chunk.choices[0].delta.content or "" for chunk in reply)
    else:
        text = reply.choices[0].message.content or ""
    person = json.loads(text)
    assert sorted(person) == ["age", "name"]
    assert isinstance(person["age"], int)


def test_other_ways_to_name_what_an_answer_must_look_like(served: Served) -> None:
    body = {"messages": [HI], "max_tokens": 60}
    forms: list[dict[str, object]] = [
        {"grammar": 'root ::= "{}" | "[1]"'},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
    ]
    texts = [served.chat(**body, **form).json()["choices"][0]["message"]["content"] for form in forms]
    assert texts[0] in ("{}", "[1]")
    assert texts[1].startswith("{")
    assert texts[2].lstrip("{ \n").startswith('"name"')


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"grammar": "root ::= ("}, "the grammar cannot be used"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema is missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type is not one of text"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 7}}}}, ""),
        ({"response_format": {"type": "json_object"}, "grammar": "root ::= [a]"}, "use only one"),
        ({"logit_bias": {"x": "y"}}, "logit_bias is not an object of token ids"),
        ({"logit_bias": 5}, "logit_bias is not an object of token ids"),
        ({"logit_bias": {"99999999": 1}}, "the model has no token 99999999"),
        ({"logprobs": True, "top_logprobs": 99}, "logprobs ask for more than 20"),
        ({"logprobs": "many"}, "logprobs"),
    ],
)
def test_wrong_wishes_are_rejected(served: Served, form: dict[str, object], says: str) -> None:
    reply = served.chat(messages=[HI], max_tokens=4, **form)
    assert reply.status_code == 400, reply.text
    assert says in reply.json()["error"]["message"]


def test_log_probabilities_are_the_targets(client: openai.OpenAI) -> None:
    said = openai.types.chat.ChatCompletionUserMessageParam(role="user", content=SAID)
    reply = client.chat.completions.create(
        model="auto", messages=[said], max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    (choice,) = reply.choices
    assert choice.logprobs is not None
    scores = choice.logprobs.content or []
    assert b"".join(bytes(score.bytes or []) for score in scores).decode().strip() == choice.message.content
    assert all(len(score.top_logprobs) == 3 for score in scores)
    assert all(score.logprob == score.top_logprobs[0].logprob <= 0 for score in scores)  # greedy
    chunks = client.chat.completions.create(
        model="auto", messages=[said], max_tokens=8, temperature=0, logprobs=True, stream=True
    )
    streamed = [
        one for each in chunks if (each.choices[0].logprobs) for one in each.choices[0].logprobs.content or []
    ]
    assert [one.token for one in streamed] == [one.token for one in scores]


@pytest.mark.slow
def test_log_probabilities_of_a_bare_text(served: Served) -> None:
    body = {"prompt": "def add(a, b):\n", "max_tokens": 4, "temperature": 0, "logprobs": 2}
    choice = served.post("/v1/completions", body).json()["choices"][0]
    scores = choice["logprobs"]
    assert "".join(scores["tokens"]) == choice["text"]
    assert [max(top.values()) for top in scores["top_logprobs"]] == scores["token_logprobs"]
    first = scores["tokens"][0]
    token = served.service.queue.models.tokenize(first)[0][0]
    for biased in ([[token, False]], {str(token): -100}, [[first, -100]]):
        banned = served.post("/v1/completions", {**body, "logit_bias": biased}).json()
        assert banned["choices"][0]["logprobs"]["tokens"][0] != first
