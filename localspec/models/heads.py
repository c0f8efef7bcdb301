"""Draft heads: which files contain one, and whether it fits a target, from headers alone.

A misfit must be found here: llama.cpp would end the process, or draft nonsense.
Sources: llama.cpp's src/models/eagle3.cpp, qwen35.cpp, common/speculative.cpp.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from localspec.errors import ModelFileError, PairingError
from localspec.gguf import TOKENS, Header, check_model_file, facts, is_mtp_head, read_header, read_model
from localspec.types.models import ModelOptions

HeadKind = Literal["mtp", "eagle3"]

_OTHER = "name another -md file, or leave it out: repetitions in the text serve as drafts too"
_LAYERS = 3  # EAGLE-3 reads the inputs of this many layers
_I64 = 27  # ggml.h, enum ggml_type


def kind_of_draft(target: Path, draft: Path | None) -> HeadKind | None:
    """Return the kind of head in a draft file, or without one in the target's file; None without a head.

    An unreadable file counts as one without a head; opening it reports the error. Raises `PairingError` for
    a head that does not fit the target.
    """
    with suppress(ModelFileError):
        one = read_model(target)
        if head_kind(one) == "mtp":
            raise PairingError(
                f"{target} has an MTP head but no model", "give it with -md, the model with -m"
            )
        if draft is None or draft == target:
            is_there, problem = own_head(one)
            if draft is not None and problem:
                raise PairingError(problem, _OTHER)
            return "mtp" if is_there else None
        other = read_model(draft)
        if (kind := head_kind(other)) is not None:
            check_head(one, other)
        return kind
    return None


def unsupported_draft(draft: Path) -> str:
    """Return the kind of a drafter that LocalSpec does not support; empty for all other files."""
    with suppress(ModelFileError):
        header = read_header(draft)
        if kind := facts()["other_heads"].get(header.architecture):
            return f"{header.name} is {kind}, which LocalSpec does not support yet: it continues without"
    return ""


def head_for(target: ModelOptions, draft: ModelOptions | None) -> HeadKind | None:
    """Return the kind of head that drafts for a target, None for a draft model.

    The target's file as draft means the head in it. Raises `PairingError` if it does not fit.
    """
    kind = kind_of_draft(target.path, None if draft is None else draft.path)
    if draft is None:
        return None
    for path in (target.path, draft.path):
        check_model_file(path, head=kind is not None and path == draft.path)
    if kind == "eagle3" and borrows(read_header(draft.path)):
        _check_borrowed(target, draft)
    return kind


def _check_borrowed(target: ModelOptions, draft: ModelOptions) -> None:
    """Raise `PairingError` for a head that cannot use the tensors that it borrows of its target."""
    if target.split_mode == "tensor":
        raise PairingError(
            f"{draft.path.name} borrows tensors of its target, which -sm tensor divides", "use -sm layer"
        )
    if _place(target) != _place(draft):
        raise PairingError(
            f"{draft.path.name} borrows tensors of its target, but is placed on another device",
            "give -devd and -ngld as -dev and -ngl, or leave them out",
        )


def _place(options: ModelOptions) -> tuple[str, ...] | None:
    """Return the last of the devices that options name, nothing for the CPU, None for all there are."""
    if options.gpu_layers == 0:
        return ()
    return options.devices if options.devices is None else options.devices[-1:]


def head_part(header: Header) -> Header:
    """Return a file's header with nothing but the tensors of the MTP head in it."""
    block = f"blk.{header.integer('{arch}.block_count') - 1}."
    tensors = tuple(tensor for tensor in header.tensors if tensor.name.startswith(block))
    parameters, weight_bytes = (sum(getattr(t, name) for t in tensors) for name in ("elements", "bytes"))
    return replace(header, tensors=tensors, parameters=parameters, weight_bytes=weight_bytes)


def head_kind(draft: Header) -> HeadKind | None:
    """Return the kind of head in a draft file, None for a whole model."""
    if draft.architecture == "eagle3":
        return "eagle3"
    return "mtp" if is_mtp_head(draft) else None


def own_head(target: Header) -> tuple[bool, str]:
    """Return whether a model's file has a usable MTP head; else the reason, if its header mentions one."""
    heads = target.integer("{arch}.nextn_predict_layers")
    blocks = target.integer("{arch}.block_count")
    if not heads or target.architecture in facts()["no_heads"]:
        return False, ""
    if heads > 1:
        return False, f"{target.name} has {heads} MTP blocks; LocalSpec drafts with heads of one"
    if target.architecture not in facts()["mtp"]:
        kind = f"the MTP head of {target.name} ({target.architecture})"
        return False, f"{kind} is of a kind with which LocalSpec cannot draft yet"
    wanted = f"blk.{blocks - 1}.nextn.eh_proj.weight"
    if not any(tensor.name == wanted for tensor in target.tensors):
        return False, f"{target.name} claims an MTP head, but its file lacks it: {wanted} is missing"
    return True, ""


def check_head(target: Header, draft: Header) -> None:
    """Raise `PairingError` unless the head in a draft file fits a target."""
    problem = _eagle3_problem(target, draft) if head_kind(draft) == "eagle3" else _mtp_problem(target, draft)
    if problem:
        raise PairingError(f"{draft.path.name} cannot draft for {target.path.name}: {problem}", _OTHER)


def _mtp_problem(target: Header, draft: Header) -> str:
    if draft.architecture != target.architecture:
        return f"its MTP head is of a {draft.architecture}, the target is a {target.architecture}"
    wide, made_for = (header.integer("{arch}.embedding_length") for header in (target, draft))
    if made_for != wide or _trunk(draft) != _trunk(target):
        sizes = f"{_trunk(draft)} layers, {made_for} numbers wide"
        return f"it was made for a target of {sizes}; this one has {_trunk(target)}, {wide} numbers wide"
    return own_head(draft)[1]


def _eagle3_problem(target: Header, draft: Header) -> str:
    layers = draft.numbers.get("eagle3.target_layers", ())
    count = _trunk(target)
    if target.architecture not in facts()["layer_inputs"]:
        return f"llama.cpp does not hand out what the layers of a {target.architecture} read"
    if len(layers) != _LAYERS:
        return f"it names {len(layers)} layers of its target, not {_LAYERS}"
    most = count if target.architecture in facts()["last_output"] else count - 1
    if not all(0 <= layer <= most for layer in layers):
        listed = ", ".join(f"{layer:.0f}" for layer in layers)
        return f"it reads layers {listed} of its target, which has {count}"
    wide = target.integer("{arch}.embedding_length")
    narrow = draft.integer("{arch}.embedding_length")
    if draft.integer("eagle3.target_hidden_size") != wide:
        hidden = draft.integer("eagle3.target_hidden_size")
        return f"it was made for a target {hidden} numbers wide, this one has {wide}"
    if borrows(draft) and narrow != wide:
        return f"it borrows tensors of its target, which is {wide} numbers wide, and is itself {narrow} wide"
    known = draft.counts.get(TOKENS, 0)
    drafted = _drafted(draft)
    return "" if all(0 <= token < known for token in drafted) else f"its d2t goes beyond {known:,} tokens"


def _drafted(draft: Header) -> tuple[int, ...]:
    """Return the tokens that a head can draft where its file lists them; -1 for a list of another type."""
    found = next((tensor for tensor in draft.tensors if tensor.name == "d2t"), None)
    if found is None:
        return ()
    data = draft.end - max(tensor.at + tensor.bytes for tensor in draft.tensors)
    with draft.path.open("rb") as file:
        file.seek(data + found.at)
        raw = file.read(found.bytes)
    return struct.unpack(f"<{found.elements}q", raw) if found.kind == _I64 else (-1,)


def borrows(draft: Header) -> bool:
    """Return whether an EAGLE-3 head borrows tensors of its target, and so must be on its device."""
    return not {"token_embd.weight", "output.weight"} <= {tensor.name for tensor in draft.tensors}


def _trunk(header: Header) -> int:
    """Return the number of layers without the heads after them."""
    return header.integer("{arch}.block_count") - header.integer("{arch}.nextn_predict_layers")
