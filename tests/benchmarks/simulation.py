"""How well the simulator predicts the real engine, for random settings of every mode.

python -m tests.benchmarks.simulation                     the bundled pair on all cores
python -m tests.benchmarks.simulation --threads 1         one core for each model
python -m tests.benchmarks.simulation --paced 0.1         two paced devices: a draft step in target passes
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from localspec.decoding.measurements import CallCosts, Costs, Overhead, Trace
from localspec.demo import bundled_pair, prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.tuning.costs import fit, measure, real_rounds
from localspec.tuning.plan import ReopenedModels
from localspec.tuning.run_folder import record
from localspec.tuning.simulator.simulator import Simulator
from localspec.tuning.trace import trace
from localspec.types.events import Finished, Summary
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling
from tests.benchmarks.simulation_report import Comparison, report
from tests.fake_model import Pacing
from tests.paced_pair import open_paced
from tests.tuning.fake_models import open_once

MAX_FAN_OUT = 24
WARM_UPS = 3  # times that a simulated engine has given all answers before: the real one has given them often
OVERHEADS = ("round_s", "token_s", "verify", "step", "handoff_s")
Points = tuple[tuple[int, float], ...]


def main() -> None:
    """Parse the arguments and run."""
    parser = pair_parser(__doc__)
    parser.add_argument("--known-costs", action="store_true", help="paced: do not measure them")
    parser.add_argument("--task", default="", help="only prompts of this task")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("-n", "--tokens", type=int, default=96)
    parser.add_argument("--settings", type=int, default=20, help="of each mode")
    parser.add_argument("--repeats", type=int, default=1, help="answers of which the median counts")
    parser.add_argument("--modes", default="off,ngram,sd,ssd")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with opened(args) as runtime:
        requests = chosen_requests(args)
        trace = traced(runtime, requests)
        found = [Comparison(settings) for settings in drawn_settings(args)]
        before = known(args) if args.known_costs else measured(runtime, requests)
        run(runtime, requests, found, args)
        after = before if args.known_costs else measured(runtime, requests)
        predict(found, trace, mean_costs(before, after))
        report(found)


def pair_parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of a pair, real or paced."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, default=bundled_pair()[0])
    parser.add_argument("-md", "--model-draft", type=Path, default=bundled_pair()[1])
    parser.add_argument("--threads", type=int, default=0, help="of each model; 0: all cores, shared in ssd")
    parser.add_argument("--paced", type=float, metavar="RATIO", help="a draft step in target passes")
    parser.add_argument("--pass-ms", type=float, default=25.0, help="paced: a target pass")
    parser.add_argument("--vocabulary", type=int, help="paced: a larger one, of which most is never likely")
    parser.add_argument("--further", type=float, default=0.02, help="paced: a further token in a pass")
    return parser


def opened(args: argparse.Namespace) -> Runtime:
    """Open the pair on the CPU, or on paced devices."""
    target, draft = (ModelOptions(path, context=2048) for path in (args.model, args.model_draft))
    if args.paced is not None:
        pass_s = args.pass_ms / 1000
        step = Pacing(pass_s * args.paced, args.further / 2)
        verify = Pacing(pass_s, args.further)
        return open_paced(target, draft, verify, step, max_fan_out=MAX_FAN_OUT, vocabulary=args.vocabulary)
    return Runtime.open(
        OpenPlan(
            replace(target, threads=args.threads),
            replace(draft, threads=args.threads),
            max_fan_out=MAX_FAN_OUT,
        )
    )


def chosen_requests(args: argparse.Namespace) -> list[Request]:
    """Return what is asked, of all tasks alternately."""
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
    models = open_once(runtime)
    calls = tuple(measure(models))
    costs = Costs(calls, fit(calls, real_rounds(models, requests)))
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
    segments = tuple(trace(runtime, request) for request in requests)
    trace = Trace(requests[0].sampling, segments)
    print(f"a trace of {trace.tokens} tokens took {time.perf_counter() - began:.1f} s")
    return trace


def recorded(args: argparse.Namespace, sampling: Sampling) -> Trace:
    """Return traces of public prompts, those in `args.traces` and others, which are then kept there."""
    target, draft = (ModelOptions(path, context=1024) for path in (args.model, args.model_draft))
    prompts = [prompt for each in zip(*public_prompts(args.prompts), strict=False) for prompt in each]
    requests = [
        Request((Message("user", prompt),), sampling, EngineSettings(mode="off"), args.tokens, seed=number)
        for number, prompt in enumerate(prompts[: 3 * args.per_set])
    ]
    with ReopenedModels(lambda: Runtime.open(OpenPlan(target, draft, max_fan_out=1))) as models:
        return Trace(sampling, tuple(record(models, requests, args.traces)))


def public_prompts(folder: Path) -> Iterator[list[str]]:
    """Yield some of the prompts of each set."""
    maths, code, chat = (
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("gsm8k-test-200", "humaneval", "mt_bench")
    )
    yield [each["question"] for each in maths[::6]]
    yield [f"Complete this Python function.\n\n```python\n{each['prompt']}```" for each in code[::6]]
    yield [each["turns"][0] for each in chat[2::3]]


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


def predict(found: Sequence[Comparison], trace: Trace, costs: Costs) -> None:
    """Simulate everything, and tell how long that took."""
    simulator = Simulator(trace, costs)
    began, rounds = time.process_time(), 0
    for each in found:
        each.predicted, each.predicted_rate = settled(simulator, each.settings, len(trace.segments))
        rounds += (WARM_UPS + 1) * each.predicted.rounds
    taken = time.process_time() - began
    print(f"{rounds} simulated rounds took {taken:.1f} s, {taken / rounds * 1e3:.2f} ms each")


def settled(simulator: Simulator, settings: EngineSettings, answers: int) -> tuple[Summary, float]:
    """Return what happens, and the tokens per second, once it is learned how drafts fare: as in `run`."""
    before = simulator(settings, list(range(answers)) * WARM_UPS)
    after = simulator(settings, list(range(answers)) * (WARM_UPS + 1))
    names = [field.name for field in fields(Summary) if not field.name.endswith("_at")]
    last = Summary(**{name: getattr(after, name) - getattr(before, name) for name in names})
    return last, (last.tokens - answers) / last.decode_s


def mean_costs(before: Costs, after: Costs) -> Costs:
    """Return the middle of two measurements: the machine's speed drifts, and the answers came in between."""
    calls = tuple(
        replace(one, verify=mean_points(one.verify, two.verify), step=mean_points(one.step, two.step))
        for one, two in zip(before.calls, after.calls, strict=True)
    )
    overheads = tuple(
        Overhead(
            one.mode,
            *((getattr(one, name) + getattr(two, name)) / 2 for name in OVERHEADS),
        )
        for one, two in zip(before.overheads, after.overheads, strict=True)
    )
    return Costs(calls, overheads)


def mean_points(one: Points, two: Points) -> Points:
    """Return the mean of two measurements of the same calls."""
    other = dict(two)
    return tuple((size, (seconds + other[size]) / 2) for size, seconds in one if size in other)


def run(
    runtime: Runtime, requests: Sequence[Request], found: Sequence[Comparison], args: argparse.Namespace
) -> None:
    """Answer every request with every setting, in an order that is new each time."""
    chance = random.Random(args.seed)
    for warm_up in {each.settings.mode: each for each in found}.values():
        list(runtime.generate(replace(requests[0], settings=warm_up.settings, max_tokens=24)))
    for number, request in enumerate(requests):
        for _ in range(args.repeats):
            for each in chance.sample(found, len(found)):
                for event in runtime.generate(replace(request, settings=each.settings)):
                    if isinstance(event, Finished) and event.summary.tokens > 1:
                        each.answers[number].append(event.summary)


if __name__ == "__main__":
    main()
