"""Long prose: folk tales, classic books and a textbook."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

from training.chat_text import chat, chunks, clean
from training.documents import Document

TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
CREDIT = re.compile(
    r"^\*\s*((?:License|Text|Illustration|Translation|Adaptation|Editor)[^:]*): *(.+)$", re.MULTILINE
)
CREDIT_LINES = (
    re.compile(r"^\*\s*(License|Text|Illustration|Translation|Language|Adaptation|Editor).*$", re.MULTILINE),
    re.compile(r"^\*\s.*:.*$", re.MULTILINE),
)
PAGE_BREAK = re.compile(r"^##\s*$", re.MULTILINE)
STRAIGHT_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})
MAX_STORY = 3800
MAX_SCENE = 1600
ASK_NEXT = (
    "Continue this story:",
    "Continue the story:",
    "What happens next?",
    "Write the next part of this story:",
)


def african_stories(root: Path, rng: random.Random) -> Iterator[Document]:
    """Yield the English stories of African Storybook, asked for by their title."""
    for path in sorted((root / "en").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        title = TITLE.search(text)
        body = TITLE.sub("", text, count=1)
        for line in CREDIT_LINES:
            body = line.sub("", body)
        pages = [re.sub(r"\s+", " ", page).strip() for page in PAGE_BREAK.split(body)]
        body = "\n\n".join(page for page in pages if page)
        if not title or len(body) < 120:
            continue
        name = title.group(1).strip()
        about = name[0].lower() + name[1:]
        requests = [
            f'Write a short story called "{name}".',
            f"Tell me a story about {about}.",
            f"Write a short story about {about}.",
        ]
        if len(body) > MAX_STORY:
            body = body[:MAX_STORY].rsplit("\n\n", 1)[0]
        yield Document("african-stories", chat(rng, rng.choice(requests), body))


def african_attribution(root: Path) -> Iterator[str]:
    """Yield title, authors and licence of every story: CC BY asks for it, the training text leaves it out."""
    for path in sorted((root / "en").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        title = TITLE.search(text)
        credits_ = " | ".join(f"{role}: {name.strip()}" for role, name in CREDIT.findall(text))
        yield f"{title.group(1).strip() if title else path.stem} | {credits_}"


def books(root: Path, rng: random.Random, budget: int = 25_000_000) -> Iterator[Document]:
    """Yield the easiest books by the grade in INDEX.tsv, up to `budget` bytes: passages and chats."""
    used = 0
    for row in (root / "INDEX.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        _, size, _, name = row.split("\t")
        path = root / name.replace("/", " - ")
        if used > budget:
            break
        if not path.exists():
            continue
        used += int(size)
        title = path.stem.split(" - ", 1)[1]
        for index, piece in enumerate(chunks(clean(book_text(path)), 2600)):
            if len(piece) >= 300:
                yield passage(rng, piece, index, title)


def book_text(path: Path) -> str:
    """Read a book without its front matter, headings, emphasis and curly quotes."""
    text = path.read_text(encoding="utf-8").split("-------", 1)[-1]
    text = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE).replace("_", "")
    return text.translate(STRAIGHT_QUOTES)


def passage(rng: random.Random, piece: str, index: int, title: str) -> Document:
    """Return a piece of a book: some to be continued, some asked for as a scene, the rest as it is."""
    first, *others = piece.split("\n\n")
    if index % 4 == 1 and len(others) > 2 and 60 < len(first) < 600:
        return Document(
            "books-chat", chat(rng, f"{rng.choice(ASK_NEXT)}\n\n{first}", scene("\n\n".join(others)))
        )
    if index % 40 == 2:
        return Document("books-chat", chat(rng, f"Write a scene in the style of {title}.", scene(piece)))
    return Document("books", piece)


def scene(text: str) -> str:
    """Cut a text to whole sentences."""
    return text[:MAX_SCENE].rsplit(". ", 1)[0] + "."


def openstax(root: Path, _: random.Random) -> Iterator[Document]:
    """Yield the chapters of a textbook on Python."""
    for path in sorted(root.glob("*.md")):
        if path.name != "SOURCE.md":
            for piece in chunks(clean(path.read_text(encoding="utf-8")), 3000):
                yield Document("openstax", piece)
