"""Every conversation that clients keep and send again is answered, and no text of it is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from localspec.llama.model import Model
from localspec.llama.template.chat_template import ChatTemplate
from localspec.types.events import GenerationEvent
from localspec.types.models import ModelOptions
from localspec.types.request import Message, Request
from tests.server.made_histories import DATA, History, chats, items, messages
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels

pytestmark = pytest.mark.timeout(120)

# Calls in tags, one system message, turns that alternate and are not empty, no result without a call.
STRICT = """
{%- set ns = namespace(turn=0, calls=0) %}
{%- for m in messages %}
{%- if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('system comes first') }}{% endif %}
{%- elif m.role == 'user' %}{% if ns.turn % 2 or not m.content %}{{ raise_exception('alternate') }}{% endif %}
{%- set ns.turn = ns.turn + 1 %}{% elif m.role == 'assistant' and not m.tool_calls %}
{%- if ns.turn % 2 == 0 or not m.content %}{{ raise_exception('alternate, with some text') }}{% endif %}
{%- set ns.turn = ns.turn + 1 %}{% elif m.role == 'tool' %}
{%- if not ns.calls %}{{ raise_exception('a result without a call') }}{% endif %}
{%- set ns.calls = ns.calls - 1 %}
{%- elif m.role != 'assistant' %}{{ raise_exception('unknown role') }}{% endif %}
{%- set ns.calls = ns.calls + (m.tool_calls or [])|length %}
{{ '<' + m.role + '>' + m.content }}{% for c in m.tool_calls or [] %}<function={{ c.function.name }}>
{%- for k, v in c.function.arguments.items() %}<parameter={{ k }}>
{{- v if v is string else v | tojson }}</parameter>
{%- endfor %}</function>{% endfor %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}"""
# Calls as JSON, with ids of nine letters and digits, and a name for each result.
JSON = """
{%- for m in messages %}
{{ '<' + m.role + '>' + m.content }}{% for c in m.tool_calls or [] %}
{%- if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>
{%- endfor %}
{%- if m.role == 'tool' and not m.name %}{{ raise_exception('name must be provided') }}{% endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}"""
# Neither tools nor system messages.
PLAIN = """
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{ '<' + m.role + '>' + m.content }}
{%- endfor %}"""
TEMPLATES = {"strict": STRICT, "json": JSON, "plain": PLAIN}


@dataclass
class TemplatedModels(TellingModels):
    """Models that read each conversation under several templates before they answer."""

    templates: dict[str, ChatTemplate] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        assert not isinstance(request.prompt, str)
        variables = dict(request.template_variables)
        for name, template in self.templates.items():
            self.prompts[name] = template.render(request.prompt, variables, request.tools)
        self.templates["json"].encode_chat(request.prompt, variables, tools=request.tools)
        yield from super().generate(request)


@pytest.fixture(scope="module")
def models(demo_target: Path) -> Iterator[TemplatedModels]:
    model = Model.open(ModelOptions(path=demo_target, gpu_layers=0), allocate=False)
    yield TemplatedModels(
        templates={name: ChatTemplate(model.vocabulary, source) for name, source in TEMPLATES.items()}
    )
    model.close()


@pytest.fixture(scope="module")
def served(models: TemplatedModels) -> Iterator[Served]:
    with serving(lambda: models) as running:
        yield running


def prompts(served: Served, path: str, body: object) -> dict[str, str]:
    """Return what the model reads of a request, by the name of the template."""
    reply = served.client.post(path, content=json.dumps(body))  # with half characters as escapes
    assert reply.status_code == 200, reply.text
    models = served.service.queue.models
    assert isinstance(models, TemplatedModels)
    return dict(models.prompts)


def conversation(served: Served) -> tuple[Message, ...]:
    """Return the conversation of the last request."""
    models = served.service.queue.models
    assert isinstance(models, TemplatedModels)
    prompt = models.requests[-1].prompt
    assert not isinstance(prompt, str)
    return prompt


def lines() -> Iterator[Any]:
    """Yield the conversations of the table; those that are too long for it are made here."""
    text = (Path(__file__).parent / "histories.jsonl").read_text(encoding="utf-8")
    yield from (json.loads(line.replace("$DATA", DATA)) for line in text.splitlines())
    nested = '{"a":' * 300 + "1" + "}" * 300
    for name, arguments in {
        "deep arguments": nested,
        "deep objects": json.loads(nested),
        "endless brackets": '{"a": ' + "[" * 100_000,
    }.items():
        call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
        messages = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "dry"}]
        yield {"name": name, "path": CHAT, "messages": messages, "texts": ["dry"]}


USER = {"role": "user", "content": "Why?"}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
ODD = {line["name"]: line for line in lines()}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_conversation_is_answered(served: Served, odd: dict[str, Any]) -> None:
    field = "input" if odd["path"] == RESPONSES else "messages"
    for template, prompt in prompts(served, odd["path"], {field: odd["messages"]}).items():
        told = prompt.replace('\\"', '"').replace("\\n", "\n")
        assert [text for text in odd["texts"] if text not in told] == [], (template, prompt)
        places = [told.find(text) for text in odd["texts"]]
        assert places == sorted(places), (template, prompt)
        assert DATA[:50] not in prompt


def test_a_line_that_changes_with_every_request_is_left_out(served: Served) -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.1.abc; cc_entrypoint=cli; cch={};"
    for system in ([line, "Be brief."], f"{line}\nBe brief.", ["Be brief."]):
        blocks = system if isinstance(system, str) else [{"type": "text", "text": text} for text in system]
        read = prompts(served, MESSAGES, {"messages": [USER], "system": blocks})
        assert conversation(served)[0] == Message("system", "Be brief."), system
        assert "billing" not in read["json"]
    prompts(served, MESSAGES, {"messages": [{"role": "user", "content": f"What is {line}?"}]})
    assert line in conversation(served)[-1].content


def test_a_conversation_with_another_beginning_is_logged_once(served: Served) -> None:
    def ask(system: str, *turns: tuple[str, str]) -> list[str]:
        served.lines.clear()
        said = [
            {"role": "system", "content": system},
            *({"role": role, "content": text} for role, text in turns),
        ]
        assert served.chat(messages=said).status_code == 200
        return [line for line in served.lines if "came again" in line]

    first, more = (("user", "Hi"),), (("user", "Hi"), ("assistant", "Hello."), ("user", "And?"))
    assert ask("It is 14:51.", *first) == ask("It is 14:52.", *first) == []  # two conversations
    assert ask("It is 14:52.", *more) == []
    assert ask("It is 14:52.", *more, ("assistant", "So."), ("user", "Oh?")) == []
    assert ask(f"{'Be brief. ' * 99}1", ("user", "Why?"), *more[1:]) == []
    assert ask(f"{'Be brief. ' * 99}2", ("user", "Why?"), *more[1:]) == []  # most of it is in the cache
    [line] = ask("It is 14:53.", *more)
    assert "from character 10 on" in line
    assert ask("It is 14:54.", *more) == []


Check = Callable[[str, str, History], None]


@pytest.fixture
def check(served: Served) -> Check:
    """Return the test of one history; Hypothesis writes down what it passes on, and a server is long."""

    def checked(path: str, field: str, history: History) -> None:
        for template, prompt in prompts(served, path, {field: history.turns}).items():
            assert [word for word in history.words if word not in prompt] == [], (template, prompt)
            assert DATA[:50] not in prompt, (template, prompt)

    return checked


many = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@many
@given(chats())
def test_no_chat_is_refused_and_no_word_of_it_lost(check: Check, history: History) -> None:
    check(CHAT, "messages", history)


@pytest.mark.slow
@many
@given(messages())
def test_no_messages_are_refused_and_no_word_of_them_lost(check: Check, history: History) -> None:
    check(MESSAGES, "messages", history)


@pytest.mark.slow
@many
@given(items())
def test_no_items_are_refused_and_no_word_of_them_lost(check: Check, history: History) -> None:
    check(RESPONSES, "input", history)


def test_calls_of_other_programs_keep_the_models_own_form(served: Served) -> None:
    call = {"id": "call_0123456789", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "dry"}
    read = prompts(served, CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": [call]}, result]})
    assert '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool>dry' in read["json"]


@pytest.fixture
def cut_calls(models: TemplatedModels) -> Iterator[None]:
    """Let the models write calls that their length cuts."""
    before = models.texts
    models.texts, models.reason = (
        ['I write.\n<tool_call>\n{"name": "write", "arguments": {"text": "long'],
        "length",
    )
    yield
    models.texts, models.reason = before, "stop"


@pytest.mark.usefixtures("cut_calls")
def test_a_call_that_was_cut_is_taken_back(served: Served) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    function = {"name": "write", "parameters": schema}
    chat = {"messages": [USER], "tools": [{"type": "function", "function": function}]}
    message = served.post(CHAT, chat).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "cut"}
    read = prompts(served, CHAT, chat | {"messages": [USER, message, result]})
    assert '<tool_call>{"name": "write", "arguments": {"text": "long"}}</tool_call>' in read["json"]

    asked = {"max_tokens": 99, "messages": [USER], "tools": [{"name": "write", "input_schema": schema}]}
    blocks = served.post(MESSAGES, asked).json()["content"]
    answer = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": "cut", "is_error": True}
    turns = [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": [answer]}]
    read = prompts(served, MESSAGES, asked | {"messages": turns})
    assert "long" in read["strict"]
    assert "Error: cut" in read["strict"]

    asked = {"input": [USER], "tools": [{"type": "function", **function}]}
    items = served.post(RESPONSES, asked).json()["output"]
    output = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "cut"}
    read = prompts(served, RESPONSES, asked | {"input": [USER, *items, output]})
    assert "<function=write><parameter=text>long</parameter>" in read["strict"]
