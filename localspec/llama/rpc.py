"""Devices of other machines, through llama.cpp's RPC backend: look at a server, use it, be one.

llama.cpp ends the process where a server is not there or of another version, and waits for ever where it is
busy; so each is looked at in plain Python first, within a deadline.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass

from localspec.errors import UserError
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir

PORT = 50052  # of llama.cpp's own rpc-server
VARIABLE = "LOCALSPEC_RPC"
"""Names the servers to all processes of this program."""
TIMEOUT_S = 3.0
# ggml-rpc.h, RPC_PROTO_MAJOR_VERSION; a newer minor one may lack what we send
_MAJOR = 7
_MINOR = 0
# enum rpc_cmd
_DEVICE_COUNT = 15
_DEVICE_MEMORY = 11
_HELLO = 14
_CAPABILITIES = 24  # bytes of the greeting
_MAX_DEVICES = 16  # GGML_RPC_MAX_SERVERS
_NO_IPV6 = " with IPv4; llama.cpp takes no IPv6, but the ssh tunnel that `localspec share` prints leads there"
_HINT = "run `localspec share` on that machine"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens."""

    host: str
    port: int = PORT

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerProbe:
    """A server's report: a round trip in seconds, free and total bytes on each device."""

    round_trip_s: float
    devices: tuple[tuple[int, int], ...]


looks: dict[str, ServerProbe] = {}
"""The report of each server before it was added to this process."""


def endpoints(text: str) -> tuple[Endpoint, ...]:
    """Read `HOST:PORT,...`, with a default port; raises UserError."""
    return tuple(dict.fromkeys(_endpoint(part.strip()) for part in text.split(",")))


def _endpoint(text: str) -> Endpoint:
    host, colon, port = text.partition(":")
    port = port if colon else str(PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        is_ipv6 = text.count(":") > 1
        raise UserError(
            f"`{text}` is not a server address", f"use --rpc HOST:PORT,HOST:PORT{_NO_IPV6 * is_ipv6}"
        )
    return Endpoint(host, int(port))


def named() -> tuple[Endpoint, ...]:
    """Return the servers of this program; a flag overrides config.toml."""
    text = os.environ.get(VARIABLE)
    if text is None:
        text = read_config(config_dir() / "config.toml").rpc
    return endpoints(text) if text else ()


def use(servers: str) -> None:
    """Set the servers `HOST:PORT,...` for every process of this program; "" means none.

    Raises UserError.
    """
    os.environ[VARIABLE] = ",".join(map(str, endpoints(servers))) if servers else ""


def probe_server(endpoint: Endpoint, limit_s: float = TIMEOUT_S) -> ServerProbe:
    """Ask a server for its version and its devices; raises UserError in words, within about the limit."""
    ends = time.monotonic() + limit_s
    try:
        with socket.create_connection((_ipv4(endpoint), endpoint.port), limit_s) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _asked(connection, endpoint, ends)
    except TimeoutError:
        raise UserError(
            f"no answer from {endpoint}", "check that the machine is on and the port is open"
        ) from None
    except socket.gaierror:
        raise UserError(f"cannot resolve host `{endpoint.host}`", "check the spelling") from None
    except ConnectionRefusedError:
        raise UserError(f"nothing is listening at {endpoint}", _HINT) from None
    except (OSError, struct.error) as error:
        raise UserError(f"{endpoint} is not a supported RPC server: {error}", _HINT) from None


def _ipv4(endpoint: Endpoint) -> str:
    """Return the address at which llama.cpp looks for a server; raises UserError and socket.gaierror."""
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, socket.AF_INET, socket.SOCK_STREAM)
    except socket.gaierror:
        socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        raise UserError(f"{endpoint.host} has IPv6 addresses only", f"use --rpc{_NO_IPV6}") from None
    return str(found[0][4][0])


def _asked(connection: socket.socket, endpoint: Endpoint, ends: float) -> ServerProbe:
    try:
        major, minor = _ask(connection, ends, _HELLO, bytes(_CAPABILITIES))[:2]
    except TimeoutError:
        raise UserError(
            f"{endpoint} is busy or not responding",
            "an RPC server handles one client at a time: stop the other one",
        ) from None
    if major != _MAJOR or minor > _MINOR:
        raise UserError(
            f"{endpoint} speaks version {major}.{minor} of the RPC protocol, and this is {_MAJOR}.{_MINOR}",
            "install the same version of LocalSpec on both machines",
        )
    started = time.perf_counter()
    (count,) = struct.unpack("<I", _ask(connection, ends, _DEVICE_COUNT))
    round_trip_s = time.perf_counter() - started
    if not 0 < count <= _MAX_DEVICES:
        raise UserError(f"{endpoint} offers {count} devices", "see what it prints there")
    numbers = (struct.pack("<I", number) for number in range(count))
    memory = (_ask(connection, ends, _DEVICE_MEMORY, number) for number in numbers)
    return ServerProbe(round_trip_s, tuple(struct.unpack("<QQ", each) for each in memory))


def _ask(connection: socket.socket, ends: float, command: int, data: bytes = b"") -> bytes:
    connection.sendall(bytes([command]) + struct.pack("<Q", len(data)) + data)
    (size,) = struct.unpack("<Q", _take(connection, ends, 8))
    return _take(connection, ends, min(size, 4096))


def _take(connection: socket.socket, ends: float, count: int) -> bytes:
    found = b""
    while len(found) < count:
        connection.settimeout(max(ends - time.monotonic(), 0.001))
        part = connection.recv(count - len(found))
        if not part:
            raise ConnectionError("it closed the connection")
        found += part
    return found


def missing_backend_error() -> UserError:
    """Return the error for a build without the backend."""
    return UserError(
        "this build of llama.cpp lacks the RPC backend",
        "build it with -DGGML_RPC=ON (README), or load that backend: `backend` in config.toml",
    )
