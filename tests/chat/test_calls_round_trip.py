"""Any text as any argument, as each form writes it, in any pieces, comes back the same, in linear time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import wraps
from inspect import unwrap

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.chat.calls.form import ToolFormat, tool_format
from localspec.chat.calls.pieces import Piece
from localspec.chat.calls.reader import AnswerReader
from localspec.types.events import ThinkingOpened
from localspec.types.request import Request
from tests.chat.test_tool_calls import collected

Arguments = dict[str, object]

PROPERTIES = {
    "path": {"type": "string"},
    "content": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "lines": {"type": "array", "items": {"type": "string"}},
    "count": {"type": "integer"},
    "flag": {"type": "boolean"},
}
FUNCTION = {"name": "write_file", "parameters": {"type": "object", "properties": PROPERTIES}}
TOOLS = (json.dumps({"type": "function", "function": FUNCTION}),)


def dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def in_python(value: object) -> str:
    """As a template prints what is no text: constants as Python has them."""
    return value if isinstance(value, str) else dumped(value) if isinstance(value, list | int) else "None"


def hermes(name: str, arguments: Arguments) -> str:
    return f"<tool_call>\n{dumped({'name': name, 'arguments': arguments})}\n</tool_call>"


def mistral(name: str, arguments: Arguments) -> str:
    return f"[TOOL_CALLS][{dumped({'name': name, 'arguments': arguments})}]"


def llama(name: str, arguments: Arguments) -> str:
    return dumped({"name": name, "parameters": arguments})


def new_mistral(name: str, arguments: Arguments) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{dumped(arguments)}"


def kimi(name: str, arguments: Arguments) -> str:
    call = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{dumped(arguments)}"
    return f"<|tool_calls_section_begin|>{call}<|tool_call_end|><|tool_calls_section_end|>"


def deepseek(name: str, arguments: Arguments) -> str:
    call = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumped(arguments)}\n```"
    return f"<｜tool▁calls▁begin｜>{call}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def command_r(name: str, arguments: Arguments) -> str:
    call = json.dumps([{"tool_name": name, "parameters": arguments}], ensure_ascii=False, indent=4)
    return f"Action:\n```json\n{call}```"


def functionary(name: str, arguments: Arguments) -> str:
    return f"<function={name}>{dumped(arguments)}</function>"


def harmony(name: str, arguments: Arguments) -> str:
    return (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumped(arguments)}<|call|>"
    )


def coder(name: str, arguments: Arguments) -> str:
    written = "".join(
        f"<parameter={key}>\n{in_python(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def minimax(name: str, arguments: Arguments) -> str:
    written = "".join(
        f'<parameter name="{key}">{in_python(value)}</parameter>\n' for key, value in arguments.items()
    )
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{written}</invoke>\n</minimax:tool_call>'


def addressed(name: str, arguments: Arguments) -> str:
    """As Functionary 3.2 writes it: the prompt ends with the mark of the first part."""
    return f"{name}\n{dumped(arguments)}"


def in_namespace(write: Callable[[str, Arguments], str], namespace: str) -> Callable[[str, Arguments], str]:
    """As models write it that were trained with tools in a namespace; the template has none."""

    @wraps(write)
    def written(name: str, arguments: Arguments) -> str:
        return write(name if name == "look_up" else f"{namespace}{name}", arguments)

    return written


def repeating(name: str, arguments: Arguments) -> str:
    """As MiniMax M3 sometimes writes lists: a tag for each element."""
    mark = "]<]minimax[>["
    text = marked(name, arguments)
    lines = arguments.get("lines")
    if not isinstance(lines, list) or len(lines) < 2:
        return text
    joined = "".join(f"{mark}<item>{each}{mark}</item>" for each in lines)
    apart = "".join(f"{mark}<lines>{each}{mark}</lines>" for each in lines)
    return text.replace(f"{mark}<lines>{joined}{mark}</lines>", apart)


def marked(name: str, arguments: Arguments) -> str:
    """As MiniMax M3 writes it, which leaves out what is null."""
    mark = "]<]minimax[>["

    def told(key: str, value: object) -> str:
        inner = "".join(told("item", each) for each in value) if isinstance(value, list) else in_python(value)
        return f"{mark}<{key}>{inner}{mark}</{key}>"

    written = "".join(told(key, value) for key, value in arguments.items() if value is not None)
    return f'{mark}<tool_call>\n{mark}<invoke name="{name}">{written}{mark}</invoke>\n{mark}</tool_call>'


def spelled(name: str, arguments: Arguments) -> str:
    """As Kimi K3 writes it."""

    def tag(word: str, inside: str, told: str = "") -> str:
        return f"<|open|>{word}{told}<|sep|>{inside}<|close|>{word}<|sep|>"

    def argument(key: str, value: object) -> str:
        kind = "string" if isinstance(value, str) else "array" if isinstance(value, list) else "number"
        told = value if isinstance(value, str) else dumped(value)
        return tag("argument", told, f' key="{key}" type="{kind}"')

    written = "".join(argument(key, value) for key, value in arguments.items())
    return tag("tools", tag("call", written, f' tool="{name}" index="1"'))


def muse(name: str, arguments: Arguments) -> str:
    written = "".join(
        f'<atem:parameter name="{key}">{in_python(value)}</atem:parameter>\n'
        for key, value in arguments.items()
    )
    call = f'<atem:invoke name="{name}">\n{written}</atem:invoke>\n'
    return f" to={name}<|message|><atem:function_calls>\n{call}</atem:function_calls><|eot|>"


def glm(name: str, arguments: Arguments) -> str:
    written = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{in_python(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{written}</tool_call>"


def gemma(name: str, arguments: Arguments) -> str:
    def told(value: object) -> str:
        if isinstance(value, list):
            return f"[{','.join(map(told, value))}]"
        return f'<|"|>{value}<|"|>' if isinstance(value, str) else dumped(value)

    written = ",".join(f"{key}:{told(value)}" for key, value in arguments.items())
    return f"<|tool_call>call:{name}{{{written}}}<tool_call|>"


def python(name: str, arguments: Arguments) -> str:
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"<|tool_call_start|>[{name}({written})]<|tool_call_end|>"


FORMS: list[Callable[[str, Arguments], str]] = [
    *(hermes, mistral, llama, new_mistral, kimi, deepseek, command_r, functionary, harmony),
    *(coder, minimax, marked, spelled, muse, glm, gemma, python),
    *(addressed, repeating),
    *(in_namespace(write, "functions.") for write in (hermes, llama, new_mistral, python, minimax, spelled)),
    *(in_namespace(write, "default_api:") for write in (hermes, llama, new_mistral, gemma, muse, glm)),
    *(
        in_namespace(write, "mcp__server__")
        for write in (hermes, coder, kimi, harmony, deepseek, functionary)
    ),
]
PARTS = st.sampled_from(
    [
        *("{", "}", "[", "]", '"', "'", "\\", "\n", "\t", "<", ">", ":", " ", "é", "🦜", "123", "null", "`"),
        *("</parameter>", "</function>", "</tool_call>", "<tool_call>", "</invoke>", "</arg_value>", "//"),
        *(
            "<parameter=path>",
            "<function=write_file>",
            "<|call|>",
            "<|message|>",
            "<|tool_call>",
            "```json\n",
            "[TOOL_CALLS]",
        ),
        *("</think>", '{"name": "write_file", "arguments": {}}', "def f(x):\n    return x\n", "\u2028"),
        *("\n<think>\nhm\n", "[TOOL_CALLS]"),
    ]
)
TEXTS = st.lists(PARTS, max_size=8).map("".join)


@st.composite
def calls(draw: st.DrawFn) -> Arguments:
    """Arguments in any order, of which some may be missing."""
    arguments = {
        "path": draw(TEXTS),
        "content": draw(st.none() | TEXTS.filter(lambda text: text.strip() not in ("None", "null"))),
        "lines": draw(st.lists(TEXTS, max_size=3)),
        "count": draw(st.integers()),
        "flag": draw(st.booleans()),
    }
    return {key: arguments[key] for key in draw(st.permutations(list(arguments)))[: draw(st.integers(1, 5))]}


def form_of(write: Callable[[str, Arguments], str]) -> ToolFormat:
    def render(request: Request) -> str:
        called = write("look_up", {"word": "probed"})
        asked = f"Look it up.<|a|>{'>>>' if write is addressed else ''}"
        return f"{asked}{called}<|b|>it says so" if request.tools else asked

    return tool_format(render)


def read(form: ToolFormat, text: str, sizes: list[int]) -> tuple[str, str, list[tuple[str, str]]]:
    reader, pieces, start = AnswerReader(form, TOOLS), list[Piece](), 0
    while start < len(text):
        size = sizes[start % len(sizes)]
        pieces += reader.feed(text[start : start + size])
        start += size
    return collected([*pieces, *reader.feed("", more=False)])


def is_ambiguous(write: Callable[[str, Arguments], str], arguments: Arguments) -> bool:
    """Whether a value holds, letter by letter, what stands between two parameters."""
    texts = [text for value in arguments.values() for text in (value if isinstance(value, list) else [value])]
    joined = "\n".join(str(text) for text in texts)
    return unwrap(write) is coder and "</parameter>" in joined and "<parameter=path>" in joined


@pytest.mark.parametrize("write", FORMS)
@settings(max_examples=25, deadline=None)
@example(arguments={"path": "</function><tool_call>{"}, sizes=[1])
@example(arguments={"lines": ['</tool_call><tool_call>{"name": "write_file", "arguments": {}}']}, sizes=[1])
@example(arguments={"lines": ["</parameter><parameter=path>"]}, sizes=[1])
@given(arguments=calls(), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_any_text_as_any_argument_comes_back(
    write: Callable[[str, Arguments], str], arguments: Arguments, sizes: list[int]
) -> None:
    if is_ambiguous(write, arguments):
        return
    text = write("write_file", arguments)
    thought, said, ((name, found), *others) = read(form_of(write), text, sizes)
    assert (thought, said, name, others) == ("", "", "write_file", [])
    without_null = write in (marked, repeating)
    kept = {key: value for key, value in arguments.items() if not (without_null and value is None)}
    assert json.loads(found) == kept
    assert read(form_of(write), text, [len(text)])[2] == [(name, found)]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("write", FORMS)
def test_several_calls_of_an_answer_come_apart(write: Callable[[str, Arguments], str], size: int) -> None:
    form, first, second = form_of(write), *(write("write_file", {"path": name}) for name in ("a", "b"))
    if write is addressed:
        second = f">>>{second}"
    if form.is_block:
        first = first.partition(form.own_end)[0]
        second = second.partition(form.opening)[2]
    thought, said, calls = read(form, first + second, [size])
    assert (thought, said) == ("", "")
    assert [json.loads(found) for _, found in calls] == [{"path": "a"}, {"path": "b"}]


FIRST = {"path": "a <|message|> <|sep|> b <|eom|>", "count": 3}
SECTIONED = "hm<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>"
ADDRESSED = (
    " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>I look.<|eom|><|start|>assistant"
)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("write", "opened", "before", "between", "after"),
    [
        (spelled, "<|open|>think<|sep|>", SECTIONED, "", "<|close|>message<|sep|><|end_of_msg|>"),
        (muse, "", ADDRESSED, "<|start|>assistant", ""),
    ],
)
def test_an_answer_of_several_messages_is_read(
    write: Callable[[str, Arguments], str], opened: str, before: str, between: str, after: str, size: int
) -> None:
    reader = AnswerReader(form_of(write), TOOLS)
    if opened:
        reader.open(ThinkingOpened(opened))
    text = before + write("write_file", FIRST) + between + write("write_file", {"path": "b"}) + after
    pieces = [piece for at in range(0, len(text), size) for piece in reader.feed(text[at : at + size])]
    thought, said, calls = collected([*pieces, *reader.feed("", more=False)])
    assert (thought, said) == ("hm", "I look.")
    assert [json.loads(found) for _, found in calls] == [FIRST, {"path": "b"}]


@pytest.mark.parametrize(("cut", "kept"), [("]<]minimax[>[</path>", '{"path": "a.t'), ("h>a.t", "")])
def test_a_call_in_tags_with_marks_that_was_cut_has_what_there_is(cut: str, kept: str) -> None:
    text = marked("write_file", {"path": "a.t"}).partition(cut)[0]
    reader = AnswerReader(form_of(marked), TOOLS)
    pieces = [*reader.feed(text), *reader.feed("", more=False, is_cut=True)]
    assert collected(pieces) == ("", "", [("write_file", kept)])


@pytest.mark.parametrize("write", FORMS)
def test_the_end_of_a_call_that_was_cut_is_no_text(write: Callable[[str, Arguments], str]) -> None:
    text = write("write_file", {"path": "a.t", "content": "bcd"})
    for end in range(text.index("bcd") + 3, len(text)):
        reader = AnswerReader(form_of(write), TOOLS)
        pieces = [*reader.feed(text[:end]), *reader.feed("", more=False, is_cut=True)]
        thought, said, ((name, _),) = collected(pieces)
        assert (thought, said, name) == ("", "", "write_file")


@pytest.mark.parametrize("write", FORMS)
def test_a_call_that_was_cut_inside_the_name_of_its_tool_is_no_text(
    write: Callable[[str, Arguments], str],
) -> None:
    text = write("write_file", {"path": "a.t"})
    for end in range(text.index("write_file") + 1, text.index("write_file") + len("write_file")):
        for size in (1, end):
            reader = AnswerReader(form_of(write), TOOLS)
            pieces = [
                piece for at in range(0, end, size) for piece in reader.feed(text[at : min(at + size, end)])
            ]
            assert collected([*pieces, *reader.feed("", more=False, is_cut=True)]) == ("", "", []), text[:end]


@pytest.mark.parametrize("write", FORMS)
def test_the_name_of_another_tool_stays_text_where_it_was_cut(write: Callable[[str, Arguments], str]) -> None:
    text = f"I look.{write('other_tool', {})}"
    text = text[: text.index("other") + len("other_to")]
    reader = AnswerReader(form_of(write), TOOLS)
    _, said, calls = collected([*reader.feed(text), *reader.feed("", more=False, is_cut=True)])
    assert calls == []
    assert said.startswith("I look.")


@pytest.mark.parametrize("size", [1, 1000])
def test_a_model_that_calls_nothing_directly_says_nothing(size: int) -> None:
    direct = json.dumps([{"tool_name": "directly-answer", "parameters": {}}])
    assert read(form_of(command_r), f"Action:\n```json\n{direct}```", [size]) == ("", "", [])


@pytest.mark.parametrize("size", [1, 1000])
def test_parts_of_an_answer_name_whom_they_are_for(size: int) -> None:
    text = f"all\nI look.>>>{addressed('write_file', {'path': 'a'})}>>>all\n>>> is Python's prompt"
    assert read(form_of(addressed), text, [size]) == (
        "", "I look.>>> is Python's prompt", [("write_file", '{"path": "a"}')],
    )  # fmt: skip


def test_tags_inside_of_tags_follow_the_schema() -> None:
    step = {"type": "object", "properties": {"do": {"type": "string"}, "times": {"type": "integer"}}}
    steps = {"type": "array", "items": {"$ref": "#/$defs/step"}}
    schema = {"type": "object", "properties": {"steps": steps}, "$defs": {"step": step}}
    function = {"name": "write_file", "parameters": schema}
    tools = (json.dumps({"type": "function", "function": function}),)
    made = "<item><do>12</do><times>3</times></item><item><do> </do></item>"
    inside = re.sub("(</?)", r"]<]minimax[>[\1", made)
    text = marked("write_file", {"steps": "HERE"}).replace("HERE", inside)
    reader = AnswerReader(form_of(marked), tools)
    _, _, ((_, found),) = collected([*reader.feed(text), *reader.feed("", more=False)])
    assert json.loads(found) == {"steps": [{"do": "12", "times": 3}, {"do": " "}]}


def test_a_value_ends_with_its_call_where_its_own_tag_is_missing() -> None:
    text = marked("write_file", {"path": "a.t"}).replace("]<]minimax[>[</path>", "")
    assert read(form_of(marked), text, [5])[2] == [("write_file", '{"path": "a.t"}')]


@pytest.mark.parametrize("write", FORMS)
def test_a_long_call_is_read_in_linear_time(write: Callable[[str, Arguments], str]) -> None:
    line = '<b class="x">a \\ {b} `c` </b>'
    content = "\n".join([line] * 1000) + " ".join([line] * 1000)
    text = write("write_file", {"path": "a.html", "content": content})
    form, before = form_of(write), time.process_time()
    _, _, ((_, found),) = read(form, text, [4])
    took = time.process_time() - before
    assert json.loads(found)["content"] == content
    assert took < 4  # a tenth of that if nothing else runs; the square of the length would take minutes
