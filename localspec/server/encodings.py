"""Bodies that clients compress: gzip and deflate, and zstd where Python has it."""

from __future__ import annotations

import zlib
from importlib import import_module

from starlette.exceptions import HTTPException

_ANY_HEADER = 47  # gzip's or zlib's
_NO_HEADER = -15  # what some clients send as deflate
_HINT = "send it as it is (in Codex: features.enable_request_compression=false)"


def unpacked(data: bytes, encodings: str, most: int) -> bytes:
    """Return a body without its `Content-Encoding`.

    Raises HTTPException: 415 for an unknown one, 413 for more than `most` bytes, 400 for damaged data.
    """
    names = [name.strip().lower() for name in encodings.split(",")]
    for name in reversed([name for name in names if name not in ("", "identity")]):
        try:
            data = _unpacked(data, name, most + 1)
        except (zlib.error, EOFError, ValueError):
            raise HTTPException(400, f"the request is not what its Content-Encoding {name} says") from None
        if len(data) > most:
            raise HTTPException(413, f"a request may have {most // 2**20} MiB, also unpacked")
    return data


def _unpacked(data: bytes, name: str, most: int) -> bytes:
    if name in ("gzip", "x-gzip"):
        return _inflated(data, _ANY_HEADER, most)
    if name == "deflate":
        try:
            return _inflated(data, _ANY_HEADER, most)
        except zlib.error:
            return _inflated(data, _NO_HEADER, most)
    if name == "zstd":
        return _decompressed(data, most)
    raise HTTPException(415, f"Content-Encoding {name[:40]} is not known here; {_HINT}")


def _inflated(data: bytes, header: int, most: int) -> bytes:
    """Return up to `most` bytes of all members of a stream."""
    found = bytearray()
    while data and len(found) < most:
        member = zlib.decompressobj(header)
        found += member.decompress(data, most - len(found))
        if len(found) < most and not member.eof:
            raise EOFError
        data = member.unused_data
    return bytes(found)


def _decompressed(data: bytes, most: int) -> bytes:
    try:
        zstd = import_module("compression.zstd")  # Python 3.14
    except ImportError:
        raise HTTPException(415, f"Content-Encoding zstd needs Python 3.14 here; {_HINT}") from None
    found = bytearray()
    try:
        while data and len(found) < most:
            frame = zstd.ZstdDecompressor()
            found += frame.decompress(data, max_length=most - len(found))
            if len(found) < most and not frame.eof:
                raise EOFError
            data = frame.unused_data
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from None
    return bytes(found)
