"""The layers of a model, from the names and sizes of its tensors and the numbers in its header."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from localspec.errors import ModelFileError
from localspec.gguf.header_m import Header, Tensor
from localspec.models.shape_m import LayerShape

MOST_LAYERS = 1024
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_FLOAT = 4  # recurrent state is kept in f32

# llama.cpp knows windows of these architectures only: one layer in so many looks back over everything (0: the
# header lists them), whether it is the first of them and not the last, and the usual window
_WINDOWS = {
    "afmoe": (4, False, 0), "cohere2": (4, False, 0), "cohere2moe": (4, True, 0),
    "exaone-moe": (4, False, 128), "exaone4": (4, False, 4096), "gemma2": (2, False, 4096),
    "gemma3": (6, False, 0), "gemma3n": (5, False, 0),
    "gemma4": (0, False, 0), "gpt-oss": (2, False, 0), "granite-swa": (0, False, 0), "laguna": (4, True, 0),
    "llama4": (4, False, 8192), "maple": (0, False, 0), "mellum": (4, False, 0), "mimo2": (0, False, 0),
    "muse-glimmer": (4, False, 0), "olmo2": (4, False, 0), "plamo3": (8, False, 0),
    "smallthinker": (4, True, 4096), "spark2-5": (0, False, 0), "step35": (0, False, 0),
}  # fmt: skip


def layer_shapes(header: Header, tensors: Sequence[Tensor]) -> tuple[LayerShape, ...]:
    """Return the layers that llama.cpp runs, in order; prediction layers at the end are not among them."""
    blocks = header.integer("{arch}.block_count")
    count = blocks - header.integer("{arch}.nextn_predict_layers")
    if not 0 < count <= blocks <= MOST_LAYERS:
        raise ModelFileError(
            f"{header.path} speaks of {blocks:,} layers: {header.architecture}.block_count is wrong",
            "download the file again",
        )
    grouped = by_layer(tensors)
    windows = _windows(header, count)
    keys, values = _cache_widths(header, count, windows)
    used, experts = header.integer("{arch}.expert_used_count"), header.integer("{arch}.expert_count")
    layers = []
    for number in range(count):
        parts = grouped.get(number, {})
        read = sum(
            tensor.bytes * used // experts if "_exps" in name and 0 < used <= experts else tensor.bytes
            for name, tensor in parts.items()
        )
        cached = _has_cache(parts) and number < _own_caches(header, blocks)
        layers.append(
            LayerShape(
                weight_bytes=sum(tensor.bytes for tensor in parts.values()),
                read_bytes=read,
                key_values=keys[number] if cached else 0,
                value_values=values[number] if cached else 0,
                window=windows[number],
                state_bytes=_state_bytes(header) if _is_recurrent(parts) else 0,
            )
        )
    if any(
        min(layer.key_values, layer.value_values, layer.state_bytes, layer.window or 0) < 0
        for layer in layers
    ):
        raise ModelFileError(
            f"{header.path} has a broken GGUF header: a size of its attention is less than 0",
            "download the file again",
        )
    return tuple(layers)


def by_layer(tensors: Sequence[Tensor]) -> Mapping[int, Mapping[str, Tensor]]:
    """Return the tensors of every layer under the names that they have within it."""
    grouped: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
    for tensor in tensors:
        if found := _BLOCK.fullmatch(tensor.name):
            grouped[int(found[1][:9])][found[2]] = tensor
    return grouped


def outside_layers(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the tensors of no layer by name."""
    return {tensor.name: tensor for tensor in tensors if not _BLOCK.fullmatch(tensor.name)}


def _windows(header: Header, count: int) -> tuple[int | None, ...]:
    """Return how far back each layer looks; None without a limit."""
    pattern, first, default = _WINDOWS.get(header.architecture, (1, False, 0))
    size = header.integer("{arch}.attention.sliding_window", default)
    if header.architecture == "exaone4" and count != 64:  # only the large one has windows
        size = 0
    if header.architecture == "llama4" and size:
        size = default
    if not size:
        return (None,) * count
    key = "{arch}.attention.sliding_window_pattern"
    listed = header.numbers.get(key.replace("{arch}", header.architecture))
    if listed is not None and header.architecture in _WINDOWS:
        return tuple(size if number < len(listed) and listed[number] else None for number in range(count))
    every = header.integer(key, pattern) if header.architecture in _WINDOWS else 1
    if pattern == 0 or every <= 1:
        return (None,) * count
    full = 0 if first else every - 1
    return tuple(None if number % every == full else size for number in range(count))


def _cache_widths(
    header: Header, count: int, windows: Sequence[int | None]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of a key and of a value that a token leaves in each layer."""
    heads = max((1, *header.per_layer("{arch}.attention.head_count", count)[:1]))
    width = header.integer("{arch}.embedding_length") // heads
    per_layer = header.per_layer("{arch}.attention.head_count_kv", count, heads)
    groups = (*per_layer, *(0,) * (count - len(per_layer)))
    key = header.integer("{arch}.attention.key_length", width)
    value = header.integer("{arch}.attention.value_length", width)
    short_key = header.integer("{arch}.attention.key_length_swa", key)
    short_value = header.integer("{arch}.attention.value_length_swa", value)
    latent = header.integer("{arch}.attention.key_length_mla") > 0  # keys and values are one and the same
    return (
        tuple(
            (key if window is None else short_key) * each
            for each, window in zip(groups, windows, strict=True)
        ),
        tuple(
            0 if latent else (value if window is None else short_value) * each
            for each, window in zip(groups, windows, strict=True)
        ),
    )


def _own_caches(header: Header, blocks: int) -> int:
    """Return how many of the first layers have a cache; the later ones look into those."""
    if header.architecture == "gemma3n":
        return 20
    return blocks - header.integer("{arch}.attention.shared_kv_layers")


def _is_recurrent(parts: Mapping[str, Tensor]) -> bool:
    return any(name.startswith(("ssm_", "shortconv.", "time_mix_")) for name in parts)


def _has_cache(parts: Mapping[str, Tensor]) -> bool:
    """Tell whether a layer has attention; of recurrent layers only those that have it beside."""
    telling = "attn_k" if _is_recurrent(parts) else "attn_"
    return any(name.startswith(telling) for name in parts)


def _state_bytes(header: Header) -> int:
    """Return what a recurrent layer keeps of one sequence."""
    width, heads = header.integer("{arch}.embedding_length"), header.integer("{arch}.attention.head_count")
    if head := header.integer("{arch}.wkv.head_size"):
        shifts = header.integer("{arch}.token_shift_count", 2)
        return _FLOAT * width * (shifts + head)
    if convolution := header.integer("{arch}.shortconv.l_cache"):
        return _FLOAT * width * (convolution - 1)
    kernel = header.integer("{arch}.ssm.conv_kernel")
    if head := header.integer("{arch}.kda.head_dim"):
        inner = head * heads
        return _FLOAT * (3 * max(0, kernel - 1) * inner + head * inner)
    inner, state = header.integer("{arch}.ssm.inner_size"), header.integer("{arch}.ssm.state_size")
    groups = header.integer("{arch}.ssm.group_count")
    return _FLOAT * (max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner)
