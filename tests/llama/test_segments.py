from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec.llama.model import Model
from localspec.llama.template import segments
from localspec.llama.template.segments import Segments
from localspec.llama.vocabulary import Vocabulary
from localspec.types.models import ModelOptions
from localspec.types.request import Message
from tests.llama import tiny

WORDS = [
    "word",
    " ",
    "  ",
    "\n\n",
    "don't",
    "über",
    "你好",
    "<",
    "|>",
    "<|im",
    "_start|>",
    "im_end",
    "\U0001f9d1",
]


@pytest.fixture(autouse=True)
def _short_texts_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "WORTH_IT", 0)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is tokenised from now on."""
    texts: list[str] = []
    tokenize = Vocabulary.tokenize

    def spy(self: Vocabulary, text: str, *, special: bool = False, add_special: bool = False) -> list[int]:
        texts.append(text)
        return tokenize(self, text, special=special, add_special=add_special)

    monkeypatch.setattr(Vocabulary, "tokenize", spy)
    return texts


@pytest.mark.parametrize("name", ["llama_model", "target_model"])
def test_segments_give_the_tokens_of_the_whole(name: str, request: pytest.FixtureRequest) -> None:
    vocabulary: Vocabulary = request.getfixturevalue(name).vocabulary
    specials = [vocabulary.text(token).decode() for token in sorted(vocabulary.special_tokens)]
    apart, source, text = Segments(vocabulary), random.Random(3), "".join(specials)
    apart.tokenize(text)
    for _ in range(300):
        kept = text[: source.randrange(len(text) + 1)] if len(text) < 400 else ""
        text = kept + "".join(source.choice(WORDS + specials) for _ in range(12))
        assert apart.tokenize(text) == vocabulary.tokenize(text, special=True), text


def test_only_new_turns_are_tokenised(target_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = [Message("user", "What is a list?"), Message("assistant", "A row of values.")]
    target_model.template.encode_chat([*talk, Message("user", "And a set?")])
    texts = counted(monkeypatch)
    target_model.template.encode_chat(
        [*talk, Message("user", "And a set?"), talk[1], Message("user", "Why?")]
    )
    assert texts == ["", "<|im_start|>user\nWhy?"]


def test_a_short_text_is_read_in_one_go(target_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "WORTH_IT", 100)
    texts = counted(monkeypatch)
    Segments(target_model.vocabulary).tokenize("<|im_start|>user\nhi<|im_end|>\n")
    assert len(texts) == 1


def test_tokens_that_take_spaces_along_are_not_place_to_cut(
    llama_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = llama_model.vocabulary
    monkeypatch.setattr(vocabulary, "stripping_tokens", frozenset({3}))
    texts = counted(monkeypatch)
    Segments(vocabulary).tokenize("a<|im_start|>b<|im_end|>c")
    assert texts == ["a<|im_start|>b", "<|im_end|>c"]


@pytest.mark.parametrize(
    ("text", "others", "apart"),
    [
        (b"<|end|>", [b"<|start|>", b"<", b"end"], True),
        (b"<|end|>", [b"<|end|>x"], False),  # found first, and with it the text is gone
        (b"<|end|>", [b"xyz-xyz<|"], False),  # reaches into its head
        (b"<|end|>", [b"|>xyz-xyz"], False),  # begins with its tail
        (b"<|end|>", [b"|>xyz"], True),  # likewise, but shorter: looked for later
        (b"abab", [], False),  # "ababab" holds it in two ways
        (b"#", [], False),
    ],
)
def test_a_mark_must_be_taken_as_one_wherever_it_stands(
    text: bytes, others: Sequence[bytes], apart: bool
) -> None:
    assert segments._is_apart(text, others) is apart


def test_other_kinds_of_vocabulary_are_read_in_one_go(
    llama_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_model.vocabulary, "type", 4)
    texts = counted(monkeypatch)
    Segments(llama_model.vocabulary).tokenize("a<|im_start|>b")
    assert texts == ["a<|im_start|>b"]


def test_a_control_token_in_a_message_stays_text(tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "model.gguf")
    model = Model.open(ModelOptions(path=path))
    quoted = model.template.encode_chat([Message("user", "a"), Message("assistant", "b<|im_end|>c")])
    assert quoted.count(4) == 1  # the end of the first turn alone
    model.close()


def test_nothing_but_the_last_text_is_kept(llama_model: Model) -> None:
    found = Segments(llama_model.vocabulary)
    for number in range(20):
        found.tokenize(f"<|im_start|>user {number}<|im_end|><|im_start|>assistant")
    assert len(found._known) <= 4
