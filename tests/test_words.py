"""Phrases that read like a translation stay out of what users read: messages, documents, comments."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMES = ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")
PAGES = [*(ROOT / f"{name}.md" for name in NAMES), *(ROOT / "docs").glob("*.md")]
TEXTS = [*(ROOT / "localspec").rglob("*.toml"), ROOT / "localspec" / "cli" / "usage.txt"]
CODE = [path for folder in ("localspec", "tui") for path in (ROOT / folder).rglob("*.py")]
BANNED = re.compile(
    r"\b(Tell whether|Return (what|who|whom|where|how)\b|who sits where|so many\b|anew\b|whom\b|goes on with"
    r"|is kept\b|times plain|guesses right|the processor\b|nobody\b|somebody\b|whoever\b|a person\b|mends\b)"
)
COMPATIBLE = {"localspec/storage/pair_identity.py"}  # saved settings of 0.1.0 name devices by these words


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are text for users, with their numbers."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from enumerate(token.string.splitlines(), token.start[0])


@pytest.mark.parametrize("paths", [PAGES, TEXTS, CODE], ids=["pages", "texts", "code"])
def test_banned_phrases_are_not_used(paths: list[Path]) -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for path in paths
        if (name := path.relative_to(ROOT).as_posix()) not in COMPATIBLE
        for number, line in prose(path)
        if BANNED.search(line)
    ]
    assert found == []
