"""Read a GGUF of ours back, so that training can go on from the file that was shipped."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from training.export_gguf import tensors
from training.gguf_writing import separate
from training.model import Checkpoint, Config, Model

Weights = dict[str, NDArray[np.float32]]


def read_gguf(path: Path) -> Checkpoint:
    """Return the model of a file that `export_gguf` or `export_distilled` wrote.

    Its weights are as exact as the file's type. Raises ValueError for a model of another make.
    """
    reader = gguf.GGUFReader(path)

    def number(key: str) -> float:
        field = reader.get_field(key)
        if field is None:
            raise ValueError(f"`{path}` does not tell {key}")
        return float(field.contents())

    cfg = Config(
        vocab=int(number("llama.vocab_size")),
        dim=int(number("llama.embedding_length")),
        layers=int(number("llama.block_count")),
        heads=int(number("llama.attention.head_count")),
        ffn=int(number("llama.feed_forward_length")),
        context=int(number("llama.context_length")),
        rope_theta=number("llama.rope.freq_base"),
        eps=number("llama.attention.layer_norm_rms_epsilon"),
    )
    theirs = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for tensor in reader.tensors
    }
    model = Model(cfg)
    if theirs.keys() != dict(tensors(model)).keys():
        raise ValueError(f"`{path}` holds other tensors than a model of ours")
    ours = {name: torch.from_numpy(weights) for name, weights in _ours(theirs, cfg).items()}
    model.load_state_dict(ours)
    return Checkpoint(model, int(number("localspec.training_tokens")), 0.0)


def _ours(theirs: Weights, cfg: Config) -> Weights:
    """Return weights under our names and in our layout: the reverse of `export_gguf.tensors`."""
    found = {name: theirs[name] for name in ("token_embd.weight", "output_norm.weight")}
    for layer in range(cfg.layers):
        ours, block = f"blocks.{layer}", f"blk.{layer}"
        q, k = (separate(theirs[f"{block}.attn_{name}.weight"], cfg.heads) for name in "qk")
        found[f"{ours}.attn_qkv.weight"] = np.concatenate((q, k, theirs[f"{block}.attn_v.weight"]))
        gate_up = (theirs[f"{block}.ffn_gate.weight"], theirs[f"{block}.ffn_up.weight"])
        found[f"{ours}.ffn_gate_up.weight"] = np.concatenate(gate_up)
        for name in ("attn_norm", "attn_output", "ffn_norm", "ffn_down"):
            found[f"{ours}.{name}.weight"] = theirs[f"{block}.{name}.weight"]
    return found
