"""Grammars on the bundled vocabulary: the same masks whatever way one comes to a text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest

from localspec.decoding.constraint import TokenRules
from localspec.demo import bundled_pair
from localspec.errors import UserError
from localspec.llama.grammar import ClosingTag, GrammarConstraint, Grammars, check
from localspec.llama.model import Model
from localspec.thinking_tags import THINKING_TAGS, tags_of
from localspec.types.models import ModelOptions
from localspec.types.request import Grammar, GrammarKind

VOCABULARY = 8192
SCHEMA = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "kind": {"enum": ["alpha", "beta_two"]},
                "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
            },
            "required": ["name", "kind", "list"],
            "additionalProperties": False,
        }
    ),
)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    opened = Model.open(ModelOptions(bundled_pair()[0], gpu_layers=0))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def grammars(model: Model) -> Grammars:
    return Grammars(model.vocabulary, model.end_tokens)


def allowed(constraint: GrammarConstraint, text: list[int]) -> list[int]:
    found = constraint.mask(text)
    assert found is not None
    assert len(found.ids) <= VOCABULARY / 2
    left = np.setdiff1d(np.arange(VOCABULARY), found.ids) if found.are_refused else found.ids
    return [int(token) for token in left]


def accepts(constraint: GrammarConstraint, text: list[int], tokens: list[int]) -> int:
    return TokenRules((), constraint).accepts(text, tokens)


def walk(constraint: GrammarConstraint, text: list[int], seed: int) -> list[int]:
    """Write at random after a text until an end token."""
    draw = random.Random(seed)
    while len(text) < 300:
        text = [*text, draw.choice(allowed(constraint, text))]
        if text[-1] in constraint._compiled.end_tokens:
            return text
    return text


def test_whatever_is_written_is_what_the_schema_says(model: Model, grammars: Grammars) -> None:
    ended = 0
    for seed in range(12):
        text = walk(grammars.constraint(SCHEMA, [1, 2]), [1, 2], seed)
        if text[-1] in model.end_tokens:
            value = json.loads(model.vocabulary.decode(text[2:]))
            assert set(value) == {"name", "kind", "list"}
            assert value["kind"] in {"alpha", "beta_two"}
            ended += 1
    assert ended >= 6


def test_masks_depend_on_the_text_alone(grammars: Grammars) -> None:
    """Drafts that were refused, copies and other texts in between leave no trace."""
    here, draw = grammars.constraint(SCHEMA, []), random.Random(5)
    texts = [walk(here, [], seed) for seed in range(3)]
    for _ in range(150):
        whole = draw.choice(texts)
        text = whole[: draw.randrange(len(whole))]
        fresh = grammars.constraint(SCHEMA, [])
        assert allowed(here, text) == allowed(fresh, text)
        assert accepts(here, text, whole[len(text) :]) == len(whole) - len(text)
        refused = next(token for token in range(VOCABULARY) if token not in allowed(fresh, text))
        assert accepts(here, text, [refused, 1]) == 0
        assert here.mask([*text, refused, refused]) is None
    assert allowed(here.copy(), texts[0][:4]) == allowed(here, texts[0][:4])


def told(constraint: GrammarConstraint, text: list[int]) -> tuple[bool, list[int]] | None:
    found = constraint.mask(text)
    return None if found is None else (found.are_refused, found.ids.tolist())


def letters(model: Model, text: str) -> list[int]:
    pieces = model.vocabulary.all_pieces()
    return [pieces.index(letter.encode()) for letter in text]


def test_texts_that_differ_in_one_token_have_masks_of_their_own(model: Model, grammars: Grammars) -> None:
    forked = Grammar("regex", "(a1|b2)(c|d)e")
    texts = [letters(model, text) for text in ("", "a", "b", "a1", "b2", "a1c", "b2c", "b2d", "a1ce", "b2de")]
    fresh = {tuple(text): told(grammars.constraint(forked, []), text) for text in texts}
    here, draw = grammars.constraint(forked, []), random.Random(7)
    for _ in range(400):
        text = draw.choice(texts)
        assert told(here, text) == fresh[tuple(text)], text


def test_a_closing_tag_that_is_taken_back_in_its_middle_leaves_nothing(
    model: Model, grammars: Grammars
) -> None:
    tag, (other,) = letters(model, "</think>"), letters(model, "x")
    texts = [tag[:count] for count in range(len(tag))]
    texts += [[*text, other] for text in texts] + [[*text, other, *tag[len(text) + 1 :]] for text in texts]
    texts += [[*tag, *letters(model, "y")], [other, *tag[:3], *tag]]
    tags = tags_of("<think>")
    fresh = {tuple(text): told(grammars.constraint(YES, [], tags), text) for text in texts}
    here, draw = grammars.constraint(YES, [], tags), random.Random(8)
    for _ in range(600):
        text = draw.choice(texts)
        assert told(here, text) == fresh[tuple(text)], text


def test_after_the_end_only_an_end_may_follow(model: Model, grammars: Grammars) -> None:
    constraint = grammars.constraint(Grammar("regex", "yes|no"), [7])
    yes = model.vocabulary.tokenize("yes")
    ends = sorted(model.end_tokens)
    assert allowed(constraint, [7, *yes]) == ends
    assert constraint.mask([7, *yes, ends[0]]) is None
    assert constraint.mask([7, *yes, ends[0], 9]) is None
    assert accepts(constraint, [7], [*yes, 9, ends[-1]]) == len(yes)
    more = grammars.constraint(Grammar("regex", "a+"), [])
    a = model.vocabulary.tokenize("a")[-1]
    assert set(ends) < set(allowed(more, [a]))
    assert more.mask([a, ends[0]]) is None
    assert not set(ends) & set(allowed(more, []))


YES = Grammar("gbnf", 'root ::= "yes" | "no"')


def spellings(model: Model, text: str) -> Iterator[list[int]]:
    """The tokens of a text cut once anywhere, each part tokenised by itself: other tokens, the same text."""
    vocabulary = model.vocabulary
    for cut in range(len(text)):
        parts = [part for part in (text[:cut], text[cut:]) if part]
        tokens = [token for part in parts for token in vocabulary.tokenize(part)]
        if vocabulary.decode(tokens) == text:
            yield tokens


@pytest.mark.parametrize("tag", ["</think>", "[/THINK]", "<|END_THINKING|>", "</THINK>"])
def test_a_grammar_begins_where_the_thinking_ends_however_that_is_spelled(
    model: Model, grammars: Grammars, tag: str
) -> None:
    tags = next(tags for tags in THINKING_TAGS if tags.closing.lower() == tag.lower())
    begun, yes = allowed(grammars.constraint(YES, []), []), model.vocabulary.tokenize("yes")
    constraint = grammars.constraint(YES, [1, 2], tags)
    ways = [way for way in spellings(model, f"hm</thi{tag}") if len(way) > 3]
    assert len(ways) > 5
    for closing in ways:
        for count in range(len(closing)):
            mask = constraint.mask([1, 2, *closing[:count]])
            assert mask is None or mask.are_refused
        assert allowed(constraint, [1, 2, *closing]) == begun
        assert allowed(constraint, [1, 2, *closing, *yes]) == sorted(model.end_tokens)
        assert accepts(constraint, [1, 2], [*closing, *yes, 3]) == len(closing) + len(yes)
        assert constraint.mask([1, 2, *closing[:-1], 3]) is None  # a draft that was taken back
        assert allowed(constraint.copy(), [1, 2, *closing]) == begun


def test_no_token_ends_the_thinking_with_more_than_blanks_after_it() -> None:
    """The grammar would not see the rest; `pieces` are texts that real vocabularies hold."""
    pieces = [b"</", b"think", b">", b">{", b">\n\n", b"> <", b"k>x", b"hm", b"</think>", b"</think>{", b""]
    closing = ClosingTag("</think>", pieces)

    def refused(end: bytes) -> list[bytes]:
        mask = closing.mask(end)
        assert mask is not None
        assert mask.are_refused
        return [pieces[token] for token in mask.ids]

    assert refused(b"hm") == [b"</think>{"]
    assert refused(b"hm</THINK") == [b">{", b"> <", b"</think>{"]
    assert refused(b"</thin") == [b"k>x", b"</think>{"]
    assert ClosingTag("</think>", pieces[:3]).mask(b"</think") is None


def test_such_a_token_is_rejected_where_it_would_end_the_thinking(model: Model, grammars: Grammars) -> None:
    pieces = model.vocabulary.all_pieces()
    longer = {token for token, piece in enumerate(pieces) if piece[:1] == b">" and piece[1:].strip()}
    assert longer
    constraint = grammars.constraint(YES, [], tags_of("<think>"))
    mask = constraint.mask(model.vocabulary.tokenize("hm</think"))
    assert mask is not None
    assert (set(mask.ids.tolist()), mask.are_refused) == (longer, True)
    assert constraint.mask(model.vocabulary.tokenize("hm</thin")) is None


def test_masks_in_and_after_thinking_depend_on_the_text_alone(model: Model, grammars: Grammars) -> None:
    tags, draw = tags_of("<think>"), random.Random(3)
    vocabulary = model.vocabulary
    whole = vocabulary.tokenize("hm, </th and </think>yes")
    here = grammars.constraint(YES, [5], tags)
    for _ in range(300):
        drafted = [draw.choice(whole) for _ in range(draw.randrange(3))]
        text = [5, *whole[: draw.randrange(len(whole))], *drafted]
        fresh = grammars.constraint(YES, [5], tags)
        mine, its = here.mask(text), fresh.mask(text)
        assert (mine is None) == (its is None)
        if mine is not None and its is not None:
            assert (mine.ids.tolist(), mine.are_refused) == (its.ids.tolist(), its.are_refused)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("json_schema", "{", "Expecting property name enclosed in double quotes: line 1"),
        ("json_schema", '{"items": {"type": "strin"}}', "at #/items: Invalid type: strin"),
        ("json_schema", '{"not": {}}', "at #: unsatisfiable"),
        ("json_schema", "3", "is an object, or true or false"),
        ("json_schema", "[" * 100_000, "recursion depth"),
        ("json_schema", " " * 2**20 + "{}", "more than 1,048,576 bytes"),
        ("gbnf", 'root ::= "a" | other', "Rule 'other' not found"),
        ("gbnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "recursion"),
        ("lark", "start: other", "unknown name"),
        ("regex", "(", "unclosed group"),
    ],
    ids=range(10),
)
def test_a_wrong_grammar_is_reported_in_one_line(
    kind: GrammarKind, text: str, said: str, grammars: Grammars
) -> None:
    for use in (check, lambda grammar: grammars.constraint(grammar, [])):
        with pytest.raises(UserError, match="cannot be used") as caught:
            use(Grammar(kind, text))
        assert said in caught.value.message
        assert "\n" not in str(caught.value)
