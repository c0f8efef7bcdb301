"""`localspec bench`: how fast every way of decoding is on this machine, side by side."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from localspec.app.comparison import (
    BenchRequest,
    check_fit,
    machine_words,
    own,
    placed_pair,
    possible,
    servers,
)
from localspec.app.opening import with_config
from localspec.benchmark.harness import Anchor, Contender, Run, Turn, interleave, plain_anchor
from localspec.chat.answer_settings import SessionRequest
from localspec.cli.bench.flags import parser, prompts_of, request_of
from localspec.cli.shared import opening
from localspec.cli.shared.answer_request import sampling_given
from localspec.cli.shared.arguments import pair_request, set_up_logging
from localspec.cli.shared.console import (
    FAILURE,
    INTERRUPTED,
    SUCCESS,
    ProgressLine,
    exit_on_signals,
    on_interrupt,
    print_result,
    say,
)
from localspec.errors import Cancelled, EngineError, LocalSpecError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.storage.paths import write_atomically


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    prompts = prompts_of(args)
    asked_pair = with_config(replace(pair_request(args), draft_length=max(args.lengths, default=None)))
    files = opening.find_files(asked_pair)
    request = request_of(args, prompts, files)
    set_up_logging(verbose=args.verbose)
    with opening.start_worker(verbose=args.verbose) as models, ExitStack() as processes:
        opening.check_explained(asked_pair, explain=args.explain)
        pair, tuned = placed_pair(request, asked_pair, files, models, report=say, explain=args.explain)
        opening.load(models, pair)
        opening.tell_notes(models, pair, asked_pair)
        if args.explain:
            asked = SessionRequest(sampling=sampling_given(args))
            say(asked.explained_sampling(None, models.target.recommended))
        request = possible(request, models)
        check_fit(request.prompts, models)
        if request.server is not None:
            processes.enter_context(exit_on_signals())  # a server hears of nothing but its own end
        contenders = [*own(models, request, tuned), *servers(request, pair, models, processes)]
        answers = len(contenders) * len(request.prompts) * request.repetitions
        say(f"timing {answers} answers of {', '.join(each.name for each in contenders)}")
        with on_interrupt(lambda: None):  # another Ctrl+C still prints the results
            progress = BenchProgress(models.cancel, len(contenders), answers)
            prints = args.output == "jsonl"
            measured = measure(contenders, request, plain_anchor(models), progress, prints=prints)
            command = shlex.join(["localspec", "bench", *argv])
            return _conclude(measured, request, pair, args.output, command)


@dataclass(slots=True)
class Measured:
    """The measurements; `failure` ended them early, `peaks` are bytes by contender, in order."""

    runs: list[Run] = field(default_factory=list)
    anchors: list[Anchor] = field(default_factory=list)
    peaks: dict[str, int | None] = field(default_factory=dict)
    failure: LocalSpecError | None = None


class BenchProgress(ProgressLine):
    """Counts answers on the status line; the first of every contender only warm it up."""

    def __init__(
        self,
        cancel: Callable[[], None],
        warm_ups: int,
        answers: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(cancel, now)
        self._cancel_ours = cancel
        self._begun = -warm_ups
        self._answers = answers

    def take(self, event: Turn | Run | Anchor) -> None:
        """Show who answers now; raises `Cancelled` if nothing is to begin or count any more."""
        self.check()
        self._cancel = self._cancel_ours
        if isinstance(event, Turn) and event.contender is not None:
            self._cancel = event.contender.cancel
            self.update(self.words(event.contender.name))

    def words(self, name: str) -> str:
        """Return a line with the number of answers and the current contender."""
        done = self._begun
        self._begun += 1
        if done < 0:
            return f"warming up: {name}"
        if done == 0:
            self._began_s = self._now()
        return f"{done} of {self._answers} answers{self.time_left(done / self._answers)}: {name}"


def measure(
    contenders: Sequence[Contender],
    request: BenchRequest,
    anchor: Callable[[], float],
    progress: BenchProgress,
    *,
    prints: bool = False,
) -> Measured:
    """Ask all contenders everything, to the end, or to Ctrl+C or a failure; `prints` a line for each run."""
    from localspec.cli.bench.output import line  # what the tuner says, too: 20 ms

    measured = Measured()
    try:
        with on_interrupt(progress.stop):
            for found in interleave(contenders, request.questions, request.repetitions, anchor):
                progress.take(found)
                if isinstance(found, Anchor):
                    measured.anchors.append(found)
                elif isinstance(found, Run):
                    measured.runs.append(found)
                    if prints:
                        progress.clear()
                        print_result(line(found), (), as_json=True)
    except LocalSpecError as error:
        measured.failure = error
    except KeyboardInterrupt:
        measured.failure = Cancelled("the benchmark was stopped")
    finally:
        progress.clear()
    measured.peaks = {each.name: each.memory_peak() for each in contenders}
    return measured


def _conclude(measured: Measured, request: BenchRequest, pair: OpenPlan, kind: str, command: str) -> int:
    """Print the results, also of a run that ended early; return the exit code."""
    failure = measured.failure
    comparable = True
    if not measured.runs and failure is None:
        raise EngineError("every answer ended with its first token: there is no speed to compare")
    if measured.runs:
        comparable = _print(measured, request, pair, kind, command)
    if isinstance(failure, Cancelled):
        say("stopped" if measured.runs else "stopped before anything was measured")
        return INTERRUPTED
    if failure is not None:
        raise failure
    return SUCCESS if comparable else FAILURE


def _print(measured: Measured, request: BenchRequest, pair: OpenPlan, kind: str, command: str) -> bool:
    """Print a table, and draw it where that was asked for; return whether contenders can be compared."""
    from localspec.benchmark.figures import table
    from localspec.cli.bench import output

    found = table(measured.runs, measured.anchors, measured.peaks)
    conditions = output.Conditions(
        target=pair.target.path.stem,
        draft=None if pair.draft is None else pair.draft.path.stem,
        machine=machine_words(pair),
        command=command,
        complete=measured.failure is None,
    )
    if kind == "csv":
        sys.stdout.write(output.comma_separated(found))
    elif kind != "jsonl":
        lines = output.markdown(found, request, conditions)
        print_result(output.whole(found, request, conditions), lines, as_json=kind == "json")
    if request.plot is not None:
        drawn = output.picture(found, output.models_words(conditions), conditions.machine)
        write_atomically(request.plot, drawn + "\n", mode=0o644)
    if not found.comparable:
        say(f"not compared: {found.reason}")
    return found.comparable
