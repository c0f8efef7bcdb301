"""Which machines a page may be fetched from: public ones, and private ones that config.toml names.

A name is looked up once, all its addresses are checked, and the connection goes to one of them.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from localspec.errors import UserError

_EMBEDS_IPV4 = IPv6Network("64:ff9b::/96")  # NAT64
CONNECT_S = 10.0


def connect(host: str, port: int, private_hosts: Collection[str]) -> socket.socket:
    """Open a connection; raises UserError for a host that may not be reached, OSError if it cannot be."""
    found = dict.fromkeys(
        str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    if host not in private_hosts and f"{host}:{port}" not in private_hosts:
        for address in found:
            if not is_public(address):
                raise UserError(
                    f"`{host}` is {address}, which is not a public address",
                    f"private_hosts in config.toml may name `{host}`",
                )
    failure = OSError("no address")
    for address in found:
        try:
            return socket.create_connection((address, port), CONNECT_S)
        except OSError as error:
            failure = error
    raise failure


def is_public(address: str) -> bool:
    """Return whether an IP address, also one in an IPv6 address, belongs to the public network."""
    found = ip_address(address.partition("%")[0])
    inner = _embedded(found)
    if inner is not None:
        return is_public(str(inner))
    return found.is_global and not found.is_multicast and "%" not in address


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address):
        return None
    if address in _EMBEDS_IPV4:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
