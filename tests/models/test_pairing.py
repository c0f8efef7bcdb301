"""The verdict from two headers, and that it is the one of llama.cpp's rules on open models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.errors import ModelFileError, PairingError
from localspec.llama.model import Model
from localspec.models import pairing
from localspec.models.pairing import compare_vocabularies, may_serve
from localspec.types.models import ModelOptions
from tests.llama import tiny
from tests.llama.tiny import Recipe


def keys(*named: str) -> Callable[[Recipe], None]:
    """Return a change of a recipe: `eos`, `no-bos-id`, or a kind of tokenizer."""

    def adjust(recipe: Recipe) -> None:
        for name in named:
            if name == "adds-eos":
                recipe.writer.add_add_eos_token(True)
            elif name == "other-eos":
                recipe.writer.add_eos_token_id(4)
            elif name == "other-bos":
                recipe.writer.add_bos_token_id(3)
            elif name == "bos-beyond":
                recipe.writer.add_bos_token_id(9_999_999)
            else:
                recipe.writer.add_tokenizer_pre(name)

    return adjust


DRAFTS: dict[str, dict[str, object]] = {
    "same": {},
    "padding": {"extra": 128},
    "too much padding": {"extra": 129},
    "a token": {"change": 77},
    "an early token": {"change": 4},
    "the fifth token": {"change": 5},
    "the last token": {"change": 263},
    "no bos": {"adds_bos": False},
    "other bos": {"adjust": keys("other-bos")},
    "bos beyond the vocabulary": {"adjust": keys("bos-beyond")},
    "adds eos": {"adjust": keys("adds-eos")},
    "other eos, not added": {"adjust": keys("other-eos")},
    "another splitter of words": {"adjust": keys("llama-bpe")},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.llama(tmp_path_factory.mktemp("target") / "target.gguf")


def by_loading(target: Path, draft: Path) -> str:
    """Return what the open models' vocabularies have against each other; nothing if they are a pair."""
    models = [Model.open(ModelOptions(path=path)) for path in (target, draft)]
    try:
        compare_vocabularies(models[0].vocabulary, models[1].vocabulary)
    except PairingError as error:
        return error.message
    finally:
        for model in models:
            model.close()
    return ""


@pytest.mark.parametrize("name", DRAFTS)
def test_the_verdict_is_that_of_the_open_models(name: str, target: Path, tmp_path: Path) -> None:
    draft = tiny.llama(tmp_path / "draft.gguf", **DRAFTS[name])  # type: ignore[arg-type]
    complaint, verdict = by_loading(target, draft), may_serve(target, draft)
    assert verdict.fits == (complaint == "")
    if complaint:
        assert verdict.reason == complaint


@pytest.mark.parametrize(("first", "second"), [("added", "not"), ("not", "added")])
def test_what_the_word_splitter_adds_where_the_file_is_silent(
    first: str, second: str, tmp_path: Path
) -> None:
    def silent(path: Path, pre: str) -> Path:
        def adjust(recipe: Recipe) -> None:
            for values in recipe.writer.kv_data:
                values.pop("tokenizer.ggml.add_bos_token", None)
            recipe.writer.add_tokenizer_pre(pre)

        return tiny.llama(path, adjust=adjust)

    pres = {"added": "llama-bpe", "not": "gpt-2"}
    one = silent(tmp_path / "one.gguf", pres[first])
    other = silent(tmp_path / "other.gguf", pres[second])
    verdict = may_serve(one, other)
    assert not verdict.fits
    assert verdict.reason == by_loading(one, other)
    assert may_serve(one, one).fits


def test_some_word_splitters_put_a_beginning_there_whatever_the_file_says(tmp_path: Path) -> None:
    always = keys("granite-embed-multi-311m")
    one = tiny.llama(tmp_path / "one.gguf", adds_bos=True, adjust=always)
    other = tiny.llama(tmp_path / "other.gguf", adds_bos=False, adjust=always)
    assert by_loading(one, other) == ""
    assert may_serve(one, other).fits


def test_some_word_splitters_know_no_beginning(tmp_path: Path) -> None:
    def beginning(path: Path, pre: str) -> Path:
        def adjust(recipe: Recipe) -> None:
            recipe.writer.add_tokenizer_pre(pre)
            for values in recipe.writer.kv_data:
                values.pop("tokenizer.ggml.bos_token_id", None)

        return tiny.llama(path, adjust=adjust)

    one, other = beginning(tmp_path / "one.gguf", "gpt-2"), beginning(tmp_path / "other.gguf", "chatglm-bpe")
    verdict = may_serve(one, other)
    assert not verdict.fits
    assert verdict.reason == by_loading(one, other)


def test_the_first_differing_token_is_reported_with_both_texts(target: Path, tmp_path: Path) -> None:
    verdict = may_serve(target, tiny.llama(tmp_path / "draft.gguf", change=77))
    assert verdict.reason == "token 77 is 'F' in the target, '[changed77]' in the draft"


def test_another_kind_of_vocabulary(target: Path, tmp_path: Path) -> None:
    draft = tiny.llama(
        tmp_path / "draft.gguf", adjust=lambda recipe: recipe.writer.add_tokenizer_model("llama")
    )
    verdict = may_serve(target, draft)
    assert verdict.reason == "the target's vocabulary is BPE, the draft's is SPM"


def test_tokens_beyond_the_smaller_vocabulary_are_reported(target: Path, tmp_path: Path) -> None:
    larger = tiny.llama(tmp_path / "larger.gguf", extra=100)
    assert "264 tokens; 100 more of the draft" in may_serve(target, larger).reason
    assert "264 tokens; 100 more of the target" in may_serve(larger, target).reason
    assert may_serve(target, target).reason == "the same 264 tokens"


def test_the_bundled_pair_fits(demo_target: Path, demo_draft: Path) -> None:
    verdict = may_serve(demo_target, demo_draft)
    assert verdict.fits
    assert verdict.size_ratio == pytest.approx(3.07, abs=0.01)
    assert may_serve(demo_draft, demo_target).size_ratio < 1


def test_truncated_draft_file_raises_model_file_error(target: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(target.read_bytes()[:2000])
    with pytest.raises(ModelFileError):
        may_serve(target, broken)


def test_tokens_are_compared_as_llama_cpp_sees_them() -> None:
    five = [b"x"] * 5
    assert pairing.first_difference([*five, b"ab\0c"], [*five, b"ab"]) is None
    assert pairing.first_difference([*five, b""], [*five, b"[EMPTY_5]"]) is None
    found = pairing.first_difference([*five, b"", b""], [*five, b"", b"q"])
    assert found == pairing.TokenDifference(6, "[EMPTY_6]", "q")
    assert str(found) == "token 6 is '[EMPTY_6]' in the target, 'q' in the draft"
    assert pairing.first_difference([*five, b"\xff"], [*five, b"\xfe"]) is not None
    assert pairing.first_difference([b"a"], [b"b"]) is None


def test_ratios_in_words() -> None:
    assert "swap" in pairing.remark(0.5)
    assert "2.5 times" in pairing.remark(2.5)
    assert "only 3.9 times" in pairing.remark(3.9)
    assert pairing.remark(4) == pairing.remark(20) == ""
