"""The package `mcp` is imported when a server is needed, and its absence is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.tools.mcp.toolbox import McpTools
from tests.tools.mcp.serving import call, made, toolbox

WITHOUT_SERVERS = """
import sys
from pathlib import Path
import localspec.cli.main, localspec.cli.mcp
from localspec.tools.mcp.entries import read_servers
from localspec.tools.mcp.toolbox import McpTools
tools = McpTools(read_servers(Path("none.json")), Path())
assert list(tools.tools()) == []
tools.close()
names = ("mcp", "mcp_types", "pydantic", "anyio", "httpx2", "asyncio")
print([name for name in names if name in sys.modules])
"""


@pytest.mark.slow
def test_nothing_of_it_is_imported_without_a_server() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SERVERS],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_its_absence_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    line = "MCP servers need the package `mcp`; run `pip install 'localspec[mcp]'`"
    with toolbox(made()) as tools:
        assert list(tools.tools()) == []
        assert list(tools.problems()) == [line]
        with pytest.raises(UserError, match="no MCP server has a tool"):
            call(tools)
    assert list(McpTools({}, Path()).tools()) == []


def test_an_old_version_of_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.1.1")
    with toolbox(made()) as tools:
        assert list(tools.tools()) == []
        assert tools.problems()[0].startswith("MCP servers need the package `mcp` 2.3 or newer, and 2.1.1 is")
