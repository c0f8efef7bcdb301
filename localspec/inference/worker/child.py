"""The process that holds the models: takes requests from one pipe and answers on another.

The end of the requests ends it, whether the parent closed them or died.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from localspec.inference.worker.service import Outbox, Service
from localspec.inference.worker.wire import GREETING

_PATIENCE_S = 0.5


def main() -> None:
    """Serve until the requests end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)  # the others run on: reading their stacks can crash or never end
    threading.excepthook = _end_with_a_thread
    _die_first_and_fast()
    requests, replies = _take_pipes()
    logging.captureWarnings(capture=True)
    outbox = Outbox(replies)
    service = Service(outbox)
    with suppress(Exception):  # a request that is cut off by the parent's death fails in many ways
        while True:
            service.take(pickle.load(requests))
    service.stop(_PATIENCE_S)
    outbox.flush(_PATIENCE_S)
    os._exit(0)  # the system frees everything; destructors of native libraries can only crash here


def _end_with_a_thread(failure: threading.ExceptHookArgs) -> None:
    """End where a thread fails: the parent would wait for its answers for ever."""
    threading.__excepthook__(failure)
    os._exit(1)


def _die_first_and_fast() -> None:
    """Let the system, short of memory, end this process before others, and write no image of gigabytes."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", "ascii")
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        # 1 and not 0: Linux then does not pass the image to a program that collects them, either
        resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Put the pipes out of the libraries' reach: they read nothing, and print to standard error."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device, not a file
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    replies.write(GREETING)
    replies.flush()
    return requests, replies
