"""llama.cpp's own server as a contender: a child process, its requests, and the figures of its answers.

Unexpected behaviour of llama-server in the pinned llama.cpp:

- `speculative.n_max` and its like in a request are ignored (the code that read them is switched off), so
  there is one server per draft length.
- If a draft model does not fit, the server continues without it and only logs that.
- The draft model decodes each verified text once more, and drafts greedily at every temperature; a drafted
  token is accepted where the target's own sampler draws the same.
- `cache_prompt` false reads the whole prompt, but the server would still copy caches of earlier answers into
  main memory (`--cache-ram`, 8 GB by default) and keep checkpoints of sliding windows.
- The sampling recommended in a model file replaces defaults of a request.
- The last event's `timings` have `draft_n` and `draft_n_accepted` only if a token was drafted. Both count
  as ours do, also the drafted tokens after the first that was not accepted; only an accepted token that
  ends the answer counts with us and not there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import IO

from localspec.benchmark.harness import Question, memory_peak
from localspec.child_process import exit_words, start_python
from localspec.errors import Cancelled, ContextFullError, EngineDied, EngineError, UserError
from localspec.llama.cores import physical_cores
from localspec.llama.overrides import all_overrides
from localspec.models.heads import kind_of_draft
from localspec.storage.paths import expanded
from localspec.types.events import Summary
from localspec.types.models import GivenTemplate, ModelOptions
from localspec.types.request import Request
from localspec.values import read

Flag = tuple[str, str]
"""A flag and its value, empty for a flag without one."""

HOST = "127.0.0.1"
START_LIMIT_S = 600.0
SILENCE_LIMIT_S = 600.0
_PAUSE_S = 0.05  # between two looks at a server that loads
_PATIENCE_S = 5.0  # for what a healthy process does at once
_KEPT = 65536  # bytes of its last output
_SETTINGS = ("LLAMA_ARG_", "LLAMA_SERVER_", "LLAMA_API_KEY", "LLAMA_TRACE", "AIP_", "MTMD_")
_SPIN_COUNT = "1000"  # as localspec.llama sets it: libgomp's own is 14 times slower on busy cores
_HINT = "give the path of llama.cpp's llama-server"
_STAMP = re.compile(r"^(?:\d+\.){3}\d+ ([A-Z]) ")  # when, and how serious
_TELLING = re.compile(r"error|fail|invalid|exception|assert|what\(\)", re.IGNORECASE)
_PLAIN = re.compile(rb'"speculative":\s*false')  # what a slot says that does not draft
_EVENT = b"data: "
_MAX_SEED = 2**31 - 1  # the server reads seeds as signed numbers; a negative one would be drawn again
_ALONE = (
    f"--host {HOST} --parallel 1 --fit off --no-ui --offline --skip-chat-parsing "
    "--no-cache-prompt --cache-ram 0 --ctx-checkpoints 0"
).split()
"""One conversation, in memory like ours, with nothing saved between answers and only text in them.

Layers with windows cache what llama.cpp caches by default, unless `--swa-full` is given for both.
"""

_FLAGS = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # that Windows alone has


class LlamaServer:
    """One llama-server as a child process on 127.0.0.1, with its models loaded.

    It stays in this program's group of processes: a terminal that closes ends both. However this program
    ends, a process that waits for that ends the server.
    """

    def __init__(
        self,
        name: str,
        program: Path,
        target: ModelOptions,
        draft: ModelOptions | None = None,
        draft_length: int | None = None,
        more: Sequence[str] = (),
    ) -> None:
        """Start `program` with the models opened as ours are, and wait until they are loaded.

        `name` is what the tables call it; `draft_length` None leaves it to the server (3); flags in `more`
        go before all others. Raises UserError if it never gets there.
        """
        self.name = name
        self._program = program.name
        self._port = free_port()
        self._most: int | None = None  # bytes in memory
        self._watcher: subprocess.Popen[bytes] | None = None
        flags = ["--port", str(self._port), *_words(target, draft, draft_length), *_ALONE, *more]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        try:
            self._process = _start(program, flags, self._output)
        except UserError:
            self._output.close()
            raise
        try:
            code = f"import os, sys; sys.stdin.read(); os.kill({self._process.pid}, 9)"
            self._watcher = start_python(code, subprocess.DEVNULL, "what ends the server with this program")
            self._wait_until_ready()
            if draft is not None and _PLAIN.search(self._get("/slots") or b""):
                raise self._refused(f"does not speculate with {draft.path.name}")
        except BaseException:
            self.close()
            raise

    def answer(self, question: Question) -> Summary:
        """Answer and return the figures; raises EngineError if the server fails."""
        since = self._written()
        try:
            return ask(self._port, request_body(question.request))
        except (OSError, HTTPException) as error:
            raise self._broken_off(error, since) from error
        finally:
            self.memory_peak()

    def cancel(self) -> None:
        """Leave the answer that a signal has interrupted: raises `Cancelled`."""
        raise Cancelled("the answer was left")

    def memory_peak(self) -> int | None:
        """Return its peak memory in bytes, also after its end; None if unknown."""
        self._most = memory_peak(self._process.pid) or self._most
        return self._most

    def close(self) -> None:
        """End the process and forget what it wrote; a second call does nothing."""
        self._end()
        self._output.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while self._get("/health") is None:
            try:
                self._process.wait(_PAUSE_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise self._refused(f"has not loaded its models after {START_LIMIT_S:g} s") from None
            else:
                raise self._refused(f"ended at its start ({exit_words(self._process.returncode)})")

    def _get(self, path: str) -> bytes | None:
        """Return the server's JSON at a path; None if there is none."""
        connection = HTTPConnection(HOST, self._port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.read() if response.status == 200 else None
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def _refused(self, what: str) -> UserError:
        """End it and return the error that says what it did, with its own words about it."""
        self._end()
        return UserError(f"{self._program} {what}{self._telling_words()}", "start it by hand to see more")

    def _broken_off(self, error: Exception, since: int) -> EngineError:
        if isinstance(error, TimeoutError):
            return EngineError(f"{self._program} has said nothing for too long")
        try:
            code = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return EngineError(f"{self._program} failed during an answer ({type(error).__name__})")
        return EngineDied(
            f"{self._program} ended during an answer ({exit_words(code)}){self._telling_words(since)}"
        )

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._watcher is not None:
            with self._watcher:
                self._watcher.kill()

    def _telling_words(self, since: int = 0) -> str:
        """Return an ended process's output about its failure; a running one shares the file position."""
        self._output.seek(max(since, self._written() - _KEPT))
        lines = self._output.read().decode("utf-8", "replace").splitlines()
        printed = next((" ".join(_STAMP.sub("", line).split()) for line in lines if _is_telling(line)), "")
        return f": {printed}" if printed else ""

    def _written(self) -> int:
        return os.fstat(self._output.fileno()).st_size


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asked:
        asked.bind((HOST, 0))
        return int(asked.getsockname()[1])


def _start(program: Path, words: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    path = expanded(program).absolute()
    found = shutil.which(program) or shutil.which(path)
    if found is None:
        what = "is not a program that can be started" if path.exists() else "does not exist"
        raise UserError(f"{program} {what}", _HINT)
    try:
        return subprocess.Popen(
            [found, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(os.environ),
            creationflags=_FLAGS,
        )
    except OSError as error:
        raise UserError(f"{program} cannot be started: {error.strerror or error}", _HINT) from error


def _environment(found: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the user's server settings, with threads that spin like ours."""
    kept = {name: value for name, value in found.items() if not name.upper().startswith(_SETTINGS)}
    return {"GOMP_SPINCOUNT": _SPIN_COUNT} | kept


def _is_telling(line: str) -> bool:
    """Return whether a line of the log is about a failure; fatal errors have no time stamp."""
    stamp = _STAMP.match(line)
    return stamp[1] == "E" if stamp else _TELLING.search(line) is not None


def _words(target: ModelOptions, draft: ModelOptions | None, draft_length: int | None) -> Iterator[str]:
    """Return the flags of the models, with as many threads as ours would take."""
    threads = target.threads or physical_cores()
    flags = target_flags(replace(target, threads=threads))
    if draft is None:
        flags.append(("--spec-type", "none"))
    else:
        flags += draft_flags(target, draft, draft.threads or threads)
        if draft_length is not None:
            flags.append(("--spec-draft-n-max", str(draft_length)))
    yield from filter(None, chain.from_iterable(flags))


def target_flags(options: ModelOptions) -> list[Flag]:
    """Return the flags of a target with their values; omitted ones are left to llama.cpp.

    Raises UserError for an override that a flag cannot hold.
    """
    found = (
        ("--model", _path(options)),
        ("--ctx-size", options.context),
        *_device_flags(options, "--device", "--gpu-layers"),
        ("--tensor-split", ",".join(f"{share:g}" for share in options.tensor_split)),
        ("--split-mode", options.split_mode if options.split_mode != "layer" else ""),
        ("--main-gpu", options.main_gpu),
        ("--override-tensor", _overrides(options)),
        ("--n-cpu-moe", options.experts_at_home),  # after other overrides: the first that matches counts
        ("--threads", options.threads),
        ("--batch-size", options.batch),
        ("--ubatch-size", options.micro_batch),
        ("--cache-type-k", options.kv_type_k),
        ("--cache-type-v", options.kv_type_v),
        ("--flash-attn", {None: "", True: "on", False: "off"}[options.flash_attention]),
        ("--load-mode", "" if options.mmap else "none"),
        _template_flag(options.chat_template),
    )
    windows = [("--swa-full", "")] if options.swa_full else []
    adapters = [("--lora-scaled", f"{adapter.path}:{adapter.scale:g}") for adapter in options.adapters]
    return [*((flag, str(value)) for flag, value in found if value), *windows, *adapters]


def _template_flag(template: Path | GivenTemplate | None) -> tuple[str, object]:
    """Return the flag of a chat template, and its value, empty without one."""
    if isinstance(template, GivenTemplate):
        return "--chat-template", template.text
    return "--chat-template-file", expanded(template).absolute() if template else ""


def draft_flags(target: ModelOptions, draft: ModelOptions, threads: int) -> list[Flag]:
    """Return the flags of a draft model or a head; threads 0 are the target's.

    Its context, batches, flash attention and way of loading are always the target's.
    """
    kind = kind_of_draft(target.path, draft.path)
    own = (
        ("--spec-draft-model", _path(draft)),
        *_device_flags(draft, "--spec-draft-device", "--spec-draft-ngl"),
        ("--spec-draft-override-tensor", _overrides(draft)),
        ("--spec-draft-n-cpu-moe", draft.experts_at_home),
    )
    found = (
        *(() if draft.path == target.path and kind else own),
        ("--spec-draft-threads", threads),
        ("--spec-draft-type-k", draft.kv_type_k),
        ("--spec-draft-type-v", draft.kv_type_v),
        ("--spec-type", f"draft-{kind or 'simple'}"),
    )
    return [(flag, str(value)) for flag, value in found if value]


def _device_flags(options: ModelOptions, device: str, layers: str) -> Iterator[Flag]:
    if options.devices == ():
        yield device, "none"
        yield layers, "0"
        return
    if options.devices is not None:
        yield device, ",".join(options.devices)
    yield layers, "all" if options.gpu_layers is None else str(options.gpu_layers)


def _overrides(options: ModelOptions) -> str:
    """Return the overrides as one value, which is all that counts of a repeated flag in a preset."""
    found = all_overrides(replace(options, experts_at_home=0))  # which have a flag of their own
    for override in found:
        if any(mark in override.pattern for mark in ",="):
            raise UserError(
                f"llama-server cannot be given `{override.pattern}`: in its list of overrides, a comma "
                "ends an override and the first = its pattern",
                "write the pattern of -ot without them",
            )
    return ",".join(f"{override.pattern}={override.device}" for override in found)


def _path(options: ModelOptions) -> str:
    return str(expanded(options.path).absolute())


@dataclass(frozen=True, slots=True)
class Timings:
    """The server's own account of an answer; without a drafted token it says nothing of drafts."""

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    cache_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0


@dataclass(frozen=True, slots=True)
class _Complaint:
    message: str
    type: str = ""


@dataclass(frozen=True, slots=True)
class _Event:
    """The end of a stream: the figures of the answer, or its error."""

    timings: Timings | None = None
    error: _Complaint | None = None


def request_body(request: Request) -> bytes:
    """Return a request that decodes as this program does: the same samplers in the same order, no others.

    Greedy decoding takes the server's shortest way there: penalties, then the best token of all.
    """
    sampling = request.sampling
    greedy = sampling.is_greedy
    messages = [] if isinstance(request.prompt, str) else request.prompt
    rest = ["top_p", "min_p", "temperature"]
    return json.dumps(
        {
            "messages": [{"role": each.role, "content": each.content} for each in messages],
            "stream": True,
            "sse_ping_interval": -1,
            "max_tokens": request.max_tokens,
            "seed": (request.seed or 0) & _MAX_SEED,
            "cache_prompt": False,
            "samplers": ["penalties", "top_k", *([] if greedy else rest)],
            "top_k": 1 if greedy else sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "temperature": max(0.0, sampling.temperature),
            "repeat_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repeat_last_n": sampling.penalty_window,
            "dynatemp_range": 0.0,
            "mirostat": 0,
        }
    ).encode()


def ask(port: int, body: bytes) -> Summary:
    """Send a request, read the answer to its end and return its figures.

    Raises ContextFullError and EngineError if the server reports an error; OSError and HTTPException if the
    connection breaks.
    """
    connection = HTTPConnection(HOST, port, timeout=SILENCE_LIMIT_S)
    try:
        started = perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            _timings(response.read())
        # No look inside while it comes: the CPU belongs to the server meanwhile.
        first = response.read1()
        first_token_s = perf_counter() - started if first else 0.0
        text = b"".join((first, *iter(response.read1, b"")))
    finally:
        connection.close()
    events = [line[len(_EVENT) :] for line in text.splitlines() if line.startswith(_EVENT)]
    last = next((event for event in reversed(events) if event.startswith(b"{")), b"")
    return _summary(_timings(last), first_token_s)


def _timings(printed: bytes) -> Timings:
    """Parse the last event; raises its error."""
    try:
        event = read(_Event, json.loads(printed), "the last event")
    except ValueError:
        event = _Event()
    if event.timings is not None:
        return event.timings
    if event.error is None:
        shown = printed[:200].decode("utf-8", "replace") or "nothing"
        raise EngineError(f"llama-server answers otherwise than llama.cpp's own: {shown}")
    if event.error.type == "exceed_context_size_error":
        raise ContextFullError(f"llama-server: {event.error.message}", "choose a larger context")
    raise EngineError(f"llama-server refuses to answer: {event.error.message}")


def _summary(timings: Timings, first_token_s: float) -> Summary:
    """Return the figures of an answer.

    `decode_s` is the server's `predicted_ms`: from sampling the first token to sampling the last, like ours;
    HTTP is not included. A draft model of the server has processed the prompt before the first token: that
    counts in `prompt_s` and `first_token_s`, while ours does it after the first token.
    """
    return Summary(
        prompt_tokens=timings.cache_n + timings.prompt_n,
        cached_tokens=timings.cache_n,
        tokens=timings.predicted_n,
        drafted=timings.draft_n,
        accepted=timings.draft_n_accepted,
        prompt_s=timings.prompt_ms / 1000,
        first_token_s=first_token_s,
        decode_s=timings.predicted_ms / 1000,
    )
