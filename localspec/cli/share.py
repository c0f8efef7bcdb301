"""`localspec share`: let another machine compute on this one's devices, through llama.cpp's RPC backend."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from localspec.child_process import exit_words, start_python
from localspec.cli.shared.arguments import Parser, device_names, verb_parser, whole
from localspec.cli.shared.console import FAILURE, SUCCESS, leaving_in_order, say
from localspec.errors import UserError
from localspec.llama.rpc import PORT, Endpoint, lacking, peek

if TYPE_CHECKING:
    from localspec.llama.backends import BackendDevice

_START_S = 60.0  # a driver may have to get ready
_LOOK_S = 0.2
_DEATHS, _WITHIN_S = 3, 60.0
_OPEN = (
    "note: whoever reaches {host} can use and read these devices, and nothing is encrypted; llama.cpp calls "
    "this protocol insecure. Only in a network where you trust everybody"
)


def parser() -> Parser:
    """Return the parser of `localspec share`."""
    result = verb_parser(
        "share",
        "Let another machine compute on devices of this one: `localspec --rpc HOST:PORT` there. Each device "
        "gets a port of its own. There is no login, so by default only this machine can connect; use an ssh "
        "tunnel from others.",
    )
    result.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="IPv4 address (127.0.0.1)")
    about = f"port of the first device, the next ones follow ({PORT})"
    result.add_argument("--port", type=whole(1, 65535), default=PORT, metavar="N", help=about)
    about = "allow a --host that other machines can reach; anyone who reaches it can use this machine"
    result.add_argument("--anyone", action="store_true", help=about)
    about = "which devices (every graphics card, else the processor)"
    result.add_argument("-dev", "--device", type=device_names, metavar="NAMES", dest="devices", help=about)
    about = "CPU threads (0: all cores)"
    result.add_argument("-t", "--threads", type=whole(0, 1024), default=0, metavar="N", help=about)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(argv)
    _check_address(args)
    chosen = _chosen(args.devices)
    with ExitStack() as open_:
        offers = []
        for number, device in enumerate(chosen):
            offer = _Offer(device.name, Endpoint(args.host, args.port + number), args.threads)
            open_.callback(offer.close)
            offer.wait_until_ready()
            say(f"{device.name} ({device.description}) at {offer.endpoint}")
            offers.append(offer)
        _tell_the_way(args.host, [offer.endpoint.port for offer in offers])
        with suppress(KeyboardInterrupt, SystemExit), leaving_in_order():
            while all(offer.is_well() for offer in offers):
                time.sleep(_LOOK_S)
            return FAILURE
    return SUCCESS


def _check_address(args: argparse.Namespace) -> None:
    try:
        address = IPv4Address(args.host)
    except ValueError:
        raise UserError(
            f"`{args.host}` is no IPv4 address", "llama.cpp takes numbers here, such as 127.0.0.1"
        ) from None
    if address.is_loopback:
        return
    if not args.anyone:
        hint = "leave out --host and come through ssh, or add --anyone where you trust the whole network"
        raise UserError(f"--host {args.host} lets anybody who reaches it use this machine", hint)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        raise UserError("others may not use this machine as root", "share as another user, or through ssh")
    say(_OPEN.format(host=args.host))


def _chosen(names: tuple[str, ...] | None) -> list[BackendDevice]:
    """Return the devices to offer; raises UserError for one that is not here, or no RPC backend."""
    from localspec.hardware.devices import look

    sight = look()
    found = sight.found
    if sight.trouble is not None and not found.devices:
        raise sight.trouble
    if "RPC" not in found.backends:
        raise lacking()
    here = {device.name: device for device in found.devices if device.backend != "RPC"}
    if names is None:
        cards = [device for device in here.values() if device.kind in ("gpu", "igpu")]
        return cards or [device for device in here.values() if device.kind == "cpu"]
    missing = next((name for name in names or ("CPU",) if name not in here), None)
    if missing is not None:
        raise UserError(f"no device is called {missing!r}", f"devices: {', '.join(here)}")
    return [here[name] for name in names or ("CPU",)]


def _tell_the_way(host: str, ports: Sequence[int]) -> None:
    if host.startswith("127."):
        forwards = " ".join(f"-L {port}:{host}:{port}" for port in ports)
        say(f"from the other machine: ssh -N {forwards} {getpass.getuser()}@{socket.gethostname()}")
    say(f"and there: localspec --rpc {','.join(f'{host}:{port}' for port in ports)}; Ctrl+C ends it here")


class _Offer:
    """One device and the process that offers it, which is started again where a client has broken it."""

    def __init__(self, device: str, endpoint: Endpoint, threads: int) -> None:
        self.endpoint = endpoint
        self._device = device
        call = f"offer({device!r}, {endpoint.host!r}, {endpoint.port}, {threads})"
        self._code = f"from localspec.llama.backends import offer; {call}"
        self._deaths = deque[float](maxlen=_DEATHS)
        _check_free(endpoint)
        self._process = self._start()

    def wait_until_ready(self) -> None:
        """Wait until the server answers; raises UserError where it never does."""
        ends = time.monotonic() + _START_S
        while True:
            try:
                peek(self.endpoint)
            except UserError as error:
                if self._process.poll() is not None:
                    how = exit_words(self._process.returncode)
                    raise UserError(
                        f"{self._device} cannot be shared: {how}", "see `localspec doctor`"
                    ) from None
                if time.monotonic() > ends:
                    raise error from None
                time.sleep(_LOOK_S)
            else:
                return

    def is_well(self) -> bool:
        """Start the process again if it has ended; tell whether that helps."""
        if self._process.poll() is None:
            return True
        now = time.monotonic()
        self._deaths.append(now)
        how = exit_words(self._process.returncode)
        if len(self._deaths) == _DEATHS and now - self._deaths[0] < _WITHIN_S:
            say(f"error: the server of {self._device} keeps ending ({how})")
            return False
        say(f"the server of {self._device} has ended ({how}) and is started again")
        self._process = self._start()
        return True

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        return start_python(self._code, subprocess.DEVNULL, "the server")


def _check_free(endpoint: Endpoint) -> None:
    try:
        socket.create_server((endpoint.host, endpoint.port)).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot listen at {endpoint}: {reason}", "take another with --port N") from None
