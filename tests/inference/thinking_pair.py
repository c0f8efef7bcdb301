"""The bundled pair as one that thinks: its template opens the thinking, and tags may be tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf

from localspec.demo import bundled_pair

CLOSES = 7000  # a token that no answer needs
OPENS = 7001
_ANSWER = "'<|im_start|>assistant\\n' }}"


def thinking_pair(
    folder: Path, opening: str, tokens: Mapping[int, str] = {}, kind: int = gguf.TokenType.USER_DEFINED
) -> tuple[Path, Path]:
    """Write the pair: with other tokens of a kind, and `opening` where the template begins an answer.

    A template variable `enable_thinking` that is false leaves the opening out.
    """
    paths = []
    for source, name in zip(bundled_pair(), ("target.gguf", "draft.gguf"), strict=True):
        paths.append(folder / name)
        _copy(source, paths[-1], opening, tokens, kind)
    return paths[0], paths[1]


def _copy(source: Path, to: Path, opening: str, tokens: Mapping[int, str], kind: int) -> None:
    reader = gguf.GGUFReader(source)
    values = {field.name: field.contents() for field in reader.fields.values()}
    for token, text in tokens.items():
        values["tokenizer.ggml.tokens"][token] = text
        values["tokenizer.ggml.token_type"][token] = kind
    begun = f"{_ANSWER}{{% if enable_thinking %}}{{{{ {opening!r} }}}}{{% endif %}}"
    values["tokenizer.chat_template"] = values["tokenizer.chat_template"].replace(_ANSWER, begun)
    writer = gguf.GGUFWriter(to, values["general.architecture"])
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            inner = field.types[-1] if is_array else None
            writer.add_key_value(field.name, values[field.name], field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
