from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

import pytest

from localspec.errors import Cancelled, EngineDied, EngineError, UserError
from localspec.inference.interface import OpenModels
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import Attempt
from localspec.tuning.load_options import (
    MachineLimits,
    choose,
    is_sensible,
    possible,
    try_load_options,
)
from localspec.types.events import Finished, FinishReason, GenerationEvent, Summary
from localspec.types.request import Request
from tests.scripted import ScriptedModels

ROOM = MachineLimits(cores=8)
REQUESTS = (Request("one", seed=1), Request("two", seed=2), Request("three", seed=3))
USUAL = LoadOptions()
Speed = Callable[[LoadOptions, str], float]


def speed(workplace: LoadOptions, mode: str) -> float:
    """Return tokens per second: one thread for the draft and flash attention help, and together more."""
    value = {"off": 50.0, "sd": 80.0, "ssd": 100.0}[mode]
    if mode == "ssd" and workplace.draft_threads == 1:
        value *= 1.2
    if workplace.draft_flash_attention:
        value *= 1.1
    if workplace.threads:
        value *= 0.5
    return value


class Measured(ScriptedModels):
    """Models that take the time which a test says."""

    def __init__(self, workplace: LoadOptions, speed: Speed, reason: FinishReason = "length") -> None:
        super().__init__()
        self.compiles = False
        self._workplace = workplace
        self._speed = speed
        self._reason = reason

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self.requests.append(request)
        mode = request.settings.mode
        seconds = 100 / self._speed(self._workplace, mode)
        if self.compiles and [each.settings.mode for each in self.requests].count(mode) == 1:
            seconds += 50.0
        yield Finished(self._reason, Summary(prompt_tokens=10, tokens=100, decode_s=seconds))


@dataclass
class Bench:
    """Opens models and keeps what was asked of them."""

    speed: Speed = speed
    reason: FinishReason = "length"
    opened: list[LoadOptions] = field(default_factory=list)
    requests: list[list[Request]] = field(default_factory=list)
    closed: int = 0
    on_card: bool = False

    @contextmanager
    def __call__(self, workplace: LoadOptions) -> Iterator[OpenModels]:
        self.opened.append(workplace)
        models = Measured(workplace, self.speed, self.reason)
        self.requests.append(models.requests)
        if self.on_card:
            models.target, models.compiles = replace(models.target, devices=("Vulkan0",)), True
        try:
            yield models
        finally:
            self.closed += 1


def run(bench: Bench, budget_s: float = 1e9) -> tuple[Attempt, ...]:
    return tuple(try_load_options(bench, ROOM, REQUESTS, budget_s))


@pytest.mark.parametrize(
    "room",
    [
        *(MachineLimits(cores) for cores in (1, 2, 3, 4, 6, 16, 64)),
        MachineLimits(8, has_draft=False),
        MachineLimits(8, target_on_card=True),
        MachineLimits(8, target_on_card=True, draft_on_card=True),
        MachineLimits(8, draft_on_card=True, expert_layers=48, experts_at_home=20),
    ],
)
def test_possible_workplaces_are_few_distinct_and_sensible(room: MachineLimits) -> None:
    found = possible(room)
    assert found[0] == USUAL
    assert len(set(found)) == len(found) <= 12
    for workplace in found:
        threads = workplace.threads or room.cores
        assert 1 <= threads <= room.cores
        if room.shares_cores and workplace.draft_threads is not None:
            assert workplace.draft_threads < threads  # both work at once
        assert workplace.draft_kv_type == "f16" or workplace.draft_flash_attention
        assert room.draft_on_card or not workplace.draft_on_cpu
        alone = replace(USUAL, threads=workplace.threads, micro_batch_factor=workplace.micro_batch_factor)
        assert room.has_draft or workplace == alone


def test_two_cores_leave_one_for_each_model() -> None:
    assert {each.draft_threads for each in possible(MachineLimits(2))} == {None}  # the default split
    assert all(each.threads == 0 for each in possible(MachineLimits(2)))
    assert {1, 4} <= {each.draft_threads for each in possible(MachineLimits(8))}
    assert not is_sensible(LoadOptions(threads=4, draft_threads=4), MachineLimits(8))


@pytest.mark.parametrize(
    ("at_home", "steps"), [(20, {-2, -1, 2}), (2, {-2, -1, 2}), (1, {-1, 2}), (0, {2}), (48, {-2, -1})]
)
def test_experts_of_a_few_layers_change_their_place(at_home: int, steps: set[int]) -> None:
    found = possible(MachineLimits(8, expert_layers=48, experts_at_home=at_home))
    assert {each.more_experts_at_home for each in found} == {0, *steps}
    left_open = replace(ROOM, expert_layers=48, experts_at_home=at_home, fixed=("more_experts_at_home",))
    assert {each.more_experts_at_home for each in possible(left_open)} == {0}


def test_without_experts_on_gpus_none_change_their_place() -> None:
    assert {each.more_experts_at_home for each in possible(ROOM)} == {0}


def test_threads_are_tried_where_the_cpu_computes_a_part() -> None:
    apart = MachineLimits(8, draft_on_card=True)
    assert {each.threads for each in possible(apart)} == {0, 4, 7}
    assert {each.threads for each in possible(replace(apart, target_on_card=True))} == {0}


def test_a_cache_that_moves_the_distribution_is_tried_only_if_allowed() -> None:
    room = MachineLimits(8, draft_on_card=True, expert_layers=48, experts_at_home=20)
    assert {each.target_kv_type for each in possible(room)} == {"f16"}
    allowed = possible(replace(room, allows_cache_types=True))
    assert [each for each in allowed if each not in possible(room)] == [
        LoadOptions(target_kv_type="q8_0"),
        LoadOptions(target_kv_type="q8_0", more_experts_at_home=-2),
    ]
    dense = [each.target_kv_type for each in possible(replace(ROOM, allows_cache_types=True))]
    assert dense.count("q8_0") == 1
    fixed = replace(room, allows_cache_types=True, fixed=("target_kv_type",))
    assert {each.target_kv_type for each in possible(fixed)} == {"f16"}


def test_an_attempt_that_does_not_fit_leaves_the_plan_as_it_is() -> None:
    def fast_or_full(workplace: LoadOptions, _mode: str) -> float:
        if workplace.more_experts_at_home < -1:
            raise UserError("CUDA0 has not enough memory", "keep more experts in RAM")
        return 100.0 - 10.0 * workplace.more_experts_at_home

    room = MachineLimits(8, draft_on_card=True, expert_layers=48, experts_at_home=20)
    attempts = tuple(try_load_options(Bench(fast_or_full), room, REQUESTS, 1e9))
    failed = [each for each in attempts if each.failure]
    assert [each.workplace.more_experts_at_home for each in failed] == [-2]
    assert "not enough memory" in failed[0].failure
    assert choose(attempts)[0] == LoadOptions(more_experts_at_home=-1)


def test_changes_that_help_are_combined_and_the_winner_is_measured_twice() -> None:
    bench = Bench()
    attempts = run(bench)
    workplace, reason = choose(attempts)
    assert workplace == LoadOptions(draft_threads=1, draft_flash_attention=True)
    assert "1.32 times" in reason
    assert [each.workplace for each in attempts[-2:]] == [USUAL, workplace]
    assert attempts[0] == Attempt(USUAL, 100.0, "ssd")
    assert bench.closed == len(bench.opened) == len(attempts)
    assert sum(each.workplace == USUAL for each in attempts) >= 3  # the anchor, against drift


def test_every_mode_answers_every_request_by_the_automatic_rules() -> None:
    bench = Bench()
    run(bench)
    asked = [(each.prompt, each.settings.mode) for each in bench.requests[0]]
    assert asked == [(request.prompt, mode) for request in REQUESTS for mode in ("off", "sd", "ssd")]
    assert all(each.settings.min_confidence is None for each in bench.requests[0])


def test_what_a_gpu_compiles_in_the_first_answers_does_not_count() -> None:
    here, on_card = (run(Bench(on_card=name == "card")) for name in ("processor", "card"))
    assert on_card == here


def test_nothing_better_leaves_the_default_workplace() -> None:
    attempts = run(Bench(lambda _workplace, _mode: 100.0))
    workplace, reason = choose(attempts)
    assert workplace == USUAL
    assert "nothing was clearly faster" in reason


def fails(error: BaseException) -> Speed:
    def speed_or_death(workplace: LoadOptions, mode: str) -> float:
        if workplace.draft_flash_attention:
            raise error
        return speed(workplace, mode)

    return speed_or_death


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            EngineDied("the model process was ended by the system"),
            "the model process was ended by the system",
        ),
        (UserError("not enough memory", "use a smaller context"), "not enough memory; use a smaller context"),
        (EngineError("decoding failed"), "decoding failed"),
        (MemoryError(), "out of memory"),
        (OSError("cannot fork"), "cannot fork"),
    ],
)
def test_a_crash_is_one_failed_attempt_with_its_reason(error: BaseException, reason: str) -> None:
    attempts = run(Bench(fails(error)))
    failed = [each for each in attempts if each.failure]
    assert {each.failure for each in failed} == {reason}
    assert all(each.tokens_per_s is None for each in failed)
    assert len({each.workplace for each in failed}) == len(failed) == 2  # with and without the smaller cache
    assert choose(attempts)[0] == LoadOptions(draft_threads=1)


def test_models_that_do_not_open_at_all_end_it() -> None:
    def broken(_: LoadOptions) -> AbstractContextManager[OpenModels]:
        raise UserError("the file is gone")

    attempts = tuple(try_load_options(broken, ROOM, REQUESTS, 1e9))
    assert attempts == (Attempt(USUAL, None, failure="the file is gone"),)
    assert choose(attempts) == (USUAL, "nothing could be compared: the file is gone")
    assert choose(()) == (USUAL, "nothing was tried")


def test_stopping_in_the_middle_of_an_attempt_is_not_a_failure() -> None:
    with pytest.raises(Cancelled):
        run(Bench(reason="cancelled"))
    with pytest.raises(KeyboardInterrupt):
        run(Bench(fails(KeyboardInterrupt())))


def test_the_budget_leaves_time_to_measure_the_winner_again() -> None:
    attempts = run(Bench(), budget_s=0.0)
    assert attempts == (Attempt(USUAL, 100.0, "ssd"),)


@pytest.mark.parametrize(
    ("rates", "wins"),
    [
        ([(False, 100.0), (True, 120.0), (False, 101.0), (True, 119.0)], True),
        ([(False, 100.0), (True, 120.0)], False),  # once is chance
        ([(False, 100.0), (True, 104.0), (False, 100.0), (True, 104.0)], False),  # too little
        ([(False, 100.0), (True, 120.0), (False, 100.0), (True, 99.0)], False),  # once only
        ([(False, 100.0), (True, 120.0), (False, 80.0), (True, 96.0)], False),  # drift as large as the gain
    ],
)
def test_only_a_clear_gain_wins(rates: list[tuple[bool, float]], wins: bool) -> None:
    other = LoadOptions(draft_threads=2)
    attempts = [Attempt(other if is_other else USUAL, value, "ssd") for is_other, value in rates]
    assert (choose(attempts)[0] == other) == wins


def test_settings_of_the_user_are_not_changed() -> None:
    room = replace(ROOM, fixed=("threads", "micro_batch"))
    assert {each.threads for each in possible(room)} == {0}
    assert {each.micro_batch_factor for each in possible(room)} == {0.5, 1.0, 2.0}
    room = replace(ROOM, fixed=("threads", "micro_batch_factor"))
    assert {each.micro_batch_factor for each in possible(room)} == {1.0}
    assert {each.draft_threads for each in possible(room)} > {None}
    without_cache = possible(replace(ROOM, fixed=("draft_kv_type",)))
    assert {each.draft_kv_type for each in without_cache} == {"f16"}
