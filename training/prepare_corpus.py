"""Turn openly licensed source folders into chat-formatted training text.

    python -m training.prepare_corpus CORPUS_DIR OUT_DIR

CORPUS_DIR holds the folders corpus-<name> (MODEL_CARD.md says where each comes from, and its licence);
a missing one is skipped. OUT_DIR receives corpus.txt and corpus-heldout.txt: 1 % of the documents of every
kind, chosen by a hash of the text. This is the record of how the packed text of the repository was made;
training from that text does not need it.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from training.documents import HELD_OUT_TEXT, TRAINING_TEXT, Document
from training.made.coding import made_coding
from training.made.smalltalk import smalltalk
from training.made.stories import made_stories
from training.progress import log, show_progress
from training.sources import READERS
from training.sources.stories import african_attribution

MIN_CHARACTERS = 20
HELD_OUT_SHARE = 0.01
STORIES = "corpus-african-storybook"
STORIES_HEAD = "African Storybook (africanstorybook.org), English stories; shortened and reformatted."


def all_documents(corpus: Path, seed: int) -> Iterator[Document]:
    """Yield the documents of every source folder that is there, then those made from templates."""
    for folder, reader in READERS.items():
        if (corpus / folder).exists():
            yield from reader(corpus / folder, random.Random(f"{seed}{folder}"))
        else:
            log.warning("missing: %s", folder)
    for maker in (smalltalk, made_stories, made_coding):
        yield from maker(random.Random(f"{seed}{maker.__name__}"))


def split(documents: Iterable[Document]) -> Iterator[tuple[Document, bool]]:
    """Yield every different document, and whether it is held out."""
    seen: set[bytes] = set()
    for document in documents:
        digest = hashlib.sha1(document.text.encode(), usedforsecurity=False).digest()
        if len(document.text) < MIN_CHARACTERS or digest in seen:
            continue
        seen.add(digest)
        yield document, int.from_bytes(digest[:2], "big") < 65536 * HELD_OUT_SHARE


def write_corpus(documents: Iterable[Document], out: Path) -> None:
    """Write the two text files, and report the size of every kind."""
    sizes: Counter[str] = Counter()
    held: Counter[str] = Counter()
    with (
        (out / TRAINING_TEXT).open("w", encoding="utf-8") as training,
        (out / HELD_OUT_TEXT).open("w", encoding="utf-8") as held_out,
    ):
        for document, is_held_out in split(documents):
            (held_out if is_held_out else training).write(document.packed())
            (held if is_held_out else sizes)[document.kind] += len(document.text.encode())
    for kind in sorted(sizes):
        log.info("%-20s %8.2f MB   held out %8.1f kB", kind, sizes[kind] / 1e6, held[kind] / 1e3)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the corpus."""
    show_progress()
    parser = argparse.ArgumentParser(
        prog="prepare_corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="folder with the corpus-<name> folders")
    parser.add_argument("out", type=Path, help="output folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pack", action="store_true", help="also write .xz copies")
    arguments = parser.parse_args(argv)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    write_corpus(all_documents(arguments.corpus, arguments.seed), out)
    stories = arguments.corpus / STORIES
    if stories.exists():
        lines = [STORIES_HEAD, *african_attribution(stories)]
        (out / "ATTRIBUTION-african-storybook.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if arguments.pack:
        for name in (TRAINING_TEXT, HELD_OUT_TEXT):
            (out / f"{name}.xz").write_bytes(lzma.compress((out / name).read_bytes(), preset=6))


if __name__ == "__main__":
    main()
