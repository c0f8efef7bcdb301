from __future__ import annotations

import ctypes

import gguf

from localspec.gguf import facts
from localspec.llama.library import native


def test_names_of_tensor_types_are_those_of_ggml() -> None:
    name_of = native()._lib["ggml_type_name"]
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
    named = {int(kind): name for kind, (name, *_) in facts()["tensor_types"].items()}
    assert {kind: (name_of(kind) or b"").decode().upper() for kind in named} == named


def test_names_of_file_types_are_those_of_the_gguf_package() -> None:
    known = {int(kind): kind.name for kind in gguf.LlamaFileType}
    named = {int(kind): name for kind, name in facts()["file_types"].items()}
    shared = named.keys() & known.keys()
    assert len(shared) > 30
    for kind in shared:
        name = known[kind].removeprefix("MOSTLY_").removeprefix("ALL_").removesuffix("_MOE")
        assert name == named[kind]
