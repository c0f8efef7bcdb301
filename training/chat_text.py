"""Clean text, and chats in ChatML."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

SYSTEM_PROMPTS = (
    "You are LocalSpec, a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer briefly.",
    "You are LocalSpec, a small language model that runs on this computer.",
)
SYSTEM_SHARE = 0.12  # of the chats start with a system turn


def clean(text: str) -> str:
    """Drop what looks like a control token, and simplify white space."""
    text = text.replace("<|", "< |").replace("\r\n", "\n").replace("\u00a0", " ")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def chat(rng: random.Random, *turns: str) -> str:
    """Return the ChatML text of alternating user and assistant turns, now and then with a system turn."""
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < SYSTEM_SHARE else None
    text = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    for index, turn in enumerate(turns):
        role = "assistant" if index % 2 else "user"
        text += f"<|im_start|>{role}\n{clean(turn)}<|im_end|>\n"
    return text


def chunks(text: str, size: int) -> Iterator[str]:
    """Split at paragraph ends into pieces of about `size` characters."""
    piece = ""
    for paragraph in text.split("\n\n"):
        if piece and len(piece) + len(paragraph) > size:
            yield piece
            piece = ""
        piece += ("\n\n" if piece else "") + paragraph
    if piece:
        yield piece
