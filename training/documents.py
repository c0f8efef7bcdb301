"""The format of the packed text: every document starts with a line `<|doc:KIND|>`."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from localspec.errors import UserError

PACKED = Path(__file__).parent / "corpus"
TRAINING_TEXT = "corpus.txt"
HELD_OUT_TEXT = "corpus-heldout.txt"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
ASSISTANT = "<|im_start|>assistant\n"
DOCUMENT_HEADER = re.compile(r"^<\|doc:([a-z0-9-]+)\|>\n", re.MULTILINE)


class Document(NamedTuple):
    """One text of the corpus, and the kind of text that it is."""

    kind: str
    text: str

    def packed(self) -> str:
        """Return the document as it stands in the packed text."""
        return f"<|doc:{self.kind}|>\n{self.text.rstrip(chr(10))}\n"


@dataclass(frozen=True, slots=True)
class Corpus:
    """The texts of a data folder; what it lacks is taken from the packed text of the repository."""

    folder: Path

    def training(self) -> list[Document]:
        """Read the documents to train on."""
        return list(read_documents(self._path(TRAINING_TEXT)))

    def held_out(self) -> list[Document]:
        """Read the documents that no training may see."""
        return list(read_documents(self._path(HELD_OUT_TEXT)))

    def _path(self, name: str) -> Path:
        own = self.folder / name
        return own if own.exists() or own.with_name(f"{name}.xz").exists() else PACKED / name


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a text file, or of the same file with `.xz` behind its name."""
    path = path if path.exists() else path.with_name(f"{path.name}.xz")
    if not path.exists():
        raise UserError(f"there is no text at {path}", "write it with prepare_corpus, or take the packed one")
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        parts = DOCUMENT_HEADER.split(file.read())
    for kind, body in zip(parts[1::2], parts[2::2], strict=True):
        yield Document(kind, body.removesuffix("\n"))
