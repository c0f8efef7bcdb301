"""What a run of the tuner says, line by line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from localspec.cli.shared import console
from localspec.cli.tune import TuneView, result_json, status
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import (
    BestSoFar,
    FailedContender,
    LoadOptionsChosen,
    StageBegan,
    StageProgress,
    TuneEvent,
    TuneProgress,
)
from localspec.tuning.words import (
    bar,
    clock,
    compared_words,
    figure,
    llama_ratio,
    load_options_words,
    result_lines,
    settings_words,
    shift_words,
    sparkline,
)
from localspec.types.request import EngineSettings
from tests.cli.tuning_script import PLAIN, REASON, SSD, around, cache_chosen, compared, result, whole


def told(events: Iterable[TuneEvent], capsys: pytest.CaptureFixture[str]) -> str:
    with TuneView(["coding"]) as shown:
        for event in events:
            shown.take(event)
    return capsys.readouterr().err


def folded(*events: TuneEvent) -> TuneProgress:
    progress = TuneProgress(["coding"], 0.0)
    for second, event in enumerate(events):
        progress.take(event, float(second))
    return progress


class TestWords:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            (PLAIN, "plain decoding"),
            (SSD, "SSD, draft 6, fan-out 12, temp 0.8, C 0.9"),
            (
                replace(SSD, fan_out_shape="uniform", saguaro_c=1.0),
                "SSD, draft 6, fan-out 12 uniform, temp 0.8, C 1",
            ),
            (EngineSettings("sd", 3, acceptance="match"), "speculative, draft 3, match"),
            (EngineSettings("sd", 5, draft_temperature=1.25), "speculative, draft 5, temp 1.2"),
            (EngineSettings("sd", 3, fallback="ngram"), "speculative+ngram, draft 3, temp 1"),
            (EngineSettings("ngram", 9, fallback="ngram"), "n-gram, draft 9"),
            (EngineSettings("ngram", 9, min_confidence=0.25), "n-gram, draft 9, stop 0.25"),
        ],
    )
    def test_settings_say_what_counts_in_their_mode(self, settings: EngineSettings, words: str) -> None:
        assert settings_words(settings) == words

    def test_load_options_say_what_is_unusual(self) -> None:
        assert load_options_words(LoadOptions()) == "opened with the default options"
        words = load_options_words(LoadOptions(1, 2, 128, False, "q8_0", True))
        assert words == (
            "opened with 1 thread, 2 for the draft, micro-batch 128, draft flash attention off, "
            "draft cache q8_0, draft on the CPU"
        )
        relative = LoadOptions(micro_batch_factor=0.5, more_experts_at_home=-1)
        assert load_options_words(relative) == (
            "opened with 0.5 times the planned micro-batch, the experts of 1 layer fewer in RAM than planned"
        )
        assert "of 2 layers more in RAM" in load_options_words(replace(relative, more_experts_at_home=2))

    def test_another_cache_says_how_far_it_moves_the_distribution(self) -> None:
        chosen = LoadOptionsChosen(LoadOptions(target_kv_type="q8_0"), (), "faster")
        assert load_options_words(chosen.workplace) == "opened with target cache q8_0"
        assert shift_words(chosen) == "a q8_0 cache moves the target's distribution a little"
        assert shift_words(cache_chosen()) == (
            "a q8_0 cache moves the target's distribution: KL divergence 0.0012 nats on average, 0.016 at "
            "the 99th percentile; another token becomes the most likely at 0.8% of 384"
        )
        assert shift_words(LoadOptionsChosen(LoadOptions(), (), "")) == ""

    def test_what_neighbours_share_is_a_sentence(self) -> None:
        assert compared_words(compared().passes) == (
            "passes over 2, 3, 5 neighbouring tokens of answers take 0.95, 0.90, 0.80 of the time of "
            "unrelated tokens: the less, the more experts they share"
        )
        assert compared_words(()) == ""

    def test_figures_have_digits_that_mean_something(self) -> None:
        assert (figure(9.87), figure(99.94), figure(99.96), figure(1604.4)) == ("9.9", "99.9", "100", "1604")
        assert (clock(42), clock(725), clock(3723)) == ("0:42", "12:05", "1:02:03")

    def test_a_curve_rises_from_its_lowest_to_its_highest(self) -> None:
        assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
        assert sparkline([1, 1, 1, 2, 2, 8], 2) == "▁█"
        assert sparkline([5, 5, 5], 9) == "▄▄▄"
        assert sparkline([], 9) == sparkline([1, 2], 0) == ""

    def test_a_bar_stays_in_its_width(self) -> None:
        assert [bar(share, 4) for share in (-1, 0, 0.5, 1, 7)] == ["░░░░", "░░░░", "██░░", "████", "████"]


class TestResults:
    RESULTS = (result("coding"), result("writing", pays=False))

    def test_a_wide_terminal_has_a_line_for_each(self) -> None:
        head, coding, writing, simulated, reason = result_lines(self.RESULTS, 110)
        assert simulated.startswith("simulated: predicted")
        assert head.split() == [
            "task", "mode", "K", "fan-out", "temp", "C", "tokens/s", "(95%)", "of", "plain", "(95%)",
            "llama.cpp", "simulated",
        ]  # fmt: skip
        assert coding.split() == [
            "coding", "SSD", "6", "12", "0.8", "0.9", "85.2", "(82.2-88.2)", "×1.42", "(1.37-1.47)", "×1.20",
            "84.0", "+1%",
        ]  # fmt: skip
        assert writing.split()[:9] == ["writing", "plain", "-", "-", "-", "-", "60.0", "(59.0-61.0)", "-"]
        assert reason == f"writing: {REASON}"

    @pytest.mark.parametrize("width", [40, 60, 80, 91])
    def test_a_narrow_one_has_the_same_in_lines_that_fit(self, width: int) -> None:
        lines = result_lines(self.RESULTS, width)
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        for words in ("85.2 tokens/s (82.2-88.2)", "×1.42 of plain (1.37-1.47)", "×1.20 of llama.cpp",
                      "simulated 84.0 +1%", REASON):  # fmt: skip
            assert words in text

    def test_a_task_takes_a_few_lines_where_the_table_does_not_fit(self) -> None:
        assert len(result_lines([result()], 79)) == 3
        assert len(result_lines([result("summarise")], 80)) <= 3

    def test_without_a_draft_temperature_there_is_none(self) -> None:
        matching = replace(SSD, acceptance="match")
        found = result()
        contenders = tuple(
            replace(each, settings=matching) if each.settings == SSD else each for each in found.contenders
        )
        line = result_lines([replace(found, settings=matching, contenders=contenders)], 110)[1]
        assert line.split()[4:6] == ["match", "-"]

    def test_llama_cpp_that_was_not_run_is_not_compared_with(self) -> None:
        found = result()
        alone = replace(found, contenders=found.contenders[:2])
        assert llama_ratio(found) == pytest.approx(1.2)
        assert llama_ratio(alone) is None
        assert "of llama.cpp" not in "".join(result_lines([alone], 80))

    def test_json_names_the_winner(self) -> None:
        value = result_json(result())
        assert value["task"] == "coding"
        assert value["winner"] == result_json(result())["contenders"][1]  # type: ignore[index]
        assert value["of_llama_cpp"] == pytest.approx(1.2)

    @pytest.mark.parametrize("width", [60, 110])
    def test_what_could_not_be_measured_is_reported_with_the_reason(self, width: int) -> None:
        dropped = (
            FailedContender("ssd", "the engine crashed (SIGSEGV)"),
            FailedContender("second", "there is no memory"),
        )
        lines = result_lines([replace(result(), dropped=dropped)], width)
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        assert "coding: SSD could not be measured: the engine crashed (SIGSEGV)" in text
        assert "coding: the second best could not be measured: there is no memory" in text

    def test_nothing_tuned_is_nothing_said(self) -> None:
        assert result_lines([], 80) == []


class TestLines:
    def test_a_pipe_gets_a_line_as_each_stage_begins_and_ends(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = told(whole(), capsys).splitlines()
        assert lines[0] == "machine: trying load options, up to 4 options"
        assert lines[1].endswith("machine: 4 of 4 options, 0 s")
        assert "1 failed (out of memory)" in lines[2]
        assert "opened with 1 thread, 1 for the draft, draft flash attention on" in lines[2]
        assert "coding, traces: recording answers, up to 8 tokens" in lines
        assert any("SSD, draft 6" in line and "80.0 tokens/s simulated" in line for line in lines)
        assert any("coding: SSD" in line and "1.42 of plain (1.37-1.47)" in line for line in lines)
        assert lines[-1].endswith(f"writing: plain decoding; {REASON}")
        assert "\x1b" not in "".join(lines)

    def test_on_a_terminal_a_line_of_its_own_reports_where_it_is(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(console, "is_terminal", lambda _stream: True)
        text = told(whole(), capsys)
        assert f"{console.ERASE_LINE}coding, study: " in text
        assert text.endswith(f"writing: plain decoding; {REASON}\n")
        lasting = [line.rpartition(console.ERASE_LINE)[2] for line in text.split("\n")]
        assert "machine: trying load options" not in text
        assert lasting[0].endswith("machine: 4 of 4 options, 0 s")

    def test_another_cache_is_never_silent(self, capsys: pytest.CaptureFixture[str]) -> None:
        chosen = LoadOptionsChosen(LoadOptions(target_kv_type="q8_0"), (), "an earlier run found it")
        assert told([chosen], capsys).splitlines() == [
            "  none tried; opened with target cache q8_0",
            "  an earlier run found it",
            "  a q8_0 cache moves the target's distribution a little",
        ]

    def test_what_neighbours_share_is_a_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = told((StageBegan("costs", None, 1), compared()), capsys)
        assert "  passes over 2, 3, 5 neighbouring tokens of answers take 0.95" in text

    def test_a_stage_that_ran_out_of_time_says_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        events = (StageBegan("costs", None, 4), StageProgress("costs", None, 3, 4, None, "both at work"),
                  StageBegan("study", "coding", 5))  # fmt: skip
        text = told(events, capsys)
        assert "costs: 3 of 4 measurements (both at work), 0 s" in text


class TestStatus:
    def test_it_shows_stage_best_and_time(self) -> None:
        progress = folded(
            StageBegan("study", "coding", 10),
            BestSoFar("coding", SSD, 60.0),
            StageProgress("study", "coding", 2, 10, 50.0),
            BestSoFar("coding", SSD, 70.0),
            StageProgress("study", "coding", 5, 10, 45.0, "five"),
        )
        assert progress.current is not None
        assert status(progress, progress.current, 14.0) == (
            "coding, study: 5 of 10 trials  five  best 70.0 tokens/s simulated  0:14 so far  about 35 s left"
        )

    def test_measured_is_shown_with_its_interval(self) -> None:
        progress = folded(
            StageBegan("confirm", "coding", 9), BestSoFar("coding", SSD, 70.0, around(72.0, 2.0))
        )
        assert progress.current is not None
        assert "best 72.0 tokens/s (70.0-74.0)" in status(progress, progress.current, 1.0)

    def test_time_left_counts_down_between_events_and_never_below_nothing(self) -> None:
        progress = folded(StageBegan("costs", None, 4), StageProgress("costs", None, 1, 4, 30.0))
        assert (progress.left_s(11.0), progress.left_s(99.0)) == (20.0, 0.0)
        progress.take(StageProgress("costs", None, 2, 4, None), 100.0)
        assert progress.left_s(100.0) is None

    def test_a_long_history_keeps_its_shape(self) -> None:
        progress = folded(StageBegan("study", "coding", 5000))
        for value in range(5000):
            progress.take(BestSoFar("coding", SSD, float(value)), 0.0)
            progress.take(StageProgress("study", "coding", value, 5000, None), 0.0)
        history = progress.tasks[0].history
        assert sparkline(history, 8) == "▁▂▃▄▅▆▇█"
