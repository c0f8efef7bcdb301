"""A small process that ends what LocalSpec has started if LocalSpec is killed and cannot do it itself.

Most servers end when their input is closed; those that hang, and commands, would stay.
"""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress

MARK = os.urandom(8).hex()  # of this program, in the environment of all that it has guarded
_SCRIPT = """
groups=
while read -r sign group; do
    left=
    for each in $groups; do [ "$each" = "$group" ] || left="$left $each"; done
    [ "$sign" = + ] && left="$left $group"
    groups=$left
done
for each in $groups; do kill -s TERM -- "-$each"; done 2>/dev/null
[ -z "$groups" ] || sleep 2
for each in $groups; do kill -s KILL -- "-$each"; done 2>/dev/null
for each in $(grep -lsF "$1" /proc/[0-9]*/environ); do
    each=${each#/proc/}
    kill -s KILL "${each%/environ}"
done 2>/dev/null
"""
_lock = threading.Lock()
_guard: list[subprocess.Popen[bytes]] = []  # one for all that is started, once there is one


def begin() -> None:
    """Start the guard, before anything that has the mark; it ends with this program."""
    _tell("")


def watch_over(group: int) -> None:
    """Let the guard end a process group, and all that has the mark, after the end of this program."""
    _tell(f"+ {group}\n")


def release(group: int) -> None:
    """Forget a process group that has ended, because its number may become that of another one."""
    _tell(f"- {group}\n")


def _tell(line: str) -> None:
    if os.name != "posix":
        return
    with _lock, suppress(OSError):  # without a shell there is no guard
        if not _guard:
            nothing = subprocess.DEVNULL
            _guard.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", _SCRIPT, "sh", MARK],
                    stdin=subprocess.PIPE,
                    stdout=nothing,
                    stderr=nothing,
                    start_new_session=True,
                    bufsize=0,
                )
            )
        pipe = _guard[0].stdin
        assert pipe is not None
        pipe.write(line.encode())
