"""The first token of a conversation after a restart: with its caches on disk, and read again.

`python -m tests.benchmarks.restart [TOKENS [ROUNDS]] [smollm2 | bundled | TARGET.gguf [DRAFT.gguf]]`, in a
state folder of its own. Both ways alternate. The system may still have the file in memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from localspec.demo import prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.storage.kept_caches import figures
from localspec.types.events import Finished, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Request, Sampling
from tests.benchmarks.conversations import pair

MEMORY, DISK = 8 * 2**30, 16 * 2**30


def asked(runtime: Runtime, text: str) -> tuple[str, float, int]:
    """Return the answer's text, the seconds to its first token, and the tokens that were read."""
    request = Request(text, Sampling(temperature=0.0), EngineSettings(mode="off"), 16)
    started, first_s, said = time.perf_counter(), 0.0, ""
    for event in runtime.generate(request):
        if isinstance(event, TextDelta):
            first_s = first_s or time.perf_counter() - started
            said += event.text
        if isinstance(event, Finished):
            return said, first_s or time.perf_counter() - started, event.summary.new_prompt_tokens
    raise AssertionError("an answer has no end")


def main(names: Sequence[str], tokens: int = 8000, rounds: int = 3) -> None:
    """Write a conversation to disk, then compare both ways of going on with it."""
    is_file = bool(names) and names[0].endswith(".gguf")
    files = tuple(map(Path, names)) if is_file else pair(names[0] if names else "smollm2")
    target, *draft = (ModelOptions(path, context=tokens + 192) for path in files)
    plan = OpenPlan(target, draft[0] if draft else None)
    words = " ".join(item.prompt for item in prompts())
    with Runtime.open(plan) as runtime:
        whole = runtime.encode(" ".join([words] * (2 + 2 * tokens // len(runtime.encode(words)))))
        text = runtime.decode(whole[: tokens - 100])
        runtime.keep_conversations(MEMORY, DISK)
        asked(runtime, text)
        started = time.perf_counter()
        runtime.write_before_leaving(600.0)
        wrote_s = time.perf_counter() - started
        sys.stdout.write(f"{tokens:,} tokens: {figures().bytes / 2**20:.0f} MiB written in {wrote_s:.2f} s\n")
    for _ in range(rounds):
        for on_disk in (DISK, 0):
            with Runtime.open(replace(plan)) as runtime:
                runtime.keep_conversations(MEMORY, on_disk)
                said, first_s, read = asked(runtime, f"{text} And then?")
            way = "from disk" if on_disk else "read again"
            sys.stdout.write(f"{way:10} {read:6,} tokens read, first token after {first_s:.2f} s: {said!r}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCALSPEC_STATE_DIR"] = folder
        words = sys.argv[1:]
        main([word for word in words if not word.isdigit()], *(int(word) for word in words if word.isdigit()))
