"""A pair of real models in every mode, against every kind of speculation that llama-server has for them.

python -m tests.benchmarks.real_pair -m TARGET -md DRAFT --llama-server PATH [--prompts FILE ...] [--temp 0.8]

Contenders answer the same prompts, interleaved, from empty caches; ratios are to plain decoding by prompt.
`sd, resting` is what a chat does with `--mode sd`: it rests where it loses. Every server holds the models
once more: `--servers` and `--modes` choose, where there is little memory or time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.benchmark.figures import table
from localspec.benchmark.harness import (
    Anchor,
    Contender,
    OwnContender,
    Prompt,
    Question,
    Run,
    answered,
    interleave,
    plain_anchor,
)
from localspec.benchmark.llama_server import LlamaServer
from localspec.benchmark.prompts import read_prompts, spread
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.llama.cores import physical_cores
from localspec.types.events import Summary
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Request, Sampling
from tests.benchmarks.paced import report

SD, NGRAM = EngineSettings(mode="sd"), EngineSettings(mode="ngram")
MODES = {
    "plain": EngineSettings(mode="off"),
    "sd": SD,
    "sd, 2": replace(SD, draft_length=2, min_confidence=0.0),
    "sd, 3": replace(SD, draft_length=3, min_confidence=0.0),
    "sd, 5": replace(SD, draft_length=5, min_confidence=0.0),
    "ngram": NGRAM,
    "sd+ngram": replace(SD, fallback="ngram"),
    "sd, resting": SD,
}
SERVERS: dict[str, tuple[int | None, str]] = {  # length of a draft of the draft model, kind
    "server": (None, "none"),
    "server, 2": (2, "draft-simple"),
    "server, 3": (3, "draft-simple"),
    "server, 5": (5, "draft-simple"),
    "server, ngram-simple": (None, "ngram-simple"),
    "server, ngram-map-k": (None, "ngram-map-k"),
    "server, ngram-mod": (None, "ngram-mod"),
    "server, 3 and ngram-simple": (3, "draft-simple,ngram-simple"),
}


@dataclass(frozen=True, slots=True)
class Resting(OwnContender):
    """Open models that leave a mode where it loses, as they do in a chat."""

    def answer(self, question: Question) -> Summary:
        """Answer, and return what it took."""
        assert isinstance(self.settings, EngineSettings)
        asked = replace(question.request, settings=self.settings, steps_down=True)
        return answered(self.models, asked)[0]


def main() -> None:
    """Parse the arguments, measure, and print a table for each task."""
    args = parsed()
    threads = args.threads
    target, draft = (ModelOptions(path, context=args.context, threads=threads) for path in (args.m, args.md))
    prompts = [
        prompt
        for file in args.prompts
        for prompt in spread([replace(each, task=file.stem) for each in read_prompts(file)], args.each)
    ]
    with ExitStack() as stack:
        runtime = stack.enter_context(Runtime.open(OpenPlan(target, draft)))
        contenders: list[Contender] = [
            (Resting if name == "sd, resting" else OwnContender)(name, runtime, MODES[name])
            for name in chosen(args.modes, list(MODES))
        ]
        for name in chosen(args.servers, list(SERVERS)) if args.llama_server else ():
            length, kind = SERVERS[name]
            server = LlamaServer(
                name, args.llama_server, target, draft if length else None, length, ("--spec-type", kind)
            )
            stack.callback(server.close)
            contenders.append(server)
        found = list(interleave(contenders, questions(prompts, args), args.runs, plain_anchor(runtime)))
    runs = [each for each in found if isinstance(each, Run)]
    anchors = [each for each in found if isinstance(each, Anchor)]
    measured = table(runs, anchors, dict.fromkeys(contender.name for contender in contenders))
    for task in dict.fromkeys(row.task for row in measured.rows):
        report([row for row in measured.rows if row.task == task])
    print(f"drift: {measured.drift}; {measured.reason or 'compared'}")


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-m", type=Path, required=True, help="the target")
    add("-md", type=Path, required=True, help="the draft model")
    add("--llama-server", type=Path)
    add("--prompts", type=Path, nargs="+", default=[Path(__file__).with_name("edit_prompts.jsonl")])
    add("--each", type=int, default=4, help="prompts of a file")
    add("--modes", help="names with ; between them")
    add("--servers", help="likewise")
    add("-n", "--tokens", type=int, default=64)
    add("--runs", type=int, default=1)
    add("--temp", type=float, default=0.0)
    add("-c", "--context", type=int, default=2048)
    add("-t", "--threads", type=int, default=physical_cores())
    return parser.parse_args()


def chosen(names: str | None, all_: Sequence[str]) -> Sequence[str]:
    """Return the names that are asked for, plain decoding always among ours."""
    return all_ if names is None else [name.strip() for name in names.split(";") if name.strip()]


def questions(prompts: Sequence[Prompt], args: argparse.Namespace) -> list[Question]:
    """Return what everybody is asked."""
    sampling = Sampling(temperature=args.temp)
    return [
        Question(each.task, Request(each.messages, sampling, max_tokens=args.tokens, reuses_cache=False))
        for each in prompts
    ]


if __name__ == "__main__":
    main()
