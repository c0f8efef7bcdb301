"""The short form of the campaign; `python -m tests.campaign` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign.log import Log
from tests.campaign.parts import PARTS

pytestmark = pytest.mark.campaign


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_nothing_is_found(name: str, tmp_path: Path) -> None:
    log = Log(name, most=PARTS[name].short, seconds=5.0)
    PARTS[name].run(log, tmp_path)
    assert log.cases
    assert log.found == []
