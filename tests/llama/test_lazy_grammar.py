"""Grammars that begin behind the head of a call: where they hold, however tokens spell it, and where not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from localspec.chat.calls.form import ToolFormat
from localspec.chat.calls.triggers import call_triggers
from localspec.demo import bundled_pair
from localspec.errors import UserError
from localspec.llama.grammar import CompiledGrammar, Grammars
from localspec.llama.lazy_grammar import Heads, LazyConstraint
from localspec.llama.model import Model
from localspec.thinking_tags import tags_of
from localspec.types.models import ModelOptions
from localspec.types.request import Grammar, Trigger
from tests.chat.test_tool_calls import form

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = tuple(
    json.dumps({"type": "function", "function": {"name": name, "parameters": PARAMETERS}})
    for name in ("weather", "travel_to")
)
HEAD = '<tool_call>\n{"name": "weather"'
ARGUMENTS = ', "arguments": {"city": "Rome", "days": 3}'
CALL = f"{HEAD}{ARGUMENTS}}}\n</tool_call>"
ANALYSIS = "<|channel|>analysis<|message|>to=functions.weather<|end|><|start|>assistant"
BARE = f'{{"name": "weather"{ARGUMENTS}}}'


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    opened = Model.open(ModelOptions(bundled_pair()[0], gpu_layers=0))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def grammars(model: Model) -> Grammars:
    return Grammars(model.vocabulary, model.end_tokens)


class Calls:
    """Calls in a form, on the bundled vocabulary."""

    def __init__(self, model: Model, grammars: Grammars, name: str = "hermes") -> None:
        self._vocabulary, self._grammars = model.vocabulary, grammars
        self._pieces = model.vocabulary.all_pieces()
        self.form: ToolFormat = form(name)
        self._heads = [Heads.of(each) for each in call_triggers(self.form, TOOLS, lambda _tag: None)]

    def constraint(self, thinking: str = "", begun: str = "") -> LazyConstraint:
        tags = tags_of(thinking) if thinking else None
        return LazyConstraint(self._grammars, self._heads, 2, tags, begun)

    def tokens(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text)

    def letters(self, text: str) -> list[int]:
        return [self._pieces.index(bytes([byte])) for byte in text.encode()]

    def may_follow(self, text: str, then: str, **prompt: str) -> bool | None:
        """Return whether text may go on with other text, by any tokens; None: nothing is refused."""
        constraint, before = self.constraint(**prompt), [1, 2, *self.letters(text)]
        rest, is_bound = then.encode(), False
        while rest:
            mask, token = constraint.mask(before), self._pieces.index(rest[:1])
            if mask is not None:
                is_bound = True
                allowed = np.setdiff1d(range(len(self._pieces)), mask.ids) if mask.are_refused else mask.ids
                fitting = [each for each in allowed.tolist() if self._fits(each, rest)]
                if not fitting:
                    return False
                token = max(fitting, key=lambda each: len(self._pieces[each]))
            before.append(token)
            rest = rest[len(self._pieces[token]) :]
        return True if is_bound else None

    def _fits(self, token: int, rest: bytes) -> bool:
        piece = self._pieces[token]
        return bool(piece) and (rest.startswith(piece) or piece.startswith(rest))


@pytest.fixture(scope="module")
def calls(model: Model, grammars: Grammars) -> Calls:
    return Calls(model, grammars)


def splits(calls: Calls, text: str) -> Iterator[list[int]]:
    """Cut a text once anywhere, and tokenise the parts: other tokens, the same text."""
    for cut in range(len(text)):
        tokens = [token for part in (text[:cut], text[cut:]) if part for token in calls.tokens(part)]
        if calls._vocabulary.decode(tokens) == text:
            yield tokens


def test_the_name_in_its_form_begins_the_grammar_however_tokens_spell_it(calls: Calls) -> None:
    ways = [*splits(calls, f"Let me look.\n{HEAD}"), calls.letters(HEAD)]
    assert len(ways) > 20
    for way in ways:
        constraint = calls.constraint()
        assert all(constraint.mask([1, 2, *way[:count]]) is None for count in range(len(way)))
        assert not constraint.may_refuse([1, 2], way[:-1])
        assert constraint.may_refuse([1, 2], way)
        mask = constraint.mask([1, 2, *way])
        assert mask is not None
        assert {calls._pieces[token].strip()[:1] for token in mask.ids} <= {b",", b""}


@pytest.mark.parametrize(
    ("then", "is_allowed"),
    [
        (', "arguments": {"city": "Rome"}}\n</tool_call>', True),
        (',"parameters":{"city":"Oslo","days":-4}}</tool_call>', True),
        (', "arguments": {\n  "city": "Oslo"\n}}\n</tool_call> and more {', True),
        (', "arguments": {"city": "Paris"', False),
        (', "arguments": {"days": 3', False),
        (', "arguments": "', False),
        (', "arguments": {"city": "Rome"}}\n<', True),
        (', "arguments": {"city": "Rome"}}\n{', False),
        ("}", False),
    ],
)
def test_arguments_follow_the_schema_and_the_form_is_closed(
    calls: Calls, then: str, is_allowed: bool
) -> None:
    assert calls.may_follow(f"Here:\n{HEAD}", then) is is_allowed


@pytest.mark.parametrize(
    "text",
    [
        "A tool call looks like <tool_call>, then",
        'One writes <tool_call>\n{"name": ',
        HEAD.replace("weather", "whether"),
        HEAD.replace("weather", "weather_of_tomorrow"),
        'My functional tool_call>\n{"name": "weather"',
        f"For example:\n```\n{HEAD}",
        f"For example:\n~~~~xml\n```\n{HEAD}",
        f"For example:\n   ```json\n{HEAD}",
        f"Write `{HEAD}",
        f"<think>\n{HEAD}",
        f"<think>I may </think></think>\n\n<thinking>{HEAD}",
        f"So far.\n<think>{HEAD}",
        f"{HEAD}{ARGUMENTS}}}\n</tool_call>",
        f"{CALL}\nThat was it, so <tool_call>",
        f"I answer\n{BARE[:-1]}",
        f"I answer\n```json\n{BARE[:-1]}",
        '{"name": "weather"',
        '{"name": "Rome", "arguments": ',
    ],
)
def test_nothing_else_begins_one(calls: Calls, text: str) -> None:
    assert calls.may_follow(text, "}\n</tool_call>\n{]]") is None


def test_what_the_prompt_has_opened_is_thinking(calls: Calls) -> None:
    thought = f"I could write {HEAD}"
    assert calls.may_follow(thought, ": ]", thinking="<think>") is None
    assert calls.may_follow(f"{thought}, {CALL}</think>\n{HEAD}", ": ]", thinking="<think>") is False
    assert calls.may_follow(f"{thought}</THINK>{HEAD}", ", ", thinking="<think>") is True


@pytest.mark.parametrize(
    "text",
    [
        f"```\nprint()\n```\n{HEAD}",
        f"Use `ls` here: {HEAD}",
        f"<think>{CALL}</think>{HEAD}",
        f"{CALL}{HEAD}",
        f"{CALL}\n{CALL}\nAnd now\n{HEAD}",
        HEAD.replace("weather", "travel_to"),
        '<tool_call>{"type": "function", "name": "weather"',
        f"{HEAD.replace('weather', 'whether')}}}\n{HEAD}",
    ],
)
def test_calls_behind_other_text_are_bound(calls: Calls, text: str) -> None:
    assert calls.may_follow(text, ARGUMENTS) is True
    assert calls.may_follow(text, ARGUMENTS.replace("Rome", "Paris")) is False


@pytest.mark.parametrize(
    "before", ["", "\n ", "```json\n", "[", f"{BARE}\n", f"{CALL}\n", "<think></think>\n"]
)
def test_without_the_opening_the_arguments_bind_where_an_answer_begins_or_a_call_ends(
    calls: Calls, before: str
) -> None:
    head = f'{before}{{"name": "weather", "arguments":'
    assert calls.may_follow(head, ' {"city": "Rome"}} and so on') is True
    assert calls.may_follow(head, ' {"city": "Paris"') is False
    assert calls.may_follow(head, ' "Rome"') is False


def test_a_token_that_goes_past_the_head_counts_with_its_end(calls: Calls) -> None:
    """Vocabularies have tokens such as `":{"` or `",`; llama.cpp's lazy grammars broke on them."""
    joined = [token for token, piece in enumerate(calls._pieces) if piece[:1] == b'"' and len(piece) > 1]
    comma, others = (
        calls._pieces.index(b'",'),
        [token for token in joined if calls._pieces[token][1:2] != b","],
    )
    text = [1, 2, *calls.letters(HEAD[:-1])]
    constraint = calls.constraint()
    assert constraint.may_refuse([*text, comma], ())
    mask = constraint.mask([*text, comma])
    assert mask is not None
    assert {calls._pieces[token].strip()[:1] for token in mask.ids} == {b"", b'"'}
    assert len(others) > 3
    for token in others:  # the call is not in its form, and nothing is forced
        assert constraint.mask([*text, token]) is None or calls._pieces[token].strip() == b'"'


def test_a_token_may_go_past_the_end_and_begin_the_next_call(calls: Calls, grammars: Grammars) -> None:
    past = [token for token, piece in enumerate(calls._pieces) if piece[:1] == b">" and len(piece) > 1]
    constraint, whole = calls.constraint(), [1, 2, *calls.letters(f"{CALL[:-1]}")]
    mask = constraint.mask(whole)
    assert mask is not None
    assert set(past) <= set(mask.ids.tolist())
    assert [constraint.mask([*whole, token]) for token in past] == [None] * len(past)
    listed = Grammar("lark", 'start: "x"+ "]" REST\nREST: /(.|\\n)*/')
    brackets = LazyConstraint(grammars, [Heads.of(Trigger(r"\[(?P<name>a):", (("a", listed),)))], 0)
    both = calls._pieces.index(b"][")
    text = [*calls.letters("[a:x"), both]
    assert brackets.mask(text) is None
    assert brackets.mask([*text, *calls.letters("a:")]) is not None
    assert brackets.mask([*text, *calls.letters("a:xx"), both, *calls.letters("b:")]) is None


def told(constraint: LazyConstraint, text: Sequence[int]) -> tuple[bool, list[int]] | None:
    mask = constraint.mask(text)
    return None if mask is None else (mask.are_refused, mask.ids.tolist())


@pytest.mark.slow
def test_masks_depend_on_the_text_alone(calls: Calls) -> None:
    """Drafts across the head and the end that were refused, copies, other texts: nothing is left of them."""
    draw = random.Random(5)
    answer = f"<think>{HEAD}</think>So:\n{CALL}\n```\n{HEAD}\n```\n{CALL}{HEAD}{ARGUMENTS}"
    wholes = [calls.tokens(answer), calls.letters(answer)]
    wholes.append([token for part in answer.split(" ") for token in calls.tokens(f" {part}")])
    here, fresh = calls.constraint(), dict[tuple[int, ...], object]()
    bound = 0
    for _ in range(1500):
        whole = draw.choice(wholes)
        drafted = [draw.choice(whole) for _ in range(draw.randrange(4))]
        text = [1, 2, *whole[: draw.randrange(len(whole))], *drafted]
        if draw.random() < 0.3:
            here.may_refuse(text, [draw.choice(whole) for _ in range(3)])
        key = tuple(text)
        if key not in fresh:
            fresh[key] = told(calls.constraint(), text)
        assert told(here, text) == fresh[key]
        bound += fresh[key] is not None
    assert 100 < bound < 1400
    assert told(here.copy(), text) == told(here, text)


def test_free_text_computes_no_mask(calls: Calls, model: Model) -> None:
    grammars = Grammars(model.vocabulary, model.end_tokens)
    constraint = LazyConstraint(grammars, calls._heads, 0)
    text = calls.tokens(f"Write <tool_call> and a name.\n```\n{HEAD}\n```\nDone.")
    assert not any(constraint.may_refuse(text[:count], text[count:]) for count in range(len(text)))
    assert not {"_tokenizer", "_pieces"} & vars(grammars).keys()
    constraint.mask([*text, *calls.tokens(HEAD)])
    assert "_tokenizer" in vars(grammars)


@pytest.mark.parametrize(
    ("begun", "then", "expected"),
    [
        ("Well, ", ": ]", None),
        (HEAD, ": ]", False),
        (f"{HEAD}{ARGUMENTS}", "}", True),
        (f'{HEAD}, "arguments": {{"city": "', "P", False),
        (CALL, "]]", None),
        (f"<think>{HEAD}", ": ]", None),
    ],
)
def test_an_answer_that_the_prompt_has_begun_goes_on(
    calls: Calls, begun: str, then: str, expected: bool | None
) -> None:
    assert calls.may_follow("", then, begun=begun) is expected


def test_an_end_of_the_answer_is_refused_in_a_call_and_nowhere_else(calls: Calls, model: Model) -> None:
    constraint, ends = calls.constraint(), model.end_tokens
    bound = [1, 2, *calls.tokens(f"{HEAD}, ")]
    mask = constraint.mask(bound)
    assert mask is not None
    assert not ends & set(mask.ids.tolist())
    for end in ends:
        assert constraint.mask([*bound, end]) is None
    assert constraint.mask([1, 2, *calls.tokens(CALL)]) is None


@pytest.mark.parametrize("text", ["start: other", 'start: %json {"type": "nothing"}'])
def test_a_grammar_that_cannot_be_used_leaves_its_calls_free(
    grammars: Grammars, calls: Calls, text: str
) -> None:
    heads = Heads.of(
        Trigger("<(?P<name>a|b)>", (("a", Grammar("lark", text)), ("b", Grammar("regex", "x+y"))))
    )
    constraint = LazyConstraint(grammars, [heads], 0)
    assert constraint.mask(calls.letters("<a>")) is None
    assert constraint.mask(calls.letters("<a> <b>")) is not None


def test_a_grammar_in_which_llguidance_gives_up_lets_the_answer_go_on(
    grammars: Grammars, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint, text = calls.constraint(), [1, 2, *calls.letters(HEAD)]
    limited = grammars._compiled

    def failing(grammar: Grammar) -> CompiledGrammar:
        from llguidance import LLMatcher, LLParserLimits

        compiled = limited(grammar)
        limits = LLParserLimits(step_max_items=1)
        matcher = LLMatcher(
            grammars._tokenizer, LLMatcher.grammar_from_lark(grammar.text), limits=limits, log_level=0
        )
        return CompiledGrammar("lark", matcher, len(calls._pieces), compiled.end_tokens)

    monkeypatch.setattr(grammars, "_compiled", failing)
    assert constraint.mask(text) is None
    assert constraint.mask([*text, *calls.letters(": ]")]) is None


@pytest.mark.parametrize(
    ("head", "said"), [("(?P<name>", "no regular expression"), ("<a>", "no group `name`")]
)
def test_a_head_that_is_no_expression_is_reported(head: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Heads.of(Trigger(head, ()))


@pytest.mark.parametrize(
    ("name", "head", "good", "bad"),
    [
        (
            "mistral",
            '[TOOL_CALLS][{"name": "weather"',
            ', "arguments": {"city": "Rome"}, "id": "abc"}]',
            ', "id"',
        ),
        ("mistral", f'[TOOL_CALLS][{BARE}, {{"name": "travel_to", "arguments":', '{"city": "Oslo"}}]', "[1]"),
        ("mistral new", "[TOOL_CALLS]weather[ARGS]", '{"city": "Rome"}[TOOL_CALLS]', '{"town"'),
        ("llama", '{"name": "weather", "parameters":', ' {"city": "Rome"}}', ' {"city": "Paris"'),
        (
            "harmony",
            f"{ANALYSIS}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
            '{"city": "Rome"}<|call|>',
            '{"city": 1',
        ),
    ],
)
def test_every_form_with_json_is_bound(
    model: Model, grammars: Grammars, name: str, head: str, good: str, bad: str
) -> None:
    calls = Calls(model, grammars, name)
    assert calls.may_follow(head, good) is True
    assert calls.may_follow(head, bad) is False
    assert calls.may_follow(head.replace("weather", "whether").replace("travel_to", "x"), bad) is None
