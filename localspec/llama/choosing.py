"""A device chooses the likeliest tokens of every row: llama.cpp's sampler chains within the graph.

Each sequence has a chain of one `top_k`. As long as all of them do, logits stay on the device, and a row
crosses the bus as some ids with their logits. On the CPU the operator takes as long as it saves.
"""

from __future__ import annotations

import ctypes
import weakref

from localspec.llama.library import Native, native
from localspec.llama.model import Model
from localspec.llama.overrides import CPU, all_overrides, device_of
from localspec.types.candidates import MOST

SIZES = (64, MOST)
"""Candidates of a row: enough for a top-k of 40, llama.cpp's default, without and with penalties."""


def output_on_card(model: Model) -> bool:
    """Return whether logits are computed on a GPU that can choose among them.

    llama.cpp refuses chains for a split by tensor. It believes that a server's device has every operator, and
    a server whose device lacks one ends.
    """
    options = model.options
    if not model.cards or options.split_mode == "tensor":
        return False
    if any(card.startswith("RPC") for card in model.cards):
        return False
    names = {tensor.name for tensor in model.header.tensors}
    output = "output.weight" if "output.weight" in names else "token_embd.weight"
    return device_of(output, all_overrides(options)) != CPU


def fitting(count: int | None) -> int:
    """Return the size of a choice that has `count` candidates, 0 where none has."""
    return 0 if count is None else next((size for size in SIZES if count <= size), 0)


class Chains:
    """A chain for each of a context's sequences, which must not be freed before the context."""

    def __init__(self, size: int, vocabulary: int, sequences: int) -> None:
        api = native()
        self.limit = size
        self.size = min(size, vocabulary)
        self._chains = [_chain(api, self.size) for _ in range(sequences)]
        self._free = weakref.finalize(self, _free, api, self._chains)
        self.configuration = (api.llama_sampler_seq_config * sequences)()
        for sequence, chain in enumerate(self._chains):
            entry = self.configuration[sequence]
            entry.seq_id = sequence
            entry.sampler = ctypes.cast(chain, ctypes.c_void_p)

    def set(self, context: int) -> None:
        """Let a context use them from its next call on."""
        for sequence, chain in enumerate(self._chains):
            native().llama_set_sampler(context, sequence, chain)

    def unset(self, context: int) -> None:
        """Let a context return all logits from its next call on."""
        for sequence in range(len(self._chains)):
            native().llama_set_sampler(context, sequence, None)

    @property
    def work(self) -> bool:
        """Return whether the device of the context that was given them has the operators."""
        api = native()
        name: bytes = api.llama_sampler_name(api.llama_sampler_chain_get(self._chains[0], 0))
        return name.startswith(b"+")  # llama-sampler.cpp, llama_sampler_backend::get_name


def _chain(api: Native, size: int) -> Native:
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_k(size))
    return chain


def _free(api: Native, chains: list[Native]) -> None:
    for chain in chains:
        api.llama_sampler_free(chain)
