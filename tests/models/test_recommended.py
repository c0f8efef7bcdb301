"""What a model's maker recommends for its sampling: read with care, and heard after flags and profiles."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec import smollm2
from localspec.chat.answer_settings import SessionRequest
from localspec.demo import bundled_pair
from localspec.gguf import Header, Scalar
from localspec.models.recommended import recommended, recommended_for, suited
from localspec.storage.profiles import Profile, profiles
from localspec.types.request import Recommendation, Sampling, SamplingChoice
from localspec.values import check

NOTHING = Recommendation()
QWEN = Recommendation(SamplingChoice(temperature=1.0, top_k=20, top_p=0.95, min_p=0.0))
SHIPPED = {profile.name: profile for profile in profiles(Path("nowhere"))}
KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "penalty_window",
}


def header(values: dict[str, Scalar], lists: Sequence[str] = (), path: str = "nowhere.gguf") -> Header:
    known = {f"general.sampling.{name}": value for name, value in values.items()}
    counts = {f"general.sampling.{name}": 3 for name in lists}
    return Header(Path(path), "llama", known, {}, counts, (), 0, 0, 0, 0)


def own(folder: Path, sampling: str) -> Profile:
    (folder / "writing.toml").write_text(f'title = "W"\ntask = "writing"\n{sampling}\n', encoding="utf-8")
    return profiles(folder).named("writing")


def test_every_key_that_llama_cpp_reads_and_we_have_is_taken() -> None:
    values: dict[str, Scalar] = {
        "temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "penalty_repeat": 1.1, "penalty_last_n": 32,
    }  # fmt: skip
    found = recommended(header(values))
    assert found.sampling.settled == {KEYS[name]: value for name, value in values.items()}
    assert (found.source, found.unused, found.wrong, found.firm) == ("from the model's file", (), (), ())


def test_numbers_of_32_bits_are_the_numbers_that_were_meant() -> None:
    stored: list[float] = [struct.unpack("<f", struct.pack("<f", value))[0] for value in (0.95, 0.1, 1.05)]
    found = recommended(header(dict(zip(("top_p", "temp", "penalty_repeat"), stored, strict=True))))
    assert found.sampling == SamplingChoice(top_p=0.95, temperature=0.1, repetition_penalty=1.05)


def test_a_whole_number_may_be_written_with_a_point_and_any_number_without() -> None:
    found = recommended(header({"top_k": 64.0, "temp": 1, "top_p": 1}))
    assert found.sampling == SamplingChoice(top_k=64, temperature=1.0, top_p=1.0)
    assert isinstance(found.sampling.top_k, int)
    assert not found.wrong


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temp", float("nan")),
        ("temp", float("inf")),
        ("temp", -0.5),
        ("temp", 101.0),
        ("temp", "0.7"),
        ("temp", True),
        ("top_k", -1),
        ("top_k", 2**64 - 1),
        ("top_k", 20.5),
        ("top_k", float("nan")),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("min_p", 2),
        ("penalty_repeat", 0.0),
        ("penalty_repeat", 1e30),
        ("penalty_last_n", -1),
    ],
)
def test_a_value_that_makes_no_sense_is_left_out_and_reported_once(name: str, value: Scalar) -> None:
    found = recommended(header({name: value, "min_p" if name != "min_p" else "top_p": 0.5}))
    assert KEYS[name] not in found.sampling.settled
    assert len(found.sampling.settled) == 1  # the others count
    [told] = found.wrong
    assert told.startswith(f"the model's file recommends general.sampling.{name} ")


def test_a_list_is_not_a_value() -> None:
    [told] = recommended(header({}, ["temp"])).wrong
    assert "general.sampling.temp (a list), which is not used" in told


def test_what_there_is_not_a_sampler_for_is_reported_in_short_plain_lines() -> None:
    values: dict[str, Scalar] = {
        "sequence": "top_k;\x1b[31mtemperature\n" + 500 * "x", "xtc_probability": 0.5, "mirostat": 2,
    }  # fmt: skip
    found = recommended(header(values | {f"later{number}": number for number in range(1000)}))
    assert found.sampling == SamplingChoice()
    assert found.unused[1:3] == ("xtc_probability 0.5", "mirostat 2")
    assert len(found.unused) == 20
    assert all(told.isprintable() and len(told) < 100 for told in found.unused)


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from([*KEYS, "sequence", "xtc_threshold", "mirostat_tau", ""]),
        st.one_of(
            st.booleans(),
            st.floats(),
            st.integers(-(2**63), 2**64 - 1),
            st.text(),
            st.floats(0, 2),
            st.none(),
        ),
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
def test_whatever_a_file_says_the_sampling_can_be_used(values: dict[str, Scalar | None]) -> None:
    found = recommended(
        header(
            {name: value for name, value in values.items() if value is not None},
            [name for name, value in values.items() if value is None],
        )
    )
    sampling = found.sampling.over(Sampling())
    check(sampling)
    assert len(found.sampling.settled) + len(found.unused) + len(found.wrong) == len(values)


def test_a_real_file_reports_it(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_float32("general.sampling.temp", 0.7)
    writer.add_int32("general.sampling.top_k", 64)
    writer.add_array("general.sampling.top_p", [0.1, 0.2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = recommended_for(tmp_path / "a.gguf")
    assert found.sampling == SamplingChoice(temperature=0.7, top_k=64)
    assert len(found.wrong) == 1


def test_a_file_without_or_no_file_recommends_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    for path in (bundled_pair()[0], tmp_path / "missing.gguf", tmp_path / "broken.gguf"):
        assert recommended_for(path) == NOTHING
        assert suited(SHIPPED["writing"], recommended_for(path)) is SHIPPED["writing"]


def test_flags_go_before_the_profile_and_that_before_the_file(tmp_path: Path) -> None:
    mine = own(tmp_path, "sampling.temperature = 0.3\nsampling.top_k = 9")
    assert suited(mine, QWEN).sampling == Sampling(temperature=0.3, top_k=9, top_p=0.95, min_p=0.0)
    assert suited(own(tmp_path, ""), QWEN).sampling == Sampling(1.0, 20, 0.95, 0.0)
    told = SessionRequest(sampling={"temperature": 0.9}).explained_sampling(mine, QWEN)
    assert told == (
        "sampling: top_p 0.95, min_p 0 from the model's file; top_k 9 from profile W; "
        "temperature 0.9 from the command line; everything else at its default"
    )


def test_what_a_profile_says_counts_even_where_it_is_the_default_value(tmp_path: Path) -> None:
    mine = own(tmp_path, "sampling.temperature = 0.8\nsampling.top_k = 40")
    assert suited(mine, QWEN).sampling == Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.0)


def test_shipped_profiles_settle_what_their_work_needs_and_leave_the_rest_to_the_model() -> None:
    assert SHIPPED["general"].settles == ()
    assert suited(SHIPPED["general"], QWEN).sampling == Sampling(1.0, 20, 0.95, 0.0)
    coding = suited(SHIPPED["coding"], QWEN).sampling
    assert coding == Sampling(temperature=0.2, top_k=20, top_p=0.95, min_p=0.0)


def test_shipped_profiles_yield_to_the_gpu_of_smollm2(seeming_smollm2: Path) -> None:
    card, writing = recommended_for(seeming_smollm2), SHIPPED["writing"]
    assert card == smollm2.RECOMMENDED
    assert writing.sampling.temperature == 0.9
    assert suited(writing, card) == replace(writing, sampling=smollm2.SAMPLING)
    assert "temperature 0.2" in SessionRequest().explained_sampling(writing, card)
    assert "from profile" not in SessionRequest().explained_sampling(writing, card)


def test_code_and_sums_may_repeat_themselves(seeming_smollm2: Path) -> None:
    card = recommended_for(seeming_smollm2)
    penalties = {
        profile.task: suited(profile, card).sampling.repetition_penalty for profile in SHIPPED.values()
    }
    assert {task for task, penalty in penalties.items() if penalty == 1} == {"coding", "math"}
    assert {*penalties.values()} == {1, smollm2.SAMPLING.repetition_penalty}


def test_what_ones_own_profile_settles_stays_and_the_gpu_says_the_rest(
    seeming_smollm2: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    card = recommended_for(seeming_smollm2)
    mine = own(folder, "sampling.temperature = 0.8")
    assert suited(mine, card).sampling == replace(smollm2.SAMPLING, temperature=0.8)
    assert suited(own(folder, ""), card).sampling == smollm2.SAMPLING


def test_another_path_to_smollm2_is_smollm2(seeming_smollm2: Path, tmp_path: Path) -> None:
    link = tmp_path / "mine.gguf"
    link.hardlink_to(seeming_smollm2)
    assert recommended_for(link) == smollm2.RECOMMENDED
