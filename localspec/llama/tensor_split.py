"""Splits by tensor (`-sm tensor`), each matrix over several devices: what llama.cpp cannot do."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.errors import UserError
from localspec.gguf import Header, has_state
from localspec.llama.division import divided_parts
from localspec.supported import quoted, splits_by_tensor

MOST_DEVICES = 16  # ggml-backend.h, GGML_BACKEND_META_MAX_DEVICES
_INSTEAD = "use -sm layer"


def check_tensor_split(
    header: Header,
    devices: Sequence[str],
    flash_attention: bool | None,
    shares: tuple[float, ...] = (),
) -> None:
    """Raise `UserError` for a split by tensor that llama.cpp would refuse, abort at, or compute wrongly."""
    if len(devices) < 2:
        there = f"there is one: {devices[0]}" if devices else "there are none"
        raise UserError(f"-sm tensor divides a model between GPUs, and {there}", _INSTEAD)
    if len(devices) > MOST_DEVICES:
        raise UserError(f"-sm tensor takes at most {MOST_DEVICES} devices", "name them with -dev")
    if not splits_by_tensor(header.architecture):
        raise UserError(
            f"-sm tensor: llama.cpp cannot divide models of the architecture {quoted(header.architecture)}",
            _INSTEAD,
        )
    if flash_attention is False:
        raise UserError(
            "-sm tensor needs flash attention, which -fa off forbids", f"leave -fa out, or {_INSTEAD}"
        )
    servers = [name for name in devices if name.startswith("RPC")]
    if servers and has_state(header):
        raise UserError(
            f"-sm tensor: {servers[0]} is an RPC server, and those cannot hold a part of a recurrent state",
            _INSTEAD,
        )
    _check_parts(header, full_shares(shares, len(devices)))


def full_shares(shares: Sequence[float], devices: int) -> tuple[float, ...]:
    """Return a share for each device: those given, or equal ones where there are none."""
    given = (*shares, *(0.0 for _ in range(devices)))[:devices]
    return given if any(given) else (1.0,) * devices


def _check_parts(header: Header, shares: tuple[float, ...]) -> None:
    """Raise `UserError` if a device gets no part of a layer.

    llama.cpp multiplies the memory of its missing result by zero, which may hold no number
    (ggml-backend-meta.cpp, allreduce_fallback).
    """
    if not all(part.reaches(shares) for part in {*divided_parts(header)}):
        told = ":".join(f"{share:g}" for share in shares)
        raise UserError(
            f"-sm tensor: the layers of {header.path} have too few heads or experts too narrow to divide "
            f"between {len(shares)} devices ({told})",
            f"name fewer devices (-dev), give other shares (-ts), or {_INSTEAD}",
        )
