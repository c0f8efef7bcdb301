from __future__ import annotations

import random
from pathlib import Path

import pytest

from localspec.errors import PairingError
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.llama.vocabulary import LlamaDetokenizer, Vocabulary
from localspec.models.pairing import compare_vocabularies
from localspec.types.models import ModelOptions
from tests.llama import tiny

SAMPLES = [
    "plain words, and  two spaces\n\n\ttabs",
    "Grüße, naïve café, Ångström",
    "Здравствуй, мир! Γειά σου Κόσμε",
    "你好，世界。こんにちは世界 안녕하세요",
    "नमस्ते दुनिया مرحبا بالعالم שלום עולם",
    "👩‍👩‍👧‍👦 🇳🇿 🤷🏽‍♀️ \U0001f9d1\U0001f3ff‍\U0001f680",
    "e\u0301 \u200b\ufeff\ufffd \x00\x01\x7f end",
    "\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff",
]


def stream(vocabulary: Vocabulary, tokens: list[int]) -> list[str]:
    detokenizer = LlamaDetokenizer(vocabulary)
    return [*(detokenizer.feed(token) for token in tokens), detokenizer.flush()]


def byte_token(vocabulary: Vocabulary, byte: int) -> int:
    return next(token for token in range(vocabulary.size) if vocabulary.piece(token) == bytes([byte]))


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("name", ["llama_model", "target_model"])
def test_text_survives_the_round_trip(name: str, text: str, request: pytest.FixtureRequest) -> None:
    vocabulary: Vocabulary = request.getfixturevalue(name).vocabulary
    tokens = vocabulary.tokenize(text)
    assert vocabulary.decode(tokens) == text
    assert "".join(stream(vocabulary, tokens)) == text


def test_random_text_survives_token_by_token(llama_model: Model) -> None:
    source = random.Random(7)
    for _ in range(50):
        points = (source.choice((0x80, 0x800, 0xD7FF, 0x10FFFF)) for _ in range(40))
        text = "".join(chr(source.randrange(limit)) for limit in points)
        text = text.encode("utf-8", "ignore").decode()
        parts = stream(llama_model.vocabulary, llama_model.vocabulary.tokenize(text))
        assert "".join(parts) == text


def test_a_character_appears_with_its_last_byte(llama_model: Model) -> None:
    vocabulary = llama_model.vocabulary
    tokens = [byte_token(vocabulary, byte) for byte in "a€b".encode()]
    assert stream(vocabulary, tokens) == ["a", "", "", "€", "b", ""]


def test_only_what_is_truly_invalid_is_replaced(llama_model: Model) -> None:
    vocabulary = llama_model.vocabulary
    lone = [byte_token(vocabulary, byte) for byte in (0xE2, 0x82, 0x41, 0xFF, 0xC3)]
    assert stream(vocabulary, lone) == ["", "", "\ufffdA", "\ufffd", "", "\ufffd"]


def test_a_flushed_detokenizer_starts_again(llama_model: Model) -> None:
    detokenizer = LlamaDetokenizer(llama_model.vocabulary)
    detokenizer.feed(byte_token(llama_model.vocabulary, 0xE2))
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.feed(byte_token(llama_model.vocabulary, 0x41)) == "A"
    assert detokenizer.flush() == ""


def test_control_tokens_are_hidden_and_parsed_only_on_request(llama_model: Model) -> None:
    vocabulary = llama_model.vocabulary
    assert vocabulary.tokenize("<|im_end|>", special=True) == [4]
    plain = vocabulary.tokenize("<|im_end|>")
    assert not set(plain) & vocabulary.control_tokens
    assert vocabulary.piece(4) == b""
    assert vocabulary.piece(4, special=True) == b"<|im_end|>"
    assert vocabulary.decode([*plain, 4]) == "<|im_end|>"
    assert vocabulary.control_tokens == {0, 1, 2, 3, 4, 5}
    assert vocabulary.end_tokens == {2, 4}


def test_bos_is_put_in_front_on_request(llama_model: Model, target_model: Model) -> None:
    vocabulary = llama_model.vocabulary
    assert vocabulary.tokenize("ab", add_special=True) == [1, *vocabulary.tokenize("ab")]
    assert target_model.vocabulary.tokenize("ab", add_special=True) == target_model.vocabulary.tokenize("ab")
    assert vocabulary.tokenize("") == []
    assert vocabulary.tokenize("", add_special=True) == [1]


def test_tokens_outside_the_vocabulary(llama_model: Model) -> None:
    for token in (-1, llama_model.vocabulary.size):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            llama_model.vocabulary.piece(token)


def test_the_bundled_pair_fits(target_model: Model, demo_draft: Path) -> None:
    draft = Model.open(ModelOptions(path=demo_draft))
    compare_vocabularies(target_model.vocabulary, draft.vocabulary)
    draft.close()


def compared(target: Model, path: Path) -> None:
    draft = Model.open(ModelOptions(path=path))
    try:
        compare_vocabularies(target.vocabulary, draft.vocabulary)
    finally:
        draft.close()


def test_equal_texts_are_known_by_their_digest(
    llama_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.llama(tmp_path / "same.gguf")
    monkeypatch.setattr(Vocabulary, "texts", lambda _self: pytest.fail("no text needs to be read"))
    compared(llama_model, path)


def test_what_the_file_calls_an_end_is_one(tmp_path: Path) -> None:
    def adjust(recipe: tiny.Recipe) -> None:
        recipe.writer.add_eom_token_id(50)
        recipe.writer.add_eot_token_id(51)

    model = Model.open(ModelOptions(path=tiny.llama(tmp_path / "model.gguf", adjust=adjust)))
    asked = [token for token in range(model.vocabulary.size) if is_end(model.vocabulary, token)]
    assert {50, 51} < model.vocabulary.end_tokens
    assert sorted(model.vocabulary.end_tokens) == asked
    model.close()


def is_end(vocabulary: Vocabulary, token: int) -> bool:
    return bool(native().llama_vocab_is_eog(vocabulary.pointer, token))


def test_padding_may_differ_a_little(llama_model: Model, tmp_path: Path) -> None:
    compared(llama_model, tiny.llama(tmp_path / "a.gguf", extra=128))
    with pytest.raises(PairingError, match="target has 264 tokens, the draft 393"):
        compared(llama_model, tiny.llama(tmp_path / "b.gguf", extra=129))


def test_the_first_different_token_is_named(llama_model: Model, tmp_path: Path) -> None:
    with pytest.raises(PairingError, match=r"token 77 is '.+' in the target, '\[changed77\]' in the draft"):
        compared(llama_model, tiny.llama(tmp_path / "a.gguf", change=77))


def test_the_very_first_tokens_may_be_spelt_otherwise(llama_model: Model, tmp_path: Path) -> None:
    compared(llama_model, tiny.llama(tmp_path / "a.gguf", change=3))
    with pytest.raises(PairingError, match="token 5 is"):
        compared(llama_model, tiny.llama(tmp_path / "b.gguf", change=5))


def test_bos_must_agree(llama_model: Model, tmp_path: Path) -> None:
    with pytest.raises(PairingError, match="begin of a text differs: target token 1, draft none"):
        compared(llama_model, tiny.llama(tmp_path / "a.gguf", adds_bos=False))
