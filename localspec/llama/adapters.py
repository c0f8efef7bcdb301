"""LoRA adapters: files that change a model's weights, each as far as its scale says."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from localspec.errors import EngineError, ModelFileError, UserError
from localspec.gguf import Header, check_adapter_file
from localspec.llama import library
from localspec.llama.library import native
from localspec.types.models import Adapter, ModelOptions

_DIVIDED = ("row", "tensor")  # splits of a matrix, which llama.cpp does not do with adapters


def check_adapters(options: ModelOptions, header: Header) -> None:
    """Raise ModelFileError for a file that is no adapter of such a model, UserError for a split model."""
    if options.adapters and options.split_mode in _DIVIDED:
        raise UserError(f"LoRA adapters cannot be used with -sm {options.split_mode}", "use -sm layer")
    for adapter in options.adapters:
        check_adapter_file(adapter.path, header.architecture)


def open_adapters(model: int, adapters: Sequence[Adapter]) -> tuple[int, ...]:
    """Load adapters, which are freed with the model; raises ModelFileError for one that does not fit it."""
    found = list[int]()
    for adapter in adapters:
        with library.problems_of_this_thread() as problems:
            pointer = native().llama_adapter_lora_init(model, os.fsencode(adapter.path))
        if not pointer:
            reason = library.load_problem(problems) if problems else "llama.cpp gives no reason"
            raise ModelFileError(
                f"{adapter.path} does not fit the model: {reason}", "use an adapter made for this model"
            )
        found.append(ctypes.cast(pointer, ctypes.c_void_p).value or 0)
    return tuple(found)


def use_adapters(context: int, adapters: Sequence[int], scales: Sequence[float]) -> None:
    """Have a context add adapters to the weights of its model from the next call on; with 0, not at all."""
    api = native()
    kind = api.llama_adapter_lora_p_ctypes
    pointers = (kind * len(adapters))(*(ctypes.cast(each, kind) for each in adapters))
    if api.llama_set_adapters_lora(context, pointers, len(adapters), (ctypes.c_float * len(scales))(*scales)):
        raise EngineError("llama.cpp cannot use these LoRA adapters")
