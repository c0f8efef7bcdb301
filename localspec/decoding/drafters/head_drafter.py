"""Draft with a head, which reads the target's hidden states, while the target waits."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.decoding.drafters.model_drafter import ModelDrafter
from localspec.types import VerifyOutcome


class HeadDrafter(ModelDrafter):
    """Draft as a draft model does; the first token of a draft is read with all that was accepted before."""

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; the head reads it along with the target."""
        super().begin(text)
        self._draft_state.model.follow(on=True)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Follow the verdict; nothing that was drafted behind it stays, for its cells are gone."""
        super().commit(outcome)
        self._draft_state.proposals = []

    def end(self) -> None:
        """Let the target work without the head."""
        self._draft_state.model.follow(on=False)
