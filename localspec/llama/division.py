"""The weights of a layer that a split by tensor divides between devices, and the steps in which it does.

The rules are those of `llama_meta_device_get_split_state` (llama-model.cpp).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm

from localspec.gguf import Header, Tensor, facts

_OF_ATTENTION = re.compile(
    r"attn_(q|k|v|qkv)\.(weight|bias)|attn_(output|gate|sinks)\.weight"
    r"|ssm_dt\.bias|ssm_a|ssm_(alpha|beta|ba|conv1d|out)\.weight"
)
_OF_FEED_FORWARD = re.compile(r"ffn_(up|gate)(_exps)?\.(weight|bias)|ffn_(gate_up|down)(_exps)?\.weight")
_WHOLE = ("hrm_text",)  # of such a model every device holds everything
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_PREFERRED = 128  # elements that a device gets at least, where that leaves none idle


@dataclass(frozen=True, slots=True)
class DividedWeights:
    """Weights that are divided along one side of `width` elements, into whole groups and blocks."""

    weight_bytes: int
    read_bytes: int  # of them for one token
    width: int
    group: int  # elements that stay together, such as heads with the same keys and values
    block: int  # elements of a block of their quantization

    def parts(self, shares: tuple[float, ...], rotation: int) -> tuple[float, ...]:
        """Return the part of each device. `rotation` is the first device to be rounded down."""
        count = len(shares)
        step = self._step(len(shares))
        order = [(number + rotation) % count for number in range(count)]
        sums = accumulate(shares[device] for device in order)
        ends = [int(self.width * end / sum(shares)) // step * step for end in sums]
        ends[-1] = self.width  # the last one gets the rest
        sizes = {device: end - start for device, start, end in zip(order, [0, *ends], ends, strict=False)}
        return tuple(sizes[device] / self.width for device in range(count))

    def reaches(self, shares: tuple[float, ...]) -> bool:
        """Return whether every device gets a part in every layer."""
        return all(min(self.parts(shares, rotation)) > 0 for rotation in range(len(shares)))

    def _step(self, devices: int) -> int:
        block = self.block
        while block < _PREFERRED and block * devices < self.group:
            block *= 2
        return lcm(self.group, block)


def by_layer(tensors: Sequence[Tensor]) -> tuple[dict[int, dict[str, Tensor]], dict[str, Tensor]]:
    """Return the tensors of every layer under the names that they have within it, and those of no layer."""
    layers: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
    outside = {}
    for tensor in tensors:
        if found := _BLOCK.fullmatch(tensor.name):
            layers[int(found[1][:9])][found[2]] = tensor
        else:
            outside[tensor.name] = tensor
    return layers, outside


def kv_heads(header: Header, count: int) -> tuple[int, ...]:
    """Return the heads of each layer that have their own keys and values."""
    heads = max((1, *header.per_layer("{arch}.attention.head_count", count)[:1]))
    listed = header.per_layer("{arch}.attention.head_count_kv", count, heads)
    return (*listed, *(0,) * (count - len(listed)))


def divided_parts(header: Header) -> Iterator[DividedWeights]:
    """Yield the divided weights of all layers."""
    layers, _ = by_layer(header.tensors)
    for number, heads in enumerate(kv_heads(header, len(layers))):
        tensors = layers.get(number, {})
        reads = {name: tensor.bytes for name, tensor in tensors.items()}
        attention = divided_attention(header, tensors, reads, heads)
        feed_forward = divided_feed_forward(header, tensors, reads)
        yield from (part for part in (attention, feed_forward) if part is not None)


def divided_attention(
    header: Header, tensors: Mapping[str, Tensor], reads: Mapping[str, int], kv_heads: int
) -> DividedWeights | None:
    """Return the divided weights of a layer's attention, or of its recurrent part; None without any."""
    if (output := tensors.get("attn_output.weight")) and kv_heads > 0:
        width = output.sizes[0]
        group = output.sizes[0] // kv_heads
    elif output := tensors.get("ssm_out.weight"):
        state = header.integer("{arch}.ssm.state_size")
        width = state * header.integer("{arch}.ssm.group_count")
        group = lcm(_PREFERRED, state)
    else:
        return None
    return _divided(header, tensors, reads, _OF_ATTENTION, (width, group, output.kind))


def divided_feed_forward(
    header: Header, tensors: Mapping[str, Tensor], reads: Mapping[str, int]
) -> DividedWeights | None:
    """Return the divided weights of a layer's feed-forward part, without shared experts; None without any."""
    down = tensors.get("ffn_down.weight") or tensors.get("ffn_down_exps.weight")
    if down is None:
        return None
    return _divided(header, tensors, reads, _OF_FEED_FORWARD, (down.sizes[0], _PREFERRED, down.kind))


def _divided(
    header: Header,
    tensors: Mapping[str, Tensor],
    reads: Mapping[str, int],
    names: re.Pattern[str],
    side: tuple[int, int, int],
) -> DividedWeights | None:
    """Return the tensors that have such names; `side` is its width, its group and ggml's type of its rows."""
    width, group, kind = side
    if width < 1 or group < 1 or header.architecture in _WHOLE:
        return None
    found = [name for name in tensors if names.fullmatch(name)]
    return DividedWeights(
        weight_bytes=sum(tensors[name].bytes for name in found),
        read_bytes=sum(reads[name] for name in found),
        width=width,
        group=group,
        block=int(facts()["tensor_types"].get(str(kind), ["", 1])[1]),
    )
