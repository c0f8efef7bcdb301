"""The figures of the answer that is being written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from localspec.chat.figures import MEASURED_S, Figures, ratio_to_plain
from localspec.chat.plain_rates import PlainRates
from localspec.chat.thinking import ThinkingReader
from localspec.chat.timeline import History
from localspec.decoding.tally import HitCounter
from localspec.types.events import ModeChanged, RoundDone
from localspec.types.request import NO_LIMIT, Mode
from localspec.units import MODE_NAMES

WINDOW_S = 2.0  # of work that the live figure looks back on
ROUNDING_S = 1e-6  # by which sums of times may be off


class LiveStats:
    """The figures of the answer that is being written.

    The first round reads the prompt and says nothing about the pace; it is left out of every figure.
    """

    def __init__(self, plain: PlainRates) -> None:
        self._plain = plain
        self.start("off")

    def start(
        self,
        mode: Mode,
        prompt_tokens: int | None = None,
        *,
        text: str = "",
        thinking_budget: int | None = None,
    ) -> None:
        """Begin a new answer, or one that continues a text.

        Without the size of its prompt there is no ratio before its end.
        """
        self._reader = ThinkingReader()
        self.read(text)
        has_limit = thinking_budget is not None and thinking_budget != NO_LIMIT and not text
        self._most = thinking_budget if has_limit else None
        self._written = 0
        self._mode = mode
        self._note = ""
        self._prompt_tokens = prompt_tokens
        self._rounds = History()
        self._mode_began = 0  # with this round
        self._hits = HitCounter(mode)

    def add(self, rounds: Sequence[RoundDone]) -> None:
        """Take in rounds in the order in which they ended."""
        self._rounds.add(rounds)
        for mark in rounds:
            self._written += mark.tokens
            self._hits.add(mark.stats.origin)

    def read(self, text: str) -> None:
        """Take in the text that has come."""
        deque(self._reader.feed(text), maxlen=0)

    def changed(self, change: ModeChanged) -> None:
        """Continue in another mode; the live speed is then that of the new mode alone."""
        self._mode = change.mode
        self._note = change.reason
        self._hits.change(change.mode)
        self._mode_began = len(self._rounds)

    def figures(self) -> Figures:
        """Return the figures as of the last round."""
        rounds = self._rounds
        prompt_tokens = self._prompt_tokens
        recent = rounds.round_at(rounds.seconds - WINDOW_S + ROUNDING_S)
        first = max(self._mode_began, recent)
        speed = rounds.speed(first) or None
        plain = None
        is_measured = rounds.seconds - rounds.start_s(first) >= MEASURED_S - ROUNDING_S
        if prompt_tokens is not None and is_measured:
            plain = self._plain.at(prompt_tokens + 1 + rounds.tokens)
        return Figures(
            MODE_NAMES[self._mode],
            speed,
            ratio_to_plain(self._mode, speed, plain),
            rounds.acceptance,
            rounds.length() if rounds.drafted else None,
            self._hits.rate,
            self._note,
            rounds.drafted,
            self._thinking() if self._reader.is_thinking else "",
        )

    def _thinking(self) -> str:
        """Return the number of tokens of thinking in words, with its limit; its tags count as well."""
        if self._most is None:
            return f"thinking {self._written:,}"
        return f"thinking {min(self._written, self._most):,} of {self._most:,}"
