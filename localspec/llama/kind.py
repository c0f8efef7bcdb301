"""Which GGUF files can chat: everything that is wrong with a file is said before llama.cpp opens it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.llama.header import Header, read_header

_ENCODERS = frozenset({
    "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3",
    "eurobert", "t5encoder", "gemma-embedding", "llama-embed",
})  # fmt: skip
_NOT_CHAT = {
    "clip": "an image or audio encoder (mmproj)",
    "t5": "an encoder-decoder model",
    "wavtokenizer-dec": "a speech decoder",
    "dream": "a diffusion model",
    "llada": "a diffusion model",
    "llada-moe": "a diffusion model",
    "rnd1": "a diffusion model",
    "eagle3": "a draft head, not a model of its own",
    "dflash": "a draft head, not a model of its own",
    "gemma4-assistant": "a draft head, not a model of its own",
}


def check_model_file(path: Path) -> Header:
    """Read the header of a model that can chat, with the totals of its parts; else raise `ModelFileError`."""
    header = read_header(path)
    _check_kind(header)
    parts = _parts(header)
    for part in parts:
        _check_complete(part)
    return replace(
        header,
        tensors=sum(part.tensors for part in parts),
        parameters=sum(part.parameters for part in parts),
        weight_bytes=sum(part.weight_bytes for part in parts),
        file_bytes=sum(part.file_bytes for part in parts),
    )


def _check_kind(header: Header) -> None:
    path, architecture = header.path, header.architecture
    kind = header.text("general.type")
    if kind not in ("", "model"):
        raise ModelFileError(f"{path} holds no model but this: {kind}", "name the model's own .gguf file")
    if not architecture:
        raise ModelFileError(f"{path} does not name its architecture", "download the file again")
    if architecture in _NOT_CHAT:
        raise ModelFileError(f"{path} is {_NOT_CHAT[architecture]}", "choose a chat model")
    pooled = header.integer("{arch}.pooling_type") > 0
    if architecture in _ENCODERS or pooled or header.values.get(f"{architecture}.attention.causal") is False:
        raise ModelFileError(
            f"{path} is an embedding model ({architecture}): it writes no text", "choose a chat model"
        )
    if not header.tensors:
        raise ModelFileError(f"{path} holds a vocabulary and no weights", "download the full model")
    if "tokenizer.ggml.model" not in header.values or "tokenizer.ggml.tokens" not in header.counts:
        raise ModelFileError(f"{path} has no vocabulary", "choose a GGUF with its tokenizer inside")


def _parts(header: Header) -> list[Header]:
    """Return the headers of all files of a split model, which is opened by its first."""
    count = header.integer("split.count")
    if count <= 1:
        return [header]
    suffix = f"-{header.integer('split.no') + 1:05d}-of-{count:05d}.gguf"
    if not header.path.name.endswith(suffix):
        raise ModelFileError(f"{header.path} is part of a split model, but its name does not end in {suffix}",
                             "give the parts their original names")  # fmt: skip
    paths = [
        header.path.with_name(header.path.name.removesuffix(suffix) + f"-{number:05d}-of-{count:05d}.gguf")
        for number in range(1, count + 1)
    ]
    if header.path != paths[0]:
        raise ModelFileError(f"{header.path} is not the first part of its model", f"name {paths[0].name}")
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ModelFileError(
            f"parts of {header.path} are missing: {', '.join(missing)}", "download all parts"
        )
    return [header, *(read_header(path) for path in paths[1:])]


def _check_complete(header: Header) -> None:
    if header.file_bytes < header.end:
        raise ModelFileError(
            f"{header.path} is incomplete: it has {header.file_bytes:,} bytes of {header.end:,}",
            "resume or repeat the download",
        )
