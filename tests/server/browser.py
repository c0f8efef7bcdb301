"""A real browser without a window, which is told what to do through two pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")


@dataclass
class Page:
    """An open page."""

    sends: IO[bytes]
    hears: IO[bytes]
    session: str = ""
    number: int = 0

    def call(self, method: str, **values: object) -> Any:  # noqa: ANN401 - the protocol's JSON
        """Return the result of a method of the browser's protocol."""
        self.number += 1
        told: dict[str, object] = {"id": self.number, "method": method, "params": values}
        if self.session:
            told["sessionId"] = self.session
        self.sends.write(json.dumps(told).encode() + b"\0")
        self.sends.flush()
        while (heard := self.message()).get("id") != self.number:
            pass
        return heard["result"]

    def run(self, script: str) -> Any:  # noqa: ANN401 - whatever the script returns
        """Return the value of a script's promise in the page; raises AssertionError if it fails."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def message(self) -> dict[str, Any]:
        """Return what the browser says next."""
        data = bytearray()
        while (byte := self.hears.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        return message


@contextmanager
def opened(url: str, folder: Path) -> Iterator[Page]:
    """Open a page in a browser whose files are in a folder."""
    assert PROGRAM is not None
    to_read, sends = os.pipe()
    hears, to_write = os.pipe()

    command = ("bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", PROGRAM, *_FLAGS)
    process = subprocess.Popen(
        [*command, f"--user-data-dir={folder}"], pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(to_write)
    try:
        with os.fdopen(sends, "wb") as out, os.fdopen(hears, "rb") as heard:
            page = Page(out, heard)
            target = page.call("Target.createTarget", url="about:blank")["targetId"]
            page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            page.call("Page.enable")
            page.call("Page.navigate", url=url)
            while page.message().get("method") != "Page.loadEventFired":
                pass
            yield page
    finally:
        process.kill()
        process.wait()
