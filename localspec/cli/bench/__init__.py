"""`localspec bench`: how fast every way of decoding is on this machine, side by side."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.app.options import PairOptions, pair_options
from localspec.benchmark.contender import Anchor, Contender, Prompt, Run
from localspec.cli.bench.contenders import check_fit, own, possible, seated, servers
from localspec.cli.bench.request import (
    COMBINED,
    MODES,
    SERVER,
    TUNED,
    USUAL_PER_TASK,
    USUAL_SAMPLING,
    USUAL_SETS,
    USUAL_TOKENS,
    BenchRequest,
    prompts_of,
    read_against,
    read_lengths,
    read_modes,
    read_plot,
    wish_of,
)
from localspec.cli.shared import opening
from localspec.cli.shared.arguments import (
    Parser,
    add_device_flags,
    add_drafting_flags,
    add_model_flags,
    add_placing_flags,
    add_sampler_flags,
    set_up_logging,
    verb_parser,
    whole,
)
from localspec.cli.shared.console import StatusLine, on_interrupt, say
from localspec.cli.shared.errors import FAILURE, INTERRUPTED, SUCCESS
from localspec.errors import Cancelled, EngineError, LocalSpecError
from localspec.storage.paths import write_atomically
from localspec.types import Summary

if TYPE_CHECKING:
    from localspec.benchmark.contender import Run
    from localspec.benchmark.figures import SpeedTable
    from localspec.cli.bench.contenders import TunedSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """Who answers what, and what drift is told by."""

    contenders: Sequence[Contender]
    prompts: Sequence[Prompt]
    max_tokens: int
    repetitions: int
    anchor: Callable[[], float]

    @property
    def answers(self) -> int:
        """Return how many answers are timed."""
        return len(self.contenders) * len(self.prompts) * self.repetitions


@dataclass(slots=True)
class Measured:
    """What was measured; `failure` is what ended it early."""

    runs: list[Run] = field(default_factory=list)
    anchors: list[Anchor] = field(default_factory=list)
    failure: LocalSpecError | None = None


class Stop:
    """Somebody's wish to stop. Our own models are cancelled; an answer from elsewhere is left at once."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._wanted = self._elsewhere = False

    def ask(self) -> None:
        """Stop what runs; raises `Cancelled` where that is all that stops it."""
        self._wanted = True
        if self._elsewhere:
            raise Cancelled("the benchmark was stopped")
        self._cancel()

    @contextmanager
    def heeded(self, *, elsewhere: bool = False) -> Iterator[None]:
        """Let nothing begin or count after the wish; `elsewhere` if other programs work meanwhile."""
        self._check()
        self._elsewhere = elsewhere
        try:
            yield
        finally:
            self._elsewhere = False
        self._check()

    def _check(self) -> None:
        if self._wanted:
            raise Cancelled("the benchmark was stopped")


class BenchProgress:
    """Counts answers on the status line; the first of every contender only warm it up."""

    def __init__(self, warm_ups: int, answers: int, now: Callable[[], float] = time.monotonic) -> None:
        self._warm_ups = warm_ups
        self._answers = answers
        self._now = now
        self._status = StatusLine()
        self._done = 0
        self._began_s = now()  # the first answer that is timed

    def begin(self, name: str) -> None:
        """Show who answers now."""
        self._status.update(self.words(name))

    def end(self) -> None:
        """Count an answer."""
        self._done += 1
        if self._done == self._warm_ups:
            self._began_s = self._now()

    def clear(self) -> None:
        """Take the line away."""
        self._status.clear()

    def words(self, name: str) -> str:
        """Return how far it is and who answers, in a line."""
        done = self._done - self._warm_ups
        if done < 0:
            return f"warming up: {name}"
        text = f"{done} of {self._answers} answers"
        if done:
            from localspec.tuning.words import time_left  # 20 ms

            text += f", {time_left(self._now() - self._began_s, done / self._answers)}"
        return f"{text}: {name}"


@dataclass(frozen=True, slots=True)
class Watched:
    """A contender whose answers are counted and can be stopped."""

    contender: Contender
    progress: BenchProgress
    stop: Stop
    elsewhere: bool

    @property
    def name(self) -> str:
        """Return what the tables call it."""
        return self.contender.name

    def answer(self, prompt: Prompt, max_tokens: int, seed: int) -> Summary:
        """Answer from empty caches and return what it took."""
        self.progress.begin(self.name)
        with self.stop.heeded(elsewhere=self.elsewhere):
            summary = self.contender.answer(prompt, max_tokens, seed)
        self.progress.end()
        return summary

    def memory_peak(self) -> int | None:
        """Return the most bytes that its process has held in memory so far."""
        return self.contender.memory_peak()


def measure(plan: Plan, own: int, cancel: Callable[[], None], on_run: Callable[[Run], None]) -> Measured:
    """Run a plan to its end, or to Ctrl+C or a failure; the first `own` contenders `cancel` stops."""
    from localspec.benchmark.interleave import interleave

    measured, stop = Measured(), Stop(cancel)
    progress = BenchProgress(len(plan.contenders), plan.answers)
    watched = [
        Watched(contender, progress, stop, elsewhere=number >= own)
        for number, contender in enumerate(plan.contenders)
    ]

    def anchor() -> float:
        with stop.heeded():
            return plan.anchor()

    try:
        with on_interrupt(stop.ask):
            for found in interleave(watched, plan.prompts, plan.max_tokens, plan.repetitions, anchor):
                if isinstance(found, Anchor):
                    measured.anchors.append(found)
                else:
                    measured.runs.append(found)
                    progress.clear()
                    on_run(found)
    except LocalSpecError as error:
        measured.failure = error
    except KeyboardInterrupt:
        measured.failure = Cancelled("the benchmark was stopped")
    finally:
        progress.clear()
    return measured


OUTPUTS = ("md", "csv", "json", "jsonl")


def parser() -> Parser:
    """Return the parser of `localspec bench`."""
    result = verb_parser(
        "bench",
        "Answer prompts in every mode in turn, each time from empty caches, and compare the speeds with "
        "their 95% intervals. Plain decoding between the prompts tells whether the machine kept its pace; "
        "if it did not, nothing is compared, and the exit code is 1.",
    )
    add = result.add_argument
    add(
        "--modes", type=read_modes, metavar="LIST",
        help=f"modes to compare: {', '.join(MODES)}, {', '.join(COMBINED)} (with repetitions in the "
        f"text), {TUNED} ({', '.join(MODES)}, as far as possible); off is "
        "always among them",
    )  # fmt: skip
    add(
        "--draft-length", dest="lengths", type=read_lengths, default=(), metavar="LIST",
        help="also compare drafts of these fixed lengths, such as 2,4,8, in modes with a draft model",
    )  # fmt: skip
    add(
        "--prompts", nargs="+", action="extend", default=[], metavar="FILE|SET",
        help="JSON Lines with a prompt, question or turns in each, a profile's name, or demo "
        f"({' '.join(USUAL_SETS)})",
    )  # fmt: skip
    add("--tasks", nargs="+", action="extend", default=[], metavar="TASK", help="only prompts of these")
    add(
        "--per-task", type=whole(1, 100_000), default=USUAL_PER_TASK, metavar="N",
        help=f"most prompts of each task ({USUAL_PER_TASK})",
    )  # fmt: skip
    add("--runs", type=whole(1, 1000), default=1, metavar="N", help="ask everything so many times (1)")
    add(
        "-n", "--predict", "--n-predict", type=whole(2, 2**31 - 1), default=USUAL_TOKENS, metavar="N",
        help=f"most tokens of an answer ({USUAL_TOKENS})",
    )  # fmt: skip
    add(
        "-o", "--output", choices=OUTPUTS, default=OUTPUTS[0],
        help="tables, figures, one object, or a line for each answer (md)",
    )  # fmt: skip
    add("--plot", type=read_plot, metavar="FILE.svg", help="draw the speeds")
    add(
        "--against", type=read_against, metavar=f"{SERVER}=PATH",
        help="also run llama.cpp's own server, with and without its speculation, on the same models",
    )  # fmt: skip
    add("-v", "--verbose", action="store_true", help="print log and tracebacks to standard error")
    add_sampler_flags(result, USUAL_SAMPLING, "the same for all that is compared")
    add_drafting_flags(
        result.add_argument_group("speculation", "the same for all modes of ours").add_argument
    )
    add_model_flags(result)
    add_device_flags(result)
    add_placing_flags(result)
    result.set_defaults(mode="auto", draft_length=None)  # what other verbs have flags for
    return result


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was really compared, and what came of it; `peaks` are bytes by contender, in their order."""

    wish: BenchRequest
    pair: PairOptions
    measured: Measured
    peaks: Mapping[str, int | None]


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(argv)
    if args.list_devices:
        return opening.list_devices()
    prompts = prompts_of(args)
    args.draft_length = max(args.lengths, default=None)
    pair = pair_options(args)
    wish = wish_of(args, prompts, pair)
    set_up_logging(verbose=args.verbose)
    pair, tuned = seated(args, wish, pair)
    on_run = _print_line if args.output == "jsonl" else _wait
    with ExitStack() as until_printed:
        outcome = _compare(wish, pair, tuned, on_run, until_printed)
        return _conclude(outcome, args.output, shlex.join(["localspec", "bench", *argv]))


def _wait(_run: Run | None = None) -> None:
    """Do nothing yet."""


def _print_line(run: Run) -> None:
    from localspec.cli.bench.output import line

    print(line(run), flush=True)


def _compare(
    wish: BenchRequest,
    pair: PairOptions,
    tuned: TunedSettings,
    on_run: Callable[[Run], None],
    until_printed: ExitStack,
) -> _Outcome:
    """Open everything, and ask all contenders; what was measured survives a second Ctrl+C."""
    with opening.open_runtime(pair) as runtime, ExitStack() as processes:
        from localspec.benchmark.own_modes import plain_anchor

        opening.tell_notes(runtime, pair)
        wish = possible(wish, runtime)
        check_fit(wish.prompts, runtime)
        ours = list(own(runtime, wish, tuned))
        contenders = [*ours, *servers(wish, pair, runtime, processes)]
        plan = Plan(contenders, wish.prompts, wish.max_tokens, wish.repetitions, plain_anchor(runtime))
        say(f"timing {plan.answers} answers of {', '.join(each.name for each in contenders)}")
        until_printed.enter_context(on_interrupt(_wait))
        measured = measure(plan, len(ours), runtime.cancel, on_run)
        peaks = {each.name: each.memory_peak() for each in contenders}
    return _Outcome(wish, pair, measured, peaks)


def _conclude(outcome: _Outcome, kind: str, command: str) -> int:
    """Print what there is, also of a run that ended early; return the exit code."""
    from localspec.benchmark.figures import table

    measured = outcome.measured
    failure = measured.failure
    if not measured.runs and failure is None:
        raise EngineError("every answer ended with its first token: there is no speed to compare")
    comparable = True
    if measured.runs:
        found = table(measured.runs, measured.anchors, outcome.peaks)
        _print(found, outcome, kind, command)
        comparable = found.comparable
        if not comparable:
            say(f"not compared: {found.reason}")
    if isinstance(failure, Cancelled):
        say("stopped" if measured.runs else "stopped before anything was measured")
        return INTERRUPTED
    if failure is not None:
        raise failure
    return SUCCESS if comparable else FAILURE


def _print(found: SpeedTable, outcome: _Outcome, kind: str, command: str) -> None:
    """Print a table, and draw it where that was asked for."""
    from localspec.cli.bench import output as output  # what the tuner says, too: 20 ms

    pair, wish = outcome.pair, outcome.wish
    conditions = output.Conditions(
        target=pair.target.path.stem,
        draft=None if pair.draft is None else pair.draft.path.stem,
        machine=machine_words(pair),
        command=command,
        complete=outcome.measured.failure is None,
    )
    if kind == "md":
        for line in output.markdown(found, wish, conditions):
            print(line)
    elif kind == "csv":
        sys.stdout.write(output.comma_separated(found))
    elif kind == "json":
        print(output.whole(found, wish, conditions))
    if wish.plot is not None:
        from localspec.cli.bench.plot import picture

        drawn = picture(found, output.models_words(conditions), conditions.machine)
        write_atomically(wish.plot, drawn + "\n", mode=0o644)


def machine_words(pair: PairOptions) -> str:
    """Return the processor, how much of it is used, the cards and the system, in a line."""
    from localspec.hardware.machine import facts_of, known_machine
    from localspec.llama import physical_cores

    facts = facts_of(known_machine(may_measure=False, here=True))
    used = pair.target.threads or physical_cores()
    cores = f"{used} of {facts.cores} cores" if facts.cores else f"{used} threads"
    parts = [facts.processor or "unknown processor", cores, *facts.devices]
    parts += [f"{platform.system()} {platform.release()}", f"llama-cpp-python {facts.llama_cpp}"]
    return ", ".join(parts)
