"""Every promise of SECURITY.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.campaign.parts import PARTS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]


def test_there_are_promises() -> None:
    assert len(ROWS) > 10
    assert {len(row) for row in ROWS} == {2}


@pytest.mark.parametrize(("promise", "tests"), ROWS)
def test_a_promise_names_tests_that_there_are(promise: str, tests: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)(?:\[(\w+)\])?`", tests)
    assert len(named) == tests.count("::") > 0, promise
    for file, test, part in named:
        source = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^(?:async )?def {test}\(", source, re.MULTILINE), f"{file} has no {test}"
        assert not part or part in PARTS


def test_every_part_of_the_campaign_holds_a_promise() -> None:
    assert set(re.findall(r"test_nothing_is_found\[(\w+)\]", PAGE)) == PARTS.keys()


def test_the_command_for_the_long_form_is_the_one_there_is() -> None:
    assert "python -m tests.campaign --minutes 60 --seed 1" in PAGE
