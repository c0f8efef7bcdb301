"""The runtime in a child process: if native code crashes there, this process continues.

Only `child` imports numpy and llama.cpp, and only the child process imports it.
"""

import subprocess

from localspec.child_process import start_python

_CODE = "from localspec.inference.worker.child import main; main(tells_log={})"
_early: dict[bool, subprocess.Popen[bytes]] = {}


def start(*, tells_log: bool) -> subprocess.Popen[bytes]:
    """Return a process for models; raises EngineError if it cannot be started."""
    code = _CODE.format(tells_log)
    return _early.pop(tells_log, None) or start_python(code, subprocess.PIPE, "the model process")


def start_early(*, tells_log: bool) -> None:
    """Start the process that `start` returns next, before the imports of its caller.

    It ends with this program, as every other does.
    """
    _early[tells_log] = start(tells_log=tells_log)
