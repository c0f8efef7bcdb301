"""Answers in which a grammar begins and ends keep the engine contract, wherever drafts cross its ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from localspec.decoding.constraint import TokenRules
from localspec.decoding.rounds import DecodeParams
from localspec.decoding.sampling import distribution
from localspec.decoding.verify import Uniforms
from localspec.llama.grammar import CompiledGrammar
from localspec.llama.lazy_grammar import Heads, LazyConstraint
from localspec.types.candidates import ChosenRows, FullRow, FullRows, Rows
from localspec.types.drafts import Distribution, Draft, VerifyOutcome
from localspec.types.request import EngineSettings, Grammar, Sampling, Trigger
from tests import contract
from tests.contract import SIGNIFICANT, EngineContract, Toy
from tests.decoding.test_chosen_rows import NUCLEUS, ChoosingToy
from tests.decoding.test_constrained import lowest_p_value
from tests.decoding.test_heads import HeadToy
from tests.decoding.test_segments import RestlessToy
from tests.decoding.toys import PLAIN, let_texts_repeat

SD = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8, min_confidence=0.0)
NGRAM = EngineSettings(mode="ngram", draft_length=4)
OFF = EngineSettings(mode="off")
# Behind "a(", one or more of "1" and "b", and then ")": the head in one token or in two, tokens across both
# ends, and some that look alike. The smallest toy has only the first four.
PIECES = [piece.encode() for piece in "a|(|1|)|a(|(1|11|)a|1)|b|1)a(|a(1|(b| |)(|c".split("|")]
END = len(PIECES)
TRIGGER = Trigger(r"(?P<name>a)\(", (("a", Grammar("lark", 'start: /[1b]+/ ")" REST\nREST: /(.|\n)*/')),))


class Pieces:
    """A vocabulary of these pieces, and its grammars."""

    def piece(self, token: int) -> bytes:
        return PIECES[token]

    def byte_token(self, byte: int) -> int | None:
        return PIECES.index(bytes([byte])) if bytes([byte]) in PIECES else None

    def usable(self, grammar: Grammar) -> CompiledGrammar:
        return compiled(grammar)


class Spelling:
    """What llguidance asks of a tokenizer."""

    eos_token_id, bos_token_id = END, None
    tokens = (*PIECES, b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        raise NotImplementedError  # it is asked for texts without a choice, and there are none


@cache
def compiled(grammar: Grammar) -> CompiledGrammar:
    tokenizer = LLTokenizer(TokenizerWrapper(Spelling()), n_vocab=END + 1)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.is_error(), matcher.get_error()
    return CompiledGrammar("lark", matcher, END + 1, frozenset([END]))


def lazy(start: int = 0) -> LazyConstraint:
    return LazyConstraint(Pieces(), [Heads.of(TRIGGER)], start)


def allowed(text: Sequence[int]) -> list[int]:
    """Return the tokens that may follow, by another way: the text as a whole, again from its beginning."""
    data, at = b"".join(PIECES[token] for token in text), 0
    while (head := data.find(b"a(", at)) >= 0:
        at = head + 2
        if whole := re.compile(rb"[1b]+\)").match(data, at):
            at = whole.end()
        elif re.compile(rb"[1b]*\Z").match(data, at):
            begun = data[at:]
            fits = re.compile(rb"[1b]*\Z|[1b]+\).*").match
            return [token for token, piece in enumerate(PIECES) if fits(begun + piece)]
    return [*range(len(PIECES))]


class LazyToy(Toy):
    """A pair whose answers follow a grammar from time to time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rules = TokenRules((), lazy())

    def exact(self, text: Sequence[int], sampling: Sampling) -> Distribution:
        row = self.target.logits_after(text).copy()
        may = [token for token in allowed(text) if token < self.vocabulary]
        row[np.setdiff1d(np.arange(self.vocabulary), may)] = -np.inf
        p = distribution(FullRow(row), sampling, text)
        ids = np.arange(self.vocabulary) if p.ids is None else p.ids
        return Distribution(ids[p.probs > 0], p.probs[p.probs > 0])


class LazyHeadToy(LazyToy, HeadToy):
    """The same with a head."""


class LazyChoosingToy(LazyToy, ChoosingToy):
    """The same on devices that choose candidates where no grammar applies."""


class LazyRestlessToy(LazyToy, RestlessToy):
    """The same with modes that change all the time, also in calls."""


class LazyContract(EngineContract):
    toy: type[Toy] = LazyToy

    @pytest.fixture(autouse=True)
    def answers_have_calls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contract, "Toy", self.toy)


class TestSd(LazyContract):
    settings = SD


class TestNgram(LazyContract):
    settings = NGRAM


class TestSsdCombined(LazyContract):
    settings = replace(SSD, fallback="ngram")

    @pytest.fixture(autouse=True)
    def texts_repeat(self, answers_have_calls: None, monkeypatch: pytest.MonkeyPatch) -> None:
        let_texts_repeat(monkeypatch)
        monkeypatch.setattr(contract, "Toy", LazyToy)


class TestHead(LazyContract):
    settings = SD
    toy = LazyHeadToy


class TestChoosingSsd(LazyContract):
    settings = SSD
    sampling = NUCLEUS
    toy = LazyChoosingToy


class TestRestless(LazyContract):
    settings = SSD
    toy = LazyRestlessToy


def tokens_bound(text: Sequence[int]) -> int:
    return sum(len(allowed(text[:count])) < len(PIECES) for count in range(len(text)))


def test_the_grammar_allows_what_the_text_says_at_every_place() -> None:
    toy, constraint = LazyToy(), lazy()
    text = toy.answer([0, 1], OFF, PLAIN, 400)
    for count in range(len(text)):
        mask = constraint.mask(text[:count])
        may = allowed(text[:count])
        if mask is None:
            assert may == [*range(len(PIECES))]
        else:
            ids = mask.ids[mask.ids < END].tolist()
            assert may == (sorted({*range(len(PIECES))} - {*ids}) if mask.are_refused else ids)
    assert 40 < tokens_bound(text) < 360


@pytest.mark.parametrize("settings", [SD, SSD, NGRAM], ids=["sd", "ssd", "ngram"])
def test_drafts_are_sent_across_both_ends_of_a_call(settings: EngineSettings) -> None:
    toy, text = LazyToy(noise=0.4, sharpness=4.0), [0, 1]
    into = out = accepted = 0
    for round_ in toy.rounds(text[:], settings, PLAIN, 400):
        tokens = round_.tokens
        bound = [len(allowed([*text, *tokens[:count]])) < END for count in range(len(tokens) + 1)]
        drafted = bound[: round_.stats.accepted + 1]
        into += (False, True) in pairwise(drafted)
        out += (True, False) in pairwise(drafted)
        accepted += round_.stats.accepted
        text += round_.tokens
    assert min(into, out) > 3
    assert accepted > 50


@pytest.mark.parametrize("settings", [OFF, SD, SSD, NGRAM], ids=["off", "sd", "ssd", "ngram"])
def test_free_rounds_are_decoded_without_rules(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices choose candidates for them."""
    toy, kinds = LazyChoosingToy(), dict[bool, set[type[Rows]]]({True: set(), False: set()})
    judge = toy.engine.decoder._judge

    def judged(
        draft: Draft, rows: Rows, text: list[int], params: DecodeParams, random: Uniforms
    ) -> VerifyOutcome:
        places = range(len(draft.tokens) + 1)
        is_bound = any(len(allowed([*text, *draft.tokens[:count]])) < END for count in places)
        assert (params.rules is not None) == is_bound
        kinds[is_bound].add(type(rows))
        return judge(draft, rows, text, params, random)

    monkeypatch.setattr(toy.engine.decoder, "_judge", judged)
    toy.answer([0, 1], settings, NUCLEUS, 200)
    assert kinds == {True: {FullRows}, False: {ChosenRows}}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SD, SSD], ids=["sd", "ssd"])
def test_a_grammar_that_begins_a_token_late_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "Toy", LazyToy)
    original = LazyConstraint.mask
    monkeypatch.setattr(LazyConstraint, "mask", lambda rules, text: original(rules, text[:-1]))
    assert lowest_p_value(settings) < SIGNIFICANT
