"""`localspec models`: the models on this computer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from localspec import units
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import SUCCESS, print_result, say
from localspec.models.default_pair import on_this_computer
from localspec.models.local import LocalModel
from localspec.safe_text import safe_line
from localspec.storage.paths import expanded

_HEADINGS = ("NAME", "ARCHITECTURE", "PARAMETERS", "QUANT", "SIZE", "CONTEXT", "VOCABULARY", "FOUND IN")
_OF_HEADER = {
    "architecture": "architecture", "title": "name", "parameters": "parameters", "quant": "quant",
    "context": "training_context", "vocabulary": "vocabulary", "vocabulary_family": "vocabulary_family",
}  # fmt: skip
_NUMERIC = frozenset({2, 4, 5})
_SOURCES = {
    "hub": "Hugging Face cache",
    "llama.cpp": "llama.cpp cache",
    "lmstudio": "LM Studio",
    "ollama": "Ollama",
    "package": "Python package",
    "bundled": "LocalSpec",
    "folder": "given folder",
}


def parser() -> Parser:
    """Return the parser of `localspec models`."""
    result = verb_parser(
        "models",
        "List the models on this computer: in the caches of Hugging Face, llama.cpp and LM Studio, in "
        "Ollama's store, bundled, and in the folders that you name. -m takes a name from this list.",
    )
    result.add_argument(
        "folder", nargs="*", type=expanded, metavar="FOLDER", help="another folder to look into"
    )
    return result.with_output("instead of a table", "tracebacks")


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    models = on_this_computer(args.folder)
    print_result({"models": list(map(as_json, models))}, table(models), as_json=args.json, escaped=True)
    if not args.json:
        total = units.size(sum(model.bytes for model in models))
        say(f"{units.counted(len(models), 'model')}, {total} on disk")
    return SUCCESS


def table(models: Iterable[LocalModel]) -> list[str]:
    """Return a line for each model, and below it what else is to be known of it."""
    models = sorted(models, key=lambda model: model.name.lower())
    sound = [model for model in models if model.shape is not None]
    lines = units.columns([_HEADINGS, *map(_row, sound)], _NUMERIC) if sound else []
    for model in sound:
        lines += [f"  {name} is the same file as {model.name}" for name in model.also]
        if model.kind == "draft head":
            lines.append(f"  {model.name} is a draft head: give it with -md, its target with -m")
    lines += [
        f"{model.name} ({units.size(model.bytes)}) cannot be used: {model.problem}"
        for model in models
        if model.shape is None
    ]
    return [safe_line(line) for line in lines]  # a file may call itself anything


def as_json(model: LocalModel) -> dict[str, object]:
    """Return a model as `--json` prints it."""
    return {
        "name": model.name,
        "also": model.also,
        "path": str(model.path),
        "files": [str(file) for file in model.files],
        "bytes": model.bytes,
        "source": model.source,
        "kind": model.kind,
        "problem": model.problem or None,
        **{key: getattr(model.shape, name, None) for key, name in _OF_HEADER.items()},
    }


def _row(model: LocalModel) -> tuple[str, ...]:
    shape = model.shape
    assert shape is not None
    return (
        model.name,
        shape.architecture,
        units.number(shape.parameters),
        shape.quant,
        units.size(model.bytes),
        f"{shape.training_context:,}" if shape.training_context else "?",
        _short_family(shape.vocabulary_family),
        _SOURCES[model.source],
    )


def _short_family(family: str) -> str:
    """Return a vocabulary family with as much of its checksum as tells families apart."""
    name, separator, digest = family.rpartition("-")
    return f"{name}-{digest[:4]}" if separator and len(digest) == 16 else family
