"""The page as a whole: what it says, that it is well-formed, and that it fetches and runs nothing."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from math import inf, nan
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from localspec.decoding.measurements import CallCosts, Costs
from localspec.errors import StoreError
from localspec.tuning.events import ConfirmedContender, Evidence, TaskResult
from localspec.tuning.report.page import ReportInput, render, write_report
from localspec.tuning.words import fixed, milliseconds, parameters, percent
from localspec.types import EngineSettings, Interval
from tests.tuning.report_sample import sample

EVIL = '</style><script src="http://evil.example/x.js">alert(1)</script>\x00\u202e&"\''


class Page(HTMLParser):
    """What a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def root_of(html: str) -> ET.Element:
    """Return the page as a tree: it is well-formed XML too."""
    return ET.fromstring(html.removeprefix("<!DOCTYPE html>\n"))


def only(result: TaskResult, **changes: object) -> ReportInput:
    return replace(sample(), results=(result,), **changes)  # type: ignore[arg-type]


def test_the_same_input_gives_the_same_page() -> None:
    assert render(sample()) == render(sample())


def test_the_page_is_well_formed_and_every_id_is_unique() -> None:
    html = render(sample())
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    root = root_of(html)
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    links = [(each.get("href") or "")[1:] for each in root.iter("a")]
    assert set(links) <= set(ids)
    assert {"coding", "writing", "costs", "predictions", "settings", "method"} == set(links)


def test_figures_appear_exactly() -> None:
    text = Page(render(sample())).text
    for words in (
        "Coding: SSD, K 5, budget 12",
        "118.4 tokens/s (115.1 to 121.5)",
        "1.92× plain decoding (1.85 to 1.98)",
        "Plain decoding wrote 61.7 tokens/s (60.0 to 63.3).",
        "With llama.cpp's defaults it was 88.9 tokens/s (86.4 to 91.2).",
        "Writing: SD, K 2",
        "71.2 tokens/s (69.2 to 73.1)",
        "1.7 billion parameters, 1007 MiB; on the processor",
        "2026-11-22 02:05 UTC",
        "failed: out of memory",
        "400 simulated trials",
        "the speed of plain decoding at the end was 0.99 times that at the beginning",
    ):
        assert words in text, words


def test_the_meaning_is_told_in_plain_sentences() -> None:
    text = Page(render(sample())).text
    assert (
        "Verifying 6 tokens at once costs 1.4 times what one token costs on this machine "
        "(18.6 ms against 13.3 ms)" in text
    )
    assert "A token of the draft model costs 17% of one of the target" in text
    assert "a token of the target takes 1.16 times as long" in text
    assert "the target accepts 84% in coding and 58% in writing" in text


def test_every_figure_has_its_values_as_a_table() -> None:
    figures = list(root_of(render(sample())).iter("figure"))
    assert len(figures) == 2 * 5 + 2 + 1
    for figure in figures:
        assert figure.find("svg") is not None
        assert len(list(figure.iter("tr"))) > 1
        head = len(list(figure.iter("th"))) - len(figure.findall(".//tbody//th"))
        assert {len(row) for row in figure.iter("tr")} == {head}


def test_the_chosen_bar_and_the_chosen_cell_are_marked() -> None:
    root = root_of(render(sample()))
    chosen = [each for each in root.iter("li") if "chosen" in (each.get("class") or "")]
    assert [row[0].text for row in chosen] == ["chosen: SSD, K 5, budget 12", "chosen: SD, K 2"]
    rings = [each for each in root.iter("rect") if each.get("class") == "ring"]
    assert len(rings) == 2


def settings_told(given: ReportInput) -> dict[str | None, list[str | None]]:
    (section,) = (each for each in root_of(render(given)).iter("section") if each.get("id") == "settings")
    return {row[0].text: [cell.text for cell in row[1:]] for row in section.iter("tr")}


def test_settings_that_a_mode_does_not_use_are_dashes() -> None:
    rows = settings_told(sample())
    assert rows["mode"] == ["SSD", "SD"]
    assert rows["fan-out budget"] == ["12", "–"]
    assert rows["draft temperature"] == ["0.85", "1.25"]
    assert rows["confidence stop"] == ["by measured costs", "0.35"]


def test_predictions_are_judged() -> None:
    text = Page(render(sample())).text
    assert re.search(r"8 settings: median error 2\.\d%, largest 5\.\d%, rank correlation 1\.00\.", text)


def everything_evil() -> ReportInput:
    given = sample()
    result = given.results[0]
    contenders = replace(result.contenders[0], name=EVIL), *result.contenders[1:]
    evidence = replace(result.evidence, importance=((EVIL, 0.5),))
    assert given.load_options is not None
    attempts = tuple(replace(each, failure=EVIL, mode=EVIL) for each in given.load_options.attempts)
    return replace(
        given,
        machine=((EVIL, EVIL),),
        target=replace(given.target, name=EVIL, place=EVIL),
        draft=replace(given.target, name=EVIL),
        results=(replace(result, reason=EVIL, contenders=contenders, evidence=evidence),),
        load_options=replace(given.load_options, reason=EVIL, attempts=attempts),
    )


def test_texts_from_files_stay_texts() -> None:
    html = render(everything_evil())
    page = Page(html)
    root_of(html)
    assert "script" not in page.tags
    assert "\x00" not in html
    assert "</style><script" in page.text
    assert html.count("<style>") == html.count("</style>") == 1


@pytest.mark.parametrize("given", [sample(), everything_evil()], ids=["sample", "evil"])
def test_nothing_is_fetched_and_nothing_is_run(given: ReportInput) -> None:
    html = render(given)
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "base", "use", "image"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in {"src", "href", "srcset", "action", "xlink:href"}:
            assert value.startswith("#")
    style = html[html.index("<style>") : html.index("</style>")]
    assert not {"url(", "@import", "http"} & set(re.findall(r"url\(|@import|http", style))
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_the_page_adapts_to_dark_screens_phones_and_paper() -> None:
    html = render(sample())
    for rule in ("prefers-color-scheme: dark", "max-width: 560px", "@media print", "width=device-width"):
        assert rule in html


def test_the_page_is_small() -> None:
    many = replace(
        sample().results[0], evidence=Evidence(history=tuple(50.0 + at % 37 for at in range(100_000)))
    )
    assert len(render(sample())) < 300_000
    assert len(render(only(many))) < 300_000


def bare(settings: EngineSettings, contenders: tuple[ConfirmedContender, ...]) -> TaskResult:
    return TaskResult("math", settings, "No draft model is open.", contenders, 0, 3.0)


def test_without_a_draft_model_the_page_says_so() -> None:
    off = EngineSettings("off")
    plain = ConfirmedContender("plain", off, None, Interval(20, 19, 21), Interval(1, 1, 1))
    calls = CallCosts(64, together=False, verify=((1, 0.05), (2, 0.06)), step=())
    html = render(only(bare(off, (plain,)), draft=None, costs=Costs((calls,)), load_options=None))
    text = Page(html).text
    assert "Math: plain decoding" in text
    assert "20.0 tokens/s (19.0 to 21.0)" in text
    assert "It was not compared with llama.cpp's defaults." in text
    assert "Draft model: one step of N branches: there was no draft model." in text
    assert "Acceptance by position: no texts were recorded with a draft model." in text
    assert "Predicted against measured: nothing was both simulated and run." in text
    assert "Other threads, batch sizes and cache types were not tried." in text
    assert [each.get("aria-labelledby") for each in root_of(html).iter("svg") if each.get("role")] == [
        "verify-t verify-d"
    ]


def test_with_nothing_at_all_the_page_says_so() -> None:
    empty = replace(sample(), costs=None, results=(), load_options=None, machine=(), quick=True)
    text = Page(render(empty)).text
    assert "No task has been tuned yet." in text
    assert "costs were not measured" in text
    assert "A quick run" in text
    html = render(only(bare(EngineSettings("ssd"), ())))
    assert "no way of decoding was really run" in Page(html).text


def test_speculation_that_is_off_is_told_with_its_reason() -> None:
    off = EngineSettings("off", draft_length=3)
    html = render(only(replace(sample().results[0], settings=off, reason="The draft is too slow.")))
    text = Page(html).text
    assert "Plain decoding; speculation stays off. With llama.cpp's defaults it was 88.9" in text
    assert "The draft is too slow." in text
    assert "× plain decoding (" not in text
    assert not [each for each in root_of(html).iter("rect") if each.get("class") == "ring"]


def test_values_that_are_no_numbers_never_reach_a_drawing() -> None:
    result = sample().results[0]
    odd = ConfirmedContender("best", result.settings, nan, Interval(nan, nan, inf), Interval(inf, nan, nan))
    wrong = Evidence(
        acceptance=(nan, 0.5),
        hit_rates=((1, nan), (0, 0.5), (4, 0.7)),
        history=(nan, None, inf, 3.0),
        landscape=(((1, 1), nan), ((2, 4), 7.0)),
        importance=(("mode", nan), ("acceptance", 1.0)),
    )
    calls = CallCosts(0, together=False, verify=((1, nan), (2, 0.1)), step=((1, inf),), drift=inf)
    broken = replace(result, contenders=(result.contenders[0], odd), drift=nan, evidence=wrong)
    html = render(only(broken, costs=Costs((calls,))))
    root = root_of(html)
    for drawing in root.iter("svg"):
        for each in drawing.iter():
            for name, value in each.items():
                assert name in {"class", "id", "aria-labelledby"} or not re.search(r"nan|inf", value)
    assert "The machine changed its speed" in Page(html).text


def test_a_machine_that_changed_its_speed_is_told_at_the_top() -> None:
    text = Page(render(only(replace(sample().results[0], drift=0.88)))).text
    warning = "Coding: the speed of plain decoding at the end was 0.88 times that at the beginning."
    assert text.index(warning) < text.index("tokens/s")
    assert "The machine changed its speed" not in Page(render(sample())).text


def test_trials_that_failed_are_counted_not_drawn_as_zero() -> None:
    seen = Evidence(history=(40.0, None, 60.0, None, 50.0))
    html = render(only(replace(sample().results[0], evidence=seen)))
    assert "Tokens/s of 5 trials, and the best so far. 2 failed or were given up." in Page(html).text
    (drawing,) = (
        e for e in root_of(html).iter("svg") if e.get("aria-labelledby", "").startswith("coding-history")
    )
    titles = [each.text for each in drawing.iter("title")]
    assert titles[1:] == ["a trial, 1: 40", "a trial, 3: 60", "a trial, 5: 50"]


def test_the_report_is_written_in_one_step_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(path, sample())
    assert path.read_text(encoding="utf-8") == render(sample())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StoreError):
        write_report(tmp_path / "missing" / "report.html", sample())


def test_every_setting_that_a_mode_uses_is_told() -> None:
    settings = EngineSettings("ngram", 5, min_confidence=0.4)
    rows = settings_told(only(bare(settings, ())))
    assert [rows[name] for name in ("mode", "draft length", "confidence stop", "fan-out budget")] == [
        ["n-gram"], ["5"], ["0.4"], ["–"]
    ]  # fmt: skip


def test_figures_in_words() -> None:
    assert [fixed(1234.56), fixed(nan), fixed(inf), fixed(None), fixed(1.005, 2)] == [
        "1,234.6", "–", "–", "–", "1.00"
    ]  # fmt: skip
    assert [percent(0.846), percent(0.846, 1), percent(nan)] == ["85%", "84.6%", "–"]
    times = [milliseconds(each) for each in (0.1234, 0.01234, 0.001234, 0.0001234, nan)]
    assert times == ["123\u00a0ms", "12.3\u00a0ms", "1.23\u00a0ms", "0.123\u00a0ms", "–"]
    assert [parameters(1_711_376_384), parameters(134_515_008), parameters(3200)] == [
        "1.7 billion",
        "135 million",
        "3,200",
    ]
