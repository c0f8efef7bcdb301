"""Decide who sits where on this machine: a pure function from devices, sizes and wishes."""

from __future__ import annotations

from collections.abc import Iterable

from localspec import units
from localspec.errors import UserError
from localspec.hardware.device_info import Alternative, DeviceAssignment, Machine, Placement
from localspec.hardware.memory.estimate import estimate
from localspec.hardware.memory.fit import ways_out
from localspec.hardware.placement import words
from localspec.hardware.placement.candidates import PlacementCandidate, PlacementSearch
from localspec.hardware.placement.constraints import DEFAULT_CONTEXT, Need, PlacementConstraints, context_size
from localspec.models.shape import ModelShape

COMFORTABLE_CONTEXT = 4096  # less is not taken for speed alone
SMALLEST_CONTEXT = 512
WORTH_A_SMALLER_CONTEXT = 1.2


def place(
    machine: Machine,
    target: ModelShape,
    draft: ModelShape | None,
    constraints: PlacementConstraints,
    *,
    need: Need = estimate,
) -> Placement:
    """Return the fastest placement that fits and fulfils the wishes, with reasons.

    Raises `UserError`, with the numbers and three ways out, if there is none.
    """
    search = PlacementSearch(machine, (target, draft), constraints, need)
    found = _Found(search, _contexts(target, constraints.context))
    chosen = found.chosen()
    if chosen is None:
        raise _refusal(found, search)
    reasons = [*_reasons(chosen, search, found), *_costs_of_overrides(chosen, machine, search, need)]
    threads = search.threads(chosen.target, chosen.draft)
    for_target, for_draft = threads.alone
    split = chosen.draft
    return Placement(
        target=DeviceAssignment(
            chosen.target.devices, chosen.target.layers, for_target, chosen.context, chosen.target_needs
        ),
        draft=None
        if split is None
        else DeviceAssignment(split.devices, split.layers, for_draft, chosen.context, chosen.draft_needs),
        mode=chosen.best.mode,
        tokens_per_s=chosen.best.tokens_per_s,
        reasons=tuple(reasons),
        rejected=tuple(_rejected(found, chosen, search)),
    )


class _Found:
    """The candidates by context, looked for when they are asked for."""

    def __init__(self, search: PlacementSearch, contexts: tuple[int, ...]) -> None:
        self.contexts = contexts
        self._search = search
        self._at: dict[int, tuple[PlacementCandidate, ...]] = {}

    def at(self, context: int) -> tuple[PlacementCandidate, ...]:
        """Return all candidates with a context."""
        if context not in self._at:
            self._at[context] = tuple(self._search.candidates(context))
        return self._at[context]

    def fitting(self, context: int) -> PlacementCandidate | None:
        """Return the best candidate that fits with a context."""
        fits = [found for found in self.at(context) if not found.shortages]
        return max(fits, key=_preference, default=None)

    def chosen(self) -> PlacementCandidate | None:
        """Return the best candidate, with a smaller context only where that is worth it."""
        fits = (self.fitting(context) for context in self.contexts)
        first = next((found for found in fits if found is not None), None)
        if first is None:
            return None
        if first.context > COMFORTABLE_CONTEXT in self.contexts:
            smaller = self.fitting(COMFORTABLE_CONTEXT)
            gain = WORTH_A_SMALLER_CONTEXT * first.best.tokens_per_s
            if smaller is not None and smaller.best.tokens_per_s >= gain:
                return smaller
        return first

    def nearest(self) -> PlacementCandidate:
        """Return the candidate that lacks least, with the smallest context."""
        candidates = self.at(self.contexts[-1])
        return min(candidates, key=lambda found: sum(short.missing for short in found.shortages))


def _contexts(target: ModelShape, wished: int) -> tuple[int, ...]:
    if wished:
        return (wished,)
    most = context_size(0, target.training_context or DEFAULT_CONTEXT)
    found = [most]
    size = DEFAULT_CONTEXT
    while size > SMALLEST_CONTEXT:
        size //= 2
        if size < most:
            found.append(size)
    return tuple(found)


def _preference(found: PlacementCandidate) -> tuple[float, float, int, float]:
    """Order candidates by speed, then by chances, then by what they leave free."""
    speculative = max((speed.tokens_per_s for speed in found.speeds if speed.mode != "off"), default=0.0)
    return (
        float(f"{found.best.tokens_per_s:.4g}"),
        float(f"{speculative:.4g}"),
        -len(found.target.devices),
        found.slack,
    )


def _reasons(chosen: PlacementCandidate, search: PlacementSearch, found: _Found) -> Iterable[str]:
    yield words.target_reason(chosen, search)
    if chosen.context < found.contexts[0]:
        usual = found.fitting(found.contexts[0])
        gain = (
            "more does not fit"
            if usual is None
            else f"with {found.contexts[0]:,} it would write {words.rate(usual.best.tokens_per_s)} tokens/s "
            f"instead of {words.rate(chosen.best.tokens_per_s)}"
        )
        yield f"the context is {chosen.context:,} tokens: {gain}"
    for reason in (words.draft_reason(chosen, search), words.shape_reason(search)):
        if reason is not None:
            yield reason
    yield words.speed_reason(chosen, search)
    yield from words.rate_reasons(chosen, search)


def _costs_of_overrides(
    chosen: PlacementCandidate, machine: Machine, search: PlacementSearch, need: Need
) -> Iterable[str]:
    """Say what the flags that override parts of the plan cost against the plan without them."""
    free = search.constraints.without_overrides()
    if free == search.constraints:
        return
    other = PlacementSearch(machine, (search.target, search.draft), free, need)
    best = _Found(other, (chosen.context,)).chosen()
    if best is None:
        return
    got, could = chosen.best.tokens_per_s, best.best.tokens_per_s
    if got > 0.99 * could:
        yield "the flags cost no speed against the plan without them"
        return
    moved = [
        f"{units.memory(abs(more))} {'more' if more > 0 else 'less'} on {name}"
        for name, more in _differences(chosen, best).items()
        if abs(more) >= 2**20
    ]
    bytes_ = f": {', '.join(moved)}" if moved else ""
    yield (
        f"the flags cost {words.rate(could - got)} of {words.rate(could)} expected tokens/s against the plan "
        f"without them ({words.describe(best, other)}){bytes_}"
    )


def _differences(chosen: PlacementCandidate, other: PlacementCandidate) -> dict[str, int]:
    more: dict[str, int] = {}
    for sign, found in ((1, chosen), (-1, other)):
        for need in (*found.target_needs, *found.draft_needs):
            more[need.device] = more.get(need.device, 0) + sign * need.total
    return more


def _rejected(found: _Found, chosen: PlacementCandidate, search: PlacementSearch) -> Iterable[Alternative]:
    """Yield every other placement once, the fastest first and those that do not fit last."""
    for text, reason, speed in words.mode_alternatives(chosen):
        yield Alternative(text, reason, speed.tokens_per_s)
    if chosen.context < found.contexts[0]:
        usual = found.fitting(found.contexts[0])
        if usual is not None:
            text = f"{usual.context:,} tokens of context: {words.describe(usual, search)}"
            yield Alternative(text, "slower", usual.best.tokens_per_s)
    seen = {words.describe(chosen, search)}
    others = sorted(found.at(chosen.context), key=_preference, reverse=True)
    for other in sorted(others, key=lambda other: bool(other.shortages)):
        text = words.describe(other, search)
        if text in seen:
            continue
        seen.add(text)
        lack = f"does not fit: {words.lack(other.shortages)}" if other.shortages else ""
        yield Alternative(text, lack or words.slower_reason(other, chosen, search), other.best.tokens_per_s)


def _refusal(found: _Found, search: PlacementSearch) -> UserError:
    """Return the error for models that fit nowhere: the numbers and three ways out."""
    nearest = found.nearest()
    models = [(search.target, search.request(search.target, nearest.target, nearest.context))]
    ways = []
    if search.draft is not None and nearest.draft is not None:
        models.append((search.draft, search.request(search.draft, nearest.draft, nearest.context)))
        ways.append("leave the draft model out")
    ways += ["close programs that hold memory", "keep less free (--reserve)", "choose a smaller model"]
    worked_out = ways_out(tuple(models), search.budget)
    return UserError(
        f"{search.target.name} does not fit with {nearest.context:,} tokens of context: "
        f"{words.lack(nearest.shortages)}",
        f"three ways out: {'; '.join((*worked_out, *ways)[:3])}",
    )
