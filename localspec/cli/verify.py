"""`localspec verify`: check on the user's own models that speculation changes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from math import isfinite
from typing import TYPE_CHECKING

from localspec.app import answer_json
from localspec.app.opening import with_config
from localspec.cli.shared import opening
from localspec.cli.shared.answer_request import speculation_given
from localspec.cli.shared.arguments import (
    Parser,
    add_model_flags,
    add_speculation_flags,
    decimal,
    pair_request,
    set_up_logging,
    verb_parser,
    whole,
)
from localspec.cli.shared.console import (
    FAILURE,
    INTERRUPTED,
    SUCCESS,
    ProgressLine,
    on_interrupt,
    print_result,
)
from localspec.errors import UserError
from localspec.inference.interface import OpenModels
from localspec.storage.profiles import Speculation
from localspec.types.request import EngineSettings

if TYPE_CHECKING:
    from localspec.benchmark.exactness import (
        Difference,
        DistributionResult,
        GreedyResult,
        Report,
        VerifyEffort,
    )
    from localspec.inference.worker.client import Worker


def parser() -> Parser:
    """Return the parser of `localspec verify`."""
    result = verb_parser(
        "verify",
        "Test that speculation is exact: greedy answers equal plain decoding, and tokens at temperature 1 "
        "follow the target's distribution. Exit code: 0 exact, 1 not exact. Ctrl+C prints the results so "
        "far.",
    )
    add = result.add_argument
    add("--quick", action="store_true", help="half the answers, a third of the tokens")
    about = "tokens to sample for each variant (600); 4000 find smaller mistakes"
    add("--tokens", type=whole(50, 1_000_000), metavar="N", help=about)
    about = "logit difference up to which two tokens count as tied (0.05)"
    add("--near-tie", type=decimal(0, 10), metavar="X", help=about)
    add_model_flags(result.with_output())
    add_speculation_flags(result)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    if args.mode == "off":
        raise UserError(
            "--mode off does not speculate, so there is nothing to verify", "leave --mode out to test all"
        )
    request = with_config(pair_request(args))
    how = speculation_given(args)
    files = opening.find_files(request)
    set_up_logging(verbose=args.verbose)
    if files.draft is not None and how.mode is None:
        request = replace(request, mode="ssd")  # a plan for the most demanding mode fits the others
    with opening.start_worker(verbose=args.verbose) as models:
        plan = opening.place(request, files, models, explain=args.explain)
        opening.load(models, plan)
        opening.tell_notes(models, plan, request)
        return _verify(args, how, models)


def _verify(args: argparse.Namespace, how: Speculation, models: Worker) -> int:
    from localspec.benchmark import exactness  # numpy: 0.1 s

    effort = exactness.QUICK if args.quick else exactness.VerifyEffort()
    if args.tokens is not None:
        effort = replace(effort, sampled_tokens=args.tokens)
    if args.near_tie is not None:
        effort = replace(effort, near_tie=args.near_tie)
    with on_interrupt(lambda: None):  # another Ctrl+C still prints the results
        report = _check(models, how, effort)
        print_result(_as_json(models, report), _lines(models, report), as_json=args.json, escaped=True)
    if not report.exact:
        return FAILURE
    return SUCCESS if report.complete else INTERRUPTED


def _check(models: Worker, how: Speculation, effort: VerifyEffort) -> Report:
    from localspec.benchmark.exactness import check, variants

    tested = variants(how.apply(EngineSettings()), how.mode, models.modes)
    if not tested:
        reason = "; ".join(models.notes) or "these models cannot speculate so"
        raise UserError(f"there is nothing to verify: {reason}", "choose another --mode or other models")
    progress = ProgressLine(models.cancel)

    def show(words: str, done: float) -> None:
        progress.update(f"{done:.0%}{progress.time_left(done)}: {words}")

    try:
        with on_interrupt(progress.stop):
            return models.perform(check, tested, effort, on_progress=show)
    finally:
        progress.clear()


def _lines(models: OpenModels, report: Report) -> Iterator[str]:
    from localspec.benchmark.exactness import SIGNIFICANCE

    yield f"target  {models.target.path}"
    if models.draft:
        yield f"draft   {models.draft.path}"
    yield ""
    yield "Greedy answers, compared with plain decoding"
    for result in report.greedy:
        yield from _greedy_lines(result)
    yield ""
    yield f"Tokens at temperature 1, compared with the target's distribution (p below {SIGNIFICANCE} fails)"
    for part in report.sampled:
        yield _sampled_line(part)
    yield ""
    yield f"verdict: {_verdict(report)}"


def _verdict(report: Report) -> str:
    if report.exact and not report.complete:
        return "none, as the test was stopped; nothing that was found speaks against"
    return "exact" if report.exact else "NOT exact"


def _greedy_lines(result: GreedyResult) -> Iterator[str]:
    ties = sum(difference.near_tie for difference in result.differences)
    wrong = len(result.differences) - ties
    notes = [f"{ties} left at a near-tie"] * bool(ties) + [f"{wrong} DIFFERENT"] * bool(wrong)
    equal = f"{result.answers - len(result.differences)} of {result.answers} equal"
    counts = ", ".join([equal, *notes])
    tokens = f"{result.tokens} tokens, {result.drafted} drafted"
    yield f"  {_mark(result.passed)} {result.variant:<14} {counts} ({tokens})"
    for difference in result.differences:
        yield f"      {_difference_text(difference)}"


def _difference_text(d: Difference) -> str:
    name = "near-tie" if d.near_tie else "DIFFERENT"
    gap = f"gap {d.gap:.4f} logits, later at most {d.worst_gap:.4f}"
    gap = gap if isfinite(d.gap) else "one answer ends there"
    return f"{name}: {d.kind}, token {d.position}: {d.expected!r} became {d.found!r}, {gap} ({d.prompt})"


def _sampled_line(part: DistributionResult) -> str:
    rounds = {"all": "all rounds", "hit": "hit rounds", "other": "other rounds"}[part.rounds]
    verdict = "too few tokens" if part.p_value is None else f"p = {part.p_value:.4f}"
    tokens = f"{part.tokens:>6} tokens, {part.drafted:>6} drafted"
    return f"  {_mark(part.passed)} {part.variant:<14} {rounds:<13} {tokens}  {verdict}"


def _mark(passed: bool) -> str:
    return "ok  " if passed else "FAIL"


def _as_json(models: OpenModels, report: Report) -> answer_json.Json:
    return {
        "exact": report.exact if report.complete or not report.exact else None,
        "complete": report.complete,
        **answer_json.models(models),
        "greedy": [asdict(result) | {"passed": result.passed} for result in report.greedy],
        "sampled": [asdict(part) | {"passed": part.passed} for part in report.sampled],
    }
