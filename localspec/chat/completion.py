"""What Tab offers in the prompt: commands with their arguments, and names of files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localspec.chat.attachments import complete_path, reference_at_end
from localspec.chat.commands import Choices, Completion, complete, word_at_end


def complete_input(text: str, choices: Choices, folder: Path) -> tuple[Completion, ...]:
    """Return how a text can go on at the cursor, where it ends; reads the folders that it names."""
    word = word_at_end(text) if text.startswith("/") else None
    if word is not None and word.kind == "file":
        return _files(text, word.start, folder)
    if commands := complete(text, choices):
        return commands
    at = reference_at_end(text)
    return () if at is None else _files(text, at, folder)


def _files(text: str, at: int, folder: Path) -> tuple[Completion, ...]:
    return tuple(replace(offer, start=at) for offer in complete_path(text[at:], folder))
