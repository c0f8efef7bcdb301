"""Servers of this machine's CPU, which stand in for GPUs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from localspec.hardware import devices
from localspec.llama import rpc
from localspec.llama.library import ADDED_BACKEND

ADDED = os.environ.get(ADDED_BACKEND)  # which a build without the RPC backend may be given; tests forget it


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def sharing() -> Iterator[str]:
    """Share this machine's CPU, and give the address."""
    if "RPC" not in devices.look().found.backends:
        pytest.skip("this build of llama.cpp lacks the RPC backend")
    port = free_port()
    command = [sys.executable, "-m", "localspec", "share", "--port", str(port), "-t", "1", "-dev", "CPU"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert f"at 127.0.0.1:{port}" in process.stderr.readline()
        yield f"127.0.0.1:{port}"
        process.terminate()


def use_servers(addresses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be opened on servers."""
    monkeypatch.setenv(rpc.VARIABLE, addresses)
    if ADDED is not None:
        monkeypatch.setenv(ADDED_BACKEND, ADDED)
