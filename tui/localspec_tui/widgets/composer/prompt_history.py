"""Walk through earlier prompts, as Up and Down do in a shell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PromptHistory:
    """Earlier prompts and the place reached among them.

    What was typed before the walk is the draft: the walk ends at it and visits only prompts that begin with
    it. Editing a prompt that was called up makes it the draft of a new walk.
    """

    def __init__(self, prompts: Sequence[str]) -> None:
        """Take prompts, newest first."""
        self._prompts = tuple(dict.fromkeys(prompts))
        self._draft = ""
        self._place: int | None = None  # None: at the draft

    def older(self, current: str) -> str | None:
        """Return the prompt before the one shown, None if there is none; `current` is what is shown."""
        self._notice_edits(current)
        return self._visit(range(0 if self._place is None else self._place + 1, len(self._prompts)), current)

    def newer(self, current: str) -> str | None:
        """Return the prompt after the one shown, in the end the draft; None if that is shown already."""
        self._notice_edits(current)
        if self._place is None:
            return None
        found = self._visit(range(self._place - 1, -1, -1), current)
        if found is None:
            self._place = None
            return self._draft
        return found

    def reset(self) -> None:
        """Forget the walk: what is shown next is a draft again."""
        self._place = None

    def _notice_edits(self, current: str) -> None:
        if self._place is None or self._prompts[self._place] != current:
            self._place, self._draft = None, current

    def _visit(self, places: Iterable[int], current: str) -> str | None:
        for place in places:
            prompt = self._prompts[place]
            if prompt.startswith(self._draft) and prompt != current:
                self._place = place
                return prompt
        return None
