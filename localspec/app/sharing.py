"""Devices that another machine may compute on, each offered by a process with llama.cpp's RPC server."""

from __future__ import annotations

import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable

from localspec.child_process import exit_words, start_python
from localspec.errors import UserError
from localspec.hardware.devices import look
from localspec.llama.backends import BackendDevice
from localspec.llama.rpc import Endpoint, missing_backend_error, probe_server

_START_S = 60.0  # a driver may have to get ready
_LOOK_S = 0.2
_DEATHS = 3
_WITHIN_S = 60.0


def shared_devices(names: tuple[str, ...] | None) -> list[BackendDevice]:
    """Return the devices to offer; raises UserError for one that is not here, or no RPC backend."""
    sight = look()
    found = sight.found
    if sight.trouble is not None and not found.devices:
        raise sight.trouble
    if "RPC" not in found.backends:
        raise missing_backend_error()
    here = {device.name: device for device in found.devices if device.backend != "RPC"}
    if names is None:
        cards = [device for device in here.values() if device.kind in ("gpu", "igpu")]
        return cards or [device for device in here.values() if device.kind == "cpu"]
    missing = next((name for name in names or ("CPU",) if name not in here), None)
    if missing is not None:
        raise UserError(f"no device is called {missing!r}", f"devices: {', '.join(here)}")
    return [here[name] for name in names or ("CPU",)]


class DeviceOffer:
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
                probe_server(self.endpoint)
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

    def is_well(self, report: Callable[[str], None]) -> bool:
        """Start the process again if it has ended; return whether that helps."""
        if self._process.poll() is None:
            return True
        now = time.monotonic()
        self._deaths.append(now)
        how = exit_words(self._process.returncode)
        if len(self._deaths) == _DEATHS and now - self._deaths[0] < _WITHIN_S:
            report(f"error: the server of {self._device} keeps ending ({how})")
            return False
        report(f"the server of {self._device} has ended ({how}) and is started again")
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
        raise UserError(f"cannot listen at {endpoint}: {reason}", "choose another --port") from None
