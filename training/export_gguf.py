r"""Write a checkpoint as GGUF, and check it against llama.cpp.

    python -m training.export_gguf RUN/target.pt --tokenizer DATA/tokenizer.json \
        --out demo-target.gguf --name "LocalSpec demo target" [--type bf16] [--verify [corpus-heldout.txt]]

--verify compares token ids, logits and the chat template.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from training.documents import HELD_OUT_TEXT, PACKED
from training.gguf_writing import TYPES, add_tensor, add_tokenizer, finish, interleave
from training.model import Checkpoint, Config, Model
from training.progress import log, show_progress

EMBEDDING = "token_embd.weight"
DESCRIPTION = "Tiny demonstration chat model for speculative decoding; fluent in form, without knowledge."
LICENCE_NOTE = (
    "Trained from scratch on openly licensed text: CPython library (PSF), Python documentation (PSF), "
    "TheAlgorithms/Python (MIT), OpenStax Introduction to Python Programming (CC BY 4.0), Schema-Guided "
    "Dialogue (CC BY-SA 4.0), Topical-Chat (CDLA-Sharing 1.0), OpenTriviaQA (CC BY-SA 4.0), GSM8K train "
    "(MIT), African Storybook (CC BY), public-domain books, Self-Instruct seed tasks (Apache-2.0), FastChat "
    "identity turns (Apache-2.0), and text made from templates. Some sources are share-alike. "
    "See MODEL_CARD.md."
)


def tensors(model: Model) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield every weight under llama.cpp's name and in its layout; the embedding is the output matrix too."""
    weights = {name: weight.float().numpy() for name, weight in model.state_dict().items()}
    yield EMBEDDING, weights[EMBEDDING]
    for layer in range(model.cfg.layers):
        ours, theirs = f"blocks.{layer}", f"blk.{layer}"
        q, k, v = np.split(weights[f"{ours}.attn_qkv.weight"], 3)
        gate, up = np.split(weights[f"{ours}.ffn_gate_up.weight"], 2)
        yield f"{theirs}.attn_norm.weight", weights[f"{ours}.attn_norm.weight"]
        yield f"{theirs}.attn_q.weight", interleave(q, model.cfg.heads)
        yield f"{theirs}.attn_k.weight", interleave(k, model.cfg.heads)
        yield f"{theirs}.attn_v.weight", v
        yield f"{theirs}.attn_output.weight", weights[f"{ours}.attn_output.weight"]
        yield f"{theirs}.ffn_norm.weight", weights[f"{ours}.ffn_norm.weight"]
        yield f"{theirs}.ffn_gate.weight", gate
        yield f"{theirs}.ffn_up.weight", up
        yield f"{theirs}.ffn_down.weight", weights[f"{ours}.ffn_down.weight"]
    yield "output_norm.weight", weights["output_norm.weight"]


def add_shape(writer: gguf.GGUFWriter, cfg: Config) -> None:
    """Add the numbers that llama.cpp needs to build the model."""
    writer.add_context_length(cfg.context)
    writer.add_embedding_length(cfg.dim)
    writer.add_block_count(cfg.layers)
    writer.add_feed_forward_length(cfg.ffn)
    writer.add_head_count(cfg.heads)
    writer.add_head_count_kv(cfg.heads)
    writer.add_rope_dimension_count(cfg.dim // cfg.heads)
    writer.add_rope_freq_base(cfg.rope_theta)
    writer.add_layer_norm_rms_eps(cfg.eps)
    writer.add_vocab_size(cfg.vocab)


def export(checkpoint: Path, tokenizer: Path, out: Path, name: str, kind: str) -> None:
    """Write a checkpoint as a GGUF file with weights of the given kind (a key of `TYPES`)."""
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(name)
    writer.add_description(DESCRIPTION)
    writer.add_license("other")
    writer.add_license_name("mixed open sources, see localspec.licence_note")
    writer.add_string("localspec.licence_note", LICENCE_NOTE)
    add_tokenizer(writer, tokenizer)
    write_model(writer, Checkpoint.load(checkpoint), kind)
    log.info("%s: %.1f MB", out, out.stat().st_size / 1e6)


def write_model(
    writer: gguf.GGUFWriter, trained: Checkpoint, kind: str, embedding: str | None = None
) -> None:
    """Add what a checkpoint is, with its weights (the embedding in a type of its own), and write it all."""
    tensor_type, file_type = TYPES[kind]
    writer.add_uint64("localspec.training_tokens", trained.tokens)
    writer.add_size_label(f"{sum(p.numel() for p in trained.model.parameters()) / 1e6:.1f}M")
    writer.add_languages(["en"])
    writer.add_file_type(file_type)
    add_shape(writer, trained.model.cfg)
    embedding_type, _ = TYPES[embedding or kind]
    for name, weight in tensors(trained.model):
        add_tensor(writer, name, weight, embedding_type if name == EMBEDDING else tensor_type)
    finish(writer)


def main(argv: Sequence[str] | None = None) -> None:
    """Write one checkpoint, and check it if asked to."""
    show_progress()
    parser = argparse.ArgumentParser(
        prog="export_gguf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="LocalSpec demo model")
    parser.add_argument("--type", choices=TYPES, default="bf16")
    parser.add_argument(
        "--verify",
        type=Path,
        nargs="?",
        const=PACKED / HELD_OUT_TEXT,
        metavar="HELDOUT",
        help="compare with llama.cpp on this text, or on the packed held-out text",
    )
    arguments = parser.parse_args(argv)
    export(arguments.checkpoint, arguments.tokenizer, arguments.out, arguments.name, arguments.type)
    if arguments.verify:
        from training.export_check import (
            check,
        )  # llama.cpp: a machine that only trains has none

        check(arguments.checkpoint, arguments.tokenizer, arguments.out, arguments.verify)


if __name__ == "__main__":
    main()
