"""The runtime in a process of its own: whatever native code does to it, this one lives on.

Nothing here imports numpy or llama.cpp but `child`, which only the other process imports.
"""

import subprocess

from localspec.child_process import start_python

_CODE = "from localspec.inference.worker.child import main; main(tells_log={})"
_early: dict[bool, subprocess.Popen[bytes]] = {}


def start(*, tells_log: bool) -> subprocess.Popen[bytes]:
    """Return a process that is to hold models; raises EngineError where it cannot be started."""
    code = _CODE.format(tells_log)
    return _early.pop(tells_log, None) or start_python(code, subprocess.PIPE, "the engine's process")


def start_early(*, tells_log: bool) -> None:
    """Start the process that `start` returns next, before the imports of whoever calls that.

    The end of this program ends it, as it does every other.
    """
    _early[tells_log] = start(tells_log=tells_log)
