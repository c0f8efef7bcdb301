"""Draft with a head, which reads the target's hidden states, while the target waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from localspec.decoding.drafters.model_drafter import ModelDrafter
from localspec.types import VerifyOutcome


@runtime_checkable
class Head(Protocol):
    """What a head's `LanguageModel` can do besides: read along with its target.

    It drops what it has read of its own drafts as soon as the target has read on: the target's states for
    the accepted tokens are better than its own.
    """

    def follow(self, *, on: bool, kept: int = ...) -> None:
        """Take the target's hidden states from its next call on, or no longer.

        So many of them are kept before the head reads them without being asked.
        """


class HeadDrafter(ModelDrafter):
    """Draft as a draft model does; the first token of a draft is read with all that was accepted before."""

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; the head reads it along with the target."""
        super().begin(text)
        self._follow(on=True)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Follow the verdict; nothing that was drafted behind it stays, for its cells are gone."""
        super().commit(outcome)
        self._draft_state.proposals = []

    def end(self) -> None:
        """Let the target work without the head."""
        self._follow(on=False)

    def _follow(self, *, on: bool) -> None:
        head = self._draft_state.model
        assert isinstance(head, Head)
        head.follow(on=on)
