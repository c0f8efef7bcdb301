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
_PAIR_FIELDS = ("target", "draft", "memory_gb", "score", "good_at", "tip")
_PACKAGE = "package:"
_BUNDLED = "bundled"
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
    state: _Count = 0  # bytes of recurrent state in the other layers of a hybrid
    architecture: Line = ""  # as llama.cpp calls it, where that is not the family's name
    mtp: bool = False  # the file contains a head that drafts for the model
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
        return f"{self.source}:{self.quant}" if self.kind == "hub" else ""

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
    score: int
    good_at: tuple[str, ...]  # nothing where it does any kind of work
    tip: str

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
    models, pairs = root.table("models"), root.table("pairs")
    found = {key: _model(key, models.table(key)) for key in models}
    return Catalogue(
        date=root.line("date"),
        models=tuple(found.values()),
        pairs=tuple(_pair(key, pairs.table(key), found) for key in pairs),
    )


def approximate_shape(model: CatalogueModel) -> ModelShape:
    """Return the shape that a model of these figures should have; all weights count as equally wide."""
    width = model.bytes / model.parameters  # bytes of a weight
    table = round(model.vocabulary * model.width * width)
    in_layers = max(0, model.bytes - table * (1 if model.tied else 2))
    each = in_layers // model.layers
    outside = model.vocabulary * model.width * (1 if model.tied else 2)
    used = max(0, model.active - outside) / max(1, model.parameters - outside)
    cached = model.kv_heads * model.head_size
    read = round(each * min(1.0, used))
    queries = model.heads * model.head_size
    attention = round(2 * model.width * (queries + cached) * width)
    experts = (ExpertWeights("ffn_exps", each - attention),) if attention < read < each else ()
    full = LayerShape(each, read, cached, cached, experts=experts)
    other = replace(full, window=model.window)
    if model.state:
        other = replace(full, key_values=0, value_values=0, state_bytes=model.state)
    layers = tuple(other if (number + 1) % model.full_every else full for number in range(model.layers))
    return ModelShape(
        name=model.title,
        architecture=model.architecture or model.family,
        quant=model.quant,
        parameters=model.parameters,
        file_bytes=model.bytes,
        layers=layers,
        input_bytes=table,
        output_bytes=table,
        width=model.width,
        feed_forward=model.feed_forward,
        heads=model.heads,
        vocabulary=model.vocabulary,
        training_context=model.context,
        vocabulary_family=model.family,
        tied=model.tied,
    )


def approximate_head(model: CatalogueModel) -> ModelShape:
    """Return the shape that the MTP head in a model's file should have: a layer, and the model's output."""
    shape = approximate_shape(model)
    last = shape.layers[-1]
    layer = replace(last, read_bytes=last.read_bytes + shape.output_bytes)
    parameters = shape.parameters // len(shape.layers)
    return replace(shape, parameters=parameters, layers=(layer,), input_bytes=0, output_bytes=0, is_head=True)


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
    return model


def _pair(key: str, table: TomlTable, models: dict[str, CatalogueModel]) -> CataloguePair:
    table.allow(_PAIR_FIELDS)
    for field in ("target", "memory_gb", "score"):
        table.require(field)
    target, draft = table.line("target"), table.line("draft")
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
        score=table.value("score", Annotated[int, Range(0, 100)], 0),
        good_at=table.words("good_at"),
        tip=table.line("tip"),
    )
