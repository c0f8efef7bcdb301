"""What memory and speed of a model follow from; read from the header of its GGUF file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer; sizes in bytes.

    `read_bytes` are the weights that one token reads (of a mixture of experts, the experts in use alone).
    `key_values` and `value_values` are the numbers that a token leaves in the cache, 0 without a cache;
    `window` limits how many tokens it keeps. `state_bytes` is what a recurrent layer keeps instead.
    """

    weight_bytes: int
    read_bytes: int
    key_values: int
    value_values: int
    window: int | None = None
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as its header describes it; sizes in bytes.

    `input_bytes` is the embedding table, which stays with the processor and is read a row at a time;
    `output_bytes` the weights after the last layer, the table once more where both are one: `tied`.
    The processor keeps a tied table only once.
    """

    name: str
    architecture: str
    quant: str  # of most weights, as people write it: Q4_K_M, Q8_0, BF16
    parameters: int
    file_bytes: int
    layers: tuple[LayerShape, ...]
    input_bytes: int
    output_bytes: int
    width: int  # of the embedding
    feed_forward: int
    heads: int
    vocabulary: int
    training_context: int
    vocabulary_family: str  # two models of one family may be a pair: tokenizer's kind, size and a checksum
    tied: bool = False
    experts_used: int = 0  # by a token, of a mixture of experts
    expert_feed_forward: int = 0
    attention_width: int = 0  # of all heads together, where it is not the embedding's
    acceptance: float | None = None  # share of its guesses that the target it was made for accepts

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights."""
        return self.input_bytes + self.output_bytes + sum(layer.weight_bytes for layer in self.layers)

    @property
    def read_bytes(self) -> int:
        """Return the bytes of weights that writing one token reads."""
        return self.output_bytes + sum(layer.read_bytes for layer in self.layers)
