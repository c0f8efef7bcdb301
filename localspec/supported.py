"""What the pinned llama.cpp supports, known before a file is downloaded or loaded.

`supported.toml` is made from its source. If another llama-cpp-python is installed, it decides itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from localspec.errors import UnsupportedError
from localspec.safe_text import safe_line

_SHOWN = 80  # characters of a name in a message
_FIRST_OF_IK_LLAMA = 133  # of the types of tensors that ik_llama.cpp has added; llama.cpp counts from below


@cache
def supported() -> dict[str, Any]:
    """Return the features of a version of llama-cpp-python."""
    import tomllib  # 3 ms

    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def check_known(path: Path, named: Iterable[tuple[str, str]], types: Iterable[int]) -> None:
    """Raise `UnsupportedError` for a file that llama.cpp does not support.

    `named` has pairs of kind ("architecture") and name from its header; `types` has ggml's numbers of its
    tensor types.
    """
    names = supported()["names"]
    numbers = supported()["tensor_types"]
    unknown = [unsupported(path, kind, name) for kind, name in named if name not in names[kind]]
    unknown += [unsupported_type(path, number) for number in types if number not in numbers][:1]
    if unknown and _is_pinned():
        raise unknown[0]


def splits_by_tensor(architecture: str) -> bool:
    """Return whether llama.cpp can split each matrix of a model over devices (`-sm tensor`)."""
    return architecture not in supported()["not_split_by_tensor"] or not _is_pinned()


def unsupported(path: Path, kind: str, name: str) -> UnsupportedError:
    """Return the error for a file that needs something, by name, which llama.cpp does not know."""
    return UnsupportedError(
        f"{path} needs the {kind} {quoted(name)}, which this version of LocalSpec does not know yet",
        "a newer version may know it; until then choose another model",
    )


def unsupported_type(path: Path, number: int) -> UnsupportedError:
    """Return the error for a file with a type of tensors, by ggml's number, which llama.cpp does not know."""
    hint = "a newer version may know it; until then choose another quantization of the model"
    if number >= _FIRST_OF_IK_LLAMA:
        hint = "it may be one of ik_llama.cpp's own types: choose another quantization of the model"
    elif number < max(supported()["tensor_types"]):
        hint = "llama.cpp gave this type up, or never had it: choose another quantization of the model"
    return UnsupportedError(
        f"{path} is quantized in a type ({number}) that this version of LocalSpec does not know", hint
    )


def quoted(name: str) -> str:
    """Return a name from a file as messages show it."""
    return f"`{safe_line(name)[:_SHOWN]}`"


def _is_pinned() -> bool:
    """Return whether the installed llama-cpp-python is the one whose source the list was made from."""
    from importlib.metadata import PackageNotFoundError, version  # 10 ms

    with suppress(PackageNotFoundError):
        return version("llama-cpp-python").partition("+")[0] == str(supported()["version"])
    return True
