"""How well the simulator predicts the real engine, for random settings of every mode.

python -m tests.benchmarks.simulation                     the bundled pair on all cores
python -m tests.benchmarks.simulation --threads 1         one core for each model
python -m tests.benchmarks.simulation --paced 0.1         two paced devices: a draft step in target passes
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from localspec.demo import bundled_pair, prompts
from localspec.evidence import CallCosts, Costs, Overhead, Trace, TraceWish
from localspec.runtime import Runtime
from localspec.testing.paced import Pacing
from localspec.testing.paced_pair import open_paced
from localspec.tuning.costs import fit_overheads, measure
from localspec.tuning.simulate import Simulator
from localspec.types import (
    EngineSettings,
    Finished,
    Message,
    Mode,
    ModelOptions,
    Request,
    Sampling,
    Summary,
)

MAX_FAN_OUT = 24


@dataclass(slots=True)
class Comparison:
    """One setting: what was predicted, and the real answers."""

    settings: EngineSettings
    predicted: Summary
    predicted_rate: float
    real: list[Summary] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return the real tokens per second."""
        return sum(each.tokens - 1 for each in self.real) / sum(each.decode_s for each in self.real)

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted_rate / self.rate - 1.0


def main() -> None:
    """Parse the arguments and run."""
    parser = pair_parser(__doc__)
    parser.add_argument("--known-costs", action="store_true", help="paced: do not measure them")
    parser.add_argument("--task", default="", help="only prompts of this task")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("-n", "--tokens", type=int, default=96)
    parser.add_argument("--settings", type=int, default=20, help="of each mode")
    parser.add_argument("--modes", default="off,ngram,sd,ssd")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with opened(args) as runtime:
        requests = chosen_requests(args)
        costs = known(args) if args.known_costs else measured(runtime, requests)
        trace = traced(runtime, requests)
        found = predicted(trace, costs, drawn_settings(args))
        run(runtime, requests, found, args.seed)
        report(found)


def pair_parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of a pair, real or paced."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, default=bundled_pair()[0])
    parser.add_argument("-md", "--model-draft", type=Path, default=bundled_pair()[1])
    parser.add_argument("--threads", type=int, default=0, help="of each model; 0: all cores, shared in ssd")
    parser.add_argument("--paced", type=float, metavar="RATIO", help="a draft step in target passes")
    parser.add_argument("--pass-ms", type=float, default=25.0, help="paced: a target pass")
    parser.add_argument("--further", type=float, default=0.02, help="paced: a further token in a pass")
    return parser


def opened(args: argparse.Namespace) -> Runtime:
    """Open the pair on the processor, or on paced devices."""
    target, draft = (ModelOptions(path, context=2048) for path in (args.model, args.model_draft))
    if args.paced is not None:
        pass_s = args.pass_ms / 1000
        step = Pacing(pass_s * args.paced, args.further / 2)
        return open_paced(target, draft, Pacing(pass_s, args.further), step, max_fan_out=MAX_FAN_OUT)
    return Runtime.open(
        replace(target, threads=args.threads),
        replace(draft, threads=args.threads),
        max_fan_out=MAX_FAN_OUT,
        draft_threads=args.threads or None,
    )


def chosen_requests(args: argparse.Namespace) -> list[Request]:
    """Return what is asked, of all tasks in turn."""
    chosen = [item for item in prompts() if args.task in {"", item.task}]
    random.Random(args.seed).shuffle(chosen)
    sampling = Sampling(temperature=args.temp)
    return [
        Request((Message("user", item.prompt),), sampling, EngineSettings(), args.tokens, seed=number)
        for number, item in enumerate(chosen[: args.prompts])
    ]


def known(args: argparse.Namespace) -> Costs:
    """Return what paced calls cost, with what is usual around them: for a machine with other things to do."""
    pass_s = args.pass_ms / 1000
    verify, step = Pacing(pass_s, args.further), Pacing(pass_s * args.paced, args.further / 2)
    calls = CallCosts(
        64,
        together=False,
        verify=tuple((size, verify(size)) for size in range(1, 17)),
        step=tuple((width, step(width)) for width in (1, 2, 4, 8, 16, 25)),
    )
    modes: tuple[Mode, ...] = ("off", "ngram", "sd", "ssd")
    overheads = tuple(Overhead(mode, 4e-4, 2e-4, handoff_s=2e-4) for mode in modes)
    return Costs((calls, replace(calls, together=True)), overheads)


def measured(runtime: Runtime, requests: Sequence[Request]) -> Costs:
    """Measure calls and overheads."""
    began = time.perf_counter()
    calls = tuple(measure(runtime))
    costs = Costs(calls, fit_overheads(runtime, calls, requests))
    for each in costs.calls:
        verify = "  ".join(f"{size}: {seconds * 1e3:.2f}" for size, seconds in each.verify[:9])
        step = "  ".join(f"{size}: {seconds * 1e3:.2f}" for size, seconds in each.step)
        where = f"depth {each.depth:4} {'together' if each.together else 'alone':8} drift {each.drift:.2f}"
        print(f"{where}  verify ms {verify}\n{'':34}step ms   {step}")
    for overhead in costs.overheads:
        print(overhead)
    print(f"costs took {time.perf_counter() - began:.1f} s")
    return costs


def traced(runtime: Runtime, requests: Sequence[Request]) -> Trace:
    """Trace every answer."""
    began = time.perf_counter()
    segments = tuple(runtime.trace(TraceWish(request)) for request in requests)
    trace = Trace(requests[0].sampling, segments)
    print(f"a trace of {trace.tokens} tokens took {time.perf_counter() - began:.1f} s")
    return trace


def drawn_settings(args: argparse.Namespace) -> list[EngineSettings]:
    """Return random settings of every mode; plain decoding has only one."""
    chance = random.Random(args.seed)
    modes: list[Mode] = [mode for mode in ("off", "ngram", "sd", "ssd") if mode in args.modes.split(",")]
    return [
        drawn(chance, mode, args.temp) for mode in modes for _ in range(1 if mode == "off" else args.settings)
    ]


def drawn(chance: random.Random, mode: Mode, temperature: float) -> EngineSettings:
    """Return random settings of a mode."""
    return EngineSettings(
        mode=mode,
        draft_length=chance.randint(1, 12),
        fan_out_budget=chance.randint(1, MAX_FAN_OUT),
        fan_out_shape=chance.choice(("best-first", "best-first", "uniform", "geometric")),
        draft_temperature=chance.choice((1.0, chance.uniform(0.5, 1.5))),
        saguaro_c=chance.choice((1.0, 1.0, chance.uniform(0.3, 1.0))),
        acceptance=chance.choice(("match", "rejection")) if temperature > 0 else "rejection",
        min_confidence=chance.choice((None, None, chance.uniform(0.0, 0.8))),
        fallback=chance.choice(("just-in-time", "just-in-time", "ngram")),
    )


def predicted(trace: Trace, costs: Costs, settings: Sequence[EngineSettings]) -> list[Comparison]:
    """Simulate everything, and tell how long that took."""
    simulator = Simulator(trace, costs)
    began, rounds, found = time.process_time(), 0, []
    for each in settings:
        found.append(Comparison(each, simulator(each), simulator.rate(each)))
        rounds += found[-1].predicted.rounds
    taken = time.process_time() - began
    print(f"{rounds} simulated rounds took {taken:.1f} s, {taken / rounds * 1e3:.2f} ms each")
    return found


def run(runtime: Runtime, requests: Sequence[Request], found: Sequence[Comparison], seed: int) -> None:
    """Answer every request with every setting, in an order that is new for each request."""
    chance = random.Random(seed)
    for warm_up in {each.settings.mode: each for each in found}.values():
        list(runtime.generate(replace(requests[0], settings=warm_up.settings, max_tokens=24)))
    for request in requests:
        for each in chance.sample(found, len(found)):
            for event in runtime.generate(replace(request, settings=each.settings)):
                if isinstance(event, Finished) and event.summary.tokens > 1:
                    each.real.append(event.summary)


def report(found: Sequence[Comparison]) -> None:
    """Print every setting, and how good the predictions of each mode are."""
    by_mode: defaultdict[Mode, list[Comparison]] = defaultdict(list)
    for each in found:
        by_mode[each.settings.mode].append(each)
    for mode, comparisons in by_mode.items():
        print(f"\n{mode}: predicted / real")
        for each in sorted(comparisons, key=lambda each: each.rate):
            print("  " + "  ".join(figures(each)))
    plain = by_mode["off"][0].error if "off" in by_mode else 0.0
    print(f"\nplain decoding ran at {1 / (1 + plain):.3f} of its prediction; the others in its speed:")
    for mode, comparisons in by_mode.items():
        relative = [(1 + each.error) / (1 + plain) - 1 for each in comparisons]
        errors, bias = [abs(error) for error in relative], median(relative)
        ranks = spearman([e.predicted_rate for e in comparisons], [e.rate for e in comparisons])
        print(
            f"{mode:6} {len(errors):3} settings: median error {median(errors):.1%}, worst {max(errors):.1%}, "
            f"bias {bias:+.1%}, rank correlation {ranks:.3f}"
        )


def figures(each: Comparison) -> Iterator[str]:
    """Yield the columns of a line."""
    one, s = each.predicted, each.settings
    rounds = sum(summary.rounds for summary in each.real)
    yield f"{each.predicted_rate:6.1f} / {each.rate:6.1f} tok/s {each.error:+6.1%}"

    def pair(name: str, of_one: float, scale: float) -> str:
        real = sum(getattr(summary, name) for summary in each.real)
        return f"{name} {getattr(one, name) / of_one * scale:.2f}/{real / rounds * scale:.2f}"

    yield "a round: " + "  ".join(pair(name, one.rounds, 1.0) for name in ("drafted", "accepted", "hits"))
    times = ("verify_s", "draft_s", "wait_s", "python_s")
    yield "ms: " + "  ".join(pair(name, one.rounds, 1e3) for name in times)
    if s.mode == "off":
        return
    stop = "-" if s.min_confidence is None else f"{s.min_confidence:.2f}"
    yield f"K {s.draft_length} stop {stop}"
    if s.mode != "ngram":
        yield f"dT {s.draft_temperature:.2f} C {s.saguaro_c:.2f} {s.acceptance}"
    if s.mode == "ssd":
        yield f"B {s.fan_out_budget} {s.fan_out_shape} {s.fallback}"


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the rank correlation of values without ties."""
    if len(one) < 2:
        return 1.0
    ranks = [sorted(range(len(values)), key=values.__getitem__) for values in (one, other)]
    places = [{index: rank for rank, index in enumerate(order)} for order in ranks]
    squares = sum((places[0][index] - places[1][index]) ** 2 for index in range(len(one)))
    return 1.0 - 6.0 * squares / (len(one) * (len(one) ** 2 - 1))


if __name__ == "__main__":
    main()
