"""Every way of decoding keeps the engine contract."""

from dataclasses import replace

from localspec.testing.contract import EngineContract
from localspec.types import EngineSettings, Sampling

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


class TestSsdSaguaro(EngineContract):
    settings = replace(SSD, saguaro_c=0.4, draft_temperature=1.4)


class TestSsdGeometric(EngineContract):
    settings = replace(SSD, fan_out_shape="geometric", min_confidence=0.3)


class TestSsdUniform(EngineContract):
    settings = replace(SSD, fan_out_shape="uniform", fan_out_budget=3)


class TestSsdNgramFallback(EngineContract):
    settings = replace(SSD, fallback="ngram")
