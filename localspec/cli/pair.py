"""`localspec pair`: find draft models for a target, and measure their gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict

from localspec.app.opening import open_placed
from localspec.app.recommendation import DraftMatch, Target, find_target, partners, surroundings
from localspec.benchmark.gain import MeasuredSpeedup, measure
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import FAILURE, SUCCESS, ConsoleStatus, print_result, say, tell
from localspec.errors import EngineError, UserError
from localspec.hardware.load import busy_cores
from localspec.models.pairing import remark
from localspec.units import rate

_MODES = {"off": "plain decoding", "sd": "taking turns (SD)", "ssd": "drafting ahead (SSD)"}
_MEASURED = 3
_QUIET = 0.3  # cores that other programs use without harm to a measurement


def parser() -> Parser:
    """Return the parser of `localspec pair`."""
    result = verb_parser(
        "pair",
        "Find draft models that can serve a target: on this computer, where the vocabularies are compared "
        "token by token, and in the catalogue. Exit code 1 if there is none.",
    )
    result.add_argument("target", metavar="TARGET", help="a GGUF file, or a name that `models` lists")
    about = f"run the {_MEASURED} most promising drafts on disk; each takes a minute or more"
    result.add_argument("--measure", action="store_true", help=about)
    return result.with_output(verbose="log")


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().read(argv)
    machine, local, known = surroundings()
    target = find_target(args.target, local, known)
    if args.measure and target.path is None:
        raise UserError(
            f"{target.name} is not on this computer, so nothing can be measured",
            f"`localspec pull {target.name}` downloads it",
        )
    found = partners(target, machine, local, known)
    gains = _measure_best(target, found) if args.measure else {}
    value = {
        "target": {"name": target.name, "path": target.path},
        "drafts": [_partner_json(partner, gains.get(partner.name)) for partner in found],
    }
    print_result(value, lines(target, found, gains), as_json=args.json)
    return SUCCESS if any(partner.verdict.fits for partner in found) else FAILURE


def lines(
    target: Target, found: Sequence[DraftMatch], gains: dict[str, MeasuredSpeedup | str]
) -> Iterator[str]:
    """Return draft models that fit a target, then those that do not."""
    fitting = [partner for partner in found if partner.verdict.fits]
    others = [partner for partner in found if not partner.verdict.fits]
    if not fitting:
        yield f"No draft model for {target.name} is on this computer or in the catalogue."
        yield "Mode ngram needs no draft model: it drafts by copying earlier text."
    else:
        yield f"Drafts for {target.name}, the most promising first:"
    for partner in fitting:
        yield ""
        yield f"  {partner.name}{'' if partner.path else '  (not on disk)'}"
        for text in _about(partner, gains.get(partner.name)):
            yield f"    {text}"
    if others:
        yield ""
        yield "These cannot draft for it:"
    for partner in others:
        yield f"  {partner.name}: {partner.verdict.reason}"


def _about(partner: DraftMatch, gain: MeasuredSpeedup | str | None) -> Iterator[str]:
    verdict = partner.verdict
    placement = partner.placement
    yield f"vocabulary: {verdict.reason}"
    words = remark(verdict.size_ratio)
    yield f"size: the target is {verdict.size_ratio:.1f} times larger{'; ' + words if words else ''}"
    if placement is None:
        yield f"here: {partner.problem}"
    else:
        where = ", ".join(placement.draft.devices) if placement.draft and placement.draft.devices else "CPU"
        speed = "" if placement.tokens_per_s is None else f", about {rate(placement.tokens_per_s)} tokens/s"
        yield f"here: on {where}, {_MODES[placement.mode]}{speed} expected"
    if gain is not None:
        yield f"measured: {gain}"
    if partner.path is None:
        yield f"get it: localspec pull {partner.name}"


def _measure_best(target: Target, found: Sequence[DraftMatch]) -> dict[str, MeasuredSpeedup | str]:
    """Run the most promising drafts on disk one after the other; a failure is a sentence."""
    assert target.path is not None
    gains: dict[str, MeasuredSpeedup | str] = {}
    best = [partner for partner in found if partner.path is not None and partner.placement is not None]
    busy, greediest = busy_cores() if best else (0.0, "")
    if busy > _QUIET:
        say(
            f"note: other programs use {busy:.1f} cores, {greediest} the most; the figures are good only "
            "for as long as they do"
        )
    if not best:
        say("note: no draft that could be measured is on disk")
    for partner in best[:_MEASURED]:
        assert partner.path is not None
        assert partner.placement is not None
        try:
            with ConsoleStatus() as status:
                status.update(f"measuring {partner.name}")
                with closing(open_placed(target.path, partner.path, partner.placement)) as models:
                    gains[partner.name] = measure(models, status.share_of(f"measuring {partner.name}"))
        except (EngineError, UserError) as error:
            tell(error)
            message = error.message if isinstance(error, UserError) else str(error)
            gains[partner.name] = f"failed: {message}"
    return gains


def _partner_json(partner: DraftMatch, gain: MeasuredSpeedup | str | None) -> dict[str, object]:
    measured = asdict(gain) | {"is_gain": gain.is_gain} if isinstance(gain, MeasuredSpeedup) else gain
    return {
        "name": partner.name,
        "path": partner.path,
        "verdict": asdict(partner.verdict),
        "problem": partner.problem or None,
        "tokens_per_s": partner.tokens_per_s or None,
        "placement": asdict(partner.placement) if partner.placement else None,
        "measured": measured,
    }
