"""Talk with edits and cancels and look at memory; then time second turns by length of history.

python -m tests.benchmarks.conversation [-m TARGET -md DRAFT] [--mode ssd] [--turns 30]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import psutil

from localspec.demo import bundled_pair, prompts
from localspec.runtime import Runtime
from localspec.types import (
    EngineSettings,
    Finished,
    Message,
    ModelOptions,
    Request,
    Sampling,
    Summary,
    TextDelta,
)

MIB = 2**20


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, default=bundled_pair()[0])
    parser.add_argument("-md", "--model-draft", type=Path, default=bundled_pair()[1])
    parser.add_argument("--mode", choices=("off", "ngram", "sd", "ssd"), default="ssd")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=60)
    args = parser.parse_args()
    target, draft = (ModelOptions(path, context=8192) for path in (args.model, args.model_draft))
    with Runtime.open(target, draft) as runtime:
        talk(runtime, EngineSettings(mode=args.mode), args.turns, args.tokens)
        second_turns(runtime, EngineSettings(mode=args.mode))


def answer(
    runtime: Runtime, messages: Sequence[Message], settings: EngineSettings, tokens: int, stop_after: int = 0
) -> tuple[str, Summary]:
    """Return an answer and its summary; `stop_after` cancels it after so many pieces of text."""
    request = Request(tuple(messages), Sampling(temperature=0.7), settings, tokens, seed=len(messages))
    text, pieces = "", 0
    for event in runtime.generate(request):
        if isinstance(event, TextDelta):
            text += event.text
            pieces += 1
            if pieces == stop_after:
                runtime.cancel()
        elif isinstance(event, Finished):
            return text, event.summary
    raise AssertionError("an answer always finishes")


def talk(runtime: Runtime, settings: EngineSettings, turns: int, tokens: int) -> None:
    """Cancel every fourth answer, edit an earlier question in every fifth turn."""
    process, chance, asked = psutil.Process(), random.Random(1), prompts()
    messages: list[Message] = []
    print("turn  history  read anew  first token ms  resident MiB  threads")
    for turn in range(turns):
        if turn % 5 == 4:
            del messages[chance.randrange(0, len(messages), 2) :]
        messages.append(Message("user", asked[turn % len(asked)].prompt))
        text, summary = answer(runtime, messages, settings, tokens, stop_after=5 if turn % 4 == 3 else 0)
        messages.append(Message("assistant", text))
        fresh = summary.prompt_tokens - summary.cached_tokens
        resident = process.memory_info().rss / MIB
        print(
            f"{turn + 1:4}  {summary.prompt_tokens:7}  {fresh:9}  {summary.first_token_s * 1e3:14.1f}  "
            f"{resident:12.1f}  {process.num_threads():7}"
        )


def second_turns(runtime: Runtime, settings: EngineSettings) -> None:
    """Time the first token of a second turn after histories of several lengths."""
    print("\nhistory  read anew  first token of the next turn, ms (median of 5)")
    for words in (100, 400, 1600, 4000):
        history = " ".join(item.prompt for item in prompts() * 20).split()[:words]
        first = [Message("user", " ".join(history))]
        text, _ = answer(runtime, first, settings, 16)
        times, sizes = [], set()
        for number in range(5):
            follow_up = Message("user", f"And now tell me {number + 3} more about it, please.")
            _, summary = answer(runtime, [*first, Message("assistant", text), follow_up], settings, 4)
            times.append(summary.first_token_s)
            sizes.add(summary.prompt_tokens - summary.cached_tokens)
        print(f"{summary.prompt_tokens:7}  {'-'.join(map(str, sorted(sizes))):>9}  {median(times) * 1e3:.1f}")


if __name__ == "__main__":
    main()
