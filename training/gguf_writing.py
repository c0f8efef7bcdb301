"""The parts of a GGUF file that every model of this kit has alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from training.documents import SPECIALS

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

TYPES: Mapping[str, tuple[gguf.GGMLQuantizationType, gguf.LlamaFileType]] = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}


def add_tensor(
    writer: gguf.GGUFWriter, name: str, weight: NDArray[np.float32], kind: gguf.GGMLQuantizationType
) -> None:
    """Add a weight in the given type; vectors (norms) stay float32."""
    if weight.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, np.ascontiguousarray(weight), raw_dtype=gguf.GGMLQuantizationType.F32)
    else:
        packed = gguf.quants.quantize(np.ascontiguousarray(weight), kind)
        writer.add_tensor(name, np.ascontiguousarray(packed), raw_dtype=kind)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything that was added, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder the rows of q or k (dim, dim): rotated halves become llama.cpp's rotated neighbours."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def separate(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo `interleave`."""
    rows, columns = weight.shape
    neighbours = weight.reshape(heads, rows // heads // 2, 2, columns)
    return neighbours.swapaxes(1, 2).reshape(rows, columns)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Add vocabulary, merges, special tokens and the chat template of a `tokenizer.json`."""
    specification = json.loads(path.read_text(encoding="utf-8"))
    ids: dict[str, int] = specification["model"]["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    special = {token["content"] for token in specification["added_tokens"] if token["special"]}
    merges = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in specification["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges(merges)
    end_of_text, _, end_of_turn = SPECIALS
    writer.add_bos_token_id(ids[end_of_text])
    writer.add_pad_token_id(ids[end_of_text])
    writer.add_eos_token_id(ids[end_of_turn])
    writer.add_eot_token_id(ids[end_of_turn])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def copy_tokenizer(writer: gguf.GGUFWriter, source: gguf.GGUFReader) -> None:
    """Add vocabulary, merges, special tokens and chat template as another file has them."""
    for name, field in source.fields.items():
        if name.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
