"""Running the server: its socket, its access policy, and its memory for conversations."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import psutil

from localspec.errors import UserError
from localspec.server.application import AccessPolicy, application, http_server
from localspec.server.origins import EVERYTHING, CrossOrigin, read_origin
from localspec.server.served import ServedModels

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY_IPV6 = "::"


@contextmanager
def listen(hosts: Sequence[str], port: int) -> Iterator[list[socket.socket]]:
    """Open a listening socket at each address, all at one port; port 0 takes a free one.

    Alone, `::` takes connections by IPv4 as well.

    Raises UserError for an invalid address, or one that is taken.
    """
    with ExitStack() as opened:
        listeners = list[socket.socket]()
        for host in hosts:
            family, address = _resolved(host, port)
            if address in [listener.getsockname()[0] for listener in listeners]:
                continue  # under another name
            both = [*hosts] == [_ANY_IPV6] and socket.has_dualstack_ipv6()
            listener = opened.enter_context(_listener(host, port, family, both=both))
            port = listener.getsockname()[1]
            listeners.append(listener)
        yield listeners


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise _unusable(host, port, error) from None
    return family, str(address[0])


def _listener(host: str, port: int, family: socket.AddressFamily, *, both: bool) -> socket.socket:
    """Open a listening socket; `both` is for one of IPv6 that takes IPv4 as well."""
    try:
        return socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise _unusable(host, port, error) from None


def _unusable(host: str, port: int, error: OSError) -> UserError:
    holder = _holder(port)
    reason = f"{holder} has it" if holder else (error.strerror or str(error))
    return UserError(f"cannot listen at {host} port {port}: {reason}", "choose another --port or --host")


def _holder(port: int) -> str:
    """Return the other program that listens on a port of this machine, if that may be known."""
    with suppress(psutil.Error, OSError):
        for found in psutil.net_connections("tcp"):
            has_it = found.status == psutil.CONN_LISTEN and found.laddr.port == port
            if has_it and found.pid and found.pid != os.getpid():
                return f"{psutil.Process(found.pid).name()} (process {found.pid})"
    return ""


def access(
    addresses: Sequence[str],
    key: str | None,
    origins: Collection[str],
    others: Collection[str],
    pages: CrossOrigin = EVERYTHING,
    *,
    is_local: bool,
) -> AccessPolicy:
    """Return the access policy of a server at some addresses; names are only checked on this machine.

    `others` are names by which a proxy passes requests on; `pages` says what pages of the origins may do.
    Raises UserError for an invalid origin.
    """
    names = (*_LOOPBACK, *addresses, *map(str.lower, others))
    hosts = frozenset(names) if is_local else frozenset[str]()
    return AccessPolicy(key, hosts, frozenset(map(read_origin, origins)), pages)


def run(models: ServedModels, policy: AccessPolicy, listeners: list[socket.socket]) -> None:
    """Serve until the program is stopped."""
    http_server(application(models, policy)).run(sockets=listeners)
