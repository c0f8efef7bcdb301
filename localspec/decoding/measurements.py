"""Measurements of a pair on a machine: call costs, and traces with both models' distributions.

These values come from the model process; the tuner simulates from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.types.request import Mode, Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CANDIDATES = 32  # of each model in a trace, per position


@dataclass(frozen=True, slots=True)
class CostRequest:
    """Which calls to time, with `depth` tokens in the caches, in about `budget_s` seconds.

    `together` times each model while the other works, with the threads that both have then. The target's
    passes read pieces of `text`, without one unrelated tokens.
    """

    depth: int
    together: bool
    verify_sizes: tuple[int, ...] = tuple(range(1, 17))
    step_widths: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    budget_s: float = 4.0
    text: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallCosts:
    """Seconds of native calls, robust medians, by the tokens or branches in the call.

    `step` is empty without a draft model. `drift` is the anchor (one target token) at the end of the
    measurement in its value at the beginning; `spread` the middle half of the anchor's values in the median.
    """

    depth: int
    together: bool
    verify: tuple[tuple[int, float], ...]
    step: tuple[tuple[int, float], ...]
    drift: float = 1.0
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class ComparedPass:
    """The time of one size of passes of a mixture of experts, by how its tokens are related.

    Neighbours of a text may use the same experts, which then are read only once.
    """

    tokens: int
    neighbours_s: float
    unrelated_s: float

    @property
    def ratio(self) -> float:
        """Return the time of neighbours in that of unrelated tokens."""
        return self.neighbours_s / self.unrelated_s


@dataclass(frozen=True, slots=True)
class Overhead:
    """The overhead of real rounds of a mode over separately measured calls; fitted on rounds.

    A round's Python takes `round_s`, and `token_s` for each drafted token; its verification takes `verify`
    times what `CallCosts` says, a draft step `step` times. `handoff_s` is the time between a request to the
    drafter's thread and its first call, or between its last call and the reply.
    """

    mode: Mode
    round_s: float
    token_s: float = 0.0
    verify: float = 1.0
    step: float = 1.0
    handoff_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Everything that the simulator knows about time: calls alone and together, at one or more depths."""

    calls: tuple[CallCosts, ...]
    overheads: tuple[Overhead, ...] = ()
    left_out: tuple[tuple[Mode, str], ...] = ()  # modes that could not be measured, and why
    compared: tuple[ComparedPass, ...] = field(default=(), repr=False)  # of a mixture; `repr` names files


@dataclass(frozen=True, slots=True)
class TraceSegment:
    """One answer of the target, with both models' distributions before each of its n tokens.

    Row i belongs to `tokens[i]`, given the prompt and `tokens[:i]`. Candidates are sorted, the best first;
    if there are fewer than m, the rest has id -1, probability 0, logit -inf.
    """

    prompt: tuple[int, ...]
    tokens: NDArray[np.int32]  # (n,)
    target_ids: NDArray[np.int32]  # (n, m)
    target_probs: NDArray[np.float32]  # (n, m), after the request's sampling: the distribution of the token
    target_of_token: NDArray[np.float32]  # (n,), the same probability of `tokens[i]`
    draft_ids: NDArray[np.int32]  # (n, m)
    draft_logits: NDArray[np.float32]  # (n, m), raw, less the best one's
    target_of_draft: NDArray[np.float32]  # (n, m), the target's probability of the draft's candidates
    decode_s: float  # of the n tokens, plainly decoded
    ended: bool  # by an end token, which is the last of `tokens`


@dataclass(frozen=True, slots=True)
class Trace:
    """Answers to prompts of one kind, under one sampling."""

    sampling: Sampling
    segments: tuple[TraceSegment, ...]

    @property
    def tokens(self) -> int:
        """Return the number of decoded tokens."""
        return sum(len(segment.tokens) for segment in self.segments)
