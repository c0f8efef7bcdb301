"""`localspec share`: share this machine's devices with another one, through llama.cpp's RPC backend."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address

from localspec.app.sharing import DeviceOffer, shared_devices
from localspec.cli.shared.arguments import Parser, device_names, verb_parser, whole
from localspec.cli.shared.console import FAILURE, SUCCESS, exit_on_signals, say
from localspec.errors import UserError
from localspec.llama.rpc import PORT, Endpoint

_LOOK_S = 0.2
_OPEN = (
    "note: anyone who can reach {host} can use and read these devices, and nothing is encrypted; llama.cpp "
    "calls this protocol insecure. Only use it on a trusted network"
)


def parser() -> Parser:
    """Return the parser of `localspec share`."""
    result = verb_parser(
        "share",
        "Let another machine compute on this one's devices; run `localspec --rpc HOST:PORT` there. Each "
        "device gets a port of its own. There is no login, so by default only this machine can connect; use "
        "an ssh tunnel from others.",
    )
    result.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="IPv4 address (127.0.0.1)")
    about = f"port of the first device, the next ones follow ({PORT})"
    result.add_argument("--port", type=whole(1, 65535), default=PORT, metavar="N", help=about)
    about = "allow a --host that other machines can reach; anyone who reaches it can use this machine"
    result.add_argument("--anyone", action="store_true", help=about)
    about = "which devices (all GPUs, else the CPU)"
    result.add_argument("-dev", "--device", type=device_names, metavar="NAMES", dest="devices", help=about)
    about = "CPU threads (0: all cores)"
    result.add_argument("-t", "--threads", type=whole(0, 1024), default=0, metavar="N", help=about)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    _check_address(args)
    chosen = shared_devices(args.devices)
    with ExitStack() as open_:
        offers = []
        for number, device in enumerate(chosen):
            offer = DeviceOffer(device.name, Endpoint(args.host, args.port + number), args.threads)
            open_.callback(offer.close)
            offer.wait_until_ready()
            say(f"{device.name} ({device.description}) at {offer.endpoint}")
            offers.append(offer)
        _tell_the_way(args.host, [offer.endpoint.port for offer in offers])
        with suppress(KeyboardInterrupt, SystemExit), exit_on_signals():
            while all(offer.is_well(say) for offer in offers):
                time.sleep(_LOOK_S)
            return FAILURE
    return SUCCESS


def _check_address(args: argparse.Namespace) -> None:
    try:
        address = IPv4Address(args.host)
    except ValueError:
        raise UserError(f"`{args.host}` is not an IPv4 address", "use an address such as 127.0.0.1") from None
    if address.is_loopback:
        return
    if not args.anyone:
        hint = "leave out --host and use an ssh tunnel, or add --anyone on a trusted network"
        raise UserError(f"--host {args.host} lets anyone who reaches it use this machine", hint)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        raise UserError(
            "refusing to share devices as root", "run `localspec share` as another user, or share through ssh"
        )
    say(_OPEN.format(host=args.host))


def _tell_the_way(host: str, ports: Sequence[int]) -> None:
    if host.startswith("127."):
        forwards = " ".join(f"-L {port}:{host}:{port}" for port in ports)
        say(f"from the other machine: ssh -N {forwards} {getpass.getuser()}@{socket.gethostname()}")
    say(f"and there: localspec --rpc {','.join(f'{host}:{port}' for port in ports)}; Ctrl+C ends it here")
