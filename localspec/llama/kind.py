"""Which GGUF files can chat: everything that is wrong with a file is said before llama.cpp opens it."""

from __future__ import annotations

from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf.file import read_header
from localspec.gguf.header_m import Header
from localspec.gguf.parts import read_parts, total

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
    return total(read_parts(header))


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
