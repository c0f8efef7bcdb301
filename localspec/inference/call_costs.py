"""Where what the calls of an open pair cost is kept for the next time that it is opened so, here."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import UserError
from localspec.llama.backends import devices, version
from localspec.llama.library import physical_cores
from localspec.types import ModelOptions

if TYPE_CHECKING:
    from localspec.storage.call_costs import Points
    from localspec.storage.pair_identity import MachineFacts


class CostFiles:
    """The costs of a pair with one model at work at a time, and with both at once; trouble is for the log."""

    def __init__(
        self, target: ModelOptions, draft: ModelOptions | None, max_fan_out: int, draft_threads: int | None
    ) -> None:
        """Remember how the models were opened; nothing is kept unless the target's options ask for that."""
        self._target, self._draft = target, draft
        self._max_fan_out, self._draft_threads = max_fan_out, draft_threads

    def recall(self, *, together: bool) -> tuple[Points, Points] | None:
        """Return what calls of the target and of the draft model cost, if that may still hold."""
        from localspec.storage import call_costs

        file = self._file(together)
        return None if file is None else call_costs.recall_costs(file, time.time())

    def keep(self, verify: Points, step: Points, *, together: bool) -> None:
        """Keep what was measured just now."""
        from localspec.storage import call_costs

        if (file := self._file(together)) is not None:
            call_costs.keep_costs(file, time.time(), verify, step)

    def drop(self, *, together: bool) -> None:
        """Forget what was kept."""
        file = self._file(together)
        if file is not None:
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def _file(self, together: bool) -> Path | None:
        if not self._target.keeps_costs:
            return None
        from localspec.storage.call_costs import costs_file
        from localspec.storage.pair_identity import identify

        target, draft = self._target, self._draft
        with suppress(UserError):
            identity = identify(target, draft, self._draft_threads, facts_here())
            ways = [each and replace(each, path=Path(), context=0) for each in (target, draft)]
            return costs_file(identity, (ways, self._max_fan_out, together))
        return None


def facts_here() -> MachineFacts:
    """Return the facts that llama.cpp tells where it is open anyway: all but the driver of cards."""
    from localspec.storage.pair_identity import MachineFacts

    every = devices()
    return MachineFacts(
        processor=next((device.description for device in every if device.kind == "cpu"), ""),
        cores=physical_cores(),
        devices=tuple(f"{device.name}: {device.description}" for device in every if device.kind != "cpu"),
        llama_cpp=version(),
    )
