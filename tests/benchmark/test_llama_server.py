"""llama-server as a contender: how it is started, what it is asked, and what its failures read like."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from localspec.benchmark import llama_server
from localspec.benchmark.harness import Prompt, Question
from localspec.benchmark.llama_server import LlamaServer, request_body
from localspec.errors import Cancelled, ContextFullError, EngineDied, EngineError, UserError
from localspec.llama.cores import physical_cores
from localspec.types.models import ModelOptions
from localspec.types.request import Request, Sampling

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the fake server is a script with a first line")

FAKE = Path(__file__).with_name("fake_llama_server.py")
TARGET = ModelOptions(Path("target.gguf"), context=4096, devices=())
DRAFT = ModelOptions(Path("/models/draft.gguf"))
GREEDY = Sampling(temperature=0.0)
Seen = dict[str, Any]


def question(
    text: str, system: str = "", sampling: Sampling = GREEDY, tokens: int = 9, seed: int = 1
) -> Question:
    request = Request(Prompt("", text, system).messages, sampling, max_tokens=tokens, seed=seed)
    return Question("greeting", request)


HELLO = question("Hello!")


class Fake:
    """The fake program, and what it has seen."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = folder / "llama-server"
        self.program.write_text(f"#!{sys.executable}\n{FAKE.read_text(encoding='utf-8')}", encoding="utf-8")
        self.program.chmod(0o755)
        self._record = folder / "record.jsonl"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("FAKE_RECORD", str(self._record))

    def behave(self, behaviour: str) -> None:
        self._monkeypatch.setenv("FAKE_BEHAVIOUR", behaviour)

    def start(self, draft: ModelOptions | None = None, draft_length: int | None = None) -> LlamaServer:
        return LlamaServer("theirs", self.program, TARGET, draft, draft_length)

    def seen(self, what: str) -> list[Any]:
        lines = [json.loads(line) for line in self._record.read_text(encoding="utf-8").splitlines()]
        return [line[what] for line in lines if what in line]

    def failure(self, kind: type[Exception]) -> str:
        """What an answer fails with."""
        with closing(self.start()) as server, pytest.raises(kind) as caught:
            server.answer(HELLO)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path, monkeypatch)


def refusal(start: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        start()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def children() -> list[psutil.Process]:
    found = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in found if "localspec.llama.rendering" not in " ".join(child.cmdline())]


KILLED = """
import os, signal, sys
from pathlib import Path
from localspec.benchmark.llama_server import LlamaServer
from localspec.types.models import ModelOptions
server = LlamaServer("theirs", Path(sys.argv[1]), ModelOptions(Path("target.gguf")))
print(server._process.pid, server._watcher.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_server_ends_with_a_program_that_is_killed(fake: Fake) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, fake.program], stdout=subprocess.PIPE, check=False, timeout=30
    )
    assert killed.returncode == -signal.SIGKILL
    left = [psutil.Process(int(pid)) for pid in killed.stdout.split() if psutil.pid_exists(int(pid))]
    deadline = time.monotonic() + 20
    while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in left):
        assert time.monotonic() < deadline


@pytest.mark.timeout(60)
def test_nothing_waits_for_the_end_of_a_server_that_was_closed(fake: Fake) -> None:
    with closing(fake.start()):
        assert len(children()) == 2
    assert children() == []


def body_of(sampling: Sampling = GREEDY, system: str = "", seed: int = 5) -> Seen:
    return dict(json.loads(request_body(question("Hi", system, sampling, 64, seed).request)))


def value_of(flag: str, arguments: list[str]) -> str:
    return arguments[arguments.index(flag) + 1]


def test_what_an_answer_took(fake: Fake) -> None:
    with closing(fake.start(DRAFT, 4)) as server:
        summary = server.answer(HELLO)
        assert server.name == "theirs"
        if sys.platform == "linux":
            assert (server.memory_peak() or 0) > 1_000_000
    assert (summary.prompt_tokens, summary.cached_tokens, summary.tokens) == (21, 0, 9)
    assert (summary.drafted, summary.accepted) == (12, 5)
    assert (summary.prompt_s, summary.decode_s) == (0.25, 1.5)
    assert summary.rounds == 0


def test_plain_decoding_without_counts_of_drafts(fake: Fake) -> None:
    with closing(fake.start()) as server:
        summary = server.answer(HELLO)
    assert (summary.tokens, summary.drafted, summary.accepted) == (9, 0, 0)


def test_the_first_token_is_timed_here(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5])  # asked twice: when the request leaves, and when the first piece is there
    with closing(fake.start()) as server:
        monkeypatch.setattr("localspec.benchmark.llama_server.perf_counter", lambda: next(clock))
        summary = server.answer(HELLO)
    assert summary.first_token_s == 2.5


def test_one_request_per_answer(fake: Fake) -> None:
    with closing(fake.start()) as server:
        server.answer(HELLO)
        server.answer(question("Hi", "Be kind."))
    assert fake.seen("path") == ["/v1/chat/completions"] * 2
    first, second = fake.seen("body")
    assert first["messages"] == [{"role": "user", "content": "Hello!"}]
    assert [message["role"] for message in second["messages"]] == ["system", "user"]
    assert first["max_tokens"] == 9


def test_models_are_opened_as_ours(fake: Fake) -> None:
    with closing(fake.start(DRAFT, 6)):
        pass
    (arguments,) = fake.seen("arguments")
    assert value_of("--model", arguments) == str(Path("target.gguf").absolute())
    assert value_of("--host", arguments) == "127.0.0.1"
    assert value_of("--ctx-size", arguments) == "4096"
    assert value_of("--device", arguments) == "none"
    assert value_of("--gpu-layers", arguments) == "0"
    assert value_of("--threads", arguments) == str(physical_cores())
    assert value_of("--spec-draft-threads", arguments) == str(physical_cores())
    assert value_of("--spec-draft-model", arguments) == "/models/draft.gguf"
    assert value_of("--spec-type", arguments) == "draft-simple"
    assert value_of("--spec-draft-n-max", arguments) == "6"
    assert value_of("--parallel", arguments) == "1"
    assert value_of("--cache-ram", arguments) == "0"
    assert value_of("--fit", arguments) == "off"


def test_threads_that_are_given(fake: Fake) -> None:
    target, draft = ModelOptions(Path("a.gguf"), threads=7), ModelOptions(Path("b.gguf"), threads=3)
    with closing(LlamaServer("theirs", fake.program, target, draft)):
        pass
    (arguments,) = fake.seen("arguments")
    assert (value_of("--threads", arguments), value_of("--spec-draft-threads", arguments)) == ("7", "3")
    assert "--spec-draft-n-max" not in arguments


def test_plain_server_has_no_draft(fake: Fake) -> None:
    with closing(fake.start()):
        pass
    (arguments,) = fake.seen("arguments")
    assert value_of("--spec-type", arguments) == "none"
    assert "--spec-draft-model" not in arguments


def test_settings_of_own_servers_are_left_out(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "77")
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    monkeypatch.setenv("LLAMA_GRAPH_REUSE_DISABLE", "1")  # ours obeys it too
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    with closing(fake.start()):
        pass
    (environment,) = fake.seen("environment")
    assert {"LLAMA_GRAPH_REUSE_DISABLE", "GOMP_SPINCOUNT"} <= set(environment)
    assert not {"LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY"} & set(environment)


def test_sampling_is_ours_and_nothing_else() -> None:
    body = body_of(Sampling(0.7, 30, 0.9, 0.02, 1.1, 0.2, 0.3, 128))
    assert body["samplers"] == ["penalties", "top_k", "top_p", "min_p", "temperature"]
    assert (body["temperature"], body["top_k"], body["top_p"], body["min_p"]) == (0.7, 30, 0.9, 0.02)
    assert (body["repeat_penalty"], body["presence_penalty"], body["frequency_penalty"]) == (1.1, 0.2, 0.3)
    assert body["repeat_last_n"] == 128
    assert (body["mirostat"], body["dynatemp_range"]) == (0, 0)
    assert body["cache_prompt"] is False
    assert body["stream"] is True


def test_greedy_takes_the_best_token_after_penalties() -> None:
    body = body_of(Sampling(0.0, 40, repetition_penalty=1.2))
    assert (body["samplers"], body["top_k"], body["repeat_penalty"]) == (["penalties", "top_k"], 1, 1.2)


def test_seeds_are_never_drawn_again() -> None:
    assert body_of(seed=7)["seed"] == 7
    assert 0 <= body_of(seed=2**32 - 1)["seed"] < 2**31
    assert 0 <= body_of(seed=2**63 + 11)["seed"] < 2**31


def test_a_program_that_is_missing(tmp_path: Path) -> None:
    said = refusal(lambda: LlamaServer("theirs", tmp_path / "nothing", TARGET))
    assert f"{tmp_path / 'nothing'} does not exist" in said


def test_a_file_that_is_not_a_program(tmp_path: Path) -> None:
    file = tmp_path / "llama-server"
    file.write_text("not a program", encoding="utf-8")
    assert "is not a program" in refusal(lambda: LlamaServer("theirs", file, TARGET))
    assert "is not a program" in refusal(lambda: LlamaServer("theirs", tmp_path, TARGET))
    file.chmod(0o755)
    assert "cannot be started: Exec format error" in refusal(lambda: LlamaServer("theirs", file, TARGET))


def test_a_server_that_dies_at_its_start(fake: Fake) -> None:
    fake.behave("dies")
    said = refusal(fake.start)
    assert "llama-server ended at its start (exit code 1): gguf_init_from_file: failed to open" in said
    assert not children()


def test_a_server_that_never_gets_ready(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.behave("hangs")
    monkeypatch.setattr(llama_server, "START_LIMIT_S", 0.0)
    assert "has not loaded its models after 0 s" in refusal(fake.start)
    assert not children()


@pytest.mark.slow
def test_a_port_that_is_taken(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "_PATIENCE_S", 0.2)  # no one answers there
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(llama_server, "free_port", lambda: taken.getsockname()[1])
        assert "couldn't bind HTTP server socket" in refusal(fake.start)


@pytest.mark.slow
def test_a_draft_that_the_server_leaves_out(fake: Fake) -> None:
    fake.behave("without draft")
    said = refusal(lambda: fake.start(DRAFT))
    assert "does not speculate with draft.gguf: srv: failed to initialize speculative decoding" in said
    assert not children()
    fake.start().close()  # no one asked for a draft


def test_a_server_that_does_not_tell_whether_it_drafts(fake: Fake) -> None:
    fake.behave("old")
    fake.start(DRAFT).close()


@pytest.mark.slow
def test_an_answer_that_breaks_off(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "_PATIENCE_S", 0.5)
    fake.behave("breaks off")
    assert fake.failure(EngineError) == "llama-server failed during an answer (IncompleteRead)"


def test_a_server_that_dies_in_an_answer(fake: Fake) -> None:
    fake.behave("dies in an answer")
    said = fake.failure(EngineDied)  # not what it complained of before
    assert (
        said == "llama-server ended during an answer (exit code 3): "
        "common.h:12: GGML_ASSERT(all is well) failed"
    )


@pytest.mark.slow
def test_a_server_that_falls_silent(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "SILENCE_LIMIT_S", 0.2)
    fake.behave("silent")
    assert "said nothing for too long" in fake.failure(EngineError)


def test_a_prompt_that_does_not_fit(fake: Fake) -> None:
    fake.behave("too long")
    assert "request (9 tokens) exceeds the context" in fake.failure(ContextFullError)


def test_errors_in_the_middle_of_an_answer(fake: Fake) -> None:
    fake.behave("error in an answer")
    assert fake.failure(EngineError) == "llama-server refuses to answer: Context size has been exceeded."


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["without timings", "not http"])
def test_a_server_of_another_kind(fake: Fake, monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    monkeypatch.setattr(llama_server, "_PATIENCE_S", 0.5)
    fake.behave(behaviour)
    said = fake.failure(EngineError)
    assert "answers otherwise" in said or "BadStatusLine" in said


def test_an_answer_that_a_signal_interrupts_is_left(fake: Fake) -> None:
    with closing(fake.start()) as server, pytest.raises(Cancelled):
        server.cancel()


def test_the_peak_is_known_after_the_end(fake: Fake) -> None:
    server = fake.start()
    before = server.memory_peak()
    server.close()
    server.close()
    assert server.memory_peak() == before
    assert (before is None) == (sys.platform not in ("linux", "win32"))
    assert not children()
