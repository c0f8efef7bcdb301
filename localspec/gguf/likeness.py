"""The first bytes of a file: whether it is a GGUF file at all, and what else it may be."""

from __future__ import annotations

from pathlib import Path

from localspec.errors import ModelFileError

_LIKENESSES = (  # how other files start, in lower case
    ((b"<!doctype", b"<html", b"<?xml"), "it is a web page, perhaps the error page of a download"),
    ((b"version https://git-lfs",), "it is a Git LFS pointer, not the file itself"),
    (
        (b"pk\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf"),
        "it is an archive or a PyTorch checkpoint",
    ),
    ((b"lmgg", b"tjgg", b"fmgg"), "it is in llama.cpp's format from before GGUF"),
)


def check_magic(path: Path, start: bytes) -> None:
    """Raise `ModelFileError` unless these are the first bytes of a GGUF file that can be read."""
    if not start:
        raise ModelFileError(f"{path} is empty", "download the file again")
    if not start.startswith(b"GGUF"):
        raise ModelFileError(
            f"{path} is not a GGUF file: {_resemblance(start)}", "LocalSpec runs GGUF models"
        )
    version = start[4:8]
    if len(version) == 4 and int.from_bytes(version, "little") not in (2, 3):
        order = "big-endian" if int.from_bytes(version, "big") in (2, 3) else "of another version"
        raise ModelFileError(
            f"{path} is a GGUF file {order}", "look for a current, little-endian GGUF of the model"
        )


def _resemblance(start: bytes) -> str:
    text = start.lstrip().lower()
    for prefixes, likeness in _LIKENESSES:
        if text.startswith(prefixes):
            return likeness
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 2**32:
        return "it looks like safetensors"
    if not start.strip(b"\0"):
        return "it starts with zeros, like a download that was only begun"
    return f"it starts with {start[:8]!r}"
