"""A tokenizer for models that are stand-ins: every letter is a token."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.types.drafts import Token
from localspec.types.request import Request


class LetterTokens:
    """Renders a prompt as it is, and has a token for each letter."""

    def render(self, request: Request) -> str:
        return str(request.prompt)

    def tokenize(self, text: str, *, special: bool = True, add_special: bool = False) -> list[Token]:
        return [(ord(letter), letter.encode()) for letter in text]

    def detokenize(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))
