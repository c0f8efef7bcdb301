"""Names on disk are those of version 0.1.0, so that what it kept is found again."""

from __future__ import annotations

from localspec.decoding.measurements import CallCosts, Costs, Overhead
from localspec.storage.pair_identity import Identity, MachineFacts, ModelFacts
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.run_folder import digest
from localspec.tuning.space import Space
from localspec.tuning.study import StudyKey
from localspec.types import EngineSettings, Message, Request, Sampling

MACHINE = MachineFacts("cpu", 8, ("CUDA0: card",), "550", "0.3")
IDENTITY = Identity(
    MACHINE, ModelFacts("/m/t.gguf", "aa", "CUDA0"), ModelFacts("/m/d.gguf", "bb", "CPU"), 4096
)
ASKED = (
    Request(
        (Message("system", "s"), Message("user", "hello")),
        Sampling(temperature=0.2),
        EngineSettings(mode="off"),
        96,
        seed=1,
    ),
)
COSTS = Costs(
    (CallCosts(64, False, ((1, 0.1),), ((1, 0.01),)),), (Overhead("off", 0.1),), (("ssd", "it crashed"),)
)


def test_costs_and_traces_have_the_names_that_they_had() -> None:
    assert digest(IDENTITY) == "847cff97353be401"
    assert digest(digest(IDENTITY), LoadOptions(draft_threads=2)) == "6f24790e8b751416"
    assert digest("pair", list(ASKED)) == "347abf96d430bca1"
    assert digest(COSTS, 1, "k", 3) == "99d3f42f1dafd929"


def test_studies_have_the_names_that_they_had() -> None:
    key = StudyKey("settings for coding", "k")
    assert key.name(Space(max_fan_out=24), 3) == "settings for coding [ec145b602a]"
