"""An MCP server in plain Python, which can also break every rule: `python made_server.py BEHAVIOUR`.

It is made without the SDK, which would not let it lie.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEHAVIOUR = sys.argv[1] if len(sys.argv) > 1 else "good"
OBJECT = {"type": "object", "properties": {"text": {"type": "string", "description": "what to say"}}}
ECHO = {"name": "echo", "description": "Say it again.", "inputSchema": OBJECT | {"required": ["text"]}}
SLEEPER = "import time; time.sleep(600)"
NEWEST = "2026-07-28"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
LISTENING: list[int | str] = []
HELD: list[bytes] = []
_writing = threading.Lock()


def write(data: bytes) -> None:
    with _writing:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def send(message: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")


def log(text: str) -> None:
    """Write a line into the file that a test reads, if it named one."""
    if len(sys.argv) > 2:
        with Path(sys.argv[2]).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": {"type": "text", "text": text}}


def hang(*_: object) -> None:
    while True:
        time.sleep(600)


def flood(*_: object) -> None:
    """Send messages of 64 kB, 100 MB of them."""
    line = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 2**16}})
    for _count in range(1600):
        write(line.encode() + b"\n")


def one_line(*_: object) -> None:
    """Send 100 MB without the end of a line."""
    for _count in range(1600):
        write(b"x" * 2**16)


def flood_errors(*_: object) -> dict[str, Any]:
    for _count in range(160):
        sys.stderr.write("e" * 2**16 + "\n")
    sys.stderr.flush()
    return text_result("fine")


def take_memory(*_: object) -> dict[str, Any]:
    HELD.append(b"x" * 2**28)
    hang()
    return {}


def slow_then_answer(params: dict[str, Any]) -> dict[str, Any]:
    time.sleep(float(params["arguments"].get("seconds", 600)))
    return text_result("at last")


def die(*_: object) -> None:
    sys.stderr.write("Traceback (most recent call last):\nKeyError: 'TOKEN'\n")
    sys.stderr.flush()
    os._exit(3)


def answer_and_die(params: dict[str, Any]) -> None:
    send({"id": params["id"], "result": text_result(str(params["arguments"].get("text")))})
    os._exit(3)


def with_child(*_: object) -> dict[str, Any]:
    """Start a process in this group, one that leaves it, and one that has lost its parent, too; name them."""
    own = subprocess.Popen([sys.executable, "-c", SLEEPER])
    other = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True, env={})
    orphan = subprocess.run(
        ["sh", "-c", "setsid sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE, check=True
    )
    return text_result(f"{os.getpid()} {own.pid} {other.pid} {int(orphan.stdout)}")


def changed(*_: object) -> dict[str, Any]:
    TOOLS.append({"name": "new", "inputSchema": {"type": "object"}})
    send({"method": "notifications/tools/list_changed"})
    return text_result("changed")


def broken_json(params: dict[str, Any]) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": %s}}\n' % (params["id"], deep))


def latin(params: dict[str, Any]) -> None:
    answer = {"jsonrpc": "2.0", "id": params["id"], "result": text_result("caf\xe9")}
    write(json.dumps(answer, ensure_ascii=False).encode("latin-1") + b"\r\n")


class RefusedError(Exception):
    """The error that answers a request: its number, its message, and what else it says."""


def wrong_arguments(*_: object) -> None:
    raise RefusedError(-32602, "bad\n\x1b[31m arguments", None)


def without_handshake(params: dict[str, Any]) -> None:
    versions = {"supported": [NEWEST], "requested": params["protocolVersion"]}
    raise RefusedError(-32022, "Unsupported protocol version", versions)


def listen(params: dict[str, Any]) -> None:
    """Acknowledge a subscription, and answer nothing: it lasts."""
    LISTENING.append(params["id"])
    said = {"notifications": {"toolsListChanged": True}, "_meta": {SUBSCRIPTION: params["id"]}}
    send({"method": "notifications/subscriptions/acknowledged", "params": said})


def changed_newest(*_: object) -> dict[str, Any]:
    TOOLS.append({"name": "new", "inputSchema": {"type": "object"}})
    for number in LISTENING:
        about = {"_meta": {SUBSCRIPTION: number}}
        send({"method": "notifications/tools/list_changed", "params": about})
    return complete(text_result("changed"))


def complete(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result of the newest protocol."""
    return result | {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def pages(params: dict[str, Any]) -> dict[str, Any]:
    at = int(params.get("cursor") or 0)
    page = {"tools": [{"name": f"tool{at}", "inputSchema": {"type": "object"}}]}
    return page | ({"nextCursor": str(at + 1)} if at < 2 else {})


def same_page(_params: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [ECHO], "nextCursor": "again"}


TOOLS: list[dict[str, Any]] = [ECHO]
NESTED = {"type": "object", "properties": {"coin": {"type": "string"}, "required": ["coin"]}}
BIG = {
    "type": "object",
    "properties": {f"p{n}": {"type": "string"} for n in range(5000)},
    "required": ["p4999"],
}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WRONG_TOOLS: list[Any] = [
    ECHO,
    "no tool",
    {"name": "", "inputSchema": OBJECT},
    {"name": "no_schema"},
    {"name": "empty", "inputSchema": {}},
    {"name": "text", "inputSchema": {"type": "string"}},
    {"name": "nested", "inputSchema": NESTED},
    {"name": "echo", "inputSchema": OBJECT},
    {"name": "evil\n\x1b[2Jname", "description": "red \x1b[31m\u202eetihw\U000e0041", "inputSchema": OBJECT},
    {"name": "ns.list/all", "inputSchema": OBJECT},
    {"name": "very_" * 30 + "long", "inputSchema": OBJECT},
    {"name": "big", "inputSchema": BIG},
    {"name": "output", "inputSchema": OBJECT, "outputSchema": NUMBER},
]
IMAGE = "aGVsbG8gd29ybGQ="
CONTENTS = [
    {"type": "text", "text": "one\x1b[31m"},
    {"type": "image", "data": IMAGE, "mimeType": "image/png"},
    {"type": "audio", "data": IMAGE, "mimeType": "audio/wav"},
    {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"},
    {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "in b"}},
    {"type": "resource", "resource": {"uri": "file:///c.bin", "blob": IMAGE, "mimeType": "application/zip"}},
    {"type": "hologram"},
]
PROMPTS = [{"name": "review", "description": "Review\nit", "arguments": [{"name": "file", "required": True}]}]
RESOURCES = [{"uri": "note:one", "name": "One", "mimeType": "text/plain"}, {"uri": 7}, "none"]

ABOUT = {
    "capabilities": {"tools": {"listChanged": True}, "prompts": {}, "resources": {}},
    "serverInfo": {"name": "made", "version": "1"},
}

Handler = Callable[[dict[str, Any]], Any]
HANDLERS: dict[str, Handler] = {
    "initialize": lambda params: ABOUT | {"protocolVersion": params["protocolVersion"]},
    "ping": lambda _: {},
    "tools/list": lambda _: {"tools": TOOLS},
    "tools/call": lambda params: text_result(str(params["arguments"].get("text"))),
    "prompts/list": lambda _: {"prompts": PROMPTS},
    "prompts/get": lambda params: {"messages": [said(f"Review {params['arguments']['file']}")]},
    "resources/list": lambda _: {"resources": RESOURCES},
    "resources/read": lambda params: {"contents": [{"uri": params["uri"], "text": "the note"}]},
}
BEHAVIOURS: dict[str, dict[str, Handler]] = {
    "good": {},
    "hangs": {"initialize": hang},
    "floods": {"initialize": flood},
    "one line": {"tools/call": one_line},
    "flood in call": {"tools/call": flood},
    "errors": {"tools/call": flood_errors},
    "memory": {"tools/call": take_memory},
    "slow": {"tools/call": slow_then_answer},
    "dies at start": {"initialize": die},
    "dies": {"tools/call": die},
    "answers and dies": {"tools/call": answer_and_die},
    "hangs in call": {"tools/call": hang},
    "bare greeting": {
        "initialize": lambda params: {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": True, "prompts": None},
        }
    },
    "broken json": {"tools/call": broken_json},
    "latin": {"tools/call": latin},
    "error": {"tools/call": wrong_arguments},
    "children": {"tools/call": with_child},
    "changes": {"tools/call": changed},
    "pages": {"tools/list": pages},
    "same page": {"tools/list": same_page},
    "wrong tools": {"tools/list": lambda _: {"tools": WRONG_TOOLS}},
    "no list": {"tools/list": lambda _: {"tools": "none"}},
    "contents": {"tools/call": lambda _: {"content": CONTENTS}},
    "structured": {"tools/call": lambda _: {"structuredContent": {"n": 1}}},
    "fails": {"tools/call": lambda _: text_result("no such file") | {"isError": True}},
    "list as result": {"tools/call": lambda _: ["a", "b"]},
    "newest": {
        "initialize": without_handshake,
        "server/discover": lambda _: complete({"supportedVersions": [NEWEST], "capabilities": {"tools": {}}}),
        "tools/list": lambda _: complete({"tools": TOOLS}),
        "tools/call": changed_newest,
        "subscriptions/listen": listen,
    },
    "asks back": {
        "initialize": without_handshake,
        "server/discover": lambda _: complete({"supportedVersions": [NEWEST], "capabilities": {"tools": {}}}),
        "tools/list": lambda _: complete({"tools": TOOLS}),
        "tools/call": lambda _: {"resultType": "input_required", "requestState": "x"},
    },
    "other version": {"initialize": lambda _: ABOUT | {"protocolVersion": "1999-01-01"}},
    "environment": {"tools/call": lambda _: text_result(json.dumps({"cwd": str(Path.cwd()), **os.environ}))},
}


def answer(request: dict[str, Any]) -> None:
    handler = (HANDLERS | BEHAVIOURS.get(BEHAVIOUR, {})).get(request["method"])
    if "id" not in request:
        log(json.dumps(request))
        return
    if handler is None:
        send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        return
    log(request["method"])
    try:
        result = handler((request.get("params") or {}) | {"id": request["id"]})
    except RefusedError as error:
        code, message, data = error.args
        send({"id": request["id"], "error": {"code": code, "message": message, "data": data}})
        return
    if result is not None:
        send({"id": request["id"], "result": result})


def main() -> None:
    if BEHAVIOUR == "prints":
        write(b"Starting the server ...\n{not json}\n[1, 2]\n")
    if BEHAVIOUR == "only prints":
        write(b"error: no configuration\n")
        hang()
    if BEHAVIOUR == "no broken pipe":
        write(b"x" * 2**20 + b"\n")  # before it reads anything
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if BEHAVIOUR == "slow" and request["method"] == "tools/call":
            threading.Thread(target=answer, args=(request,), daemon=True).start()
        else:
            answer(request)


if __name__ == "__main__":
    main()
