"""The number of weights that a model of the catalogue's figures has, by what is known of its architecture."""

from __future__ import annotations

from localspec.models.catalogue import CatalogueModel, approximate_shape

_KEY_WIDTH = 16 * 128  # of a gated delta net: 16 heads of keys
_QUERY_RANK, _LATENT_RANK, _ROTATED, _PLAIN, _VALUE = 768, 512, 64, 192, 256  # of GLM 4.7 Flash
_MAMBA = {"nemotron_h_moe": (4096, 64, 8 * 128), "granitehybrid": (3072, 48, 128)}  # inner, heads, groups
_GATED = {"qwen35", "qwen35moe", "qwen3next"}  # whose attention has a gate as wide as its queries
_HALF_AS_WIDE = {"gemma-4-e2b": 15}  # layers whose feed-forward is half of what the header says
_TWO_TABLES = {"gemma-4-e2b", "gemma-4-e4b"}  # one of them is for the layers: 256 numbers for each


def weights(entry: CatalogueModel) -> float:
    """Return the weights in the matrices of a model."""
    layers = approximate_shape(entry).layers
    total = float(entry.vocabulary * entry.width * (1 if entry.tied else 2))
    if entry.key in _TWO_TABLES:
        total += entry.vocabulary * 256 * entry.layers
    for number, layer in enumerate(layers):
        has_experts = layer.read_bytes < layer.weight_bytes
        if layer.state_bytes:
            total += _recurrent(entry)
        elif layer.key_values or layer.window or number >= entry.layers - entry.shared_caches:
            total += _attention(entry, number, is_full=layer.window is None)
        elif not has_experts:
            raise AssertionError(f"layer {number} of {entry.key} is empty")
        if has_experts:
            total += _experts(entry)
        is_fed = not has_experts and entry.architecture != "nemotron_h_moe"  # where experts alone feed
        if is_fed or entry.family == "gemma4":
            total += _dense(entry, number)
    if entry.mtp:
        total += _attention(entry, 0, is_full=True) + 2 * entry.width**2
        total += _experts(entry) if entry.experts else _dense(entry, entry.layers)
    return total


def _attention(entry: CatalogueModel, number: int, *, is_full: bool) -> float:
    if entry.latent:
        queries = entry.width * _QUERY_RANK + _QUERY_RANK * entry.heads * (_PLAIN + _ROTATED)
        keys = entry.width * (_LATENT_RANK + _ROTATED) + _LATENT_RANK * entry.heads * (_PLAIN + _VALUE)
        return queries + keys + entry.heads * _VALUE * entry.width
    size, groups = entry.head_size, entry.kv_heads
    if is_full:
        size, groups = entry.full_head_size or size, entry.full_kv_heads or groups
    total = 2.0 * entry.width * entry.heads * size
    if (entry.architecture or entry.family) in _GATED:
        total += entry.width * entry.heads * size
    if number < entry.layers - entry.shared_caches:
        values_are_keys = is_full and entry.full_kv_heads  # of Gemma 4
        total += entry.width * groups * size * (1 if values_are_keys else 2)
    return total


def _recurrent(entry: CatalogueModel) -> float:
    if entry.family.startswith("lfm"):
        return 4 * entry.width**2
    if entry.architecture in _MAMBA:
        inner, heads, groups = _MAMBA[entry.architecture]
        return entry.width * (2 * inner + 2 * groups + heads) + inner * entry.width
    values = (entry.state // 4 - 3 * 2 * _KEY_WIDTH) / (128 + 3)
    return entry.width * (2 * _KEY_WIDTH + 3 * values)


def _experts(entry: CatalogueModel) -> float:
    matrices = 2 if entry.architecture == "nemotron_h_moe" else 3
    all_of_them = entry.experts * entry.expert_feed_forward + entry.shared_feed_forward
    return entry.width * (matrices * all_of_them + entry.experts)


def _dense(entry: CatalogueModel, number: int) -> float:
    share = 0.5 if number < _HALF_AS_WIDE.get(entry.key, 0) else 1.0
    return 3 * entry.width * entry.feed_forward * share
