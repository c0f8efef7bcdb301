"""Splits by tensor (`-sm tensor`), each matrix over several devices: what llama.cpp cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.errors import UserError
from localspec.gguf import Header, has_state
from localspec.supported import quoted, splits_by_tensor

MOST_DEVICES = 16  # ggml-backend.h, GGML_BACKEND_META_MAX_DEVICES
_INSTEAD = "use -sm layer"


def check_tensor_split(header: Header, devices: Sequence[str], flash_attention: bool | None) -> None:
    """Raise `UserError` for a split by tensor that llama.cpp would refuse, or end the process for."""
    if len(devices) < 2:
        there = f"there is one: {devices[0]}" if devices else "there are none"
        raise UserError(f"-sm tensor divides a model between GPUs, and {there}", _INSTEAD)
    if len(devices) > MOST_DEVICES:
        raise UserError(f"-sm tensor takes at most {MOST_DEVICES} devices", "name them with -dev")
    if not splits_by_tensor(header.architecture):
        raise UserError(
            f"-sm tensor: llama.cpp cannot divide models of the architecture {quoted(header.architecture)}",
            _INSTEAD,
        )
    if flash_attention is False:
        raise UserError(
            "-sm tensor needs flash attention, which -fa off forbids", f"leave -fa out, or {_INSTEAD}"
        )
    servers = [name for name in devices if name.startswith("RPC")]
    if servers and has_state(header):
        raise UserError(
            f"-sm tensor: {servers[0]} is an RPC server, and those cannot hold a part of a recurrent state",
            _INSTEAD,
        )
    if any(_lone_heads(header)):
        raise UserError(
            f"-sm tensor: {header.path} has layers with one KV head, which llama.cpp cannot divide", _INSTEAD
        )


def _lone_heads(header: Header) -> Iterator[bool]:
    """Yield whether each layer that normalizes its keys has a single KV head.

    llama.cpp takes its width for the number of heads (ggml-backend-meta.cpp, handle_reshape).
    """
    blocks = header.integer("{arch}.block_count")
    every = header.integer("{arch}.attention.head_count", 1)
    heads = header.per_layer("{arch}.attention.head_count_kv", blocks, every)
    normed = {tensor.name for tensor in header.tensors if tensor.name.endswith(".attn_k_norm.weight")}
    for number, count in enumerate(heads):
        yield count == 1 and f"blk.{number}.attn_k_norm.weight" in normed
