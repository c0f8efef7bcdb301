"""The page of the server, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.server.application import AccessPolicy
from tests.server import browser
from tests.server.running import serving
from tests.server.turning_models import TurningModels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium to show the page in"),
]
SEEN = """new Promise((done) => setInterval(() => {
  const element = document.getElementById("%s");
  if (element && element.textContent.includes("%s")) done(element.textContent);
}, 10))"""


def seen(page: browser.Page, element: str, text: str) -> str:
    """Wait until an element shows a text, and return all that it shows."""
    shown: str = page.run(SEEN % (element, text))
    return shown


def test_it_shows_what_runs_and_answers_a_question(tmp_path: Path) -> None:
    with serving(TurningModels) as served, browser.opened(served.url, tmp_path) as page:
        seen(page, "state", "The server is running.")
        assert "coding" in seen(page, "models", "512 tokens")
        assert served.url in seen(page, "connect", "/v1")
        page.run("find('question').value = 'Why?'; find('send').click()")
        seen(page, "answer", "WWW")
        seen(page, "figures", "being answered1")
        page.run("find('stop').click()")
        seen(page, "figures", "being answered0")
        assert not [line for line in served.lines if " 40" in line]


def test_it_asks_for_the_key_where_one_is_needed(tmp_path: Path) -> None:
    with (
        serving(TurningModels, AccessPolicy("s3cret")) as served,
        browser.opened(served.url, tmp_path) as page,
    ):
        seen(page, "state", "the API key is missing or wrong")
        assert page.run("find('locked').hidden") is False
        page.run("find('key').value = 's3cret'; find('key').dispatchEvent(new Event('change'))")
        seen(page, "state", "The server is running.")
