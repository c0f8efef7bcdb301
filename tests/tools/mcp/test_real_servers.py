"""Servers that others made, where they are installed: `pip install mcp-server-time mcp-server-git
mcp-server-fetch` and `npm install -g @modelcontextprotocol/server-everything
@modelcontextprotocol/server-filesystem`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.tools.mcp.entries import ServerEntry
from tests.tools.mcp.serving import call, toolbox
from tests.waiting import until

pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
pytestmark = pytest.mark.slow


def installed(program: str, *args: str) -> ServerEntry:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    return ServerEntry(command=program, args=args)


def test_mcp_server_time() -> None:
    with toolbox(installed("mcp-server-time", "--local-timezone", "UTC")) as tools:
        assert {tool.name for tool in tools.tools()} == {"made__get_current_time", "made__convert_time"}
        output = call(tools, "made__get_current_time", timezone="Europe/Berlin")
        assert json.loads(output.text)["timezone"] == "Europe/Berlin"
        assert call(tools, "made__get_current_time", timezone="Nowhere/At_All").is_error


def test_mcp_server_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(tmp_path)], check=True)
    with toolbox(installed("mcp-server-git"), tmp_path) as tools:
        assert "made__git_status" in {tool.name for tool in tools.tools()}
        assert "On branch trunk" in call(tools, "made__git_status", repo_path=str(tmp_path)).text


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_page = self.path == "/page"
        self.send_response(200 if is_page else 404)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><body><h1>Hello</h1><p>from a page</p></body></html>" if is_page else b"")

    def log_message(self, *_: object) -> None:
        pass


def test_mcp_server_fetch() -> None:
    entry = installed("mcp-server-fetch")
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        with toolbox(entry) as tools:
            output = call(tools, "made__fetch", url=f"http://127.0.0.1:{server.server_address[1]}/page")
        server.shutdown()
        thread.join()
    assert "from a page" in output.text or output.is_error  # newer ones refuse private addresses


def test_server_filesystem(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("the note", encoding="utf-8")
    with toolbox(installed("mcp-server-filesystem", str(tmp_path))) as tools:
        assert call(tools, "made__read_text_file", path=str(tmp_path / "note.txt")).text == "the note"
        assert call(tools, "made__read_text_file", path="/etc/passwd").is_error


def everything_by_stdio() -> ServerEntry:
    return installed("mcp-server-everything", "stdio")


def test_server_everything() -> None:
    stop = threading.Event()
    with toolbox(everything_by_stdio()) as tools:
        ask = partial(call, tools)
        assert {"made__echo", "made__get-sum"} <= {tool.name for tool in tools.tools()}
        assert ask("made__echo", message="hi").text == "Echo: hi"
        assert "5" in ask("made__get-sum", a=2, b=3).text
        assert ask("made__get-sum", a="two").is_error or "number" in ask("made__get-sum", a="two").text
        assert "[image: image/png, " in ask("made__get-tiny-image").text
        assert "temperature" in ask("made__get-structured-content", location="Chicago").text
        assert "[resource demo://" in ask("made__get-resource-links", count=2).text
        server = tools.servers["made"]
        prompts = {prompt.name for prompt in server.prompts()}
        assert "simple-prompt" in prompts
        assert server.prompt("simple-prompt", {}, stop)
        assert "Chicago" in server.prompt("args-prompt", {"city": "Chicago"}, stop)
        resource = server.resources()[0]
        assert len(server.resource(resource.uri, stop).text) > 20
        with pytest.raises(UserError, match="answered with an error"):
            server.prompt("no such prompt", {}, stop)


@pytest.mark.parametrize("seconds", [600])
def test_a_long_call_of_server_everything_is_stopped(seconds: int) -> None:
    stop = threading.Event()
    with toolbox(everything_by_stdio()) as tools:
        tools.tools()
        threading.Timer(0.3, stop.set).start()
        output = call(tools, "made__trigger-long-running-operation", stop, duration=seconds, steps=5)
        assert output.text == "the call was stopped"
        assert call(tools, "made__echo", message="still here").text == "Echo: still here"


def test_server_everything_at_an_address() -> None:
    program = installed("mcp-server-everything").command
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"PORT": str(port)}
    quiet = subprocess.DEVNULL
    server = subprocess.Popen([program, "streamableHttp"], env=environment, stdout=quiet, stderr=quiet)
    try:
        until(partial(_listens, port))
        with toolbox(ServerEntry(url=f"http://127.0.0.1:{port}/mcp")) as tools:
            assert call(tools, "made__echo", message="hi").text == "Echo: hi"
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
