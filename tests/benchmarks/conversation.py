"""Talk with edits and cancels and look at memory; then time second turns by length of history.

The last table is of chats of turns: what the first token of a further turn takes, against llama.cpp's own
time for reading the new tokens.

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
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.events import Finished, Summary, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request, Sampling

MIB = 2**20
NEXT_TURN = 1.1
QUESTION = Message("user", "And now tell me more about what we said at first, please. What about number")


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
    parser.add_argument("--lengths", default="1000,4000", help="of chats whose next turn is timed, in tokens")
    parser.add_argument("--next", type=int, default=9, help="so often")
    args = parser.parse_args()
    target, draft = (ModelOptions(path, context=8192) for path in (args.model, args.model_draft))
    with Runtime.open(OpenPlan(target, draft)) as runtime:
        settings = EngineSettings(mode=args.mode)
        if args.turns:
            talk(runtime, settings, args.turns, args.tokens)
            second_turns(runtime, settings)
        next_turns(runtime, settings, [int(length) for length in args.lengths.split(",")], args.next)


def answer(
    runtime: Runtime, messages: Sequence[Message], settings: EngineSettings, tokens: int, stop_after: int = 0
) -> tuple[str, Summary]:
    """Return an answer and its summary; `stop_after` cancels it after N pieces of text."""
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


def next_turns(runtime: Runtime, settings: EngineSettings, lengths: Sequence[int], repeats: int) -> None:
    """Compare the first token of a further turn with the native time of its new tokens."""
    print(
        f"\nchat  read anew  first token ms  reading ms  first token / reading "
        f"(median of {repeats}, from, to; target {NEXT_TURN})"
    )
    for length in lengths:
        chat: list[Message] = []
        while runtime.count_tokens([*chat, QUESTION]) < length:
            asked = prompts()[len(chat) // 2 % len(prompts())].prompt
            chat += [Message("user", asked), Message("assistant", f"{asked} Let me think about it.")]
        answer(runtime, [*chat, QUESTION], settings, 8)
        found = [
            answer(runtime, [*chat, Message("user", f"{QUESTION.content} {number}?")], settings, 4)[1]
            for number in range(repeats)
        ]
        ratios = sorted(summary.first_token_s / summary.prompt_s for summary in found)
        fresh = median(summary.prompt_tokens - summary.cached_tokens for summary in found)
        first, reading = (
            median(getattr(one, name) for one in found) for name in ("first_token_s", "prompt_s")
        )
        print(
            f"{found[-1].prompt_tokens:4}  {fresh:9.0f}  {first * 1e3:14.2f}  {reading * 1e3:10.2f}  "
            f"{median(ratios):.3f} ({ratios[0]:.3f}, {ratios[-1]:.3f}): "
            f"{'met' if median(ratios) <= NEXT_TURN else 'missed'}"
        )


if __name__ == "__main__":
    main()
