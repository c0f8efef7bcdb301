"""A program that speaks like llama-server; the environment says how, and where it keeps a record."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BEHAVIOUR = os.environ.get("FAKE_BEHAVIOUR", "")
RECORD = Path(os.environ["FAKE_RECORD"])
TIMINGS = {
    "cache_n": 0, "prompt_n": 21, "prompt_ms": 250.0, "prompt_per_second": 84.0,
    "predicted_n": 9, "predicted_ms": 1500.0, "predicted_per_second": 5.33,
}  # fmt: skip
DRAFTS = {"draft_n": 12, "draft_n_accepted": 5}
TOO_LONG = {
    "code": 400,
    "message": "request (9 tokens) exceeds the context",
    "type": "exceed_context_size_error",
}


def record(**seen: object) -> None:
    with RECORD.open("a", encoding="utf-8") as file:
        file.write(json.dumps(seen) + "\n")


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def value_of(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked_for_health = 0

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            Handler.asked_for_health += 1
            loading = BEHAVIOUR == "hangs" or Handler.asked_for_health == 1
            self._send(
                {"status": "ok"} if not loading else {"error": "Loading model"}, 503 if loading else 200
            )
        elif self.path == "/slots" and BEHAVIOUR != "old":
            self._send([{"id": 0, "speculative": BEHAVIOUR != "without draft"}])
        else:
            self._send({}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        record(path=self.path, body=body)
        if BEHAVIOUR == "silent":
            self.rfile.read(1)
        elif BEHAVIOUR == "too long":
            self._send({"error": TOO_LONG}, 400)
        elif BEHAVIOUR == "not http":
            self.wfile.write(b"what?\r\n\r\n")
            self.close_connection = True
        else:
            self._stream()

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._event({"choices": [{"delta": {"role": "assistant", "content": None}}]})
        self._event({"choices": [{"delta": {"content": 'so "timings": {}, she said'}}]})
        if BEHAVIOUR == "breaks off":
            self.close_connection = True
            return
        if BEHAVIOUR == "dies in an answer":
            say("common.h:12: GGML_ASSERT(all is well) failed")
            os._exit(3)
        if BEHAVIOUR == "error in an answer":
            self._event(
                {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}
            )
        else:
            told = {"draft-simple": TIMINGS | DRAFTS, "none": TIMINGS}[value_of("--spec-type")]
            self._event({"choices": []} | ({} if BEHAVIOUR == "without timings" else {"timings": told}))
        self._piece(b"data: [DONE]\n\n")
        self._piece(b"")

    def _event(self, value: object) -> None:
        self._piece(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _send(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    record(arguments=sys.argv[1:], environment=sorted(os.environ))
    say("0.00.012.345 W build_info: a fake; an error, but none that ends it")
    if BEHAVIOUR == "dies in an answer":
        say("0.00.012.345 E srv: something that has nothing to do with that")
    if BEHAVIOUR == "dies":
        say("0.00.020.345 E gguf_init_from_file: failed to open GGUF file 'x.gguf'")
        say("0.00.021.345 E main: exiting due to model loading error")
        sys.exit(1)
    if BEHAVIOUR == "without draft":
        say("0.00.020.345 E srv: failed to initialize speculative decoding: other words")
    try:
        server = ThreadingHTTPServer(("127.0.0.1", int(value_of("--port"))), Handler)
    except OSError:
        say("0.00.020.345 E srv: couldn't bind HTTP server socket")
        sys.exit(1)
    server.serve_forever()


if __name__ == "__main__":
    main()
