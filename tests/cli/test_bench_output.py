"""What `bench` prints and draws, of tables made by hand."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from localspec.benchmark.figures import Drift, SpeedTable
from localspec.benchmark.harness import Run
from localspec.benchmark.statistics import Interval
from localspec.cli.bench.output import comma_separated, line, markdown, picture, times, whole
from localspec.cli.shared.console import print_result
from localspec.types.events import Summary
from tests.cli.bench_tables import AHEAD, CONDITIONS, PLAIN, REQUEST, SERVER, TABLE


def printed(value: Mapping[str, object], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what a program reads of it."""
    print_result(value, (), as_json=True)
    read: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return read


SVG = "{http://www.w3.org/2000/svg}"


def cells(lines: list[str], name: str) -> list[str]:
    [found] = [text for text in lines if text.startswith(f"| {name} |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def texts(drawn: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(drawn).iter(f"{SVG}text")]


def bars(drawn: str) -> list[float]:
    found = ET.fromstring(drawn).iter(f"{SVG}rect")
    return [float(each.attrib["width"]) for each in found if "bar" in each.get("class", "")]


def whiskers(drawn: str) -> int:
    return sum(each.get("class") == "whisker" for each in ET.fromstring(drawn).iter(f"{SVG}line"))


def test_a_table_for_each_task_and_what_it_holds_for() -> None:
    lines = list(markdown(TABLE, REQUEST, CONDITIONS))
    assert [text for text in lines if text.startswith("#")] == ["### coding", "### all"]
    first = lines[: lines.index("### all")]
    assert cells(first, "ssd") == [
        "ssd", "120 (100-150)", "3.00 (2.50-3.62)", "2.50 (2.25-2.75)", "31.20", "512", "4.26", "76%", "88%",
        "1.23", "0.40", "98%", "3.0 GiB",
    ]  # fmt: skip
    assert cells(first, "off")[2] == "-"
    assert lines[-2] == (
        "big + small; 2 prompts, at most 64 tokens, temperature 0. A processor, 2 of 4 cores, Linux."
    )
    assert lines[-1] == "`localspec bench -n 64`"


def test_every_row_has_as_many_cells_as_the_head() -> None:
    lines = [text for text in markdown(TABLE, REQUEST, CONDITIONS) if text.startswith("|")]
    assert len({text.count("|") for text in lines}) == 1


def test_what_no_one_knows_is_a_dash() -> None:
    lines = list(markdown(replace(TABLE, rows=(PLAIN, SERVER)), REQUEST, CONDITIONS))
    assert cells(lines, "llama-server") == [
        "llama-server", "39.0", "0.97", "0.88", "31.20", "-", "-", "-", "-", "-", "-", "-", "-"
    ]  # fmt: skip


def test_a_run_that_was_stopped_or_disturbed_says_so() -> None:
    stopped = replace(CONDITIONS, complete=False, draft=None)
    lines = list(markdown(replace(TABLE, drift=Drift(0.18, (3,))), replace(REQUEST, repetitions=3), stopped))
    assert "Stopped before the end." in lines
    assert any("its pace in 1 prompt, at worst by 18%" in text for text in lines)
    assert any(text.startswith("big; 2 prompts, 3 times each,") for text in lines)
    assert "Stopped before the end." not in list(markdown(TABLE, REQUEST, CONDITIONS))


def test_a_task_of_a_file_cannot_break_the_heading() -> None:
    odd = replace(TABLE, rows=(replace(PLAIN, task="two\nlines"),))
    assert next(markdown(odd, REQUEST, CONDITIONS)) == "### two lines"


def test_ratios_with_as_many_digits_as_mean_something() -> None:
    assert [times(0.974), times(99.5), times(1234567.0)] == ["0.97", "99.50", "1.23e+06"]


def test_csv_has_a_column_for_each_end_of_an_interval() -> None:
    rows = list(csv.DictReader(io.StringIO(comma_separated(TABLE))))
    assert [(row["task"], row["contender"]) for row in rows[:3]] == [
        ("coding", "off"), ("coding", "ssd"), ("coding", "llama-server"),
    ]  # fmt: skip
    plain, ahead, server = rows[:3]
    assert (ahead["against"], ahead["against_low"], ahead["against_high"]) == ("3.0", "2.5", "3.625")
    assert (ahead["whole_against"], ahead["whole_against_low"]) == ("2.5", "2.25")
    assert (plain["against"], plain["against_low"], plain["accepted_at"]) == ("", "", "")
    assert ahead["accepted_at"] == "0.9 0.8125"
    assert (server["tokens_per_s"], server["tokens_per_s_low"], server["python_s"]) == ("39.0", "", "")
    assert len(rows) == len(TABLE.rows)


def test_json_holds_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    value = printed(whole(TABLE, REQUEST, CONDITIONS), capsys)
    assert (value["schema"], value["complete"], value["comparable"], value["reason"]) == (1, True, True, None)
    assert value["rows"][1]["accepted_at"] == [0.9, 0.8125]
    assert value["rows"][1]["against"] == {"value": 3.0, "low": 2.5, "high": 3.625}
    assert value["rows"][2]["verify_s"] is None
    assert value["sampling"]["temperature"] == 0
    assert (value["prompts"], value["runs"], value["max_tokens"]) == (2, 1, 64)
    assert value["command"] == "localspec bench -n 64"
    assert value["drift"] == {"worst": 0.04, "disturbed": []}


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    endless = replace(AHEAD, tokens_per_s=Interval(120.0, 0.0, float("inf")))
    value = printed(whole(replace(TABLE, rows=(endless,)), REQUEST, CONDITIONS), capsys)
    assert value["rows"][0]["tokens_per_s"]["high"] is None


def test_a_line_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary(tokens=13, decode_s=2.0, accepted_at=(4, 3))
    value = printed(line(Run("sd", "coding", 3, 1, summary)), capsys)
    assert (value["contender"], value["task"], value["prompt"], value["repetition"]) == ("sd", "coding", 3, 1)
    assert (value["tokens_per_s"], value["tokens"], value["accepted_at"]) == (6.0, 13, [4, 3])


def test_bars_are_as_long_as_the_speeds() -> None:
    drawn = picture(TABLE, "big + small", "A processor")
    plain, ahead, server = bars(drawn)[:3]
    assert ahead == pytest.approx(3 * plain, abs=0.1)
    assert server < plain
    assert len(bars(drawn)) == 6
    assert whiskers(drawn) == 2 * 2  # of two contenders, for two tasks
    for words in ("coding", "all", "ssd", "120 tokens/s, ×3.00 (2.50-3.62)", "39.0 tokens/s, ×0.97"):
        assert words in texts(drawn)


def test_an_interval_without_end_does_not_flatten_the_bars() -> None:
    wild = replace(TABLE, rows=(PLAIN, replace(AHEAD, tokens_per_s=Interval(120.0, 1.0, 1e9))))
    plain, ahead = bars(picture(wild, "big", ""))
    assert ahead > 150
    assert plain > 50
    assert whiskers(picture(wild, "big", "")) == 2


def test_a_drawing_needs_nothing_else_and_knows_light_and_dark() -> None:
    drawn = picture(TABLE, "<big> & small", "A processor")
    assert "prefers-color-scheme: dark" in drawn
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    assert "<big> & small" in texts(drawn)


def test_a_table_of_one_row_can_be_drawn() -> None:
    alone = SpeedTable((replace(SERVER, against=None),), Drift(0.0, ()), comparable=False, reason="few")
    assert len(bars(picture(alone, "big", ""))) == 1
