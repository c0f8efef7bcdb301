"""The curated catalogue: pairs of models that share a vocabulary, for machines of several sizes.

Its figures are rounded and partly unchecked; output that uses them says so.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from localspec.models.names import Reference, looks_like_reference
from localspec.models.shape import ExpertWeights, LayerShape, ModelShape
from localspec.storage.toml_file import TomlTable, read_table
from localspec.values import Line, Range

if TYPE_CHECKING:
    from localspec.models.packages import PackagedFile

SCHEMA = 1
_PAIR_FIELDS = ("target", "draft", "memory_gb", "score", "score_from", "good_at", "tip", "later")
_PACKAGE = "package:"
_BUNDLED = "bundled"
_LETTERS = {"a": "attention to all", "s": "a state", "e": "experts alone"}
# bits of a weight in the embedding table, in the output layer, and in the one table of tied models
_BITS = {
    "Q3_K_M": (3.4375, 6.5625, 6.5625),
    "Q4_0": (4.5, 6.5625, 6.5625),
    "Q4_1": (5.0, 6.5625, 6.5625),
    "Q4_K_M": (4.5, 6.5625, 6.5625),
    "Q5_K_M": (5.5, 6.5625, 6.5625),
    "UD-Q4_K_M": (4.5, 6.5625, 8.5),
    "MXFP4": (8.5, 8.5, 8.5),
    "Q8_0": (8.5, 8.5, 8.5),
    "BF16": (16.0, 16.0, 16.0),
}
_Count = Annotated[int, Range(0, 2**50)]


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A downloadable model as the catalogue knows it; sizes are approximate, in bytes."""

    key: str
    title: Line
    source: Line
    quant: Line
    bytes: _Count
    parameters: Annotated[int, Range(1, 2**50)]
    licence: Line
    family: Line
    layers: Annotated[int, Range(1, 1024)]
    width: _Count
    feed_forward: _Count
    heads: _Count
    kv_heads: _Count
    head_size: _Count
    vocabulary: _Count
    context: _Count
    file: Line = ""
    active: _Count = 0  # parameters that a token uses
    tied: bool = False
    window: _Count | None = None
    full_every: Annotated[int, Range(1, 64)] = (
        1  # in models with windows or states, only every n-th layer keeps the whole context
    )
    pattern: Line = ""  # a letter for each layer, where `full_every` cannot tell: see `_LETTERS`
    full_kv_heads: _Count = 0  # of the layers that keep the whole context, where they differ
    full_head_size: _Count = 0
    shared_caches: _Count = 0  # layers at the end that read the caches of those before
    latent: bool = False  # keys and values are stored as one
    layer_table: _Count = 0  # bytes of the embeddings of each layer, which stay with the CPU
    state: _Count = 0  # bytes of recurrent state in the other layers of a hybrid
    experts: Annotated[int, Range(0, 2**16)] = 0  # of a layer
    experts_used: Annotated[int, Range(0, 2**16)] = 0  # by a token
    expert_feed_forward: _Count = 0
    expert_bytes: tuple[_Count, ...] = ()  # of each tensor with the experts of a layer, on average
    shared_feed_forward: _Count = 0  # of the experts that every token uses
    dense_layers: Annotated[int, Range(0, 1024)] = 0  # at the start, without experts
    architecture: Line = ""  # as llama.cpp calls it, where that is not the family's name
    mtp: bool = False  # the file contains a head that drafts for the model
    idle: _Count = 0  # bytes in the file that LocalSpec does not open: a head of a kind it cannot use
    head: bool = False  # the file is an EAGLE-3 head, which drafts for one target
    answer_tokens: Annotated[int, Range(1, 2**20)] = (
        200  # of an answer to a simple question, thoughts included
    )
    checked: bool = False
    also: tuple[str, ...] = ()  # other names of the model on the Hub
    packages: Line = ""  # of a Python index, which carry the file in parts
    sha256: Line = ""  # of the file, where it is known

    @property
    def in_packages(self) -> PackagedFile | None:
        """Return the packages that carry the file, None where none do."""
        from localspec.models.hub import RemoteFile  # urllib and what that takes: 50 ms
        from localspec.models.packages import packaged

        return packaged(self.source, RemoteFile(self.file, self.bytes, self.sha256), self.packages)

    @property
    def kind(self) -> Literal["hub", "package", "bundled"]:
        """Return the source of the model."""
        if self.source == _BUNDLED:
            return "bundled"
        return "package" if self.source.startswith(_PACKAGE) else "hub"

    @property
    def package(self) -> str:
        """Return the Python package that the file is in; empty if it is in none."""
        return self.source.removeprefix(_PACKAGE) if self.kind == "package" else ""

    @property
    def reference(self) -> str:
        """Return the name under which `pull` finds the model; empty where nothing has to be pulled."""
        if self.kind != "hub":
            return ""
        return f"{self.source}/{self.file}" if self.head else f"{self.source}:{self.quant}"

    @property
    def references(self) -> tuple[str, ...]:
        """Return all names under which `pull` may find the model, the best first."""
        return (self.reference, *self.also) if self.reference else ()

    @property
    def download_bytes(self) -> int:
        """Return the files to download for it."""
        return self.bytes if self.kind == "hub" else 0


_MODEL_FIELDS = [field.name for field in fields(CatalogueModel) if field.name != "key"]


@dataclass(frozen=True, slots=True)
class CataloguePair:
    """A target and, mostly, its draft model."""

    name: str
    target: CatalogueModel
    draft: CatalogueModel | None
    memory_gb: int  # of the GPU that the pair was picked for, 0 for none
    score: float
    good_at: tuple[str, ...]  # nothing where it does any kind of work
    tip: str
    score_from: str = ""  # the measure, or the reason
    later: str = ""  # a published drafter that LocalSpec cannot use yet

    @property
    def models(self) -> tuple[CatalogueModel, ...]:
        """Return the target, and the draft model if there is one."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def download_bytes(self) -> int:
        """Return the files to download for both."""
        return sum(model.download_bytes for model in self.models)

    @property
    def checked(self) -> bool:
        """Return whether all of its files were seen to exist."""
        return all(model.checked for model in self.models)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All models and pairs, as of a day."""

    date: str
    models: tuple[CatalogueModel, ...]
    pairs: tuple[CataloguePair, ...]


@cache
def shipped() -> Catalogue:
    """Return the catalogue that comes with the program."""
    return read_catalogue(Path(__file__).with_name("catalogue.toml"))


def known_as(reference: Reference) -> CatalogueModel | None:
    """Return the catalogue's model for a name on the Hub."""
    wanted = str(reference).lower()
    return next((model for model in shipped().models if wanted in map(str.lower, model.references)), None)


def read_catalogue(path: Path) -> Catalogue:
    """Read a catalogue; raises UserError that names the line at fault."""
    root = read_table(path)
    root.allow(("schema", "date", "models", "pairs"))
    for key in ("schema", "date"):
        root.require(key)
    if root.value("schema", int, 0) != SCHEMA:
        root.complain("schema", f"this LocalSpec reads catalogues of schema {SCHEMA} alone")
    models = root.table("models")
    pairs = root.table("pairs")
    found = {key: _model(key, models.table(key)) for key in models}
    return Catalogue(
        date=root.line("date"),
        models=tuple(found.values()),
        pairs=tuple(_pair(key, pairs.table(key), found) for key in pairs),
    )


def approximate_shape(model: CatalogueModel) -> ModelShape:
    """Return the shape that a model of these figures should have."""
    table, output = _table_bytes(model)
    return ModelShape(
        name=model.title,
        architecture=model.architecture or model.family,
        quant=model.quant,
        parameters=model.parameters,
        file_bytes=model.bytes,
        layers=_layers(model),
        input_bytes=table,
        output_bytes=output,
        width=model.width,
        feed_forward=model.feed_forward,
        heads=model.heads,
        vocabulary=model.vocabulary,
        training_context=model.context,
        vocabulary_family=model.family,
        tied=model.tied,
        experts_used=model.experts_used,
        expert_feed_forward=model.expert_feed_forward,
        is_head=model.head,
        prediction_layers=int(model.mtp),
        layer_table_bytes=model.layer_table,
    )


def approximate_head(model: CatalogueModel) -> ModelShape:
    """Return the shape that the MTP head in a model's file should have: a layer, and the model's output."""
    shape = approximate_shape(model)
    layer = max(shape.layers, key=lambda layer: layer.key_values)
    return replace(
        shape,
        parameters=shape.parameters // (len(shape.layers) + 1),
        layers=(layer,),
        input_bytes=0,
        output_bytes=0,
        borrowed_bytes=shape.output_bytes,
        is_head=True,
        prediction_layers=0,
    )


def _table_bytes(model: CatalogueModel) -> tuple[int, int]:
    """Return the bytes of the embedding table and of the output layer."""
    weights = model.vocabulary * model.width
    average = 8 * model.bytes / model.parameters
    table, output, shared = _BITS.get(model.quant, (average,) * 3)
    if model.tied:
        table = output = shared
    if model.head:  # its output layer counts as a part of its only layer
        output = 0.0
    return round(weights * table / 8), round(weights * output / 8)


def _layers(model: CatalogueModel) -> tuple[LayerShape, ...]:
    """Return the layers; weights that are no experts are spread over them evenly."""
    table, output = _table_bytes(model)
    outside = table + model.layer_table + model.idle + (0 if model.tied else output)
    letters = _letters(model)
    with_experts = [_has_experts(model, number, letters) for number in range(model.layers)]
    whole = sum(model.expert_bytes)
    in_experts = whole * (sum(with_experts) + model.mtp)
    dense = max(0, model.bytes - outside - in_experts) // (model.layers + model.mtp)
    used = whole * model.experts_used // max(1, model.experts)
    plain = LayerShape(dense, dense, 0, 0)
    mixture = LayerShape(dense + whole, dense + used, 0, 0, experts=_experts(model))
    return tuple(
        _cached(model, letter, number, mixture if with_experts[number] else plain)
        for number, letter in enumerate(letters)
    )


def _experts(model: CatalogueModel) -> tuple[ExpertWeights, ...]:
    """Return the weights of a layer's experts, the largest first; what gates them may be in one with `up`."""
    names = ("ffn_down_exps", "ffn_up_exps", "ffn_gate_exps")  # the last only where there are three
    weights = zip(names, reversed(model.expert_bytes), strict=False)
    return tuple(sorted((ExpertWeights(*each) for each in weights), key=lambda each: -each.bytes))


def _letters(model: CatalogueModel) -> str:
    """Return a letter for each layer: w looks back over a window, the others are in `_LETTERS`."""
    if model.pattern:
        return model.pattern
    other = "s" if model.state else "w" if model.window else "a"
    return "".join("a" if number % model.full_every == 0 else other for number in range(1, model.layers + 1))


def _has_experts(model: CatalogueModel, number: int, letters: str) -> bool:
    if not model.experts or number < model.dense_layers:
        return False
    return letters[number] == "e" or "e" not in letters


def _cached(model: CatalogueModel, letter: str, number: int, layer: LayerShape) -> LayerShape:
    """Return the layer with its cache or its state."""
    if letter == "s":
        return replace(layer, state_bytes=model.state)
    if letter == "e":
        return layer
    window = model.window if letter == "w" else None
    if number >= model.layers - model.shared_caches:
        return replace(layer, window=window)
    heads = model.kv_heads
    size = model.head_size
    if letter == "a":
        heads = model.full_kv_heads or heads
        size = model.full_head_size or size
    return replace(
        layer, key_values=heads * size, value_values=0 if model.latent else heads * size, window=window
    )


def _model(key: str, table: TomlTable) -> CatalogueModel:
    found = table.fields_of(CatalogueModel, _MODEL_FIELDS)
    model = CatalogueModel(key=key, **{"active": found["parameters"]} | found)
    if not 1 <= model.active <= model.parameters:
        table.complain("active", f"`active` has to be 1 to {model.parameters}, as `parameters` says")
    source = model.source
    if source != _BUNDLED and not source.startswith(_PACKAGE) and source.count("/") != 1:
        table.complain("source", f"`source` has to be USER/REPO, `{_BUNDLED}` or `{_PACKAGE}NAME`")
    for name in model.also:
        if not looks_like_reference(name):
            table.complain("also", f"`{name}` does not name a model on Hugging Face, as USER/REPO:QUANT does")
    if model.packages and (model.in_packages is None or len(model.sha256) != 64 or not model.file):
        table.complain("packages", "`packages` is NAME{1..COUNT}==VERSION, beside `file` and `sha256`")
    if source.count("/") != 1 and not model.file:
        table.complain("source", "a model that is at hand already needs the name of its `file`")
    if model.pattern and (len(model.pattern) != model.layers or not {*model.pattern} <= {*_LETTERS}):
        letters = ", ".join(f"{letter} ({what})" for letter, what in _LETTERS.items())
        table.complain(
            "pattern", f"`pattern` has to be a letter for each of the {model.layers} layers: {letters}"
        )
    if not model.experts_used <= model.experts:
        table.complain("experts_used", f"`experts_used` has to be 0 to {model.experts}, as `experts` says")
    if len(model.expert_bytes) not in ((2, 3) if model.experts else (0,)):
        table.complain("experts", "`experts` have the bytes of two or three tensors in `expert_bytes`")
    return model


def _pair(key: str, table: TomlTable, models: dict[str, CatalogueModel]) -> CataloguePair:
    table.allow(_PAIR_FIELDS)
    for field in ("target", "memory_gb", "score"):
        table.require(field)
    target = table.line("target")
    draft = table.line("draft")
    for field, name in (("target", target), ("draft", draft)):
        if name or field == "target":
            table.expect(field, name, models, "model")
    if draft and models[draft].family != models[target].family:
        families = f"{models[target].family} and {models[draft].family}"
        table.complain("draft", f"`{target}` and `{draft}` have different vocabularies: {families}")
    return CataloguePair(
        name=key,
        target=models[target],
        draft=models[draft] if draft else None,
        memory_gb=table.value("memory_gb", Annotated[int, Range(0, 1024)], 0),
        score=table.value("score", Annotated[float, Range(0, 100)], 0.0),
        good_at=table.words("good_at"),
        tip=table.line("tip"),
        score_from=table.line("score_from"),
        later=table.line("later"),
    )
