"""A context's sizes and native parameters; what would make llama.cpp end the process is refused here."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from localspec.errors import EngineError, UserError
from localspec.gguf.header import Header
from localspec.llama import library
from localspec.llama.library import MAX_SEQUENCES, Native, native, physical_cores
from localspec.llama.model import Model
from localspec.types import KvType, ModelOptions

# ggml.h, enum ggml_type; bytes of 32 elements
_KV_TYPES: dict[KvType, tuple[int, int]] = {
    "f32": (0, 128), "f16": (1, 64), "bf16": (30, 64), "q8_0": (8, 34),
    "q5_1": (7, 24), "q5_0": (6, 22), "q4_1": (3, 20), "q4_0": (2, 18),
}  # fmt: skip
_FLOATS = ("f32", "f16", "bf16")
_FLASH = {None: -1, False: 0, True: 1}
_FEWEST_ROWS = 64  # of one call: drafts are judged, calls timed and texts scored in runs of up to this
_CELLS_PER_BRANCH = 32  # beside the trunk's: a branch holds what is drafted after the shared text


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a context: tokens per sequence, cells of all sequences, tokens and rows per call."""

    context: int
    cells: int
    sequences: int
    batch: int
    micro_batch: int
    rows: int


def plan(model: Model, options: ModelOptions, sequences: int, rows: int) -> Sizes:
    """Derive the sizes, and refuse those that cannot work."""
    if options.context < 0:
        raise UserError(f"a context of {options.context} tokens is impossible", "0 takes the model's own")
    if options.batch < 1 or options.micro_batch < 1:
        raise UserError(
            f"batches of {options.batch} and {options.micro_batch} tokens are impossible", "give 1 or more"
        )
    if options.threads < 0:
        raise UserError(f"{options.threads} threads cannot compute", "0 takes every physical core")
    if not 1 <= sequences <= MAX_SEQUENCES:
        raise UserError(
            f"{sequences} sequences are impossible", f"llama.cpp has room for 1 to {MAX_SEQUENCES}"
        )
    if options.kv_type_v not in _FLOATS and options.flash_attention is False:
        raise UserError(
            f"values of type {options.kv_type_v} need flash attention", "switch it on, or keep values in f16"
        )
    context = options.context or model.training_context
    # llama.cpp aborts the process where one call's rows or tokens exceed these
    batch = max(options.batch, sequences, _FEWEST_ROWS)
    sizes = Sizes(
        context=context,
        cells=context + (sequences - 1) * _CELLS_PER_BRANCH,
        sequences=sequences,
        batch=batch,
        micro_batch=min(options.micro_batch, max(options.batch, sequences)),
        rows=min(batch, max(rows, sequences)),
    )
    _check_room(model, options, sizes)
    return sizes


def kv_bytes(header: Header, cells: int, type_k: KvType = "f16", type_v: KvType = "f16") -> int:
    """Estimate the bytes of a KV cache from the file's header; recurrent state is not counted."""
    layers = header.integer("{arch}.block_count")
    heads = header.integer("{arch}.attention.head_count")
    width = header.integer("{arch}.embedding_length") // max(1, heads)
    keys = header.integer("{arch}.attention.key_length", width)
    values = header.integer("{arch}.attention.value_length", width)
    kv_heads = sum(header.per_layer("{arch}.attention.head_count_kv", layers, heads))
    per_cell = keys * _KV_TYPES[type_k][1] + values * _KV_TYPES[type_v][1]
    return cells * kv_heads * per_cell // 32


def context_parameters(options: ModelOptions, sizes: Sizes, threads: int | None) -> Native:
    """Return llama.cpp's parameters for a context."""
    parameters = native().llama_context_default_params()
    parameters.n_ctx = sizes.cells
    parameters.n_batch = sizes.batch
    parameters.n_ubatch = sizes.micro_batch
    parameters.n_seq_max = sizes.sequences
    parameters.n_outputs_max = sizes.rows  # bounds the compute buffer: a row is a whole vocabulary
    parameters.n_threads = parameters.n_threads_batch = threads or options.threads or physical_cores()
    parameters.flash_attn_type = _FLASH[options.flash_attention]
    parameters.type_k = _KV_TYPES[options.kv_type_k][0]
    parameters.type_v = _KV_TYPES[options.kv_type_v][0]
    parameters.kv_unified = True  # without it branches cannot share cells
    parameters.swa_full = True  # without it a sliding window recycles cells that a rewind needs
    parameters.no_perf = True
    return parameters


def creation_error(model: Model, options: ModelOptions, sizes: Sizes, problems: list[str]) -> Exception:
    """Return the error for a context that llama.cpp would not create."""
    reason = library.last_problem(problems)
    if "alloc" in reason or "out of memory" in reason:
        needed = kv_bytes(model.header, sizes.cells, options.kv_type_k, options.kv_type_v)
        return UserError(
            f"there is no room for {sizes.context:,} tokens of context ({needed / 1e9:.1f} GB): {reason}",
            "choose a smaller context or a smaller type for the KV cache",
        )
    if (options.kv_type_k, options.kv_type_v) != ("f16", "f16"):
        return UserError(
            f"{model.name} cannot keep keys as {options.kv_type_k}, values as {options.kv_type_v}: {reason}",
            "keep both in f16",
        )
    return EngineError(f"llama.cpp cannot create a context for {model.name}: {reason}")


def _check_room(model: Model, options: ModelOptions, sizes: Sizes) -> None:
    """Refuse a KV cache that plainly does not fit into memory: Linux would kill the process instead."""
    if not model.allocated or model.info().devices != ("CPU",):
        return  # nothing is taken, or a graphics card says no by itself
    needed = kv_bytes(model.header, sizes.cells, options.kv_type_k, options.kv_type_v)
    free = psutil.virtual_memory().available
    if needed > free:
        raise UserError(
            f"{sizes.context:,} tokens of context need {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free",
            "choose a smaller context or a smaller type for the KV cache",
        )
