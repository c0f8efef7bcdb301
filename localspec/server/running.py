"""Running the server: its socket, its access policy, and its memory for conversations."""

from __future__ import annotations

import socket
from collections.abc import Collection
from contextlib import suppress

import psutil

from localspec.errors import UserError
from localspec.server.application import AccessPolicy, application, http_server
from localspec.server.origins import EVERYTHING, CrossOrigin, read_origin
from localspec.server.served import ServedModels

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; raises UserError for an invalid address, or one that is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        holder = _holder(port)
        reason = f"{holder} has it" if holder else (error.strerror or str(error))
        raise UserError(
            f"cannot listen at {host} port {port}: {reason}", "choose another --port or --host"
        ) from None


def _holder(port: int) -> str:
    """Return the program that listens on a port of this machine, if that may be known."""
    with suppress(psutil.Error, OSError):
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr.port == port and found.pid:
                return f"{psutil.Process(found.pid).name()} (process {found.pid})"
    return ""


def access(
    host: str,
    key: str | None,
    origins: Collection[str],
    others: Collection[str],
    pages: CrossOrigin = EVERYTHING,
    *,
    is_local: bool,
) -> AccessPolicy:
    """Return the access policy of a server at an address; names are only checked on this machine.

    `others` are names by which a proxy passes requests on; `pages` says what pages of the origins may do.
    Raises UserError for an invalid origin.
    """
    names = (*_LOOPBACK, host, *map(str.lower, others))
    hosts = frozenset(names) if is_local else frozenset[str]()
    return AccessPolicy(key, hosts, frozenset(map(read_origin, origins)), pages)


def run(models: ServedModels, policy: AccessPolicy, listener: socket.socket) -> None:
    """Serve until the program is stopped."""
    http_server(application(models, policy)).run(sockets=[listener])
