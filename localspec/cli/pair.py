"""`localspec pair`: which draft models can serve a target, and what they bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from localspec.app.opening import open_in_worker
from localspec.app.recommendation import Partner, Target, partners, surroundings
from localspec.benchmark.harness import Harness, OwnContender, Question, Run, in_turn
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import FAILURE, SUCCESS, StatusLine, print_result, say, tell
from localspec.demo import prompts
from localspec.errors import EngineError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.hardware.placement.plan import placed_as
from localspec.inference.interface import OpenModels
from localspec.models.catalogue import Catalogue, approximate_shape
from localspec.models.local import LocalModel, named, no_such_model
from localspec.models.names import file_named
from localspec.models.pairing import remark
from localspec.models.shape import read_shape
from localspec.types import EngineSettings, Message, Mode, ModelOptions, Request, Sampling
from localspec.units import rate

_MODES = {"off": "plain decoding", "sd": "taking turns (SD)", "ssd": "drafting ahead (SSD)"}
_MEASURED = 3
PROMPTS = 6
TOKENS = 96
FEWEST = 8
"""An answer of fewer tokens says nothing about speed."""
SEEDS = 4000  # far from those that a person gives
_QUIET = 0.3  # cores that other programs take without harm to a measurement


def parser() -> Parser:
    """Return the parser of `localspec pair`."""
    result = verb_parser(
        "pair",
        "Find draft models that can serve a target: on this computer, where the vocabularies are compared "
        "token by token, and in the catalogue. Exit code 1 if there is none.",
    )
    result.add_argument("target", metavar="TARGET", help="a GGUF file, or a name that `models` lists")
    about = f"really run the {_MEASURED} most promising drafts on disk: a minute or more for each"
    result.add_argument("--measure", action="store_true", help=about)
    return result.with_output(told="log")


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().read(argv)
    machine, local, known = surroundings()
    target = find_target(args.target, local, known)
    if args.measure and target.path is None:
        raise UserError(
            f"{target.name} is not on this computer, so that nothing can be measured",
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


def find_target(text: str, local: Sequence[LocalModel], known: Catalogue) -> Target:
    """Return the model that a text means: a file, a name on disk, or an entry of the catalogue."""
    path = file_named(text)
    if path is not None:
        return Target(str(path), read_shape(path), path)
    model = named(text, local)
    if model is not None:
        if model.shape is None:
            raise UserError(f"{model.name} cannot be used: {model.problem}", "download it again")
        return Target(model.name, model.shape, model.path)
    wanted = text.lower()
    for entry in known.models:
        if entry.reference and wanted in (entry.reference.lower(), entry.source.lower(), entry.key):
            return Target(entry.reference, approximate_shape(entry), None)
    raise no_such_model(text, local)


def lines(target: Target, found: Sequence[Partner], gains: dict[str, Gain | str]) -> Iterator[str]:
    """Return what can serve a target, then what cannot."""
    fitting = [partner for partner in found if partner.verdict.fits]
    others = [partner for partner in found if not partner.verdict.fits]
    if not fitting:
        yield f"No draft model for {target.name} is on this computer or in the catalogue."
        yield "Mode ngram needs none: `--mode ngram` guesses from what the text repeats."
    else:
        yield f"Drafts for {target.name}, the most promising first:"
    for partner in fitting:
        yield ""
        yield f"  {partner.name}{'' if partner.path else '  (not on disk)'}"
        for text in _about(partner, gains.get(partner.name)):
            yield f"    {text}"
    if others:
        yield ""
        yield "These cannot serve it:"
    for partner in others:
        yield f"  {partner.name}: {partner.verdict.reason}"


def _about(partner: Partner, gain: Gain | str | None) -> Iterator[str]:
    verdict, placement = partner.verdict, partner.placement
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


def open_pair(target: Path, partner: Partner) -> OpenModels:
    """Open a target with a draft model in a process of its own, where they are planned to sit."""
    assert partner.path is not None
    assert partner.placement is not None
    asked = OpenPlan(ModelOptions(target), ModelOptions(partner.path))
    return open_in_worker(placed_as(partner.placement, asked))


def _measure_best(target: Target, found: Sequence[Partner]) -> dict[str, Gain | str]:
    """Run the most promising drafts on disk one after the other; a failure is a sentence."""
    from localspec.cli.doctor import busy_cores

    assert target.path is not None
    gains: dict[str, Gain | str] = {}
    best = [partner for partner in found if partner.path is not None and partner.placement is not None]
    busy, greediest = busy_cores() if best else (0.0, "")
    if busy > _QUIET:
        say(
            f"note: other programs take {busy:.1f} cores, {greediest} the most; the figures are good only "
            "for as long as they do"
        )
    if not best:
        say("note: no draft that could be measured is on disk")
    for partner in best[:_MEASURED]:
        try:
            with StatusLine() as status:
                status.update(f"measuring {partner.name}")
                with closing(open_pair(target.path, partner)) as models:
                    gains[partner.name] = measure(models, status.share_of(f"measuring {partner.name}"))
        except (EngineError, UserError) as error:
            tell(error)
            message = error.message if isinstance(error, UserError) else str(error)
            gains[partner.name] = f"failed: {message}"
    return gains


def _partner_json(partner: Partner, gain: Gain | str | None) -> dict[str, object]:
    measured = asdict(gain) | {"is_gain": gain.is_gain} if isinstance(gain, Gain) else gain
    return {
        "name": partner.name,
        "path": partner.path,
        "verdict": asdict(partner.verdict),
        "problem": partner.problem or None,
        "tokens_per_s": partner.tokens_per_s or None,
        "placement": asdict(partner.placement) if partner.placement else None,
        "measured": measured,
    }


@dataclass(frozen=True, slots=True)
class Gain:
    """What a draft model brings, as measured: speed with it over speed without, and its 95% interval."""

    mode: Mode
    plain: float
    together: float
    ratio: float
    low: float
    high: float
    acceptance: float | None
    answers: int

    @property
    def is_gain(self) -> bool:
        """Tell whether the draft makes answers faster beyond doubt."""
        return self.low > 1.0

    def __str__(self) -> str:
        """Return the verdict for people."""
        figures = f"{self.together:.1f} against {self.plain:.1f} tokens/s without it"
        interval = f"x{self.ratio:.2f}, 95% between {self.low:.2f} and {self.high:.2f}"
        if self.is_gain:
            return f"faster: {figures} ({interval})"
        if self.high < 1.0:
            return f"no gain, it slows answers down: {figures} ({interval})"
        return f"no gain that could be told from chance: {figures} ({interval})"


def measure(models: OpenModels, on_progress: Callable[[float], object]) -> Gain:
    """Answer some bundled prompts plainly and with the draft in turn, and compare; raises EngineError."""
    chosen, _ = models.choose_settings(EngineSettings())
    if chosen.mode in ("off", "ngram"):  # expected to lose: then it has to show that
        chosen = replace(chosen, mode="sd")
    ways = [OwnContender(each.mode, models, each) for each in (replace(chosen, mode="off"), chosen)]
    sampling = models.target.recommended.sampling.over(Sampling())
    bundled = prompts()  # of all tasks, of which some are taken, spread evenly
    questions = [
        Question("dialogue", Request((Message("user", found.prompt),), sampling, chosen, max_tokens=TOKENS))
        for found in bundled[:: max(1, len(bundled) // PROMPTS)][:PROMPTS]
    ]
    harness, pairs = Harness(questions), list[tuple[Run, Run]]()
    for way in ways:
        harness.warm_up(way, 0)
    for number in range(len(questions)):
        turns = in_turn(ways, [number], number)  # drift of the machine hits both alike
        runs = {way.name: harness.run(way, prompt, 0, SEEDS + number) for way, prompt in turns}
        plain, together = runs["off"], runs[chosen.mode]
        if min(plain.summary.tokens, together.summary.tokens) >= FEWEST:
            pairs.append((plain, together))
        on_progress((number + 1) / len(questions))
    if len(pairs) < 2:
        raise EngineError("the answers were too short to measure anything")
    return _gain(chosen.mode, *zip(*pairs, strict=True))


def _gain(mode: Mode, plain: Sequence[Run], together: Sequence[Run]) -> Gain:
    from localspec.benchmark import statistics  # numpy: 0.1 s

    slow, fast = ({(run.prompt, 0): run.seconds_per_token for run in runs} for runs in (plain, together))
    ratio, drafted = statistics.speedup(fast, slow), sum(run.summary.drafted for run in together)
    assert ratio is not None
    acceptance = sum(run.summary.accepted for run in together) / drafted if drafted else None
    speeds = statistics.rate(slow).value, statistics.rate(fast).value
    return Gain(mode, *speeds, ratio.value, ratio.low, ratio.high, acceptance, len(plain))
