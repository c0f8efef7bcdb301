"""Work in a thread that nothing has to wait for, not even the end of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
_LOOK_S = 0.05


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Begin some work, and return its result to come."""
    from concurrent.futures import Future  # 10 ms, with logging

    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # it cannot be cancelled, and has its result

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - who asks for the result gets it
            result.set_exception(error)

    threading.Thread(target=run, name=f"localspec-{name}", daemon=True).start()
    return result


def ends_before(result: Future[T], stopped: threading.Event) -> bool:
    """Wait for the end of some work, or for a stop; return whether the work has ended."""
    from concurrent.futures import wait

    while not (wait([result], _LOOK_S).done or stopped.is_set()):
        pass
    return result.done()
