"""The engine's process without an engine: the real child, and models that do what the request says."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from localspec.errors import EngineError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, PromptProgress, Summary, TextDelta, TextPiece
from localspec.types.models import DeviceMemory, ModelInfo
from localspec.types.request import Message, Request

CODE = "from tests.campaign.fake_engine import main; main()"
_INFO = ModelInfo(Path("fake.gguf"), "fake", "llama", 1, 1, 4096, 4096, 100, ("CPU",))


class FakeRuntime:
    """Obeys the words of a prompt: `5` writes five pieces, `crash 5` dies after them."""

    uses_cards = False
    lacks_costs = False
    keeps_on_disk = False
    seats = 1

    def __init__(self) -> None:
        self.target, self.draft, self.notes, self.modes = _INFO, None, ("a note",), ("off",)
        self._cancelled = threading.Event()
        self._begun = threading.Event()

    @classmethod
    def open(cls, plan: OpenPlan, *, on_progress: Callable[[float], bool], **_options: object) -> Self:
        """Open at once, or as the file's name says."""
        for step in range(5):
            if not on_progress(step / 5):
                raise EngineError("stopped")
        if plan.target.path.name == "refused":
            raise UserError("no such model", "choose another")
        if plan.target.path.name == "dies":
            os.abort()
        return cls()

    def generate(self, request: Request) -> Iterator[object]:
        """Write as many pieces as the last word says."""
        self._cancelled.clear()
        what, count = str(request.prompt).split()
        yield PromptProgress(0, 10)
        for number in range(int(count)):
            if self._cancelled.is_set():
                yield Finished("cancelled", replace(Summary(), tokens=number))
                return
            yield TextDelta((TextPiece(f"{number} ", Provenance.TARGET),))
        match what:
            case "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
                time.sleep(60)  # another thread may be the one that the signal reaches
            case "aborts":
                sys.stderr.write("GGML_ASSERT(x) failed\n")
                sys.stderr.flush()
                os.abort()
            case "exits":
                os._exit(3)
            case "refuses":
                raise UserError("the text does not fit", "shorten it")
            case "fails":
                raise ZeroDivisionError("by a thread")
            case "hangs" if self._cancelled.wait(60):
                yield Finished("cancelled", replace(Summary(), tokens=int(count)))
                return
            case "floods":
                for _ in range(2_000):
                    sys.stderr.write("noise " * 20 + "\n")
        yield Finished("stop", replace(Summary(), tokens=int(count)))

    def cancel(self) -> None:
        """End the answer."""
        self._cancelled.set()

    def first_call_s(self) -> float | None:
        """Return None: it runs on no GPU."""
        return None

    def writes_in_s(self) -> float | None:
        """Return None: it keeps no conversations."""
        return None

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Count messages."""
        return len(messages)

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Tell some."""
        return (DeviceMemory("CPU", 1, 2),)

    def measure_plain(self) -> None:
        """Take a moment."""
        time.sleep(0.01)


def main() -> None:
    """Serve as the engine's process does, with these models."""
    stand_in: Any = ModuleType("localspec.inference.runtime")
    stand_in.Runtime = FakeRuntime
    sys.modules["localspec.inference.runtime"] = stand_in
    from localspec.inference.worker.child import main as serve

    serve(tells_log=False)
