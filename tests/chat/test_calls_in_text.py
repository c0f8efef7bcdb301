"""What is a call and what only mentions one: shapes that models write, quoted examples, cut answers."""

from __future__ import annotations

import json

import pytest

from tests.chat.test_tool_calls import CALL, JSON, ONE, WRITERS, XML, read

SIZES = (1, 4, 1000)
Calls = list[tuple[str, object]]
NO_ARGUMENTS: Calls = [("weather", {})]
ROME: Calls = [("weather", {"city": "Rome"})]
FLAT = '{"name": "weather", "arguments": {"city": "Rome"}}'
XML_CALL = XML.partition("\n<tool_call>")[0]


def called(name: str, text: str, *, is_cut: bool = False) -> tuple[str, str, Calls]:
    """What is thought, said and called, which does not depend on the cutting."""
    first, *others = (read(name, text, size, is_cut=is_cut) for size in SIZES)
    assert all(other == first for other in others)
    thought, said, calls = first
    return thought, said, [(tool, json.loads(arguments)) for tool, arguments in calls]


@pytest.mark.parametrize(
    ("written", "calls"),
    [
        ('{"name": "weather"}', NO_ARGUMENTS),
        ('{"name": "weather", "arguments": null}', NO_ARGUMENTS),
        ('{"name": "weather", "arguments": ""}', NO_ARGUMENTS),
        ('{"arguments": {"city": "Rome"}, "name": "weather"}', ROME),
        ('{"name": "weather", "id": 3, "arguments": {"city": "Rome"}, "why": {"x": [1]}}', ROME),
        ('{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}', ROME),
        ('{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}', ROME),
        ('{"type": "function", "function": "weather", "parameters": {"city": "Rome"}}', ROME),
        ('{"tool_calls": [{"function": {"arguments": {"city": "Rome"}, "name": "weather"}}]}', ROME),
        ('{"tool_name": "weather", "parameters": {"city": "Rome"}}', ROME),
        ('{"name": "functions.weather", "args": {"city": "Rome"}}', ROME),
        ('{"weather": {"city": "Rome"}}', ROME),
        ('{"name": "weather", "city": "Rome"}', ROME),
        ("{'name': 'weather', 'arguments': {'city': 'Rome'}}", ROME),
        ('{{"name": "weather", "arguments": {"city": "Rome"}}}', ROME),
        ('{{"name": "weather", "arguments": {"city": "Rome"}}}}', ROME),
        ('{"name": "weather", "arguments": {"city": "Rome",},}', ROME),
        ('{"name": "weather", "arguments": {"city": "Rome"}', ROME),
        ('{"name": "weather", "arguments": {"city": "Rome"', ROME),
        (f"[{FLAT}, {FLAT}]", 2 * ROME),
        (f"{FLAT}\n{FLAT}", 2 * ROME),
        ('{"name": "weather", "arguments": ["Rome"]}', [("weather", {"arguments": ["Rome"]})]),
        ("<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>", ROME),
    ],
)
def test_calls_in_an_opening_tag_are_read_in_every_shape(written: str, calls: Calls) -> None:
    assert called("hermes", f"<tool_call>\n{written}\n</tool_call>") == ("", "", calls)
    assert called("hermes", f"I look.\n<tool_call>{written}</tool_call>") == ("", "I look.", calls)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", FLAT),
        ("hermes", f"```json\n{FLAT}\n```"),
        ("hermes", f"```\n{FLAT}\n```\n"),
        ("hermes", f"```xml\n<tool_call>\n{FLAT}\n</tool_call>\n```"),
        ("hermes", f"<tools>\n{FLAT}\n</tools>"),
        ("hermes", f"{{{FLAT}}}"),
        ("hermes", f"```json\n{{{FLAT}}}}}\n```"),
        ("hermes", f"{FLAT}\n</tool_call>"),
        ("llama", f"[{FLAT}]"),
        ("coder", "<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"),
        ("coder", "<function=weather>\n<parameter=city>Rome</function>\n</tool_call>"),
        ("coder", f"<tool_call>\n{FLAT}\n</tool_call>"),
        ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}'),
        ("mistral new", f"[TOOL_CALLS][{FLAT}]"),
    ],
)
def test_calls_are_read_without_their_opening_or_in_another_form(name: str, text: str) -> None:
    assert called(name, text) == ("", "", ROME)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", f"```json\n{FLAT}\n```\nThat is what a call looks like."),
        ("hermes", f"{FLAT}\nis what a call looks like."),
        ("hermes", f"For example:\n```json\n{FLAT}\n```"),
        ("hermes", f"For example:\n```xml\n<tool_call>\n{FLAT}\n</tool_call>\n```\nDone."),
        ("hermes", f"For example:\n\n    ~~~\n    <tool_call>{FLAT}</tool_call>\n    ~~~"),
        ("hermes", f"Write `<tool_call>{FLAT}</tool_call>` to call."),
        ("hermes", f'An answer: {{"name": "weather", "arguments": {JSON}}}'),
        ("coder", f"For example:\n```xml\n{XML_CALL}\n```\nDone."),
        ("coder", "A call begins with <function=weather> and ends with </function>."),
        ("glm", "<tool_call>weather is how a call begins"),
        ("mistral new", "[TOOL_CALLS]weather is nice {today}"),
        ("mistral new", "[TOOL_CALLS]"),
        ("llama", '{"name": "Ada", "arguments": {"age": 36}}'),
        ("llama", f'{{"answer": {JSON}, "name": "weather"}}'),
        ("harmony", '<|channel|>final<|message|>A header says to=functions.weather {"city": "Rome"}'),
        ("harmony", '<|channel|>commentary to=functions.whether<|message|>{"city": "Rome"}'),
    ],
)
def test_what_only_mentions_a_call_is_text(name: str, text: str) -> None:
    said = text.rpartition("<|message|>")[2] if name == "harmony" else text
    assert called(name, text) == ("", said, [])


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.weather<|message|>",
        "<|channel|>commentary to=weather <|constrain|>json<|message|>",
        "<|channel|>analysis to=functions.weather<|message|>",
        "<|channel|>analysis to=weather code<|message|>",
        " to=functions.weather<|channel|>commentary<|message|>",
    ],
)
def test_the_header_of_a_channel_names_the_tool(header: str) -> None:
    assert called("harmony", f'{header}{{"city": "Rome"}}<|call|>') == ("", "", ROME)


def test_calls_inside_thinking_are_thought() -> None:
    thought = f"<tool_call>{FLAT}</tool_call>"
    assert called("hermes", f"<think>\n{thought}\n</think>\nNo.") == (thought, "No.", [])
    assert called("hermes", f"Well.\n<think>\n{thought}\n</think>\nNo.") == (thought, "Well.\nNo.", [])
    assert called("hermes", f"Well.\n<think>\nhm\n<tool_call>{FLAT}</tool_call>") == (
        "", "Well.\n<think>\nhm", ROME
    )  # fmt: skip


def test_thinking_tags_inside_a_call_are_of_the_call() -> None:
    city = "a\n<think>\nhm\n</think>\nb"
    for name in ("hermes", "coder", "glm", "gemma", "mistral new"):
        assert called(name, WRITERS[name](city))[2][0][1] == {"city": city} | (
            {"days": 2} if name == "gemma" else {}
        )


def test_blanks_around_calls_stay_where_text_goes_on() -> None:
    call = f"<tool_call>{CALL}</tool_call>"
    assert called("hermes", f"One.\n{call}\nTwo.") == ("", "One.\n\nTwo.", ONE)
    assert called("hermes", f"One. {call}Two.{call}\n") == ("", "One. Two.", 2 * ONE)
    assert called("hermes", f"\n\n{call}\n\nTwo.") == ("", "Two.", ONE)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("l1\nl2\tl3\r\x00", "l1\nl2\tl3\r\x00"),
        (r"a \d \' \u12 b", r"a \d ' \u12 b"),
        (r"\ud83e\udd9c and \ud83e.", "🦜 and �."),
        (r"\"quoted\" \\ \/", '"quoted" \\ /'),
        ('say "hi" now', 'say "hi" now'),
    ],
)
def test_texts_in_json_become_what_the_standard_allows(written: str, text: str) -> None:
    call = f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{written}"}}}}\n</tool_call>'
    assert called("hermes", call) == ("", "", [("weather", {"city": text})])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("NaN", None),
        ("-Infinity", None),
        ("True", True),
        ("None", None),
        (".5", 0.5),
        ("+3", 3),
        ("1e999", "1e999"),
    ],
)
def test_other_spellings_of_values_become_json(written: str, value: object) -> None:
    arguments = f'{{"city": {written}, "days": [{written}]}}'
    call = f'{{"name": "weather", "arguments": {arguments}}}'
    assert called("hermes", f"<tool_call>{call}</tool_call>")[2] == [
        ("weather", {"city": value, "days": [value]})
    ]


@pytest.mark.parametrize(
    "end",
    ["</function>", "</tool_call>", "</parameter>", "</invoke>", "</function>\n</tool_call>",
     "<parameter=city>", "</parameter>\n<parameter=city>\n", "</parameter>\n</function>\n</tool_call>",
     "<tool_call>",
     "</function><function=weather>"],
)  # fmt: skip
def test_a_file_that_speaks_of_calls_is_written_whole(end: str) -> None:
    city = f"A call ends with {end} on a line of its own, and then ... more text\nAnd a second line."
    for form in ("coder", "glm", "hermes"):
        assert called(form, WRITERS[form](city)) == ("", "", [("weather", {"city": city})])


@pytest.mark.parametrize("name", WRITERS)
def test_a_call_that_is_cut_comes_with_what_there_is(name: str) -> None:
    whole = WRITERS[name]("Rome is large")
    for size in SIZES:
        (tool, arguments), *others = read(name, whole[: whole.index(" large")], size, is_cut=True)[2]
        assert (tool, others) == ("weather", [])
        assert arguments.replace(" ", "") == '{"city":"Romeis'


@pytest.mark.parametrize(
    "head", ["<tool_call>", "<tool_call>\n{", '<tool_call>\n{"na', '<tool_call>\n{"name": "wea']
)
def test_the_beginning_of_a_call_that_was_cut_is_not_shown(head: str) -> None:
    assert called("hermes", f"I look.\n{head}", is_cut=True) == ("", "I look.", [])
    assert called("hermes", f"I look.\n{head}")[1] == f"I look.\n{head}"


def test_an_answer_of_one_object_ends_where_its_model_ended_it() -> None:
    assert called("llama", '{"name": "weather", "arguments": {"city": "Rome", "days": [1, 2', is_cut=False)[
        2
    ] == [("weather", {"city": "Rome", "days": [1, 2]})]
