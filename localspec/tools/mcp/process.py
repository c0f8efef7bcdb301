"""A server in a process of its own that speaks by standard input and output.

The SDK has such a transport, too. This one limits what a server may send, store and write to standard error,
and ends all processes that it started.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from localspec import units
from localspec.child_process import exit_words
from localspec.errors import UserError
from localspec.tools.family import ProcessFamily, marked, new_mark
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.life import LARGEST_MESSAGE, Allowance, Life

_INHERITED = {  # what a server needs to run; secrets of other programs are not among it
    "APPDATA", "COMSPEC", "HOME", "HOMEDRIVE", "HOMEPATH", "LANG", "LOCALAPPDATA", "LOGNAME", "PATH",
    "PATHEXT", "PROCESSOR_ARCHITECTURE", "PROGRAMDATA", "PROGRAMFILES", "SHELL", "SSL_CERT_DIR",
    "SSL_CERT_FILE", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TERM", "TMP", "TMPDIR", "USER", "USERNAME",
    "USERPROFILE", "NODE_EXTRA_CA_CERTS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
}  # fmt: skip
_INHERITED_KINDS = ("LC_", "XDG_")
_CHUNK = 2**16
_SHORT = 4096  # bytes of a notification that is read here
_CHANGED = "notifications/tools/list_changed"
_OF_THE_SDK = ("notifications/subscriptions/acknowledged", "notifications/cancelled")  # which it needs
_ANSWERED = re.compile(rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\s*,\s*"result"')
_ERRORS_RATE = 4 * 2**20  # bytes a second that are read of standard error
_LOOK_S = 1.0  # between two looks at the processes, which take some milliseconds
_LAST_S = 0.05  # for what a server wrote last
_GRACE_S = 1.0  # to end after standard input was closed, and after SIGTERM


@asynccontextmanager
async def process_streams(entry: ServerEntry, life: Life) -> AsyncGenerator[tuple[Any, Any], None]:
    """Start a server, yield the streams for a session, and end the server; raises UserError and OSError."""
    mark = new_mark()
    process = await _started(entry, mark)
    family = ProcessFamily(process.pid, mark).guarded()
    to_session, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    streams = (to_session, received, sent, from_session)
    async with anyio.create_task_group() as group:
        group.start_soon(_read_messages, process, to_session, life)
        group.start_soon(_write_messages, process, from_session, life)
        group.start_soon(_read_errors, process, life)
        group.start_soon(_watch, process, family, entry.memory_mib * 2**20, life)
        try:
            yield received, sent
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process, family)
            group.cancel_scope.cancel()
            for stream in streams:
                stream.close()


async def _started(entry: ServerEntry, mark: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if _is_inherited(name)} | dict(entry.env)
    path = environment.get("PATH") or os.defpath
    program = shutil.which(entry.command, path=path) or entry.command  # finds npx.cmd on Windows, too
    try:
        return await asyncio.create_subprocess_exec(
            program,
            *entry.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=entry.cwd or None,
            env=marked(environment, mark),
            limit=_CHUNK,
            start_new_session=True,  # Ctrl+C in the terminal does not reach it
        )
    except FileNotFoundError as error:
        if error.filename == entry.cwd:
            raise UserError(f"cannot start in the folder `{entry.cwd}`: it does not exist") from None
        hint = "install it, or write its whole path into mcp.json"
        if " " in entry.command:
            hint = "write the program into `command`, and what follows it into `args`"
        raise UserError(f"cannot start: there is no program `{entry.command}`", hint) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot start `{entry.command}`: {reason}") from None


def _is_inherited(name: str) -> bool:
    return name.upper() in _INHERITED or name.upper().startswith(_INHERITED_KINDS)


async def _read_messages(
    process: asyncio.subprocess.Process,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    life: Life,
) -> None:
    """Pass on each line that is a message; all else is noise, because servers print to standard output."""
    assert process.stdout is not None
    pending: list[bytes] = []  # of a line without its end
    length = 0
    with to_session:
        while data := await _next_chunk(process.stdout):
            if not life.may_receive(len(data)):
                return
            *ended, rest = data.split(b"\n")
            for part in ended:
                await _pass_on(b"".join((*pending, part)), to_session, life)
                pending = []
                length = 0
            pending.append(rest)
            length += len(rest)
            if length > LARGEST_MESSAGE:
                life.end(f"sent a message of more than {units.memory(LARGEST_MESSAGE)} and was ended")
                return
        life.is_mute = True
        await _pass_on(b"".join(pending), to_session, life)
        await _exit_of(process)
        await asyncio.sleep(_LAST_S)  # to standard error
        life.end(_how_it_ended(process, life))  # before the session notices


async def _next_chunk(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.read(_CHUNK)
    except OSError:
        return b""


async def _pass_on(
    line: bytes, to_session: MemoryObjectSendStream[SessionMessage | Exception], life: Life
) -> None:
    if not (line := line.strip()):
        return
    if len(line) < _SHORT and (method := _notified(line)):
        if method == _CHANGED:
            life.on_change()
        if method not in _OF_THE_SDK:
            await life.pace(is_notice=True)
            return
    message = _message(line) if line.startswith(b"{") else None
    if message is None:
        life.keep_noise(line)
        return
    await life.pace()
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # nothing listens any more
        await to_session.send(SessionMessage(message))


def _notified(line: bytes) -> str:
    """Return the method of a notification, of which servers may send very many; empty for all else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    method = found.get("method") if isinstance(found, dict) and "id" not in found else None
    return method if isinstance(method, str) else ""


def _message(line: bytes) -> Any:  # noqa: ANN401 - one of the SDK's types
    """Return a line as a message; an answer that breaks the rules is still one, or a call would hang."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    try:
        found = json.loads(line.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        number = _ANSWERED.match(line)
        found = {"id": int(number[1]), "error": "an answer that is no JSON"} if number else {}
    number = found.get("id")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    if "result" in found:
        result = found["result"]
        result = result if isinstance(result, dict) else {"content": result}
        return JSONRPCResponse(jsonrpc="2.0", id=number, result=result)
    if "error" in found:
        text = ErrorData(code=INTERNAL_ERROR, message=str(found["error"])[:400])
        return JSONRPCError(jsonrpc="2.0", id=number, error=text)
    return None


async def _write_messages(
    process: asyncio.subprocess.Process, from_session: MemoryObjectReceiveStream[SessionMessage], life: Life
) -> None:
    assert process.stdin is not None
    try:
        async for item in from_session:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode("utf-8", "replace") + b"\n")
            await process.stdin.drain()
    except OSError:
        await _exit_of(process)
        life.end(_how_it_ended(process, life))


async def _read_errors(process: asyncio.subprocess.Process, life: Life) -> None:
    """Read standard error, because a server stops where it is not read; one that floods it waits."""
    assert process.stderr is not None
    allowed = Allowance(_ERRORS_RATE, _ERRORS_RATE)
    while data := await _next_chunk(process.stderr):
        life.keep_error(data)
        if wait_s := allowed.take(len(data)):
            await asyncio.sleep(wait_s)


async def _watch(
    process: asyncio.subprocess.Process, family: ProcessFamily, most_memory: int, life: Life
) -> None:
    """End the connection once the process has ended, and the processes once they take too much memory."""
    while process.returncode is None:
        await asyncio.sleep(_LOOK_S)
        if (memory := family.memory()) > most_memory:
            limit = f"the limit of {units.memory(most_memory)}, `memory_mib` in mcp.json"
            life.end(f"took {units.memory(memory)} of memory, more than {limit}, and was ended")
            family.end()
            return
    await asyncio.sleep(2 * _LAST_S)
    life.end(_how_it_ended(process, life))


def _how_it_ended(process: asyncio.subprocess.Process, life: Life) -> str:
    code = process.returncode
    how = "closed its connection" if code is None else f"ended ({exit_words(code)})"
    return f"{how}: {life.last_words}" if life.last_words else how


async def _end(process: asyncio.subprocess.Process, family: ProcessFamily) -> None:
    """End a server: by closing its input, as the protocol has it, then by signals to all its processes."""
    assert process.stdin is not None
    known = family.descendants()  # which are orphans as soon as it has ended
    process.stdin.close()
    await _exit_of(process)
    if process.returncode is None:
        family.ask_to_end()
        await _exit_of(process)
    family.end(known)
    await _exit_of(process)
    if transport := getattr(process, "_transport", None):
        transport.close()  # asyncio waits for the pipes otherwise, which a surviving process may hold


async def _exit_of(process: asyncio.subprocess.Process) -> None:
    """Wait a moment for the process itself; `process.wait()` would also wait for its pipes."""
    for _ in range(int(_GRACE_S / 0.02)):
        if process.returncode is not None:
            return
        await asyncio.sleep(0.02)
