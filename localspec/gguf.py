"""GGUF files: what their headers say, read from a disk or from any source of byte ranges."""

from __future__ import annotations

import hashlib
import re
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite, prod
from pathlib import Path
from typing import Any, Literal

from localspec.errors import ModelFileError
from localspec.safe_text import safe_line
from localspec.supported import check_known, quoted

Scalar = bool | int | float | str

TOKENS = "tokenizer.ggml.tokens"
_ALIGNMENT = "general.alignment"
_HEADS = ("cls.weight", "cls.output.weight")  # of models that rank or classify
_RANKED = 4  # the type of pooling, which some files leave out
_LARGEST = 2**32  # llama.cpp reads what a model consists of into 32 bits
_LONGEST_NAME = 200
_MAX_ELEMENTS = 2**63  # of a tensor, as in ggml


@cache
def facts() -> dict[str, Any]:
    """Return llama.cpp's tables of types, tokenizers and architectures; `gguf.toml` explains them."""
    import tomllib  # 3 ms

    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def kv_types() -> dict[str, tuple[int, int]]:
    """Return by the name of a type for caches ggml's number for it, and the bytes of 32 elements."""
    types = facts()["tensor_types"].items()
    return {name.lower(): (int(kind), 32 // many * size) for kind, (name, many, size) in types if many <= 32}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file: its sizes as ggml counts them, the innermost first; `kind` is ggml's number."""

    name: str
    kind: int
    sizes: tuple[int, ...]
    elements: int
    bytes: int
    at: int = 0  # where it starts, after the header


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a GGUF file."""

    path: Path
    architecture: str
    values: dict[str, Scalar]
    numbers: dict[str, tuple[float, ...]]  # the short arrays
    counts: dict[str, int]  # every array's length
    tensors: tuple[Tensor, ...]
    parameters: int
    weight_bytes: int
    end: int  # where the last tensor ends in the file
    file_bytes: int
    tokens_at: int = 0  # where the texts of the vocabulary start in the file, and how many bytes they are
    tokens_bytes: int = 0
    tokens_digest: str = ""  # a checksum of them
    repeated: str | None = None  # a key that is there twice

    def text(self, key: str) -> str:
        """Return a text value; empty where there is none."""
        value = self.values.get(key, "")
        return value if isinstance(value, str) else ""

    def integer(self, key: str, default: int = 0) -> int:
        """Return an integer value; `{arch}` in the key stands for the architecture."""
        value = self.values.get(key.replace("{arch}", self.architecture), default)
        return self._whole(key, value) if isinstance(value, int | float) else default

    @property
    def name(self) -> str:
        """Return the model's name from the header, in one line, else the name of its file."""
        name = safe_line(self.text("general.name")).strip() or safe_line(self.path.stem)
        return name[:_LONGEST_NAME]

    @property
    def acceptance(self) -> float | None:
        """Return the acceptance rate that a draft model's header gives for its target, if it does."""
        value = self.values.get("localspec.acceptance")
        return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None

    def per_layer(self, key: str, layers: int, default: int = 0) -> tuple[int, ...]:
        """Return an integer for each layer, whether the file gives one for all or one for each."""
        numbers = self.numbers.get(key.replace("{arch}", self.architecture))
        if numbers is None:
            return (self.integer(key, default),) * layers
        return tuple(self._whole(key, number) for number in numbers[:layers])

    def _whole(self, key: str, number: float) -> int:
        if not isfinite(number):
            return 0
        if abs(number) > _LARGEST:
            raise self.broken(f"{key.replace('{arch}', self.architecture)} is {number:g}")
        return int(number)

    def broken(self, what: str, hint: str = "download the file again") -> ModelFileError:
        """Return the error for a header that says something impossible."""
        return ModelFileError(f"{self.path} has a broken GGUF header: {what}", hint)


_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_UINT32 = 4
_STRING = 8
_ARRAY = 9
_DIMENSIONS = 4  # ggml.h, GGML_MAX_DIMS
_ARRAY_HEAD = 12  # the kind of its members and their number
_MAGIC = 8  # bytes, with the version
# bytes in a header
_MIN_ENTRY = 13
_MIN_TENSOR = 24
_MAX_LISTED = 50_000  # keys, or tensors; large models have some thousands
_NUMBERS_KEPT = 1024  # short arrays of numbers are per-layer settings; longer ones belong to the vocabulary

Ranges = Callable[[int, int], bytes]
"""Reads a number of bytes of a file from an offset."""

_FIRST_READ = 1 << 20  # most headers are 1 to 16 MB, nearly all of it the vocabulary
_GROWTH = 4
_MAX_HEADER = 64 << 20  # of 8 million empty texts it is read in 2 s


class _Reader:
    """A cursor over the start of a file of `size` bytes, of which it reads more where that is needed."""

    def __init__(self, read: Ranges, size: int) -> None:
        self._read = read
        self._size = size
        self.data = read(0, min(_FIRST_READ, size))
        self.at = 0

    def check(self, count: int) -> None:
        """Raise EOFError if the file lacks `count` more bytes, ValueError if a header cannot be so long."""
        end = self.at + count
        if end > min(self._size, _MAX_HEADER):
            raise EOFError if end > self._size else ValueError

    def skip(self, count: int) -> int:
        """Read `count` bytes into `data`; return their start."""
        start = self.at
        if start + count > len(self.data):
            self.check(count)
        self.at += count
        while len(self.data) < self.at:
            wanted = min(max(len(self.data) * _GROWTH, self.at), self._size, _MAX_HEADER)
            if not (piece := self._read(len(self.data), wanted - len(self.data))):
                raise EOFError
            self.data += piece
        return start

    def number(self, kind: str) -> int | float | bool:
        start = self.skip(struct.calcsize("<" + kind))
        (value,) = struct.unpack_from("<" + kind, self.data, start)
        return value  # type: ignore[no-any-return]

    def count(self) -> int:
        value = int(self.number("Q"))
        if value > self._size:  # nothing in a file can be more numerous than its bytes
            raise ValueError
        return value

    def string(self) -> str:
        size = self.count()
        start = self.skip(size)
        return self.data[start : self.at].decode("utf-8", "replace")

    def skip_strings(self, count: int) -> None:
        self.check(8 * count)
        start = self.at
        rest = iter(range(count))
        size_of = struct.Struct("<Q").unpack_from
        data = self.data
        at = start
        while True:
            try:
                for _ in rest:  # of 300,000 texts of a vocabulary: nothing in it but what must be
                    at += 8 + size_of(data, at)[0]
                break
            except struct.error:  # its size is beyond the bytes read so far
                self.at = at
                size = self.count()
                data = self.data
                at = self.at + size
        self.at = start
        self.skip(at - start)

    def array(self) -> tuple[int, tuple[float, ...] | None]:
        kind = int(self.number("I"))
        count = self.count()
        if kind == _STRING:
            self.skip_strings(count)
            return count, None
        if kind not in _FORMATS:
            raise ValueError
        start = self.skip(count * struct.calcsize("<" + _FORMATS[kind]))
        if count > _NUMBERS_KEPT:
            return count, None
        return count, struct.unpack_from(f"<{count}{_FORMATS[kind]}", self.data, start)


def parse(path: Path, reader: _Reader, file_bytes: int) -> Header:
    """Read a header at the reader's position."""
    reader.skip(_MAGIC)
    count = reader.count()
    entries = reader.count()
    if max(count, entries) > _MAX_LISTED:
        raise ValueError
    reader.check(entries * _MIN_ENTRY + count * _MIN_TENSOR)
    values: dict[str, Scalar] = {}
    numbers: dict[str, tuple[float, ...]] = {}
    counts: dict[str, int] = {}
    tokens_at = 0
    tokens_bytes = 0
    digest = ""
    repeated = None
    for _ in range(entries):
        key = reader.string()
        kind = int(reader.number("I"))
        if key in values or key in counts:
            repeated = key
        if key == _ALIGNMENT and kind != _UINT32:
            raise ValueError
        if kind == _STRING:
            values[key] = reader.string()
        elif kind == _ARRAY:
            start = reader.at + _ARRAY_HEAD
            counts[key], kept = reader.array()
            if kept is not None:
                numbers[key] = kept
            if key == TOKENS:
                tokens_at = start
                tokens_bytes = reader.at - start
                digest = hashlib.blake2b(reader.data[start : reader.at], digest_size=8).hexdigest()
        else:
            if kind not in _FORMATS:
                raise ValueError
            values[key] = reader.number(_FORMATS[kind])
    tensors, last = _tensors(reader, count)
    alignment = values.get(_ALIGNMENT, 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise ValueError
    return Header(
        path=path,
        architecture=str(values.get("general.architecture", "")),
        values=values,
        numbers=numbers,
        counts=counts,
        tensors=tensors,
        parameters=sum(tensor.elements for tensor in tensors),
        weight_bytes=sum(tensor.bytes for tensor in tensors),
        end=-(-reader.at // alignment) * alignment + last if tensors else reader.at,
        file_bytes=file_bytes,
        tokens_at=tokens_at,
        tokens_bytes=tokens_bytes,
        tokens_digest=digest,
        repeated=repeated,
    )


def _tensors(reader: _Reader, count: int) -> tuple[tuple[Tensor, ...], int]:
    """Return the tensors, and where the last one ends, counted from the first."""
    types = facts()["tensor_types"]
    listed = []
    last = 0
    for _ in range(count):
        name = reader.string()
        dimensions = int(reader.number("I"))
        if dimensions > _DIMENSIONS:
            raise ValueError
        sizes = tuple(int(reader.number("Q")) for _ in range(dimensions))
        kind = int(reader.number("I"))
        offset = int(reader.number("Q"))
        _, per_block, block_bytes = types.get(str(kind), ("", 1, 0))  # of a later type only its start counts
        elements = prod(sizes)
        if elements >= _MAX_ELEMENTS:
            raise ValueError
        size = elements // per_block * block_bytes
        listed.append(Tensor(name, kind, sizes, elements, size, offset))
        last = max(last, offset + size)
    return tuple(listed), last


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


File = tuple[Path, int, int, int]
"""A file as it was found: its path, inode, size, and when it was changed."""
known: dict[File, Header] = {}
"""The headers that were read last; a plan reads the files that are opened then: 20 to 50 ms each."""
_KNOWN = 4


def read_header(path: Path) -> Header:
    """Read a GGUF file's header, unless it is known; raise `ModelFileError` if it is not one."""
    with _plain_errors(path):
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{path} is a folder", "name the .gguf file in it")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe waits for its other end
            raise ModelFileError(f"{path} is a pipe or a device", "save the model as a file")
        file = (path, status.st_ino, status.st_size, status.st_mtime_ns)
        if (header := known.get(file)) is None:
            header = known[file] = _read(path, status.st_size)
            for old in [*known][:-_KNOWN]:
                known.pop(old, None)
        return header


def _read(path: Path, file_bytes: int) -> Header:
    with path.open("rb", buffering=0) as file:  # not mapped: where a file gets shorter, that ends the process

        def read(start: int, count: int) -> bytes:
            file.seek(start)
            return file.read(count)

        return header_of(read, file_bytes, path)


def header_of(read: Ranges, file_bytes: int, path: Path) -> Header:
    """Read a header through byte ranges, few and growing; `path` is what messages call the file."""
    with _plain_errors(path):
        reader = _Reader(read, file_bytes)
        check_magic(path, reader.data[:512])
        return parse(path, reader, file_bytes)


def read_tokens(header: Header) -> tuple[bytes, ...]:
    """Return the texts of the vocabulary from the file of a header, as they are stored there."""
    found = []
    size_of = struct.Struct("<Q").unpack_from
    with _plain_errors(header.path), header.path.open("rb") as file:
        file.seek(header.tokens_at)
        data = file.read(header.tokens_bytes)
        at = 0
        for _ in range(header.counts.get(TOKENS, 0)):
            end = at + 8 + size_of(data, at)[0]
            found.append(data[at + 8 : end])
            at = end
        if at > len(data):
            raise struct.error("text beyond the end")
    return tuple(found)


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        if path.is_symlink():
            raise ModelFileError(f"{path} links to a file that is gone", "download it again") from None
        raise ModelFileError(f"there is no file {path}", "check the spelling of the path") from None
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read: {error.strerror or error}", "check the file's permissions"
        ) from error
    except (EOFError, struct.error):
        raise ModelFileError(
            f"{path} ends inside its header", "the file is incomplete: download it again"
        ) from None
    except (KeyError, MemoryError, OverflowError, ValueError):  # the bytes say something impossible
        raise ModelFileError(f"{path} has a broken GGUF header", "download the file again") from None


_MAX_PARTS = 10_000
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PartName:
    """What the name of one file of a split model says: part `number` of `count`."""

    prefix: str
    number: int
    count: int

    @property
    def every(self) -> list[str]:
        """Return the names of all parts, in order."""
        return [f"{self.prefix}-{number:05d}-of-{self.count:05d}.gguf" for number in range(1, self.count + 1)]


def part_name(name: str) -> PartName | None:
    """Return the part number of a split model's file from its name; None for a model in one file."""
    found = _PART.fullmatch(name)
    return PartName(found[1], int(found[2]), int(found[3])) if found else None


def read_model(path: Path) -> Header:
    """Read a model's header with the totals of all its files, named by the first; raises `ModelFileError`."""
    header = read_header(path)
    parts = [header, *(read_header(path) for path in _paths(header)[1:])]
    for part in parts:
        check_file(part)
    return total(parts)


def total(parts: Sequence[Header]) -> Header:
    """Return the first part's header with the tensors and totals of all."""
    return replace(
        parts[0],
        parameters=sum(part.parameters for part in parts),
        weight_bytes=sum(part.weight_bytes for part in parts),
        file_bytes=sum(part.file_bytes for part in parts),
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
    )


def _paths(header: Header) -> list[Path]:
    count = header.integer("split.count")
    if count <= 1:
        return [header.path]
    if count > _MAX_PARTS:
        raise ModelFileError(f"{header.path} claims {count:,} parts", "download the file again")
    suffix = f"-{header.integer('split.no') + 1:05d}-of-{count:05d}.gguf"
    if not header.path.name.endswith(suffix):
        raise ModelFileError(f"{header.path} is part of a split model, but its name does not end in {suffix}",
                             "give the parts their original names")  # fmt: skip
    paths = [*map(header.path.with_name, PartName(header.path.name.removesuffix(suffix), 1, count).every)]
    if header.path != paths[0]:
        raise ModelFileError(f"{header.path} is not the first part of its model", f"name {paths[0].name}")
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ModelFileError(
            f"parts of {header.path} are missing: {', '.join(missing)}", "download all parts"
        )
    return paths


def check_file(header: Header) -> None:
    """Raise `ModelFileError` for a file that llama.cpp cannot open: cut off, broken or unknown to it."""
    if header.file_bytes < header.end:
        raise ModelFileError(
            f"{header.path} is incomplete: it has {header.file_bytes:,} bytes of {header.end:,}",
            "resume or repeat the download",
        )
    if fault := next(_faults(header), ""):
        raise header.broken(fault, "download the file again, or choose another")
    if not header.architecture and not header.integer("split.no"):  # only the first part has it
        raise ModelFileError(f"{header.path} does not name its architecture", "choose another file")
    check_known(header.path, _named(header), {tensor.kind for tensor in header.tensors})


_LONGEST_TENSOR_NAME = 63  # bytes; ggml.h, GGML_MAX_NAME


def _faults(header: Header) -> Iterator[str]:
    """Yield what llama.cpp's reader refuses in a header (gguf.cpp, gguf_init_from_reader)."""
    if header.repeated is not None:
        yield f"the key {quoted(header.repeated)} is there twice"
    types = facts()["tensor_types"]
    alignment = header.integer(_ALIGNMENT, 32)
    names = set()
    expected = 0
    for tensor in header.tensors:
        if str(tensor.kind) not in types:
            break  # how much it takes is unknown, and so is where the next one has to start
        name = quoted(tensor.name)
        block = types[str(tensor.kind)][1]
        row = (tensor.sizes or (1,))[0]
        if tensor.name in names:
            yield f"the tensor {name} is there twice"
        if len(tensor.name.encode()) > _LONGEST_TENSOR_NAME:
            yield f"the name of the tensor {name} is longer than {_LONGEST_TENSOR_NAME} bytes"
        if row % block:
            yield f"rows of the tensor {name} have {row:,} elements, which are not whole blocks of {block}"
        if tensor.at != expected:
            yield f"the tensor {name} starts at byte {tensor.at:,} instead of {expected:,}"
        names.add(tensor.name)
        expected += -(-tensor.bytes // alignment) * alignment


def _named(header: Header) -> Iterator[tuple[str, str]]:
    """Yield the names in a header that llama.cpp must know, each with its kind ("architecture" and so on)."""
    tokenizer = header.text("tokenizer.ggml.model")
    pre = header.text("tokenizer.ggml.pre")
    is_by_pairs = facts()["tokenizers"].get(tokenizer, [""])[0] == "BPE" and tokenizer != "gemma4"
    if header.architecture:
        yield "architecture", header.architecture
    if tokenizer:
        yield "tokenizer", tokenizer
    if is_by_pairs and pre:
        yield "pre-tokenizer", pre


def is_of_state(part: str) -> bool:
    """Return whether a tensor, by its name within a layer, computes a recurrent state."""
    return part.startswith(("ssm_", "shortconv.", "time_mix_"))


def has_state(header: Header) -> bool:
    """Return whether a model has a recurrent state, beside a cache or alone."""
    names = (tensor.name.split(".", 2) for tensor in header.tensors)
    return any(is_of_state(name[2]) for name in names if name[0] == "blk" and len(name) > 2)


CHECKPOINTS = 4  # of a recurrent state, or of windows, in the CPU's memory
CHECKPOINT_BYTES = 2**30  # of all checkpoints of a context, but for the first
STATE_DRAFT = 8  # the longest draft of or for a model with a running state: each token takes another state


def kept_states(architecture: str, sequences: int, longest_draft: int | None = None) -> tuple[int, int]:
    """Return the number of snapshots for each sequence of a model's recurrent state, and of spare sequences.

    Sequences of a draft model branch at every token. A target takes back drafts of at most `longest_draft`
    tokens (None: of the longest that there are); without snapshots it goes back to one place.
    """
    if sequences > 1:
        return 0, STATE_DRAFT + 2
    length = STATE_DRAFT if longest_draft is None else min(longest_draft, STATE_DRAFT)
    return (length, 0) if architecture in facts()["snapshots"] else (0, min(length, 1))


FileKind = Literal["model", "draft head", "projector", "imatrix", "adapter", "vocabulary", "other"]
_DECLARED: dict[str, FileKind] = {
    "": "model",
    "model": "model",
    "adapter": "adapter",
    "imatrix": "imatrix",
    "mmproj": "projector",
    "clip-vision": "projector",
}
_BY_ARCHITECTURE: dict[str, FileKind] = {
    "clip": "projector",
    "controlvector": "adapter",
    "eagle3": "draft head",
}


def file_kind(header: Header) -> FileKind:
    """Return the kind of a file by its header, not its name; for a split model, by the first file's.

    Sources: GGUFType in llama.cpp's gguf-py/gguf/constants.py, tools/imatrix, tools/cvector-generator.
    """
    declared = _DECLARED.get(header.text("general.type"), "other")
    if declared != "model":
        return declared
    if "imatrix.datasets" in header.counts:
        return "imatrix"
    if header.architecture in facts()["other_heads"] or is_mtp_head(header):
        return "draft head"
    is_whole = header.integer("split.count") <= 1  # the first of several files may have no tensors
    if not header.tensors and is_whole and TOKENS in header.counts:
        return "vocabulary"
    return _BY_ARCHITECTURE.get(header.architecture, "model")


def is_mtp_head(header: Header) -> bool:
    """Return whether a file contains an MTP head without its target model."""
    blocks, heads = (header.integer(f"{{arch}}.{key}") for key in ("block_count", "nextn_predict_layers"))
    names = {tensor.name for tensor in header.tensors}
    return bool(heads and blocks > heads and names) and "blk.0.attn_norm.weight" not in names


def is_embedding_model(header: Header) -> bool:
    """Return whether a model makes embeddings and writes no text."""
    pooled = header.integer("{arch}.pooling_type") > 0
    causal = header.values.get(f"{header.architecture}.attention.causal") is not False
    return header.architecture in facts()["encoders"] or pooled or not causal


def is_reranker(header: Header) -> bool:
    """Return whether a model scores how well a document answers a query, and writes no text."""
    has_head = any(tensor.name in _HEADS for tensor in header.tensors)
    return has_head and header.integer("{arch}.pooling_type", _RANKED) == _RANKED


def check_model_file(path: Path, *, head: bool = False) -> Header:
    """Read the header of a model that can chat, with the totals of its parts; else raise `ModelFileError`.

    A `head` need not be able to.
    """
    if not head:
        _check_kind(read_header(path))
    return read_model(path)


def check_adapter_file(path: Path, architecture: str) -> Header:
    """Read the header of a LoRA adapter for models of an architecture; raises `ModelFileError` for others."""
    header = read_header(path)
    check_file(header)
    if header.text("general.type") != "adapter" or header.text("adapter.type") not in ("", "lora"):
        raise ModelFileError(f"{path} is not a LoRA adapter", "convert one with convert_lora_to_gguf.py")
    if "adapter.alora.invocation_tokens" in header.counts:
        raise ModelFileError(f"{path} is an activated LoRA, which is not offered", "use a plain adapter")
    if header.architecture != architecture:
        raise ModelFileError(
            f"{path} is an adapter for {header.architecture or 'an unnamed architecture'}, "
            f"but the model is {architecture}",
            "use an adapter made for this model",
        )
    return header


def _check_kind(header: Header) -> None:
    path = header.path
    architecture = header.architecture
    kind = header.text("general.type")
    if kind not in ("", "model"):
        raise ModelFileError(f"{path} is not a model but: {kind}", "name the model's own .gguf file")
    if not architecture:
        raise ModelFileError(f"{path} does not name its architecture", "download the file again")
    if what := facts()["not_chat"].get(architecture):
        raise ModelFileError(f"{path} is {what}", "choose a chat model")
    if is_reranker(header):
        raise ModelFileError(
            f"{path} is a reranking model ({architecture}): it writes no text",
            "choose a chat model; `localspec serve --rerank` ranks documents with this one",
        )
    if is_embedding_model(header):
        raise ModelFileError(
            f"{path} is an embedding model ({architecture}): it writes no text", "choose a chat model"
        )
    if file_kind(header) == "vocabulary":
        raise ModelFileError(f"{path} has a vocabulary but no weights", "download the full model")
    if "tokenizer.ggml.model" not in header.values or "tokenizer.ggml.tokens" not in header.counts:
        raise ModelFileError(f"{path} has no vocabulary", "choose a GGUF with its tokenizer inside")
