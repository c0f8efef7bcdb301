"""Write down what the pinned llama.cpp can open, from its source.

python -m tests.benchmarks.llama_cpp_names llama_cpp_python-0.3.36 > localspec/supported.toml

The folder is the unpacked source of llama-cpp-python, which `pip download --no-binary :all: --no-deps` gets.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

HEAD = """\
# What the llama.cpp within llama-cpp-python can open: made from its source by
# tests/benchmarks/llama_cpp_names.py, and not by hand
"""
WIDTH = 110


def between(text: str, start: str, end: str) -> str:
    """Return what stands between two marks; raises ValueError where the source no longer has them."""
    begin = text.index(start)
    return text[begin : text.index(end, begin)]


def architectures(source: Path) -> list[str]:
    """Return the architectures that have both a name and a model: some have a name alone."""
    names = between((source / "src/llama-arch.cpp").read_text("utf-8"), "LLM_ARCH_NAMES = {", "};")
    mapping = between(
        (source / "src/llama-model.cpp").read_text("utf-8"),
        "llama_model_mapping(",
        "unsupported model architecture",
    )
    models = set(re.findall(r"case (LLM_ARCH_\w+):", mapping))
    return [name for key, name in re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"', names) if key in models]


def not_split_by_tensor(source: Path, known: list[str]) -> list[str]:
    """Return those of the known architectures of which `-sm tensor` cannot split a model."""
    text = (source / "src/llama-arch.cpp").read_text("utf-8")
    names = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"', between(text, "LLM_ARCH_NAMES = {", "};")))
    refused = between(text, "bool llm_arch_supports_sm_tensor(", "default:")
    return [names[key] for key in re.findall(r"case (LLM_ARCH_\w+):", refused) if names[key] in known]


def vocabulary(source: Path) -> tuple[list[str], list[str]]:
    """Return the kinds of tokenizers, and what byte-pair ones may do to a text before."""
    load = between(
        (source / "src/llama-vocab.cpp").read_text("utf-8"),
        "void llama_vocab::impl::load(",
        "unknown pre-tokenizer type",
    )
    kinds, pre = load.split("tokenizer_pre.empty()")
    return (
        re.findall(r'tokenizer_model == "([^"]+)"', between(kinds, "void", "unknown tokenizer")),
        re.findall(r'tokenizer_pre == "([^"]+)"', pre),
    )


def tensor_types(source: Path) -> list[int]:
    """Return ggml's numbers of the types that tensors may have; some were taken away."""
    types = between(
        (source / "ggml/include/ggml.h").read_text("utf-8"), "enum ggml_type {", "GGML_TYPE_COUNT"
    )
    return [int(number) for number in re.findall(r"^\s*GGML_TYPE_\w+\s*= (\d+),", types, re.MULTILINE)]


def listed(name: str, values: list[str] | list[int]) -> str:
    """Return a list as TOML; raises ValueError for an empty one, where the source is written otherwise."""
    if not values:
        raise ValueError(f"the source has no {name} where they used to be")
    items = ", ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)
    lines = textwrap.wrap(items + ",", WIDTH - 4, break_on_hyphens=False, break_long_words=False)
    return f"\n{name} = [\n" + "".join(f"    {line}\n" for line in lines) + "]\n"


def document(folder: Path) -> str:
    """Return the list that an unpacked llama-cpp-python gives; raises OSError and ValueError."""
    init = (folder / "llama_cpp/__init__.py").read_text("utf-8")
    (version,) = re.findall(r'^__version__ = "([^"]+)"', init, re.MULTILINE)
    source = folder / "vendor/llama.cpp"
    tokenizers, pre_tokenizers = vocabulary(source)
    known = architectures(source)
    return "".join(
        (
            HEAD,
            f'version = "{version}"\n',
            listed("tensor_types", tensor_types(source)),
            listed("not_split_by_tensor", not_split_by_tensor(source, known)),
            "\n[names]",
            listed("architecture", known),
            listed("tokenizer", tokenizers),
            listed("pre-tokenizer", pre_tokenizers),
        )
    )


if __name__ == "__main__":
    sys.stdout.write(document(Path(sys.argv[1])))
