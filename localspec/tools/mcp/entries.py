"""The servers in mcp.json, in the shape that Claude Desktop, Cursor and LM Studio share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from localspec.errors import UserError
from localspec.storage.json_file import JsonFile
from localspec.storage.paths import config_dir, expanded, write_atomically
from localspec.storage.written_json import WrittenJson, read_written_json
from localspec.tools.tool import Effect
from localspec.values import Line, Range

_SERVERS = "mcpServers"
_ELSEWHERE = {"servers": "VS Code", "context_servers": "Zed", "mcp": "OpenCode"}  # their names for it
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^}]*))?\}")
_PATIENCE_S = 2.0  # with another program that writes the file


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server as mcp.json describes it: a `command` that speaks by stdio, or the `url` of one on a network.

    The last five fields are LocalSpec's own; other programs ignore them. `timeout_ms` is llama-server's word
    for `call_seconds`.
    """

    command: Line = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Line = ""  # counts from the folder of the chat
    type: Line = ""  # "stdio", "http", ...: told by `command` and `url`, and only checked
    url: Line = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    disabled: bool = False
    timeout_ms: Annotated[int, Range(100, 86_400_000)] | None = None
    effect: Effect = "runs"  # of every tool, because what a server says of its own tools proves nothing
    effects: Mapping[str, Effect] = field(default_factory=dict)  # of single tools, by the server's names
    start_seconds: Annotated[float, Range(0.1, 3600)] = 30.0
    call_seconds: Annotated[float, Range(0.1, 86400)] = 120.0
    memory_mib: Annotated[int, Range(16, 2**20)] = 4096  # of all processes of a server together

    @property
    def origin(self) -> str:
        """Return the command or the address, without secrets of `env` and `headers`."""
        return self.url or " ".join((self.command, *self.args))

    def effect_of(self, tool: str) -> Effect:
        """Return the effect of a tool, by the server's name for it."""
        return self.effects.get(tool, self.effect)

    def resolved(self, name: str, folder: Path) -> ServerEntry:
        """Return the entry with the values of its `${VARIABLES}`; raises UserError for a missing one."""
        known = os.environ | {"workspaceFolder": str(folder), "userHome": str(Path.home())}  # as in Cursor

        def value(found: re.Match[str]) -> str:
            text = known.get(found[1]) or found[2]  # an empty one counts as missing, as in a shell
            if text is None:
                problem = f"the MCP server `{name}` needs the environment variable `{found[1]}`"
                raise UserError(problem, f"set it, or write a default in mcp.json: ${{{found[1]}:-...}}")
            return text

        def filled(text: str) -> str:
            return _VARIABLE.sub(value, text)

        return replace(
            self,
            command=str(expanded(filled(self.command))) if self.command else "",
            args=tuple(map(filled, self.args)),
            env={key: filled(text) for key, text in self.env.items()},
            cwd=str(folder / expanded(filled(self.cwd))),
            url=filled(self.url),
            headers={key: filled(text) for key, text in self.headers.items()},
        )


def mcp_file() -> Path:
    """Return the path of mcp.json beside config.toml; the file may be missing."""
    return config_dir() / "mcp.json"


def read_servers(path: Path) -> dict[str, ServerEntry]:
    """Read the servers by their names; none if there is no file. Raises UserError with the line at fault."""
    return _servers(read_written_json(path))


def add_server(path: Path, name: str, members: Mapping[str, object], *, replacing: bool = False) -> None:
    """Write a server into mcp.json; raises UserError, and StoreError if the file cannot be written."""
    with _changing(path) as servers:
        if name in servers and not replacing:
            raise UserError(f"{path} has a server `{name}` already", "--replace writes over it")
        servers[name] = dict(members)


def remove_server(path: Path, name: str) -> None:
    """Take a server out of mcp.json; raises UserError if there is none of that name."""
    with _changing(path) as servers:
        if name not in servers:
            known = ", ".join(servers) or "none"
            raise UserError(f"{path} has no server `{name}`", f"it has: {known}")
        del servers[name]


@contextmanager
def _changing(path: Path) -> Iterator[dict[str, object]]:
    """Yield the servers to change, and write them with all that other programs have in the file."""
    with JsonFile(path, ServerEntry).locked(_PATIENCE_S):
        file = read_written_json(path)
        _servers(file)  # complains while nothing has been touched
        servers = _written(file)
        yield servers
        values = file.values | {_SERVERS: servers}
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        _servers(WrittenJson(path, text, values))
        write_atomically(path, text)


def _written(file: WrittenJson) -> dict[str, object]:
    kind: Any = Mapping[str, object]
    return dict(file.value(kind, file.values.get(_SERVERS, {}), _SERVERS))


def _servers(file: WrittenJson) -> dict[str, ServerEntry]:
    if _SERVERS not in file.values:
        for other, program in _ELSEWHERE.items():
            if other in file.values:
                file.complain(f"`{other}` is {program}'s name", f"call it `{_SERVERS}`", other)
    return {name: _entry(file, name, written) for name, written in _written(file).items()}


def _entry(file: WrittenJson, name: str, written: object) -> ServerEntry:
    if not name or not name.isprintable():
        file.complain(
            f"{name!r} is not a name for a server", "give it one line of plain text", _SERVERS, name
        )
    if isinstance(written, dict):  # some programs write null for what is not given
        written = {key: value for key, value in written.items() if value is not None}
    entry = file.value(ServerEntry, written, _SERVERS, name)
    if entry.timeout_ms is not None and isinstance(written, dict) and "call_seconds" not in written:
        entry = replace(entry, call_seconds=entry.timeout_ms / 1000)
    if entry.command and entry.url:
        file.complain(f"`{name}` has a `command` and a `url`", "leave one of them out", _SERVERS, name, "url")
    if not entry.command and not entry.url:
        file.complain(f"`{name}` has no `command` and no `url`", "write one of them", _SERVERS, name)
    if entry.type == "sse":
        hint = "ask its makers for its address for streamable HTTP, which often ends with /mcp"
        file.complain(f"`{name}` is of type `sse`, which MCP gave up", hint, _SERVERS, name, "type")
    if entry.url and not entry.url.startswith(("http://", "https://", "${")):
        file.complain(f"the `url` of `{name}` is no http address", "", _SERVERS, name, "url")
    return entry
