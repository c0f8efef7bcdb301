from __future__ import annotations

import ctypes

import gguf

from localspec.llama.library import native
from localspec.models.shape import FILE_TYPES, TENSOR_TYPES


def test_names_of_tensor_types_are_those_of_ggml() -> None:
    name_of = native()._lib["ggml_type_name"]
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
    names = {kind: (name_of(kind) or b"").decode().upper() for kind in TENSOR_TYPES}
    assert names == TENSOR_TYPES


def test_names_of_file_types_are_those_of_the_gguf_package() -> None:
    known = {int(kind): kind.name for kind in gguf.LlamaFileType}
    shared = FILE_TYPES.keys() & known.keys()
    assert len(shared) > 30
    for kind in shared:
        assert (
            known[kind].removeprefix("MOSTLY_").removeprefix("ALL_").removesuffix("_MOE") == FILE_TYPES[kind]
        )
