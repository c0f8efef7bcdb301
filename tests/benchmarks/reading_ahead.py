"""Seconds from Enter to the first token, with and without reading ahead, beside reading 30 tokens.

python -m tests.benchmarks.reading_ahead [-m FILE -md FILE --mode sd] [--runs 3] [--cases file,typed]
python -m tests.benchmarks.reading_ahead --pace 5           five times as fast: waits and typing

Each case is what a chat asks of its models, from an empty cache: what is known before Enter is read ahead, or
not; then the question is asked. "30 tokens" is the same question once more with another end of that length.
The order of the two ways changes with every run. Nobody else may need the CPU: reading ahead rests then.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from localspec.demo import bundled_pair, prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.types.events import Finished, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling

SYSTEM = Message("system", "You are a helpful assistant. " + " ".join(item.prompt for item in prompts()[:8]))
END = "Please answer in one short sentence, and name the most important point of all first."
OTHER_END = "Which of the things said above matters most to somebody who sees all of it for the first time?"
WORDS_PER_MINUTE = 40
TYPING_PAUSE_S = 0.35  # after which a chat looks at what is typed


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation that ends in a question, and what is read before Enter, with waits in seconds."""

    name: str
    conversation: tuple[Message, ...]
    before: tuple[tuple[tuple[Message, ...], float], ...]
    cached: tuple[Message, ...] | str = ()  # before that, with its answer


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, default=bundled_pair()[0])
    parser.add_argument("-md", "--model-draft", type=Path)
    parser.add_argument("-c", "--context", type=int, default=8192)
    parser.add_argument("--mode", default="off")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pace", type=float, default=1.0, help="by which waits are shorter")
    parser.add_argument("--cases", default="", help="the beginnings of their names")
    parser.add_argument("--words", type=int, default=300, help="of the typed question")
    args = parser.parse_args()
    options = ModelOptions(args.model, context=args.context, threads=args.threads)
    draft = None if args.model_draft is None else replace(options, path=args.model_draft)
    wanted = tuple(args.cases.split(","))
    print(f"{'case':44} {'without':>8} {'ahead':>8} {'30 tokens':>9}  ahead / 30 tokens   tokens left")
    with Worker.open(OpenPlan(options, draft)) as worker:
        ask = partial(_asked, args.mode)
        for case in cases(partial(_sized, worker), args.words):
            if case.name.startswith(wanted):
                _measure(worker, case, ask, args)


def _measure(
    worker: Worker, case: Case, ask: Callable[[tuple[Message, ...] | str], Request], args: argparse.Namespace
) -> None:
    taken: dict[str, list[float]] = {"without": [], "ahead": [], "30 tokens": []}
    left = 0
    *earlier, question = case.conversation
    again = (*earlier, replace(question, content=question.content.removesuffix(END) + OTHER_END))
    for run in range(args.runs):
        for way in ("without", "ahead") if run % 2 else ("ahead", "without"):
            _first_token(worker, replace(ask("Something else."), reuses_cache=False))
            worker.keep_conversations(0)  # nothing of the way before
            worker.keep_conversations(2**32)  # as for a screen
            if case.cached:
                _first_token(worker, ask(case.cached))
            for messages, wait_s in case.before if way == "ahead" else ():
                worker.read_ahead(ask(messages))
                time.sleep(wait_s / args.pace)
            seconds, new = _first_token(worker, ask(case.conversation))
            taken[way].append(seconds)
            left = new if way == "ahead" else left
        taken["30 tokens"].append(_first_token(worker, ask(again))[0])
    without, ahead, end = (median(taken[name]) for name in taken)
    spread = [found / end for found in taken["ahead"]]
    print(
        f"{case.name:44} {without:8.3f} {ahead:8.3f} {end:9.3f}  {ahead / end:5.2f} "
        f"({min(spread):.2f} to {max(spread):.2f})  {left:6}",
        flush=True,
    )


def _asked(mode: Mode, prompt: tuple[Message, ...] | str) -> Request:
    return Request(prompt, Sampling(temperature=0.0), EngineSettings(mode=mode), 4, seed=1)


def _first_token(worker: Worker, request: Request) -> tuple[float, int]:
    """Return the seconds to the first text, and the tokens that were read for it."""
    began, first_s, new = time.perf_counter(), 0.0, 0
    for event in worker.generate(request):
        if isinstance(event, TextDelta) and not first_s:
            first_s = time.perf_counter() - began
        if isinstance(event, Finished):
            new = event.summary.new_prompt_tokens
    return first_s or time.perf_counter() - began, new


def cases(sized: Callable[[int], str], words: int) -> Iterator[Case]:
    """Yield the cases; `sized` returns a text of so many tokens."""
    nothing = Message("user", "")
    yield Case("first question after the profile", (SYSTEM, _user(END)), (((SYSTEM, nothing), 5.0),))
    file = f"File notes.txt:\n```\n{sized(3000)}\n```\n\n"
    for seconds in (10.0, 40.0):
        yield Case(
            f"file of 3,000 tokens, attached {seconds:g} s before",
            (SYSTEM, _user(file + END)),
            (((SYSTEM, _user(file)), seconds),),
        )
    typed = f"{sized(2 * words)} ".split()[:words]
    yield Case(
        f"typed question of {words} words",
        (SYSTEM, _user(" ".join(typed) + " " + END)),
        tuple(_typing(typed)),
    )
    answer = Message("assistant", sized(500))
    question = _user("Tell me about it.")
    later = (SYSTEM, question, answer)
    for name, thinking in (("", ""), (" and 1,000 of thinking", f"<think>\n{sized(1000)}\n</think>\n\n")):
        said = (SYSTEM, question, replace(answer, content=thinking + answer.content))
        yield Case(f"after 500 tokens{name}", (*later, _user(END)), (((*later, nothing), 20.0),), said)
    chat = (SYSTEM, question, Message("assistant", sized(3700)))
    yield Case("chat of 4,000 tokens, opened 5 s before", (*chat, _user(END)), (((*chat, nothing), 5.0),))


def _typing(words: list[str]) -> Iterator[tuple[tuple[Message, ...], float]]:
    """Yield what is typed at each pause that is long enough, with the time until the next; END comes last."""
    random_ = random.Random(1)
    all_words, waited, since = [*words, *END.split()], 0.0, 0
    for number, _ in enumerate(all_words, 1):
        gap = random_.lognormvariate(0.0, 0.6) * 60.0 / WORDS_PER_MINUTE / 1.2
        waited += gap
        if gap > 4 * TYPING_PAUSE_S or number - since > 12:  # between words; letters come faster
            yield (SYSTEM, _user(" ".join(all_words[:number]))), waited
            waited, since = 0.0, number


def _user(text: str) -> Message:
    return Message("user", text)


def _sized(worker: Worker, tokens: int) -> str:
    """Return a text of about so many tokens."""
    text = " ".join(item.prompt for item in prompts() * 20)
    whole = worker.count_tokens((_user(text),))
    return text[: int(len(text) * tokens / whole)]


if __name__ == "__main__":
    main()
