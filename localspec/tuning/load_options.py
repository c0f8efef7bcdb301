"""Short real runs for options that cannot be simulated: threads, caches, what stays in RAM.

Every attempt reopens the models in a child process. A failed one has a reason and no figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace

from localspec.benchmark.harness import answered
from localspec.errors import Cancelled, EngineError, LocalSpecError
from localspec.inference.interface import OpenModels, on_card
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import Attempt
from localspec.types.events import Summary
from localspec.types.models import KvType
from localspec.types.request import EngineSettings, Mode, Request

ANCHOR_EVERY = 3  # attempts after which the default load options are measured again, against drift
STEP = 0.03  # faster than the best so far: enough to try the next change on top of it
CLEAR = 0.05  # faster than the default load options, twice; less is not worth a change
MICRO_BATCH_FACTORS = (0.5, 2.0)
CACHE_TYPE: KvType = "q8_0"
EXPERT_STEPS = (-2, -1, 2)  # layers; a plan leaves a GPU a little memory, which the experts of fewer may take


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The choices of a machine, and the plan's placement of the models; `cores` are physical ones.

    A target is on a card if the CPU computes no part of it. `expert_layers` are those on GPUs that have
    experts, of which the plan keeps those of `experts_at_home` in RAM, in part or whole. `fixed` names the
    load options that the user has set. `allows_cache_types` also tries what moves the target's distribution.
    """

    cores: int
    has_draft: bool = True
    target_on_card: bool = False
    draft_on_card: bool = False
    expert_layers: int = 0
    experts_at_home: int = 0
    allows_cache_types: bool = False
    fixed: tuple[str, ...] = ()

    @property
    def shares_cores(self) -> bool:
        """Return whether both models compute on the CPU."""
        return self.has_draft and not self.target_on_card and not self.draft_on_card


def possible(limits: MachineLimits) -> tuple[LoadOptions, ...]:
    """Return the default load options and others that each change one thing, the most promising first."""
    usual = LoadOptions()
    others = [
        options
        for options in _changes(limits)
        if is_sensible(options, limits)
        and all(getattr(options, name) == getattr(usual, name) for name in limits.fixed)
    ]
    return tuple(dict.fromkeys([usual, *others]))


def _changes(limits: MachineLimits) -> Iterator[LoadOptions]:
    for more in EXPERT_STEPS:
        if 0 <= limits.experts_at_home + more <= limits.expert_layers:
            yield LoadOptions(more_experts_at_home=more)
    yield from _thread_changes(limits)
    if limits.has_draft:
        if limits.draft_on_card:
            yield LoadOptions(draft_on_cpu=True)
        else:
            yield LoadOptions(draft_flash_attention=True)  # off by itself: dearer on small heads
        yield LoadOptions(draft_flash_attention=True, draft_kv_type="q8_0")  # llama.cpp wants both or none
    for factor in MICRO_BATCH_FACTORS:
        yield LoadOptions(micro_batch_factor=factor)
    if limits.allows_cache_types:
        yield LoadOptions(target_kv_type=CACHE_TYPE)
        fewer = min(EXPERT_STEPS)
        if limits.experts_at_home + fewer >= 0:  # the smaller cache may leave room for these
            yield LoadOptions(target_kv_type=CACHE_TYPE, more_experts_at_home=fewer)


def _thread_changes(limits: MachineLimits) -> Iterator[LoadOptions]:
    cores = limits.cores
    if limits.shares_cores:
        for threads in (1, 2, cores // 2):
            if threads != max(1, cores // 4):  # what the runtime takes by itself
                yield LoadOptions(draft_threads=threads)
    elif limits.has_draft and not limits.draft_on_card:
        yield LoadOptions(draft_threads=cores // 2)
    if not limits.target_on_card and cores >= 4:
        yield LoadOptions(threads=cores // 2)
        yield LoadOptions(threads=cores - 1)


def is_sensible(options: LoadOptions, limits: MachineLimits) -> bool:
    """Return whether both models get threads, and together no more than there are cores."""
    threads = options.threads or limits.cores
    if threads > limits.cores:
        return False
    wanted = options.draft_threads
    return wanted is None or 1 <= wanted < threads + (not limits.shares_cores)


OpenWith = Callable[[LoadOptions], AbstractContextManager[OpenModels]]


def try_load_options(
    open_models: OpenWith, limits: MachineLimits, requests: Sequence[Request], budget_s: float
) -> Iterator[Attempt]:
    """Yield attempts: each change on top of the best so far, then the winner once more.

    Every request is answered in every mode, by the automatic rules. The last part of the budget is reserved
    for the winner. Passes on `Cancelled`.
    """
    modes: tuple[Mode, ...] = ("off", "sd", "ssd") if limits.has_draft else ("off", "ngram")
    began_s = time.perf_counter()
    made = 0

    def attempt(options: LoadOptions) -> Attempt:
        nonlocal made
        made += 1
        return _attempt(open_models, options, modes, requests)

    usual, *changes = possible(limits)
    anchor = attempt(usual)
    yield anchor
    best = usual
    gain = 1.0
    since = 0
    for change in changes:
        candidate = _on_top(best, change)
        spent_s = time.perf_counter() - began_s
        is_late = spent_s + 3 * spent_s / made > budget_s  # the winner and the default run again
        if anchor.tokens_per_s is None or is_late:
            break
        if not is_sensible(candidate, limits):
            continue
        if since == ANCHOR_EVERY:
            again = attempt(usual)
            since = 0
            yield again
            anchor = again if again.tokens_per_s is not None else anchor
        found = attempt(candidate)
        yield found
        since += 1
        assert anchor.tokens_per_s is not None
        if found.tokens_per_s is not None and found.tokens_per_s > (gain + STEP) * anchor.tokens_per_s:
            best = candidate
            gain = found.tokens_per_s / anchor.tokens_per_s
    if best != usual:
        yield attempt(usual)
        yield attempt(best)


def _on_top(options: LoadOptions, change: LoadOptions) -> LoadOptions:
    """Return load options with what others change."""
    usual = LoadOptions()
    changed = {name: value for name, value in asdict(change).items() if value != getattr(usual, name)}
    return replace(options, **changed)


def choose(attempts: Sequence[Attempt]) -> tuple[LoadOptions, str]:
    """Return the load options to use, and why: the default ones unless others are clearly faster.

    Clearly means twice, and by more than the default's own runs differ.
    """
    usual = LoadOptions()
    anchors = [each.tokens_per_s for each in attempts if each.workplace == usual and each.tokens_per_s]
    if not anchors:
        why = next((each.failure for each in attempts if each.failure), "")
        return usual, f"nothing could be compared: {why}" if why else "nothing was tried"
    spread = max(anchors) / min(anchors) - 1.0
    gains = _gains(attempts)
    if not gains:
        return usual, "nothing else was tried to the end"
    winner = max(gains, key=lambda options: (len(gains[options]) > 1, min(gains[options])))
    least = min(gains[winner])
    if len(gains[winner]) > 1 and least > 1.0 + max(CLEAR, spread):
        return winner, f"at least {least:.2f} times as fast as the default, measured twice"
    return usual, f"nothing was clearly faster; the default's own runs differ by {spread:.0%}"


def _gains(attempts: Sequence[Attempt]) -> dict[LoadOptions, list[float]]:
    """Return the speed of other load options, relative to the default measured just before."""
    found: dict[LoadOptions, list[float]] = {}
    anchor: float | None = None
    for each in attempts:
        if each.tokens_per_s is None:
            continue
        if each.workplace == LoadOptions():
            anchor = each.tokens_per_s
        elif anchor is not None:
            found.setdefault(each.workplace, []).append(each.tokens_per_s / anchor)
    return found


def _attempt(
    open_models: OpenWith, options: LoadOptions, modes: Sequence[Mode], requests: Sequence[Request]
) -> Attempt:
    """Open the models with these options and answer; their error is the attempt's."""
    try:
        with open_models(options) as models:
            rates = _race(models, modes, requests)
        fastest = max(rates, key=lambda mode: rates[mode])
        return Attempt(options, rates[fastest], fastest)
    except Cancelled:
        raise
    except (MemoryError, LocalSpecError, OSError) as error:
        failure = "out of memory" if isinstance(error, MemoryError) else str(error)
        return Attempt(options, None, failure=failure)


def _race(models: OpenModels, modes: Sequence[Mode], requests: Sequence[Request]) -> dict[Mode, float]:
    """Return the tokens per second of every mode."""
    answers: dict[Mode, list[Summary]] = {mode: [] for mode in modes}
    for mode in modes if on_card(models) else ():  # there the first answer makes programs
        answered(models, replace(requests[0], settings=EngineSettings(mode=mode)))
    for request in requests:
        for mode, summaries in answers.items():
            summary, _ = answered(models, replace(request, settings=EngineSettings(mode=mode)))
            summaries.append(summary)
    return _rates(answers)


def _rates(answers: dict[Mode, list[Summary]]) -> dict[Mode, float]:
    """Return tokens per second of whole answers; a prompt costs what reading did, cached or not."""
    everything = [each for summaries in answers.values() for each in summaries]
    read = sum(each.new_prompt_tokens for each in everything)
    read_s = sum(each.prompt_s for each in everything) / read if read else 0.0
    rates: dict[Mode, float] = {}
    for mode, summaries in answers.items():
        seconds = sum(each.decode_s + read_s * each.prompt_tokens for each in summaries)
        if not seconds:
            raise EngineError("the answers were too short to measure anything")
        rates[mode] = sum(each.tokens for each in summaries) / seconds
    return rates
