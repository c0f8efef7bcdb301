"""The names that people give to quantizations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from localspec.gguf.header_m import Header, Tensor

# llama.h, enum llama_ftype
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip

# ggml.h, enum ggml_type
TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
    27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
    41: "Q1_0", 42: "Q2_0",
}  # fmt: skip

_BITS = re.compile(r"\d+")


def quant_name(header: Header, tensors: Sequence[Tensor]) -> str:
    """Return the file's own word for its quantization, unless most of its weights say otherwise."""
    weights: Counter[int] = Counter()
    for tensor in tensors:
        if len(tensor.sizes) > 1:
            weights[tensor.kind] += tensor.elements
    [(most, _)] = weights.most_common(1) or [(0, 0)]
    counted = TENSOR_TYPES.get(most, f"type {most}")
    declared = FILE_TYPES.get(header.integer("general.file_type", -1))
    # a mixture is named after what it aims at: Q2_K may consist of Q3_K for the most part, never of F16
    return declared if declared and abs(_bits(declared) - _bits(counted)) <= 1 else counted


def _bits(name: str) -> int:
    found = _BITS.search(name)
    return int(found[0]) if found else 0
