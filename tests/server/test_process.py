"""`localspec serve` as a program: its address, its engine's death, its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil
import pytest

from localspec.cli.serve import main
from localspec.errors import UserError
from tests.inference.worker.processes import END_TOKENS, ROOT, TIMEOUT_S, ends

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
ENDLESS = {
    "prompt": "the sea",
    "temperature": 50,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "logit_bias": {str(token): -100 for token in END_TOKENS},
    "stream": True,
}


@dataclass(frozen=True)
class Program:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    told: list[str]
    client: httpx2.Client

    @property
    def port(self) -> int:
        return self.client.base_url.port or 0

    def engine(self) -> psutil.Process:
        """The process that holds the models; it has more threads than the one that renders templates."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return max(children, key=lambda child: child.memory_info().rss)


@contextmanager
def serve(*arguments: object) -> Iterator[Program]:
    command = [sys.executable, "-P", "-m", "localspec", "serve", "--port", "0", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tui")])}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        told: list[str] = []
        found = None
        try:
            for line in process.stderr:
                told.append(line.rstrip())
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    break
            assert found is not None, told
            with httpx2.Client(base_url=found[0], verify=False, timeout=TIMEOUT_S) as client:
                yield Program(process, told, client)
        finally:
            process.kill()


@pytest.fixture
def flags(demo_target: Path, demo_draft: Path) -> tuple[object, ...]:
    return ("-m", demo_target, "-md", demo_draft, "-c", 16384, "-t", 1, "--no-fit", "--mode", "off")


def events(reply: httpx2.Response) -> Iterator[str]:
    """The data of server-sent events."""
    return (line.removeprefix("data: ") for line in reply.iter_lines() if line)


@pytest.mark.slow
def test_a_death_in_mid_stream_and_a_port_that_is_taken(flags: tuple[object, ...]) -> None:
    with serve(*flags) as program:
        assert "models for clients: auto, general, coding" in " ".join(program.told)
        assert "context: 16,384 tokens (-c); the model was trained for 1,024" in program.told
        engine = program.engine()
        with program.client.stream("POST", "/v1/completions", json=ENDLESS) as reply:
            stream = events(reply)
            next(stream)
            engine.send_signal(signal.SIGKILL)
            *_, last = stream
        error = json.loads(last)["error"]
        assert (error["code"], error["type"]) == (503, "unavailable_error")
        assert "was ended by the system" in error["message"]
        body = ENDLESS | {"max_tokens": 5, "stream": False}
        assert program.client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 5
        assert program.client.get("/health").json() == {"status": "ok"}
        with pytest.raises(
            UserError, match=rf"port {program.port}: .*\(process {program.process.pid}\) has it"
        ):
            main(["--port", str(program.port), *map(str, flags)])


@pytest.mark.slow
def test_each_conversation_can_have_its_part_of_the_context(flags: tuple[object, ...]) -> None:
    with serve(*flags, "--no-kv-unified", "--parallel", 8) as program:
        line = "context: 16,384 tokens (-c), 2,048 for each of 8 conversations; "
        assert line + "the model was trained for 1,024" in program.told
        slots = program.client.get("/slots").json()
        assert [slot["n_ctx"] for slot in slots] == [2048] * 8
        body = ENDLESS | {"prompt": "word " * 3000, "stream": False}
        refused = program.client.post("/v1/completions", json=body)
        assert refused.status_code == 400
        assert "maximum context length is 2048 tokens" in refused.json()["error"]["message"]


@pytest.mark.slow
def test_a_request_to_end_lets_answers_end(flags: tuple[object, ...]) -> None:
    with serve(*flags) as program:
        engine = program.engine()
        plain = {"seed": 1, "speculative": {"mode": "off"}}
        body = ENDLESS | plain | {"max_tokens": 400}
        with program.client.stream("POST", "/v1/completions", json=body) as reply:
            stream = events(reply)
            next(stream)
            program.process.send_signal(signal.SIGTERM)
            *_, finished, done = stream
        assert done == "[DONE]"
        assert json.loads(finished)["choices"][0]["finish_reason"] == "length"
        assert program.process.wait(TIMEOUT_S) == 0
        assert ends(engine.pid)
        with pytest.raises(httpx2.ConnectError):
            program.client.get("/health")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "accepts other machines and needs an API key"),
        (["--host", "127.0.0.1,0.0.0.0"], "--host 0.0.0.0 accepts other machines and needs an API key"),
        (["--host", ", "], "no address"),
        (["--pooling", "none"], "--pooling is for an embedding model, and there is none"),
        (["--pooling", "rank"], "invalid choice: 'rank'"),
        (["--chat-template", "lama3"], "did you mean llama3?"),
        (["--host", "example.org"], "accepts other machines and needs an API key"),
        (["--api-key", "ké"], "the API key contains a character that HTTP headers do not allow"),
        (["--port", "99999"], "is not a whole number from 0 to 65535"),
        (["--allow-origin", "https://example.org/page"], "has a path, which browsers do not send"),
        (["--mcp", "nope"], "mcp.json has no server `nope`"),
        (["--mcp", ", "], "--mcp names no server"),
        (["--mcp-config", "nope.json"], "--mcp-config nope.json is not a file"),
        (["--tools", "files,nope"], "there are no tools `nope`; there are: all, files, run"),
        (["--profile", "codin"], "did you mean `coding`"),
        (["--host", "203.0.113.7", "--api-key", "k"], "cannot listen at 203.0.113.7 port 8080"),
    ],
)
def test_invalid_flags_are_reported_before_models_open(arguments: list[str], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        main(arguments)
