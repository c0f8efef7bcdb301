"""llama-server's flags for models that are to be opened as this program opens them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.storage.paths import expanded
from localspec.types import ModelOptions

Flag = tuple[str, str]


def target_flags(options: ModelOptions) -> Iterator[Flag]:
    """Yield the flags of a target with their values; what is left to llama.cpp has none."""
    yield "--model", _path(options)
    if options.context:
        yield "--ctx-size", str(options.context)
    yield from _seat_flags(options, "--device", "--gpu-layers")
    if options.tensor_split:
        yield "--tensor-split", ",".join(f"{share:g}" for share in options.tensor_split)
    if options.split_mode != "layer":
        yield "--split-mode", options.split_mode
    if options.main_gpu:
        yield "--main-gpu", str(options.main_gpu)
    if options.threads:
        yield "--threads", str(options.threads)
    yield "--batch-size", str(options.batch)
    yield "--ubatch-size", str(options.micro_batch)
    yield "--cache-type-k", options.kv_type_k
    yield "--cache-type-v", options.kv_type_v
    if options.flash_attention is not None:
        yield "--flash-attn", "on" if options.flash_attention else "off"
    if not options.mmap:
        yield "--load-mode", "none"


def draft_flags(options: ModelOptions, threads: int) -> Iterator[Flag]:
    """Yield the flags of a draft model; threads 0 are the target's.

    Its context, batches, flash attention and way of loading are always the target's.
    """
    yield "--spec-draft-model", _path(options)
    yield from _seat_flags(options, "--spec-draft-device", "--spec-draft-ngl")
    if threads:
        yield "--spec-draft-threads", str(threads)
    yield "--spec-draft-type-k", options.kv_type_k
    yield "--spec-draft-type-v", options.kv_type_v


def words(flags: Sequence[Flag]) -> list[str]:
    """Return flags as a program takes them."""
    return [word for flag in flags for word in flag]


def _seat_flags(options: ModelOptions, device: str, layers: str) -> Iterator[Flag]:
    if options.devices == ():
        yield device, "none"
        yield layers, "0"
        return
    if options.devices is not None:
        yield device, ",".join(options.devices)
    yield layers, "all" if options.gpu_layers is None else str(options.gpu_layers)


def _path(options: ModelOptions) -> str:
    return str(expanded(options.path).absolute())
