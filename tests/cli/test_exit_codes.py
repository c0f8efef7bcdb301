"""The documented table of exit codes and streams, row by row, on the real program."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_readme import rows

ROOT = Path(__file__).parents[2]
PROGRAM = (
    "import os, sys; from localspec.__main__ import main; from localspec.cli.shared import opening\n"
    "from localspec.errors import EngineError\n"
    "from localspec.types.events import Finished, TextDelta, TextPiece\n"
    "from localspec.types.drafts import Provenance; from tests.cli.fake_runtime import FakeRuntime, SUMMARY\n"
    "from localspec.cli.shared.console import exit_on_signals\n"
    "how = sys.argv[1]\n"
    "def script(request):\n"
    "    yield TextDelta((TextPiece('so far', Provenance.TARGET),))\n"
    "    if how == 'fails': raise EngineError('memory is short')\n"
    "    if how in ('SIGINT', 'SIGTERM'): os.kill(os.getpid(), getattr(__import__('signal'), how))\n"
    "    yield Finished('cancelled' if how == 'SIGINT' else 'stop', SUMMARY)\n"
    "FakeRuntime([script], notes=('a note',)).install(setattr)\n"
    "opening._devices = lambda: ()\n"
    "with exit_on_signals(): sys.exit(main(['run', 'Hi', '--no-fit', *sys.argv[2:]]))\n"
)
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
ROWS = {code: row for row in rows("Exit codes", PAGE) for code in row[0].split(", ")}
WAYS = {  # for each code: how the answer goes, and flags
    "0": ("ends",),
    "1": ("fails",),
    "2": ("ends", "--temp", "hot"),
    "130": ("SIGINT",),
    "143": ("SIGTERM",),
}
STREAMS: dict[str, Callable[[str], bool]] = {  # the table's words, and whether they fit what came
    "the answer or the result": lambda text: text == "so far\n",
    "the output so far": lambda text: text.startswith("so far"),
    "nothing": lambda text: text.replace("note: a note\n", "").strip() == "",
    "notes": lambda text: text == "note: a note\n",
    "`error:`": lambda text: "error: memory is short" in text,
    "`error:`, usually with `hint:`": lambda text: text.startswith("error: ") and "  hint: " in text,
}


def test_every_code_has_its_row() -> None:
    assert list(ROWS) == list(WAYS)
    assert 128 + signal.SIGINT == 130
    assert 128 + signal.SIGTERM == 143


@pytest.mark.parametrize("code", WAYS)
def test_the_program_keeps_what_the_table_says(code: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *WAYS[code]],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    _, _, out, err = ROWS[code]
    assert result.returncode == int(code)
    assert code == "143" or STREAMS[out](result.stdout), result.stdout  # what was not printed yet is lost
    assert STREAMS[err](result.stderr), result.stderr
