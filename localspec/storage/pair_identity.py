"""What tuned settings are valid for: this machine, these model files and options."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from localspec.errors import ModelFileError, os_errors_as
from localspec.gguf import part_name
from localspec.storage.paths import expanded
from localspec.types.models import ModelOptions

_MIN_CLASS = 4096


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What of a machine decides how fast models run."""

    processor: str
    cores: int
    devices: tuple[str, ...] = ()  # GPUs with their names ("CUDA0: ...")
    driver: str = ""  # of NVIDIA's GPUs; empty if there are none or it is unknown
    llama_cpp: str = ""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's file, and its placement and CPU share in words."""

    path: str
    fingerprint: str
    seat: str


@dataclass(frozen=True, slots=True)
class Identity:
    """What tuned settings are valid for; `context` is the largest size, 0 for the model's own."""

    machine: MachineFacts
    target: ModelFacts
    draft: ModelFacts | None
    context: int

    @property
    def pair(self) -> str:
        """Return a name for files about this pair of models, whatever the machine and the placement."""
        files = (self.target.fingerprint, "" if self.draft is None else self.draft.fingerprint)
        return hashlib.sha256(repr(files).encode()).hexdigest()[:16]


def identify(target: ModelOptions, draft: ModelOptions | None, machine: MachineFacts) -> Identity:
    """Return the identity that settings tuned for models opened like this are valid for.

    The options are the plan's, before a tuned `LoadOptions` changes them. Raises `ModelFileError`.
    """
    return Identity(
        machine,
        _facts(target),
        None if draft is None else _facts(draft),
        _context_class(target.context),
    )


def changes(kept: Identity, now: Identity) -> tuple[str, ...]:
    """Return the changes since settings were tuned as text; empty if they are still valid."""
    before = kept.machine
    after = now.machine
    found = []
    if (before.processor, before.cores) != (after.processor, after.cores):
        found.append(f"tuned on another CPU: {before.processor}, {before.cores} cores")
    if before.devices != after.devices:
        found.append(f"tuned with {_listed(before.devices)}, now {_listed(after.devices)}")
    if before.driver and after.driver and before.driver != after.driver:
        found.append(f"tuned with driver {before.driver}, now {after.driver}")
    if before.llama_cpp != after.llama_cpp:
        found.append(f"tuned with llama-cpp-python {before.llama_cpp}, now {after.llama_cpp}")
    for role, old, new in (("target", kept.target, now.target), ("draft model", kept.draft, now.draft)):
        if old is None or new is None:
            if old is not new:
                found.append(f"tuned with{'out' if old is None else ''} a {role}")
            continue
        if old.fingerprint != new.fingerprint:
            found.append(f"the file of the {role} has changed")
        if old.seat != new.seat:
            found.append(f"another placement: the {role} was on {old.seat}, now {new.seat}")
    if kept.context != now.context:
        found.append(f"tuned for a context of {_size(kept.context)}, now {_size(now.context)}")
    return tuple(found)


def _facts(options: ModelOptions) -> ModelFacts:
    path = expanded(options.path).absolute()
    return ModelFacts(str(path), fingerprint(path), _seat(options))


def _seat(options: ModelOptions) -> str:
    parts = [f"{options.threads} threads" if options.threads else "all cores"]
    if options.devices == ():
        parts.insert(0, "the processor")
    else:
        names = "all devices" if options.devices is None else " and ".join(options.devices)
        layers = "all layers" if options.gpu_layers is None else f"{options.gpu_layers} layers"
        parts.insert(0, f"{names} ({layers}{_split(options)})")
    if (options.kv_type_k, options.kv_type_v) != ("f16", "f16"):
        parts.append(f"cache {options.kv_type_k}/{options.kv_type_v}")
    parts += [f"with {adapter.path.name} at {adapter.scale:g}" for adapter in options.adapters]
    return ", ".join(parts)


def _split(options: ModelOptions) -> str:
    ways = "" if options.split_mode == "layer" else f", split by {options.split_mode}"
    shares = ":".join(f"{share:g}" for share in options.tensor_split)
    home = ", output at home" if options.output_at_home else ""
    experts = f", experts of {options.experts_at_home} layers in RAM" if options.experts_at_home else ""
    moved = "".join(f", {override.pattern} on {override.device}" for override in options.overrides)
    return ways + (f", {shares}" if shares else "") + home + experts + moved


def _context_class(context: int) -> int:
    """Return the size up to which costs are about the same: what is free decides the exact one."""
    size = _MIN_CLASS
    while size < context:
        size *= 4
    return size if context else 0


def _listed(devices: tuple[str, ...]) -> str:
    return ", ".join(devices) or "the processor alone"


def _size(context: int) -> str:
    return f"up to {context:,} tokens" if context else "the model's own size"


HEAD_BYTES = 256 * 1024  # names, sizes and the first words of the vocabulary
BLOCKS = 64
BLOCK_BYTES = 16 * 1024


def fingerprint(path: Path) -> str:
    """Return a fingerprint of a model's files: their sizes, and a hash of 1.3 MB from all over each.

    For a model in several files, `path` is the first. Raises `ModelFileError`.
    """
    split = part_name(path.name)
    with os_errors_as(f"{path} cannot be read", ModelFileError):
        parts = [path.with_name(name) for name in (split.every if split else [path.name])]
        return _fingerprint(tuple((part, part.stat().st_size, part.stat().st_mtime_ns) for part in parts))


@lru_cache(8)
def _fingerprint(parts: tuple[tuple[Path, int, int], ...]) -> str:
    """Return the fingerprint of files with their sizes and times of change; raises OSError."""
    digest = hashlib.sha256()
    for part, size, _ in parts:
        digest.update(size.to_bytes(8, "little"))
        with part.open("rb") as file:
            digest.update(file.read(HEAD_BYTES))
            for number in range(1, BLOCKS + 1):
                file.seek(max(0, size * number // BLOCKS - BLOCK_BYTES))
                digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()[:32]
