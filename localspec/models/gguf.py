"""The shape of a model, read from the header of its GGUF file, on disk or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf.file import Ranges, header_of, read_header
from localspec.gguf.file import read_tokens as tokens_of_header
from localspec.gguf.header_m import TOKENS, Header
from localspec.gguf.parts import read_parts, total
from localspec.models.quants import quant_name
from localspec.models.shape import layer_shapes, outside_layers
from localspec.models.shape_m import ModelShape

_ACCEPTANCE = "localspec.acceptance"  # in the files of drafts that were made for one target
_TABLE, _OUTPUT = "token_embd.weight", "output.weight"


def read_shape(path: Path) -> ModelShape:
    """Read a model's shape from its file; of a split model, name the first."""
    return _shape(total(read_parts(read_header(path))))


def shape_of(read: Ranges, file_bytes: int, place: str = "the model") -> ModelShape:
    """Read a model's shape from any source of byte ranges; `place` is what messages call it."""
    return shape_of_parts(((read, file_bytes),), place)


def shape_of_parts(parts: Sequence[tuple[Ranges, int]], place: str = "the model") -> ModelShape:
    """Read the shape of a split model, whose files come in order."""
    headers = [header_of(read, file_bytes, Path(place)) for read, file_bytes in parts]
    count = max(1, headers[0].integer("split.count"))
    if count != len(headers):
        raise ModelFileError(
            f"{place} has {count} parts, not {len(headers)}", "name all of its parts in order"
        )
    for number, header in enumerate(headers):
        if count > 1 and header.integer("split.no") != number:
            raise ModelFileError(
                f"part {header.integer('split.no') + 1} of {place} stands where part {number + 1} belongs",
                "name the parts in order",
            )
    return _shape(total(headers))


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Return the texts of a model's vocabulary, by id, as they are stored in its file."""
    return tokens_of_header(read_header(path))


def _shape(header: Header) -> ModelShape:
    if not header.architecture:
        raise ModelFileError(f"{header.path} does not name its architecture", "download the file again")
    outside = outside_layers(header.tensor_list)
    if _TABLE not in outside:
        raise ModelFileError(
            f"{header.path} has no {_TABLE}: it is no language model", "choose a model that writes text"
        )
    for key in ("embedding_length", "context_length", "attention.head_count"):
        if _most(header, f"{{arch}}.{key}") < 0:
            raise ModelFileError(
                f"{header.path} has a broken GGUF header: {header.architecture}.{key} is less than 0",
                "download the file again",
            )
    layers = layer_shapes(header, header.tensor_list)
    table = outside.pop(_TABLE).bytes
    tied = _OUTPUT not in outside
    width, heads = header.integer("{arch}.embedding_length"), _most(header, "{arch}.attention.head_count")
    rest = sum(tensor.bytes for tensor in outside.values())
    return ModelShape(
        name=header.text("general.name") or header.path.stem,
        architecture=header.architecture,
        quant=quant_name(header, header.tensor_list),
        parameters=header.parameters,
        file_bytes=header.file_bytes,
        layers=layers,
        input_bytes=table,
        output_bytes=rest + (table if tied else 0),
        width=width,
        feed_forward=_most(header, "{arch}.feed_forward_length"),
        heads=heads,
        vocabulary=header.counts.get(TOKENS, 0) or header.integer("{arch}.vocab_size"),
        training_context=header.integer("{arch}.context_length"),
        vocabulary_family=_family(header),
        tied=tied,
        experts_used=header.integer("{arch}.expert_used_count"),
        expert_feed_forward=_most(header, "{arch}.expert_feed_forward_length"),
        attention_width=heads * header.integer("{arch}.attention.key_length", width // max(1, heads)),
        acceptance=header.fraction(_ACCEPTANCE),
    )


def _most(header: Header, key: str) -> int:
    """Return a number, the largest where each layer has its own."""
    listed = header.numbers.get(key.replace("{arch}", header.architecture), ())
    return max(header.per_layer(key, len(listed))) if listed else header.integer(key)


def _family(header: Header) -> str:
    """Return what two models that share a vocabulary have in common."""
    kind = header.text("tokenizer.ggml.model") or "none"
    pre = header.text("tokenizer.ggml.pre")
    size = header.counts.get(TOKENS, 0)
    return "-".join(part for part in (kind, pre, str(size), header.tokens_digest) if part)
