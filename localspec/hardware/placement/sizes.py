"""The contexts that LocalSpec opens where nobody says how, the same for a plan as for the real thing."""

from __future__ import annotations

from dataclasses import replace

from localspec.types import ModelOptions

DEFAULT_CONTEXT = 8192  # models trained on 128k tokens would ask for many GiB of cache
_FLOATS = ("f32", "f16", "bf16")


def context_size(asked: int, trained: int) -> int:
    """Return the tokens of a conversation; 0 asks for the usual number."""
    return asked or min(trained, DEFAULT_CONTEXT)


def draft_options(options: ModelOptions, size: int, *, on_processor: bool) -> ModelOptions:
    """Return how a draft model's context is opened beside a target's of `size` tokens."""
    if options.flash_attention is None and options.kv_type_v in _FLOATS and on_processor:
        options = replace(options, flash_attention=False)  # half the price of a branch on small heads
    return replace(options, context=size)
