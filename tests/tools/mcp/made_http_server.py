"""An MCP server for streamable HTTP in plain Python, whose behaviour a test chooses."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.tools.mcp.made_server import ABOUT, HANDLERS, text_result


class MadeHttpServer(ThreadingHTTPServer):
    """It counts sessions; `forget` makes it forget them once, `behaviour` is of calls of tools."""

    daemon_threads = True

    def __init__(self, behaviour: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behaviour = behaviour
        self.sessions = 0
        self.forgotten: set[str] = set()
        self.headers: dict[str, str] = {}
        self.cancelled = threading.Event()
        self.called = threading.Event()
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def forget(self) -> None:
        self.forgotten.add(str(self.sessions))

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that leave."""


class _Handler(BaseHTTPRequestHandler):
    server: MadeHttpServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(405, b"")

    def do_DELETE(self) -> None:
        self._answer(200, b"")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.headers = {name.lower(): value for name, value in self.headers.items()}
        session, method = self.headers.get("mcp-session-id"), request.get("method")
        if self.server.behaviour == "401":
            self._answer(401, b"no")
        elif self.server.behaviour == "404":
            self._answer(404, b"")
        elif session in self.server.forgotten:
            status = 400 if self.server.behaviour == "400" else 404
            problem = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            self._json(status, {"error": problem, "id": None})
        elif "id" not in request:
            if method == "notifications/cancelled":
                self.server.cancelled.set()
            self._answer(202, b"")
        elif method == "initialize":
            self.server.sessions += 1
            about = ABOUT | {"protocolVersion": request["params"]["protocolVersion"]}
            self._json(200, {"id": request["id"], "result": about}, session=str(self.server.sessions))
        elif method == "tools/call":
            self._call(request)
        else:
            self._json(200, {"id": request["id"], "result": HANDLERS[method](request.get("params") or {})})

    def _call(self, request: dict[str, Any]) -> None:
        result = text_result(str(request["params"]["arguments"].get("text")))
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
        match self.server.behaviour:
            case "large":
                self._answer(200, b" " * 100 * 2**20 + body)
            case "gzip":
                self._answer(200, gzip.compress(body), encoding="gzip")
            case "events":
                self._answer(200, b"event: message\ndata: " + body + b"\n\n", kind="text/event-stream")
            case "endless events":
                self._answer(200, b": x\n" * 50 * 2**20, kind="text/event-stream")
            case "no answer":
                self.server.called.set()
                self.server.over.wait(60)
            case "text":
                self._answer(200, b"<html>hello</html>", kind="text/html")
            case "500":
                self._answer(500, b"")
            case _:
                self._answer(200, body)

    def _json(self, status: int, message: dict[str, Any], session: str = "") -> None:
        self._answer(status, json.dumps({"jsonrpc": "2.0"} | message).encode(), session=session)

    def _answer(
        self,
        status: int,
        body: bytes,
        *,
        kind: str = "application/json",
        session: str = "",
        encoding: str = "",
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in (("mcp-session-id", session), ("content-encoding", encoding)):
            if value:
                self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):  # a client that has enough
            self.wfile.write(body)


@contextmanager
def serving(behaviour: str = "good") -> Iterator[MadeHttpServer]:
    """Run a server in threads of its own."""
    server = MadeHttpServer(behaviour)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
