"""Every way of decoding keeps the engine contract."""

from dataclasses import replace
from functools import partial

import pytest

from localspec.types.request import EngineSettings, Sampling
from tests import contract
from tests.contract import EngineContract
from tests.decoding.toys import let_texts_repeat

SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8)
TRUNCATED = Sampling(
    temperature=1.3, top_k=6, top_p=0.9, min_p=0.02, repetition_penalty=1.2, penalty_window=8
)


class TestOff(EngineContract):
    settings = EngineSettings(mode="off")


class TestNgram(EngineContract):
    settings = EngineSettings(mode="ngram")


class TestSdRejection(EngineContract):
    settings = EngineSettings(mode="sd", draft_length=4)


class TestSdMatch(EngineContract):
    settings = EngineSettings(mode="sd", draft_length=4, acceptance="match")


class TestSdFixedLength(EngineContract):
    settings = EngineSettings(mode="sd", draft_length=3, min_confidence=0.0)


class TestSsdRejection(EngineContract):
    settings = SSD


class TestSsdMatch(EngineContract):
    settings = replace(SSD, acceptance="match")


class TestSsdTruncatedSampling(EngineContract):
    settings = SSD
    sampling = TRUNCATED


class TestSsdPenalisedAnswer(EngineContract):
    """Penalties look at the answer alone; the prompts of sampled answers have three tokens."""

    settings = SSD
    sampling = TRUNCATED

    @pytest.fixture(autouse=True)
    def penalties_begin_with_the_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contract, "Toy", partial(contract.Toy, answer_start=3))


class TestSsdSaguaro(EngineContract):
    settings = replace(SSD, saguaro_c=0.4, draft_temperature=1.4)


class TestSsdGeometric(EngineContract):
    settings = replace(SSD, fan_out_shape="geometric", min_confidence=0.3)


class TestSsdUniform(EngineContract):
    settings = replace(SSD, fan_out_shape="uniform", fan_out_budget=3)


class Repeating(EngineContract):
    """A contract under which either the model or a repetition may write, and one continue for the other."""

    @pytest.fixture(autouse=True)
    def texts_repeat(self, monkeypatch: pytest.MonkeyPatch) -> None:
        let_texts_repeat(monkeypatch)


class TestSdCombinedRejection(Repeating):
    settings = EngineSettings(mode="sd", draft_length=4, fallback="ngram")


class TestSdCombinedMatch(Repeating):
    settings = EngineSettings(mode="sd", draft_length=4, fallback="ngram", acceptance="match")


class TestSdCombinedShort(Repeating):
    settings = EngineSettings(mode="sd", draft_length=2, fallback="ngram", min_confidence=0.0)


class TestSdCombinedTruncatedSampling(Repeating):
    settings = EngineSettings(mode="sd", draft_length=3, fallback="ngram")
    sampling = TRUNCATED


class TestSsdCombinedRejection(Repeating):
    settings = replace(SSD, fallback="ngram")


class TestSsdCombinedMatch(Repeating):
    settings = replace(SSD, fallback="ngram", acceptance="match")


class TestSsdCombinedShort(Repeating):
    settings = replace(SSD, draft_length=2, fallback="ngram", min_confidence=0.0)


class TestSsdCombinedSaguaro(Repeating):
    settings = replace(SSD, fallback="ngram", saguaro_c=0.4, fan_out_budget=3)
