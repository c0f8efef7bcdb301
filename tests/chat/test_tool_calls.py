"""Calls as models write them, read whole and letter by letter: the same, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.chat.calls.form import ToolFormat, tool_format
from localspec.chat.calls.grammar import call_grammar
from localspec.chat.calls.pieces import Piece
from localspec.chat.calls.reader import AnswerReader
from localspec.types.request import Grammar, Request

TYPES = {"city": {"type": "string"}, "days": {"type": "integer"}}
TOOLS = tuple(
    json.dumps({"type": "function", "function": {"name": name, "parameters": {"properties": TYPES}}})
    for name in ("weather", "a.b-c")
)
TURN = "<|im_end|>\n<|im_start|>assistant\n"
HEADER = "<|eot_id|><|h|>assistant<|e|>\n\n"
JSON_CALL = '{"name": "look_up", "arguments": {"word": "probed"}}'
CODER = "<function=look_up>\n<parameter=word>\nprobed\n</parameter>\n</function>\n"
GLM = "<tool_call>look_up\n<arg_key>word</arg_key>\n<arg_value>probed</arg_value>\n</tool_call><|user|>"
HARMONY = ' to=functions.look_up<|channel|>commentary json<|message|>{"word": "probed"}<|call|>'
FORMS = {  # what stands before the answer, and the call that stands there
    "hermes": (TURN, f"<tool_call>\n{JSON_CALL}\n</tool_call><|im_end|>"),
    "llama": (HEADER, JSON_CALL.replace("arguments", "parameters") + "<|eot_id|>"),
    "mistral": ("[/INST]", f"[TOOL_CALLS][{JSON_CALL[:-1]}, " + '"id": "abcdefgh1"}]</s>'),
    "mistral new": ("[/INST]", '[TOOL_CALLS]look_up[ARGS]{"word": "probed"}</s>[TOOL_RESULTS]'),
    "coder": (TURN, f"<tool_call>\n{CODER}</tool_call>"),
    "glm": ("<|assistant|>", f"\n<think></think>\n{GLM}"),
    "gemma": ("<|turn>model\n", '<|tool_call>call:look_up{word:<|"|>probed<|"|>}<tool_call|><turn|>'),
    "harmony": ("<|end|><|start|>assistant", HARMONY),
}
ARGUMENTS = {"city": 'Kö"ln {[', "days": 2}
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)


def form(name: str) -> ToolFormat:
    asked, written = FORMS[name]

    def render(request: Request) -> str:
        return f"Tools.Look it up.{asked}{written}it says so|" if request.tools else f"Look it up.{asked}"

    return tool_format(render)


def read(
    name: str, text: str, size: int = 1, tools: tuple[str, ...] = TOOLS, *, is_cut: bool = False
) -> tuple[str, str, list[tuple[str, str]]]:
    """What was thought, said and called, where text comes in pieces of a size."""
    reader = AnswerReader(form(name), tools)
    pieces: list[Piece] = []
    for start in range(0, len(text), size):
        pieces += reader.feed(text[start : start + size])
    return collected([*pieces, *reader.feed("", more=False, is_cut=is_cut)])


def collected(pieces: list[Piece]) -> tuple[str, str, list[tuple[str, str]]]:
    calls = [(piece.index, piece.name) for piece in pieces if piece.kind == "call" and piece.id]
    assert [index for index, _ in calls] == list(range(len(calls)))
    arguments = [
        "".join(piece.text for piece in pieces if piece.kind == "call" and piece.index == index)
        for index, _ in calls
    ]
    thought = "".join(piece.text for piece in pieces if piece.kind == "thinking")
    said = "".join(piece.text for piece in pieces if piece.kind == "text")
    return thought, said, [(name, each) for (_, name), each in zip(calls, arguments, strict=True)]


def _object(city: str) -> str:
    return json.dumps({"city": city}, ensure_ascii=False)


def _json_call(city: str) -> str:
    return f'{{"name": "weather", "arguments": {_object(city)}}}'


CALL = f'{{"name": "weather", "arguments": {JSON}}}'
ONE = [("weather", ARGUMENTS)]
BOTH = [("weather", ARGUMENTS), ("a.b-c", {})]
OTHER = '{"name": "a.b-c", "arguments": {}}'
XML = """<tool_call>
<function=weather>
<parameter=city>
Kö"ln {[
</parameter>
<parameter=days>
2
</parameter>
</function>
</tool_call>
<tool_call>
<function=a.b-c>
</function>
</tool_call>"""
KEYS = """ok
<tool_call>weather
<arg_key>city</arg_key>
<arg_value>Kö"ln {[</arg_value>
<arg_key>days</arg_key>
<arg_value>2</arg_value>
</tool_call>
<tool_call>a.b-c</tool_call>"""
GEMMA = """<|tool_call>call:weather{city:<|"|>Kö"ln {[<|"|>,days:2}<tool_call|>
<|tool_call>call:a.b-c{}<tool_call|>"""
NEW = f"I look.[TOOL_CALLS]weather[ARGS]{JSON}[TOOL_CALLS]a.b-c[CALL_ID]abcdefghi[ARGS]{{}}"
COMMENT = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CASES = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", ONE),
    ("hermes", f"I look.\n<tool_call>{CALL}</tool_call>\n", "I look.", ONE),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{OTHER}", "", BOTH),
    ("hermes", f"<tool_call>{CALL}</tool_call>ok", "ok", ONE),
    ("hermes", f"```json\n{CALL}\n```", "", ONE),
    ("hermes", f"<tool_call>\n{CALL}", "", ONE),
    ("llama", f'{{"name": "weather", "parameters": {JSON}}}', "", ONE),
    ("llama", f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {JSON}}}', "", ONE),
    ("llama", f"{CALL}; {OTHER}", "", BOTH),
    ("mistral", f"[TOOL_CALLS][{CALL}, {OTHER}]", "", BOTH),
    ("mistral new", NEW, "I look.", BOTH),
    ("coder", XML, "", BOTH),
    ("glm", KEYS, "ok", BOTH),
    ("gemma", GEMMA, "", BOTH),
    (
        "harmony",
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{JSON}<|call|>",
        "",
        ONE,
    ),
    ("harmony", f"{COMMENT} to=functions.weather<|channel|>commentary json<|message|>{JSON}", "I look.", ONE),
]


@pytest.mark.parametrize(("name", "text", "said", "calls"), CASES)
def test_calls_are_read_in_the_form_of_the_template(
    name: str, text: str, said: str, calls: list[tuple[str, object]]
) -> None:
    for size in (1, 3, 7, len(text)):
        thought, answered, called = read(name, text, size)
        assert (thought, answered) == ("", said)
        assert [(tool, json.loads(arguments)) for tool, arguments in called] == calls


WRITERS: dict[str, Callable[[str], str]] = {  # a call with one text, as each form writes it
    "hermes": lambda city: f"<tool_call>\n{_json_call(city)}\n</tool_call>",
    "llama": _json_call,
    "mistral": lambda city: f"[TOOL_CALLS][{_json_call(city)}]",
    "mistral new": lambda city: f"[TOOL_CALLS]weather[ARGS]{_object(city)}",
    "harmony": lambda city: f"<|channel|>commentary to=functions.weather<|message|>{_object(city)}<|call|>",
    "coder": lambda city: (
        f"<tool_call>\n<function=weather>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
    ),
    "glm": lambda city: (
        f"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n</tool_call>"
    ),
    "gemma": lambda city: f'<|tool_call>call:weather{{city:<|"|>{city}<|"|>,days:2}}<tool_call|>',
}
BRACKETS = [
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    ", b: ",
    "{c: 1}",
    ":",
    " ",
    "ö",
    "</function>",
    "</tool_call>",
    "]</s>",
]


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(BRACKETS), min_size=1, max_size=6).map(lambda parts: f"x{''.join(parts)}x"))
def test_brackets_and_tags_inside_a_text_are_of_the_text(name: str, city: str) -> None:
    call = WRITERS[name](city)
    for size in (1, len(call)):
        _, said, ((tool, arguments), *others) = read(name, call, size)
        assert (said, tool, others) == ("", "weather", [])
        assert json.loads(arguments)["city"] == city


def test_a_call_without_parameters_takes_none_of_the_next_one() -> None:
    first, second = XML.split("</tool_call>\n", 1)
    text = f"{second}\n{first}</tool_call>".replace("\n", "")  # line by line they never come together
    for size in (1, len(text)):
        calls = read("coder", text, size)[2]
        assert [(tool, json.loads(arguments)) for tool, arguments in calls] == BOTH[::-1]


@pytest.mark.parametrize(
    ("name", "city"),
    [
        ("coder", "A block ends with </parameter> here, a call with </function> or </tool_call>."),
        ("coder", "</parameter>"),
        ("coder", "<b>\n</parameter>\n</b>"),
        ("glm", "A value ends with </arg_value> here, a call with </tool_call>."),
    ],
)
def test_a_value_may_hold_the_tag_that_closes_it(name: str, city: str) -> None:
    for size in (1, 5, 1000):
        ((tool, arguments),) = read(name, WRITERS[name](city), size)[2]
        assert (tool, json.loads(arguments)) == ("weather", {"city": city})


@pytest.mark.parametrize("closed", ["\n</function>\n</tool_call>", "\n</function>", "</tool_call>\n"])
def test_the_last_parameter_may_lack_the_tag_that_closes_it(closed: str) -> None:
    first = "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n"
    call = f"{first}<parameter=city>\nRome, see </b>{closed}"
    expected = [("weather", {"days": 3, "city": "Rome, see </b>"})]
    for size in (1, 5, 1000):
        calls = read("coder", call, size)[2]
        assert [(tool, json.loads(arguments)) for tool, arguments in calls] == expected


def test_a_call_whose_last_parameter_is_not_closed_ends_where_another_begins() -> None:
    first = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</function>\n</tool_call>\n"
    for size in (1, 5, 1000):
        calls = read("coder", first + XML, size)[2]
        assert [(tool, json.loads(arguments)) for tool, arguments in calls] == [
            ("weather", {"city": "Rome"}), *BOTH,
        ]  # fmt: skip


def _is_beginning(arguments: str) -> bool:
    written = arguments.replace(" ", "")
    return '{"city":"Rome","days":2}'.startswith(written) or written == '{"city":"Rome"}'


@pytest.mark.parametrize("name", WRITERS)
def test_a_call_that_is_cut_anywhere_says_no_more_than_was_written(name: str) -> None:
    whole = WRITERS[name]("Rome")
    for end in range(len(whole)):
        pieces = read(name, whole[:end], 1, is_cut=True)
        assert pieces == read(name, whole[:end], max(1, end), is_cut=True)
        for tool, arguments in pieces[2]:
            assert tool == "weather"
            assert _is_beginning(arguments)


def test_a_call_is_reported_as_it_comes() -> None:
    reader = AnswerReader(form("hermes"), TOOLS)
    told = [
        [*reader.feed(text)]
        for text in ('<tool_call>{"name": "weather", "arguments": {"ci', 'ty": "Kö', 'ln"}')
    ]
    (begun, first), *rest = told
    assert (begun.kind, begun.name, len(begun.id), begun.text) == ("call", "weather", 9, "")
    assert [first, *(piece for pieces in rest for piece in pieces)] == [
        Piece("call", '{"ci'), Piece("call", 'ty": "Kö'), Piece("call", 'ln"}'),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "tag", ["<think>\nhm\n</think>\n\n", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"]
)
def test_thinking_stays_apart(tag: str) -> None:
    name = "harmony" if "channel" in tag else "hermes"
    call = f"<tool_call>{CALL}</tool_call>"
    if name == "harmony":
        call = f"<|channel|>commentary to=functions.weather<|message|>{JSON}"
    for size in (1, 1000):
        thought, said, calls = read(name, tag + call, size)
        assert (thought, said, calls) == ("hm", "", [("weather", JSON)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>never</tool_call> mind"),
        ("hermes", '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
        ("hermes", '{"name": "Ada", "arguments": {"age": 36}}'),
        ("hermes", "<tool_call>" + '{"x": "' + "y" * 600),
        ("llama", '{"answer": [1, 2]} and more'),
        ("llama", "```json\n[1]\n```"),
        ("coder", "<tool_call>\n<function=nobody>\n</function>\n</tool_call>"),
        ("mistral new", "[TOOL_CALLS]nobody[ARGS]{}"),
        ("harmony", "no channel at all"),
        ("gemma", "<|tool_call>call:nobody{}<tool_call|>"),
        ("hermes", "a < b, <tool, <tool_cal"),
    ],
)
def test_nonsense_comes_through_as_text(name: str, text: str) -> None:
    assert read(name, text) == read(name, text, len(text)) == ("", text, [])


MARKS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<function=weather>", "<parameter=city>", "{"),
    *("</parameter>", "call:weather{", "weather", "\n", " ", "x", '"', "<", CALL, '{"name": "weather", '),
]
KINDS = ["hermes", "llama", "mistral", "mistral new", "coder", "gemma"]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.sampled_from(MARKS), max_size=9))
def test_whatever_comes_is_read_alike_in_pieces_and_kept(name: str, marks: list[str]) -> None:
    text = "".join(marks)
    whole = read(name, text, max(1, len(text)))
    assert read(name, text) == whole
    if not whole[2]:
        assert whole == ("", text, [])


def test_without_tools_all_is_text() -> None:
    text = f"<tool_call>{CALL}</tool_call>"
    reader = AnswerReader(form("hermes"))
    assert collected([*reader.feed(text), *reader.feed("", more=False)]) == ("", text, [])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>"),
        ("llama", f'{{"name": "weather", "parameters": {JSON}}}'),
        ("mistral", f"[TOOL_CALLS][{CALL}]"),
        ("mistral new", f"[TOOL_CALLS]weather[ARGS]{JSON}"),
        ("coder", XML.partition("\n<tool_call>")[0]),
        ("harmony", f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{JSON}"),
    ],
)
def test_a_grammar_allows_calls_of_the_tools_and_nothing_else(name: str, call: str) -> None:
    from llguidance import LLMatcher, LLTokenizer

    grammar = call_grammar(form(name), TOOLS, lambda tag: None)
    tokenizer = LLTokenizer("byte")

    def taken(text: str) -> int:
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar.text))
        count = matcher.try_consume_tokens(list(text.encode()))
        return count if matcher.is_accepting() else -count

    assert taken(call) == len(call.encode())
    assert taken(call.replace("weather", "whether")) <= 0
    assert taken("I would rather talk.") <= 0
    assert read(name, call)[2][0][0] == "weather"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>"),
        ("mistral new", f"[TOOL_CALLS]weather[ARGS]{JSON}"),
    ],
)
def test_a_grammar_allows_several_calls_or_an_answer_of_a_schema(name: str, call: str) -> None:
    from llguidance import LLMatcher, LLTokenizer

    schema = Grammar("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}')
    grammar = call_grammar(form(name), TOOLS, lambda tag: None, several=True, otherwise=schema)
    tokenizer = LLTokenizer("byte")

    def is_allowed(text: str) -> bool:
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar.text))
        data = text.encode()
        return bool(matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting())

    for text in (call, f"{call}\n{call}", f"{call}{call}{call}", '{"a": 1}'):
        assert is_allowed(text)
    for text in (9 * call, f"{call}{{}}", '{"a": "b"}', f'{{"a": 1}}{call}', "Hello"):
        assert not is_allowed(text)
    assert [called[0] for called in read(name, f"{call}\n{call}")[2]] == ["weather", "weather"]


def test_a_tag_that_is_one_token_is_asked_for_by_its_number() -> None:
    grammar = call_grammar(form("mistral new"), TOOLS, lambda tag: 9 if tag == "[ARGS]" else None)
    assert 'call0: "[TOOL_CALLS]" "weather" <[9]> %json' in grammar.text
