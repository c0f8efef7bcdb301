"""Generate in a thread of its own, so that Ctrl+C is heard while native code is busy."""

from __future__ import annotations

import threading
from collections.abc import Generator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from localspec.cli.shared.console import on_interrupt
from localspec.types import GenerationEvent, Request

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime

_POLL_S = 0.1  # on Windows a waiting main thread hears Ctrl+C only between waits


def stream(runtime: Runtime, request: Request) -> Generator[GenerationEvent]:
    """Yield the events of one answer; Ctrl+C ends it with `Finished("cancelled")`, not with an exception.

    Close it when leaving early: that stops the computation and waits for it.
    """
    events: SimpleQueue[GenerationEvent | BaseException | None] = SimpleQueue()

    def generate() -> None:
        try:
            for event in runtime.generate(request):
                events.put(event)
            events.put(None)
        except BaseException as error:  # noqa: BLE001 - the reader raises it again
            events.put(error)

    thread = threading.Thread(target=generate, name="localspec-generate", daemon=True)
    ended, unwanted = False, threading.Event()

    def stop() -> None:
        unwanted.set()
        runtime.cancel()

    with on_interrupt(stop):
        thread.start()
        try:
            while not ended:
                if unwanted.is_set():
                    runtime.cancel()  # again and again: before their first step models hear nothing
                try:
                    event = events.get(timeout=_POLL_S)
                except Empty:
                    continue
                ended = event is None or isinstance(event, BaseException)
                if isinstance(event, BaseException):
                    raise event
                if event is not None:
                    yield event
        finally:
            while not ended and thread.is_alive():
                runtime.cancel()
                thread.join(_POLL_S)
            thread.join()
