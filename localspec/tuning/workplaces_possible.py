"""Which ways to open the models are worth trying on a machine, and which of them won; pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from localspec.tuning.events import Attempt, Workplace

ANCHOR_EVERY = 3  # attempts after which the usual workplace is measured again, against drift
STEP = 0.03  # faster than the best so far: enough to try the next change on top of it
CLEAR = 0.05  # faster than the usual workplace, twice: less is not worth leaving it for
MICRO_BATCHES = (256, 1024)


@dataclass(frozen=True, slots=True)
class Room:
    """What a machine offers and where the runtime puts the models by itself; `cores` are physical ones.

    `fixed` names what of a workplace a person has settled.
    """

    cores: int
    has_draft: bool = True
    target_on_card: bool = False
    draft_on_card: bool = False
    fixed: tuple[str, ...] = ()

    @property
    def shares_cores(self) -> bool:
        """Tell whether both models compute on the processor."""
        return self.has_draft and not self.target_on_card and not self.draft_on_card


def possible(room: Room) -> tuple[Workplace, ...]:
    """Return the usual workplace and others that each change one thing, the most promising first."""
    usual = Workplace()
    others = [
        workplace
        for workplace in _changes(room)
        if is_sensible(workplace, room)
        and all(getattr(workplace, name) == getattr(usual, name) for name in room.fixed)
    ]
    return tuple(dict.fromkeys([usual, *others]))


def _changes(room: Room) -> Iterator[Workplace]:
    cores = room.cores
    if room.shares_cores:
        for threads in (1, 2, cores // 2):
            if threads != max(1, cores // 4):  # what the runtime takes by itself
                yield Workplace(draft_threads=threads)
    elif room.has_draft and not room.draft_on_card:
        yield Workplace(draft_threads=cores // 2)
    if not room.target_on_card and cores >= 4:
        yield Workplace(threads=cores // 2)
        yield Workplace(threads=cores - 1)
    if room.has_draft:
        if room.draft_on_card:
            yield Workplace(draft_on_cpu=True)
        else:
            yield Workplace(draft_flash_attention=True)  # off by itself: dearer on small heads
        yield Workplace(draft_flash_attention=True, draft_kv_type="q8_0")  # llama.cpp wants both or none
    for size in MICRO_BATCHES:
        yield Workplace(micro_batch=size)


def is_sensible(workplace: Workplace, room: Room) -> bool:
    """Tell whether both models get threads, and together no more than there are cores."""
    threads = workplace.threads or room.cores
    if threads > room.cores:
        return False
    wanted = workplace.draft_threads
    return wanted is None or 1 <= wanted < threads + (not room.shares_cores)


def course(room: Room, is_late: Callable[[], bool] = lambda: False) -> Generator[Workplace, Attempt, None]:
    """Ask for attempts one after another: each change on top of the best so far, the winner once more.

    It depends on the attempts that it is sent alone, so that it can be gone through again from a file.
    """
    usual, *changes = possible(room)
    anchor = yield usual
    best, gain, since = usual, 1.0, 0
    for change in changes:
        candidate = _on_top(best, change)
        if anchor.tokens_per_s is None or is_late():
            break
        if not is_sensible(candidate, room):
            continue
        if since == ANCHOR_EVERY:
            again, since = (yield usual), 0
            anchor = again if again.tokens_per_s is not None else anchor
        attempt = yield candidate
        since += 1
        assert anchor.tokens_per_s is not None
        if (attempt.tokens_per_s or 0.0) > (gain + STEP) * anchor.tokens_per_s:
            assert attempt.tokens_per_s is not None
            best, gain = candidate, attempt.tokens_per_s / anchor.tokens_per_s
    if best != usual:
        yield usual
        yield best


def _on_top(workplace: Workplace, change: Workplace) -> Workplace:
    """Return a workplace with what another one changes."""
    usual = Workplace()
    changed = {each.name: getattr(change, each.name) for each in fields(Workplace)}
    return replace(
        workplace, **{name: value for name, value in changed.items() if value != getattr(usual, name)}
    )


def choose(attempts: Sequence[Attempt]) -> tuple[Workplace, str]:
    """Return the workplace to open the models with, and why: the usual one unless another is clearly faster.

    Clearly is twice, and by more than the usual one's own runs differ.
    """
    usual = Workplace()
    anchors = [each.tokens_per_s for each in attempts if each.workplace == usual and each.tokens_per_s]
    if not anchors:
        why = next((each.failure for each in attempts if each.failure), "")
        return usual, f"nothing could be compared: {why}" if why else "nothing was tried"
    spread = max(anchors) / min(anchors) - 1.0
    gains = _gains(attempts)
    if not gains:
        return usual, "nothing else was tried to the end"
    winner = max(gains, key=lambda workplace: (len(gains[workplace]) > 1, min(gains[workplace])))
    least = min(gains[winner])
    if len(gains[winner]) > 1 and least > 1.0 + max(CLEAR, spread):
        return winner, f"at least {least:.2f} times as fast as the usual way, measured twice"
    return usual, f"nothing was clearly faster; the usual way's own runs differ by {spread:.0%}"


def _gains(attempts: Sequence[Attempt]) -> dict[Workplace, list[float]]:
    """Return how fast other workplaces were, in the usual one measured just before."""
    found: dict[Workplace, list[float]] = {}
    anchor: float | None = None
    for each in attempts:
        if each.tokens_per_s is None:
            continue
        if each.workplace == Workplace():
            anchor = each.tokens_per_s
        elif anchor is not None:
            found.setdefault(each.workplace, []).append(each.tokens_per_s / anchor)
    return found
