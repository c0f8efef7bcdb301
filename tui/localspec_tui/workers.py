"""Work in the background of a widget."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TypeVar, TypeVarTuple

from textual.dom import DOMNode
from textual.worker import Worker

Ts = TypeVarTuple("Ts")
Result = TypeVar("Result")


def start_worker(
    node: DOMNode,
    work: Callable[[*Ts], Coroutine[None, None, Result]],
    *given: *Ts,
    group: str = "default",
    exclusive: bool = False,
    exit_on_error: bool = True,
) -> Worker[Result]:
    """Do something in a worker of a widget or screen, as `DOMNode.run_worker` does.

    The coroutine is made when the worker starts. One that was made before is never awaited, which Python
    reports, where the widget goes first.
    """
    started: Worker[Result] = node.run_worker(
        partial(work, *given), group=group, exclusive=exclusive, exit_on_error=exit_on_error
    )
    return started
