from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from localspec.decoding.engine import Rounds, decode_in_segments
from localspec.decoding.fallback import FIRST_PATIENCE, ModeFallback, PlainCost
from localspec.decoding.rounds import Round
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import ModeChanged, RoundStats
from localspec.types.request import Mode

DEPTH = 1000
TOKENS = 1280
NONE, FRESH = DraftOrigin.NONE, DraftOrigin.FRESH
Speeds = dict[Mode, float]


def plain_at(rate: float, depth: int = DEPTH) -> PlainCost:
    plain = PlainCost()
    plain.observe(depth, 1.0 / rate)
    return plain


def round_of(tokens: int, rate: float, origin: DraftOrigin = FRESH) -> RoundStats:
    """Return a round with N tokens per second, its time divided among its parts."""
    quarter = tokens / rate / 4
    return RoundStats(tokens - 1, tokens - 1, origin, quarter, quarter, quarter, quarter)


def run(mode_fallback: ModeFallback, speeds: Speeds, tokens: int) -> list[tuple[int, ModeChanged]]:
    """Decode with a given speed in each mode; return the changes and after how many tokens they came."""
    changes, done = [], 0
    mode_fallback.begin()
    is_first = True
    while done < tokens:
        mode = mode_fallback.mode if mode_fallback.mode in speeds else "off"  # nothing is repeated
        size = 1 if mode == "off" or is_first else 4
        stats = round_of(size, speeds[mode], NONE if size == 1 else FRESH)
        done += size
        if mode == "off":
            mode_fallback._plain.observe(DEPTH, 1.0 / speeds["off"])
        change = mode_fallback.observe(stats, size, DEPTH)
        is_first = change is not None
        if change is not None:
            changes.append((done, change))
            mode_fallback.begin()
    return changes


def modes(changes: list[tuple[int, ModeChanged]]) -> list[Mode]:
    return [change.mode for _, change in changes]


@pytest.mark.parametrize("wanted", ["ssd", "sd", "ngram"])
@pytest.mark.parametrize("rate", [40.0, 39.0])
def test_a_mode_that_pays_or_as_good_as_pays_is_kept(wanted: Mode, rate: float) -> None:
    mode_fallback = ModeFallback(wanted, plain_at(40))
    assert run(mode_fallback, {wanted: rate}, 2000) == []
    assert (mode_fallback.mode, mode_fallback.reason) == (wanted, "")


def test_a_losing_mode_steps_down_rung_by_rung_and_says_why_with_numbers() -> None:
    mode_fallback = ModeFallback("ssd", plain_at(38))
    changes = run(mode_fallback, {"ssd": 31, "sd": 35, "ngram": 30, "off": 38}, 250)
    assert modes(changes) == ["sd", "ngram", "off"]
    (first, down), (_, repetitions), (_, off) = changes
    assert first < 40  # at nine tenths of the speed, four tokens' time
    assert down.reason == "SSD was slower than plain, 31 against 38 tokens/s; now speculative"
    assert repetitions.reason == "speculative was slower than plain, 35 against 38 tokens/s; now n-gram"
    assert off.reason.endswith("against 38 tokens/s; now plain")
    assert (mode_fallback.mode, mode_fallback.reason) == ("off", off.reason)


def test_a_step_down_may_end_at_a_rung_that_pays() -> None:
    assert modes(run(ModeFallback("ssd", plain_at(38)), {"ssd": 31, "sd": 50}, 300)) == ["sd"]


def test_repetitions_step_down_to_plain_decoding() -> None:
    assert modes(run(ModeFallback("ngram", plain_at(38)), {"ngram": 30, "off": 38}, 200)) == ["off"]


def test_nothing_is_below_plain_decoding() -> None:
    assert run(ModeFallback("off", plain_at(100)), {"off": 10}, 2000) == []


def test_without_a_measured_plain_speed_nothing_is_judged() -> None:
    assert run(ModeFallback("sd", PlainCost()), {"sd": 1}, 500) == []


def test_a_fast_model_is_measured_for_a_second_before_its_mode_is_left() -> None:
    mode_fallback = ModeFallback("sd", plain_at(4000))
    (first, change), *_ = run(mode_fallback, {"sd": 2000, "off": 4000}, 2100)
    assert first == pytest.approx(2000, abs=10)
    assert change.reason == "speculative was slower than plain, 2,000 against 4,000 tokens/s; now n-gram"


def test_a_promise_of_plain_decoding_is_checked_for_a_second_too() -> None:
    changes = run(ModeFallback("ngram", plain_at(800)), {"ngram": 400, "off": 300}, 1000)
    assert modes(changes) == ["off", "ngram"]
    assert changes[1][0] - changes[0][0] == pytest.approx(300, abs=3)


def written(mode_fallback: ModeFallback, speeds: Speeds, tokens: int) -> list[Mode]:
    """Decode one answer; return the modes that it changes to."""
    text, plain = [0] * DEPTH, mode_fallback._plain

    def rounds(mode: Mode) -> Iterator[Round]:
        yield round_with(1, speeds[mode], NONE)  # reads the prompt
        while len(text) < DEPTH + tokens:
            yield round_with(1 if mode == "off" else 4, speeds[mode], NONE if mode == "off" else FRESH)

    def decode(mode: Mode, _segment: int) -> Rounds:
        yield from rounds(mode)

    events = decode_in_segments(decode, mode_fallback.wanted, text, plain, mode_fallback)
    return [event.mode for event in events if isinstance(event, ModeChanged)]


def round_with(size: int, rate: float, origin: DraftOrigin) -> Round:
    return Round((0,) * size, (Provenance.TARGET,) * size, round_of(size, rate, origin))


def test_modes_do_not_alternate_within_an_answer() -> None:
    mode_fallback = ModeFallback("ngram", plain_at(60))
    speeds: Speeds = {"ngram": 45, "off": 40}
    assert written(mode_fallback, speeds, 4 * FIRST_PATIENCE) == ["off"]
    assert written(mode_fallback, speeds, 2 * FIRST_PATIENCE) == ["off", "ngram"]  # the next one has it back


def test_an_answer_that_tries_a_mode_again_does_so_once() -> None:
    mode_fallback = ModeFallback("ngram", plain_at(40))
    speeds: Speeds = {"ngram": 30, "off": 40}
    assert written(mode_fallback, speeds, 100) == ["off"]
    assert written(mode_fallback, speeds, 8 * FIRST_PATIENCE) == ["off", "ngram", "off"]


def test_one_disturbed_round_of_a_large_model_is_not_a_reason_to_leave() -> None:
    mode_fallback = ModeFallback("sd", plain_at(10))
    run(mode_fallback, {"sd": 15}, 100)
    assert mode_fallback.observe(round_of(1, 0.1), 1, DEPTH) is None
    assert run(mode_fallback, {"sd": 15}, 500) == []


@pytest.mark.parametrize("part", [0.5, 0.8, 0.9])
def test_a_losing_mode_costs_at_most_three_per_cent_in_the_long_run(part: float) -> None:
    mode_fallback = ModeFallback("sd", plain_at(12))
    wanted = run(mode_fallback, {"sd": 12 * part, "off": 12}, TOKENS)
    ends = [*(done for done, _ in wanted), TOKENS]
    drafted = ends[0] + sum(
        end - start for (start, change), end in zip(wanted, ends[1:], strict=True) if change.mode == "sd"
    )
    assert drafted * (1 / part - 1) < 0.03 * TOKENS


def test_the_window_moves_on_so_that_an_old_gain_hides_no_loss() -> None:
    mode_fallback = ModeFallback("sd", plain_at(40))
    assert run(mode_fallback, {"sd": 200}, 2000) == []
    (first, change), *_ = run(mode_fallback, {"sd": 20, "off": 40}, 200)
    assert first <= 100
    assert change.mode == "ngram"


def test_rounds_while_the_draft_model_reads_the_text_are_not_judged() -> None:
    mode_fallback = ModeFallback("ssd", plain_at(40))
    mode_fallback.begin()
    for _ in range(200):
        assert mode_fallback.observe(round_of(1, 10, NONE), 1, DEPTH) is None
    assert mode_fallback.observe(round_of(4, 0.1), 4, DEPTH) is None  # this draft has waited for the reading
    for _ in range(50):
        assert mode_fallback.observe(round_of(4, 60), 4, DEPTH) is None


def test_the_first_round_of_an_answer_is_not_judged_but_windows_reach_over_answers() -> None:
    mode_fallback = ModeFallback("sd", plain_at(40))
    found: list[ModeChanged | None] = []
    for _ in range(20):
        mode_fallback.begin()
        found.append(mode_fallback.observe(round_of(1, 0.01, NONE), 1, DEPTH))  # the prompt
        found.append(mode_fallback.observe(round_of(1, 0.01), 1, DEPTH))
        found.append(mode_fallback.observe(round_of(4, 30), 4, DEPTH))
    change = next(change for change in found if change is not None)
    assert change.reason == "speculative was slower than plain, 30 against 40 tokens/s; now n-gram"


def test_a_promise_of_plain_decoding_is_seen_through_where_nothing_is_repeated() -> None:
    mode_fallback = ModeFallback("sd", plain_at(60))
    changes = run(mode_fallback, {"sd": 45, "off": 40}, 300)
    assert modes(changes) == ["ngram", "sd"]
    assert (
        changes[-1][1].reason
        == "n-gram is slower than speculative was, 40 against 45 tokens/s; back to speculative"
    )


def test_a_promise_that_plain_decoding_does_not_keep_is_taken_back() -> None:
    mode_fallback = ModeFallback("ssd", plain_at(60))
    changes = run(mode_fallback, {"ssd": 41, "sd": 45, "ngram": 38, "off": 40}, 300)
    assert modes(changes) == ["sd", "ngram", "off", "sd"]  # the best of them
    assert (
        changes[-1][1].reason
        == "plain is slower than speculative was, 40 against 45 tokens/s; back to speculative"
    )


@pytest.mark.parametrize(("wanted", "rest"), [("sd", "ngram"), ("ngram", "off")])
def test_trials_come_after_waits_that_double(wanted: Mode, rest: Mode) -> None:
    mode_fallback = ModeFallback(wanted, plain_at(40))
    changes = run(mode_fallback, {wanted: 30, "off": 40}, 10_000)
    assert modes(changes[:6]) == [rest, wanted] * 3
    starts = [done for done, change in changes if change.mode == wanted]
    ends = [done for done, change in changes if change.mode == rest]
    waits = [start - end for start, end in zip(starts, ends, strict=False)]
    assert waits == [FIRST_PATIENCE * factor + 1 for factor in (1, 2, 4, 8)]
    assert "tried again after 513 tokens" in changes[1][1].reason


def test_a_trial_that_pays_stays_and_makes_the_next_wait_short_again() -> None:
    mode_fallback = ModeFallback("sd", plain_at(40))
    run(mode_fallback, {"sd": 30, "off": 40}, 1000)
    assert mode_fallback.mode == "ngram"
    assert modes(run(mode_fallback, {"sd": 60, "off": 40}, 2000)) == ["sd"]
    changes = run(mode_fallback, {"sd": 30, "off": 40}, 700)
    assert modes(changes) == ["ngram", "sd", "ngram"]
    assert changes[1][0] - changes[0][0] == FIRST_PATIENCE + 1


def test_a_trial_must_beat_the_rung_that_it_interrupts() -> None:
    mode_fallback = ModeFallback("ssd", plain_at(40))
    assert modes(run(mode_fallback, {"ssd": 35, "sd": 60}, 200)) == ["sd"]
    changes = run(mode_fallback, {"ssd": 50, "sd": 60}, 700)
    assert modes(changes) == ["ssd", "sd"]
    assert changes[1][1].reason == "SSD was slower than speculative, 50 against 60 tokens/s; now speculative"


def test_waiting_continues_over_answers() -> None:
    mode_fallback = ModeFallback("sd", plain_at(40))
    speeds: Speeds = {"sd": 30, "off": 40}
    run(mode_fallback, speeds, 80)
    assert mode_fallback.mode == "ngram"
    assert [modes(run(mode_fallback, speeds, 200)) for _ in range(3)] == [[], [], ["sd", "ngram"]]


def test_plain_cost_is_known_where_it_was_measured_between_and_beyond() -> None:
    plain = PlainCost()
    assert plain.at(10) is None
    plain.observe(100, 0.010)
    plain.observe(4196, 0.030)
    assert plain.at(200) == plain.at(0) == 0.010
    assert plain.at(2148) == pytest.approx(0.020)
    assert plain.at(100_000) == 0.030


def test_a_first_token_at_a_depth_that_compiles_something_hardly_counts() -> None:
    plain = plain_at(100)
    for seconds in (50.0, 0.01, 0.01, 0.01):
        plain.observe(4 * DEPTH, seconds)
    assert plain.at(4 * DEPTH) == pytest.approx(0.015)


def repeated(plain: PlainCost, seconds: float, times: int) -> float | None:
    for _ in range(times):
        plain.observe(DEPTH, seconds)
    return plain.at(DEPTH)


def test_plain_cost_is_a_mean_that_follows_and_shrugs_off_one_disturbance() -> None:
    plain = PlainCost()
    for seconds in (0.010, 0.012, 0.011):
        plain.observe(DEPTH, seconds)
    assert plain.at(DEPTH) == pytest.approx(0.011)
    settled = repeated(plain, 0.020, 60)
    assert settled == pytest.approx(0.020, rel=0.01)
    disturbed = repeated(plain, 5.0, 1)
    assert disturbed == pytest.approx(0.024, rel=0.01)


@pytest.mark.parametrize("slower", [2.0, 3.0, 4.0])
def test_a_busy_moment_is_known_as_such(slower: float) -> None:
    """All calls are slow then, and plain decoding would be, too."""
    mode_fallback = ModeFallback("sd", plain_at(40))
    mode_fallback.begin()
    mode_fallback.observe(round_of(4, 48), 4, DEPTH)
    for _ in range(8):
        for rate in (*[48.0] * 30, *[48.0 / slower] * 5):
            assert mode_fallback.observe(round_of(4, rate), 4, DEPTH) is None


def test_a_loss_that_chance_may_explain_changes_nothing() -> None:
    mode_fallback = ModeFallback("sd", plain_at(40))
    mode_fallback.begin()
    mode_fallback.observe(round_of(4, 40), 4, DEPTH)
    for _ in range(12):  # twelve times as slow and much faster alternately: on the whole a little slower
        for size, rate in ((4, 160), (2, 12), (1, 30), (4, 160)):
            assert mode_fallback.observe(round_of(size, rate), size, DEPTH) is None


def test_a_mode_that_was_returned_to_is_left_on_more_evidence_only() -> None:
    mode_fallback = ModeFallback("sd", plain_at(60))
    first = run(mode_fallback, {"sd": 45, "off": 40}, 300)
    assert modes(first) == ["ngram", "sd"]
    mode_fallback._plain = plain_at(60)
    (later, change), *_ = run(mode_fallback, {"sd": 45, "off": 60}, 600)
    assert change.mode == "ngram"
    assert later > 1.5 * first[0][0]


@pytest.mark.parametrize("disturbed", [2, 3])
def test_a_few_disturbed_rounds_among_even_ones_change_nothing(disturbed: int) -> None:
    mode_fallback = ModeFallback("sd", plain_at(40))
    mode_fallback.begin()
    even = round_of(4, 38.79)  # next to the margin: neither gains nor loses
    mode_fallback.observe(even, 4, DEPTH)
    waits = [2.0 if number % 10 == 5 and number < 10 * disturbed else 0.0 for number in range(60)]
    changes = [mode_fallback.observe(replace(even, wait_s=even.wait_s + wait), 4, DEPTH) for wait in waits]
    assert changes == [None] * 60
