"""The layers of a model, from the names and sizes of its tensors and the numbers in its header."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf import (
    TOKENS,
    Header,
    Ranges,
    Tensor,
    check_file,
    facts,
    header_of,
    is_of_state,
    kept_states,
    read_model,
    total,
)
from localspec.llama.division import (
    DividedWeights,
    by_layer,
    divided_attention,
    divided_feed_forward,
    kv_heads,
)
from localspec.llama.overrides import EXPERTS, device_of
from localspec.models.heads import head_part, kind_of_draft
from localspec.models.recommended import recommended
from localspec.supported import splits_by_tensor
from localspec.types.models import TensorOverride
from localspec.types.request import Recommendation


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The weights of all experts of a layer under one name, `ffn_up_exps`; biases and scales go with them."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class MovedWeights:
    """Weights of a layer that are on another device (`-ot`); without a layer, those after the last one."""

    device: str
    layer: int | None
    bytes: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer; sizes in bytes."""

    weight_bytes: int
    read_bytes: int  # of the weights that one token reads: of a mixture of experts, the experts in use alone
    key_values: int  # numbers that a token leaves in the cache, 0 without a cache
    value_values: int
    window: int | None = None  # tokens that the cache keeps at most
    state_bytes: int = 0  # of a recurrent layer
    experts: tuple[ExpertWeights, ...] = ()  # the largest first
    attention: DividedWeights | None = None  # what a split by tensor divides, with the cache and the state
    feed_forward: DividedWeights | None = None

    @property
    def expert_bytes(self) -> int:
        """Return the bytes of all experts."""
        return sum(expert.bytes for expert in self.experts)

    @property
    def dense_bytes(self) -> int:
        """Return the bytes of the weights that every token reads."""
        return self.weight_bytes - self.expert_bytes

    @property
    def expert_share(self) -> float:
        """Return the share of its experts that one token reads."""
        return (self.read_bytes - self.dense_bytes) / self.expert_bytes if self.experts else 0.0

    def divided(self, shares: tuple[float, ...], rotation: int) -> tuple[LayerShape, ...]:
        """Return the layer as each device of a split by tensor holds it: whole, but for what is divided."""
        whole = (1.0,) * len(shares)
        heads = self.attention.parts(shares, rotation) if self.attention else whole
        inner = self.feed_forward.parts(shares, rotation) if self.feed_forward else whole
        return tuple(map(self._part, heads, inner))

    def _part(self, heads: float, inner: float) -> LayerShape:
        weights = float(self.weight_bytes)
        read = float(self.read_bytes)
        for divided, part in ((self.attention, heads), (self.feed_forward, inner)):
            if divided is not None:
                weights -= (1 - part) * divided.weight_bytes
                read -= (1 - part) * divided.read_bytes
        return replace(
            self,
            weight_bytes=round(weights),
            read_bytes=round(read),
            key_values=round(heads * self.key_values),
            value_values=round(heads * self.value_values),
            state_bytes=round(heads * self.state_bytes),
            experts=tuple(replace(each, bytes=round(inner * each.bytes)) for each in self.experts),
        )


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as its header describes it; sizes in bytes."""

    name: str
    architecture: str
    quant: str  # of most weights: Q4_K_M, Q8_0, BF16
    parameters: int
    file_bytes: int
    layers: tuple[LayerShape, ...]
    input_bytes: int  # of the embedding table, which stays with the CPU and is read a row at a time
    output_bytes: int  # of the weights after the last layer, with the table once more where it is tied
    width: int  # of the embedding
    feed_forward: int
    heads: int
    vocabulary: int
    training_context: int
    vocabulary_family: str  # two models of one family may be a pair: tokenizer's kind, size and a checksum
    tied: bool = False  # the output layer shares the embedding table; the CPU keeps it only once
    experts_used: int = 0  # by a token, of a mixture of experts
    expert_feed_forward: int = 0
    attention_width: int = 0  # of all heads together, where it is not the embedding's
    acceptance: float | None = None  # share of its drafts that the target it was made for accepts
    recommended: Recommendation = field(default_factory=Recommendation)
    is_head: bool = False  # it drafts from the hidden states of its target, on the same device
    prediction_layers: int = 0  # in the file after the others: llama.cpp counts them in `-ngl`
    moved: tuple[MovedWeights, ...] = ()  # which are not in the sizes above
    borrowed_bytes: int = 0  # of the target's weights that a head reads after its last layer
    layer_table_bytes: int = 0  # of the embeddings that some models have for each layer; the CPU keeps them
    output_divided: int = 0  # of the bytes after the last layer, those that a split by tensor divides
    splits_by_tensor: bool = False  # llama.cpp can do so with models of its architecture

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights."""
        tables = self.input_bytes + self.layer_table_bytes + self.output_bytes
        outside = tables + sum(moved.bytes for moved in self.moved)
        return outside + sum(layer.weight_bytes for layer in self.layers)

    @property
    def expert_bytes(self) -> int:
        """Return the bytes of all experts of its layers."""
        return sum(layer.expert_bytes for layer in self.layers)

    def moved_to(self, device: str) -> int:
        """Return the bytes of weights of its layers that overrides put on a device."""
        return sum(each.bytes for each in self.moved if each.device == device and each.layer is not None)

    @property
    def takes_quantised_cache(self) -> bool:
        """Return whether the heads of its cache can be divided into blocks of 32 (llama-context.cpp)."""
        width = self.attention_width or self.width
        return self.heads > 0 and width % (32 * self.heads) == 0

    @property
    def shares_calls(self) -> bool:
        """Return whether conversations can share its calls: states and windows forget what others need."""
        return not self.state_bytes and not any(layer.window for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """Return the bytes of one running state, 0 where there is none."""
        return sum(layer.state_bytes for layer in self.layers)

    def divided(self, shares: tuple[float, ...]) -> tuple[ModelShape, ...]:
        """Return the model as each device holds it in a split by tensor, with these shares."""
        alike: Counter[tuple[bool, bool]] = Counter()
        layers = []
        for layer in self.layers:
            kind = layer.state_bytes > 0, layer.window is not None
            layers.append(layer.divided(shares, alike[kind] % len(shares)))
            alike[kind] += 1
        total = sum(shares)
        return tuple(
            replace(
                self,
                layers=held,
                output_bytes=self.output_bytes - round((1 - share / total) * self.output_divided),
            )
            for share, held in zip(shares, zip(*layers, strict=True), strict=True)
        )

    def is_divisible(self, shares: tuple[float, ...]) -> bool:
        """Return whether llama.cpp can split the model by tensor so that each device gets a part of all."""
        parts = {part for layer in self.layers for part in (layer.attention, layer.feed_forward) if part}
        return self.splits_by_tensor and all(part.reaches(shares) for part in parts)

    def branches(self, wanted: int) -> int:
        """Return the number of branches as a draft model: states take at most 3/4 of its weights."""
        if not self.state_bytes:
            return wanted
        _, marks = kept_states(self.architecture, 1 + wanted)
        return max(1, min(wanted, 3 * self.weight_bytes // 4 // self.state_bytes - marks))

    @property
    def doubt(self) -> str:
        """Return the layers of the header that are missing in the file; empty if none are."""
        there = sum(layer.weight_bytes > 0 for layer in self.layers)
        claimed = len(self.layers)
        if there == claimed:
            return ""
        return f"the header claims {claimed:,} layers, and {there:,} are there: llama.cpp may refuse the file"

    @property
    def read_bytes(self) -> int:
        """Return the bytes of weights that writing one token reads."""
        outside = self.output_bytes + self.borrowed_bytes
        return outside + sum(layer.read_bytes for layer in self.layers)


_BITS = re.compile(r"\d+")


def _quant_name(header: Header) -> str:
    """Return the file's own word for its quantization, unless most of its weights say otherwise."""
    weights: Counter[int] = Counter()
    for tensor in header.tensors:
        if len(tensor.sizes) > 1:
            weights[tensor.kind] += tensor.elements
    [(most, _)] = weights.most_common(1) or [(0, 0)]
    counted: str = facts()["tensor_types"].get(str(most), [f"type {most}"])[0]
    declared: str | None = facts()["file_types"].get(str(header.integer("general.file_type", -1)))
    # a mixture is named after what it aims at: Q2_K may consist of Q3_K for the most part, never of F16
    return declared if declared and abs(_bits(declared) - _bits(counted)) <= 1 else counted


def _bits(name: str) -> int:
    found = _BITS.search(name)
    return int(found[0]) if found else 0


MAX_LAYERS = 1024
_EXPERTS_USED = "{arch}.expert_used_count"
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_FLOAT = 4  # recurrent state is f32


def _layers(header: Header, grouped: Mapping[int, Mapping[str, Tensor]]) -> tuple[LayerShape, ...]:
    """Return the layers that llama.cpp runs, in order; prediction layers at the end are not among them."""
    blocks = header.integer("{arch}.block_count")
    count = blocks - header.integer("{arch}.nextn_predict_layers")
    if not 0 < count <= blocks <= MAX_LAYERS:
        raise ModelFileError(
            f"{header.path} claims {blocks:,} layers: {header.architecture}.block_count is wrong",
            "download the file again",
        )
    # the later layers of some models look into the caches of those before
    caches = blocks - header.integer("{arch}.attention.shared_kv_layers")
    if header.architecture == "gemma3n":
        caches = 20
    used = _most(header, _EXPERTS_USED)
    experts = header.integer("{arch}.expert_count")
    if not (0 < used <= experts or used == experts == 0):
        raise header.broken(f"{used:,} of {experts:,} experts are in use")
    heads = kv_heads(header, count)
    layers = []
    for number, (key, value, window) in enumerate(_cache_widths(header, _windows(header, count))):
        parts = grouped.get(number, {})
        is_recurrent = any(map(is_of_state, parts))
        # some recurrent layers also have attention
        has_attention = any(name.startswith("attn_k" if is_recurrent else "attn_") for name in parts)
        is_cached = has_attention and number < caches
        weights = sum(tensor.bytes for tensor in parts.values())
        of_experts = _experts(parts)
        reads = {
            name: _used(tensor.bytes, used, experts) if EXPERTS.match(name) else tensor.bytes
            for name, tensor in parts.items()
        }
        layers.append(
            LayerShape(
                weight_bytes=weights,
                read_bytes=sum(reads.values()),
                key_values=key if is_cached else 0,
                value_values=value if is_cached else 0,
                window=window,
                state_bytes=_state_bytes(header) if is_recurrent else 0,
                experts=of_experts,
                attention=divided_attention(header, parts, reads, heads[number]),
                feed_forward=divided_feed_forward(header, parts, reads),
            )
        )
    if any(
        min(layer.key_values, layer.value_values, layer.state_bytes, layer.window or 0) < 0
        for layer in layers
    ):
        raise header.broken("a size of its attention is less than 0")
    return tuple(layers)


def _experts(parts: Mapping[str, Tensor]) -> tuple[ExpertWeights, ...]:
    """Return the weights of experts among a layer's tensors, the largest first."""
    sizes = Counter[str]()
    for name, tensor in parts.items():
        if found := EXPERTS.match(name):
            sizes[found[1]] += tensor.bytes
    return tuple(ExpertWeights(name, size) for name, size in sizes.most_common())


def _used(size: int, used: int, experts: int) -> int:
    """Return the bytes of the experts that one token uses."""
    return size * used // experts if experts else size


def _windows(header: Header, count: int) -> tuple[int | None, ...]:
    """Return the window of each layer; None without a limit."""
    windows = facts()["windows"]
    pattern, first, default = windows.get(header.architecture, (1, False, 0))
    size = header.integer("{arch}.attention.sliding_window", default)
    if header.architecture == "exaone4" and count != 64:  # only the large one has windows
        size = 0
    if header.architecture == "llama4" and size:
        size = default
    if not size:
        return (None,) * count
    key = "{arch}.attention.sliding_window_pattern"
    listed = header.numbers.get(key.replace("{arch}", header.architecture))
    if listed is not None and header.architecture in windows:
        return tuple(size if number < len(listed) and listed[number] else None for number in range(count))
    every = header.integer(key, pattern) if header.architecture in windows else 1
    if pattern == 0 or every <= 1:
        return (None,) * count
    full = 0 if first else every - 1
    return tuple(None if number % every == full else size for number in range(count))


def _cache_widths(header: Header, windows: Sequence[int | None]) -> Iterator[tuple[int, int, int | None]]:
    """Yield for each layer the numbers of a key and of a value that a token leaves there, and its window."""
    count = len(windows)
    heads = max((1, *header.per_layer("{arch}.attention.head_count", count)[:1]))
    width = header.integer("{arch}.embedding_length") // heads
    key = header.integer("{arch}.attention.key_length", width)
    value = header.integer("{arch}.attention.value_length", width)
    short_key = header.integer("{arch}.attention.key_length_swa", key)
    short_value = header.integer("{arch}.attention.value_length_swa", value)
    latent = header.integer("{arch}.attention.key_length_mla") > 0  # keys and values are one and the same
    for groups, window in zip(kv_heads(header, count), windows, strict=True):
        keys, values = (key, value) if window is None else (short_key, short_value)
        yield groups * keys, 0 if latent else groups * values, window


def _state_bytes(header: Header) -> int:
    width = header.integer("{arch}.embedding_length")
    heads = header.integer("{arch}.attention.head_count")
    if head := header.integer("{arch}.wkv.head_size"):
        shifts = header.integer("{arch}.token_shift_count", 2)
        return _FLOAT * width * (shifts + head)
    if convolution := header.integer("{arch}.shortconv.l_cache"):
        return _FLOAT * width * (convolution - 1)
    kernel = header.integer("{arch}.ssm.conv_kernel")
    if head := header.integer("{arch}.kda.head_dim"):
        inner = head * heads
        return _FLOAT * (3 * max(0, kernel - 1) * inner + head * inner)
    inner = header.integer("{arch}.ssm.inner_size")
    state = header.integer("{arch}.ssm.state_size")
    groups = header.integer("{arch}.ssm.group_count")
    return _FLOAT * (max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner)


_TABLE = "token_embd.weight"
_OUTPUT = "output.weight"
_LAYER_TABLE = "per_layer_token_embd.weight"


def read_shape(path: Path, overrides: Sequence[TensorOverride] = ()) -> ModelShape:
    """Read a model's shape from its file; of a split model, name the first.

    Weights that `overrides` put on another device are apart.
    """
    header = read_model(path)
    shape = _shape(header)
    used = _most(header, _EXPERTS_USED)
    count = header.integer("{arch}.expert_count")
    for tensor in header.tensors if overrides else ():
        if device := device_of(tensor.name, overrides):
            shape = _moved(shape, tensor, device, lambda size: _used(size, used, count))
    return shape


def with_adapters(shape: ModelShape, adapters: Sequence[Header]) -> ModelShape:
    """Return a shape with the weights of LoRA adapters, which are where the weights are that they change."""
    layers = [*shape.layers]
    for tensor in (tensor for header in adapters for tensor in header.tensors):
        name = tensor.name.removesuffix(".lora_a").removesuffix(".lora_b")
        block = _BLOCK.fullmatch(name)
        if block is not None and int(block[1]) < len(layers):
            layer = layers[int(block[1])]
            weight_bytes = layer.weight_bytes + tensor.bytes
            read_bytes = layer.read_bytes + tensor.bytes
            layers[int(block[1])] = replace(layer, weight_bytes=weight_bytes, read_bytes=read_bytes)
        elif name == _TABLE:
            shape = replace(shape, input_bytes=shape.input_bytes + tensor.bytes)
        else:
            shape = replace(shape, output_bytes=shape.output_bytes + tensor.bytes)
    return replace(shape, layers=tuple(layers))


def _moved(shape: ModelShape, tensor: Tensor, device: str, used: Callable[[int], int]) -> ModelShape:
    """Return a shape with a tensor elsewhere; `used` counts the bytes of experts that a token reads."""
    block = _BLOCK.fullmatch(tensor.name)
    if block is None:
        is_table = tensor.name in (_TABLE, _LAYER_TABLE)  # of which a token reads a row
        moved = MovedWeights(device, None, tensor.bytes, 0 if is_table else tensor.bytes)
        shape = replace(shape, moved=(*shape.moved, moved))
        if tensor.name == _TABLE:
            return replace(shape, input_bytes=0)
        if tensor.name == _LAYER_TABLE:
            return replace(shape, layer_table_bytes=0)
        return replace(shape, output_bytes=shape.output_bytes - tensor.bytes)
    number = int(block[1])
    if number >= len(shape.layers):  # of a head, which is another shape
        return shape
    layer = shape.layers[number]
    experts = EXPERTS.match(block[2])
    read = used(tensor.bytes) if experts else tensor.bytes
    left = tuple(
        replace(each, bytes=each.bytes - tensor.bytes) if experts and each.name == experts[1] else each
        for each in layer.experts
    )
    without = replace(
        layer,
        weight_bytes=layer.weight_bytes - tensor.bytes,
        read_bytes=layer.read_bytes - read,
        experts=tuple(each for each in left if each.bytes),
    )
    layers = (*shape.layers[:number], without, *shape.layers[number + 1 :])
    moved = MovedWeights(device, number, tensor.bytes, read)
    return replace(shape, layers=layers, moved=(*shape.moved, moved))


def read_draft_shape(target: Path, draft: Path, overrides: Sequence[TensorOverride] = ()) -> ModelShape:
    """Read the shape of a drafter: for a head, its own tensors and those that it reads."""
    kind = kind_of_draft(target, draft)
    shape = read_shape(draft, overrides)
    if kind is None:
        return shape
    header = read_model(draft)
    if kind == "mtp":
        shape = _head_shape(header, shape, is_own=draft == target)
    if not any(tensor.name == _OUTPUT for tensor in header.tensors) or draft == target:
        shape = replace(shape, borrowed_bytes=read_shape(target).output_bytes)
    return replace(shape, is_head=True)


def _head_shape(header: Header, shape: ModelShape, *, is_own: bool) -> ModelShape:
    """Return the shape of the MTP head in a file, with the rest of the file if that is not the target's."""
    part = head_part(header)
    groups = _most(header, "{arch}.attention.head_count_kv")
    width = shape.width // max(1, shape.heads)
    keys, values = (header.integer(f"{{arch}}.attention.{kind}_length", width) for kind in ("key", "value"))
    block = next(iter(by_layer(part.tensors)[0].values()))
    experts = _experts(block)
    whole = sum(each.bytes for each in experts)
    used = _most(header, _EXPERTS_USED)
    count = header.integer("{arch}.expert_count")
    read = part.weight_bytes - whole + _used(whole, used, count)
    layer = LayerShape(part.weight_bytes, read, groups * keys, groups * values, experts=experts)
    return replace(
        shape,
        parameters=part.parameters if is_own else shape.parameters,
        layers=(layer,),
        prediction_layers=0,  # it is the one above
        input_bytes=0 if is_own else shape.input_bytes,
        output_bytes=0 if is_own else shape.output_bytes,
    )


def shape_of_parts(parts: Sequence[tuple[Ranges, int]], place: str) -> ModelShape:
    """Read the shape of a split model from its files in order."""
    headers = [header_of(read, file_bytes, Path(place)) for read, file_bytes in parts]
    count = max(1, headers[0].integer("split.count"))
    if count != len(headers):
        raise ModelFileError(
            f"{place} has {count} parts, not {len(headers)}", "name all of its parts in order"
        )
    for number, header in enumerate(headers):
        if count > 1 and header.integer("split.no") != number:
            raise ModelFileError(
                f"part {header.integer('split.no') + 1} of {place} is in the place of part {number + 1}",
                "name the parts in order",
            )
        check_file(header)
    return _shape(total(headers))


def _shape(header: Header) -> ModelShape:
    grouped, outside = by_layer(header.tensors)
    if _TABLE not in outside and header.architecture != "eagle3":  # which may borrow its target's
        raise ModelFileError(
            f"{header.path} has no {_TABLE}: it is not a language model", "choose a model that writes text"
        )
    for key in ("embedding_length", "context_length", "attention.head_count"):
        if _most(header, f"{{arch}}.{key}") < 0:
            raise header.broken(f"{header.architecture}.{key} is less than 0")
    layers = _layers(header, grouped)
    table = outside.pop(_TABLE).bytes if _TABLE in outside else 0
    layer_table = outside.pop(_LAYER_TABLE).bytes if _LAYER_TABLE in outside else 0
    tied = table > 0 and _OUTPUT not in outside
    width = header.integer("{arch}.embedding_length")
    heads = _most(header, "{arch}.attention.head_count")
    rest = sum(tensor.bytes for tensor in outside.values())
    heads_in_file = header.integer("{arch}.nextn_predict_layers") if len(layers) in grouped else 0
    return ModelShape(
        name=header.name,
        architecture=header.architecture,
        quant=_quant_name(header),
        parameters=header.parameters,
        file_bytes=header.file_bytes,
        layers=layers,
        input_bytes=table,
        output_bytes=rest + (table if tied else 0),
        width=width,
        feed_forward=_most(header, "{arch}.feed_forward_length"),
        heads=heads,
        vocabulary=header.counts.get(TOKENS, 0) or header.integer("{arch}.vocab_size"),
        training_context=header.integer("{arch}.context_length"),
        vocabulary_family=_family(header),
        tied=tied,
        experts_used=_most(header, _EXPERTS_USED),
        expert_feed_forward=_most(header, "{arch}.expert_feed_forward_length"),
        attention_width=heads * header.integer("{arch}.attention.key_length", width // max(1, heads)),
        acceptance=header.acceptance,
        recommended=recommended(header),
        prediction_layers=heads_in_file,
        layer_table_bytes=layer_table,
        output_divided=outside[_OUTPUT].bytes if _OUTPUT in outside else 0,
        splits_by_tensor=splits_by_tensor(header.architecture),
    )


def _most(header: Header, key: str) -> int:
    """Return a number, the largest where each layer has its own."""
    listed = header.numbers.get(key.replace("{arch}", header.architecture), ())
    return max(header.per_layer(key, len(listed))) if listed else header.integer(key)


def _family(header: Header) -> str:
    """Return the properties that models with one vocabulary share."""
    kind = header.text("tokenizer.ggml.model") or "none"
    pre = header.text("tokenizer.ggml.pre")
    size = header.counts.get(TOKENS, 0)
    return "-".join(part for part in (kind, pre, str(size), header.tokens_digest) if part)
