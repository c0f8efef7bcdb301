"""llama.cpp's own server as a contender.

What llama-server of the pinned llama.cpp does, where it is not what one expects:

- `speculative.n_max` and its like in a request are ignored (the code that read them is switched off), so
  there is one server per draft length.
- Where a draft model does not fit, the server goes on without it and says so in its log alone.
- The draft model decodes each verified text once more, and drafts greedily at every temperature; a drafted
  token is accepted where the target's own sampler draws the same.
- `cache_prompt` false reads the whole prompt, but the server would still copy caches of earlier answers into
  main memory (`--cache-ram`, 8 GB by default) and keep checkpoints of sliding windows.
- Sampling that a model file recommends takes the place of what a request leaves open.
- The last event's `timings` have `draft_n` and `draft_n_accepted` only if a token was drafted. Both count
  as ours do, also the drafted tokens after the first that was not accepted; only an accepted token that
  ends the answer counts with us and not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from localspec.benchmark.contender import Contender, Prompt
from localspec.benchmark.llama_server.answer import ask, request_body
from localspec.benchmark.llama_server.flags import Flag, draft_flags, target_flags, words
from localspec.benchmark.llama_server.process import HOST, ServerProcess, free_port
from localspec.benchmark.own_modes import peak_of
from localspec.llama import physical_cores
from localspec.storage.json_file import checked
from localspec.types import ModelOptions, Sampling, Summary


class LlamaServer:
    """One llama-server as a child process on 127.0.0.1, with its models loaded; a context manager."""

    @classmethod
    def start(
        cls,
        program: Path,
        target: ModelOptions,
        draft: ModelOptions | None = None,
        *,
        draft_length: int | None = None,
    ) -> LlamaServer:
        """Start `program` with the models opened as ours are, and wait until they are loaded.

        `draft_length` None leaves it to the server (3). Raises UserError if it never gets there.
        """
        flags = list(_flags(target, draft, draft_length))
        process = ServerProcess(program, free_port(), [*words(flags), *_ALONE])
        try:
            process.wait_until_ready()
            if draft is not None and _speculates(process) is False:
                raise process.refused(f"does not speculate with {draft.path.name}")
        except BaseException:
            process.close()
            raise
        return cls(process)

    def __init__(self, process: ServerProcess) -> None:
        self._process = process
        self._peak = peak_of(process.pid)
        self._most: int | None = None

    def contender(self, name: str, sampling: Sampling) -> Contender:
        """Return it as a contender; its answers raise EngineError where the server fails."""
        return _Contender(name, sampling, self)

    def answer(self, body: bytes) -> Summary:
        """Send a request and return what the answer took; raises EngineError where the server fails."""
        try:
            with self._process.answering():
                return ask(HOST, self._process.port, body)
        finally:
            self.memory_peak()

    def memory_peak(self) -> int | None:
        """Return the most bytes it has held, also after its end; None where nobody can tell."""
        self._most = self._peak() or self._most
        return self._most

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._process.close()

    def __enter__(self) -> Self:
        """Return itself, running."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


class _Contender:
    """A running server that answers with certain sampling."""

    def __init__(self, name: str, sampling: Sampling, server: LlamaServer) -> None:
        self._name = name
        self._sampling = sampling
        self._server = server

    @property
    def name(self) -> str:
        return self._name

    def answer(self, prompt: Prompt, max_tokens: int, seed: int) -> Summary:
        return self._server.answer(request_body(prompt, self._sampling, max_tokens, seed))

    def memory_peak(self) -> int | None:
        return self._server.memory_peak()


_ALONE = (
    "--parallel 1 --fit off --swa-full --no-ui --offline --skip-chat-parsing "
    "--no-cache-prompt --cache-ram 0 --ctx-checkpoints 0"
).split()
"""One conversation, in memory as ours is, with nothing kept between answers and nothing but text in them."""


@dataclass(frozen=True, slots=True)
class _Slot:
    speculative: bool | None = None


@dataclass(frozen=True, slots=True)
class _Slots:
    slots: tuple[_Slot, ...]


def _flags(target: ModelOptions, draft: ModelOptions | None, draft_length: int | None) -> Iterator[Flag]:
    """Yield the flags of the models, with as many threads as ours would take."""
    threads = target.threads or physical_cores()
    yield from target_flags(replace(target, threads=threads))
    if draft is None:
        yield "--spec-type", "none"
        return
    yield from draft_flags(draft, draft.threads or threads)
    yield "--spec-type", "draft-simple"
    if draft_length is not None:
        yield "--spec-draft-n-max", str(draft_length)


def _speculates(process: ServerProcess) -> bool | None:
    """Return whether the server drafts; None where it does not say."""
    try:
        said = json.loads(process.get("/slots") or b"")
        return checked(_Slots, {"slots": said}, "slots").slots[0].speculative
    except (ValueError, IndexError):
        return None
