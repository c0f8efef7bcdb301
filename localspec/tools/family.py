"""A process that runs something for a model, a command or a server, and its end with all that it started.

Processes of the family are found by the session of the first one, as its descendants, and by a mark in their
environment. One that has left all three is not found.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.tools import guard

if TYPE_CHECKING:
    import psutil

_MARKS = "LOCALSPEC_STARTED"  # a variable; a program in the family may be LocalSpec, which adds its own mark
_HAS_PROC = Path("/proc/self/environ").exists()
_ROUNDS = 50  # of looking for processes to end: one may start others meanwhile
_UNSEEN = 4  # rounds without any, until all are taken for ended: one may live for less than a round
_numbers = count(1)


def new_mark() -> str:
    """Return a mark that no other process has, except by inheritance; the guard looks for it from now on."""
    guard.begin()
    return f"{guard.MARK}-{next(_numbers)}."


def marked(variables: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return an environment with a mark, behind those that this program has itself."""
    return {**variables, _MARKS: f"{os.environ.get(_MARKS, '')}{mark}"}


@dataclass(frozen=True, slots=True)
class ProcessFamily:
    """A process that leads a session and has a mark, and all that it started."""

    leader: int
    mark: str

    def guarded(self) -> ProcessFamily:
        """Let it end if this program is killed, and return it; `end` takes that back."""
        guard.watch_over(self.leader)
        return self

    def memory(self) -> int:
        """Return the memory that all of them take, in bytes."""
        import psutil

        size = 0
        for pid in (self.leader, *self.others()):
            with suppress(psutil.Error):
                size += psutil.Process(pid).memory_info().rss
        return size

    def ask_to_end(self) -> None:
        """Send SIGTERM to the leader and its group; on Windows this ends the leader."""
        if self._is_led():
            _signalled({self.leader}, signal.SIGTERM)

    def end(self, known: Iterable[psutil.Process] = ()) -> int:
        """End all of them at once; return how many there were besides the leader.

        Those that are `known` end, too: they were descendants before the leader ended. The leader should not
        have been waited for, so that its number belongs to no other process.
        """
        ended = {*self.others(), *(each.pid for each in known if each.is_running())}
        groups = {_group(pid) for pid in ended} | ({self.leader} if self._is_led() else set())
        unseen = 0
        for _ in range(_ROUNDS):
            groups = _signalled(groups - {0}, _KILL)
            others = set(self.others())
            groups |= {_group(pid) for pid in others}
            ended |= others
            unseen = 0 if others else unseen + 1
            if unseen == _UNSEEN:
                break
        guard.release(self.leader)
        return len(ended)

    def others(self) -> Iterator[int]:
        """Yield the processes besides the leader, wherever they went."""
        import psutil  # 20 ms

        mark = self.mark.encode()
        descendants = {each.pid for each in self.descendants()}
        for pid in sorted(psutil.pids(), reverse=True):  # the newest first: they may not live long
            with suppress(psutil.Error, OSError):
                is_one = _session(pid) == self.leader or pid in descendants or mark in _variables(pid)
                if pid != self.leader and is_one and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    yield pid

    def descendants(self) -> Sequence[psutil.Process]:
        """Return the processes that the leader has started, and those that these have; none once it ended."""
        import psutil

        with suppress(psutil.Error):
            found: Sequence[psutil.Process] = psutil.Process(self.leader).children(recursive=True)
            return found
        return ()

    def _is_led(self) -> bool:
        """Return whether the leader, running or not waited for, still has its number."""
        with suppress(OSError):
            return sys.platform == "win32" or os.getsid(self.leader) == self.leader
        return False


if sys.platform == "win32":
    _KILL = signal.SIGTERM
else:
    _KILL = signal.SIGKILL


def _signalled(groups: set[int], number: signal.Signals) -> set[int]:
    """Signal groups of processes, because one that forks and ends has another number each time.

    Return the groups that there were.
    """
    found = set()
    for group in groups:
        with suppress(OSError):
            if sys.platform == "win32":
                os.kill(group, number)
            elif group != os.getpgrp():
                os.killpg(group, number)
            found.add(group)
    return found


def _group(pid: int) -> int:
    """Return the group of a process, 0 for one that has ended."""
    with suppress(OSError):
        return pid if sys.platform == "win32" else os.getpgid(pid)
    return 0


def _variables(pid: int) -> bytes:
    """Return the environment of a process as it is in memory."""
    if _HAS_PROC:
        return Path(f"/proc/{pid}/environ").read_bytes()  # a tenth of psutil's time
    import psutil

    return "\n".join(f"{name}={value}" for name, value in psutil.Process(pid).environ().items()).encode()


def _session(pid: int) -> int:
    return 0 if sys.platform == "win32" else os.getsid(pid)
