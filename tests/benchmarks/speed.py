"""Compare plain, speculative and ahead-of-time decoding in interleaved runs.

python tests/benchmarks/speed.py paced --ratio 0.1        two paced devices: real text and threads
python tests/benchmarks/speed.py real -m TARGET -md DRAFT  the processor: a core each, or all for both
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from localspec.bench.engine import Figures, Prompt, Run, Variant, figures, interleave, ratio
from localspec.contexts import Contexts
from localspec.demo import bundled_pair, prompts
from localspec.engines.costs import CostCurve, Experience
from localspec.engines.engine import Engine
from localspec.engines.measure import measure
from localspec.engines.modes import predict
from localspec.llama import Model
from localspec.testing.paced import PacedModel, Pacing
from localspec.types import EngineSettings, Message, ModelOptions, Sampling

OFF = EngineSettings(mode="off")
SD = EngineSettings(mode="sd")
SSD = EngineSettings(mode="ssd")
WAYS = {
    "sd auto": SD,
    "sd K=4": replace(SD, draft_length=4, min_confidence=0.0),
    "sd K=8 stop .5": replace(SD, min_confidence=0.5),
    "ssd B=16": SSD,
    "ssd B=8": replace(SSD, fan_out_budget=8),
    "ssd B=4": replace(SSD, fan_out_budget=4),
}


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("paced", "real"))
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("-md", "--model-draft", type=Path)
    parser.add_argument("--ratio", type=float, default=0.1, help="paced: a draft step in target passes")
    parser.add_argument("--pass-ms", type=float, default=25.0, help="paced: a target pass")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=4, help="of each task")
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--ways", default=",".join(WAYS), help="which of: " + ", ".join(WAYS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    bundled = bundled_pair()
    target = Model.open(ModelOptions(args.model or bundled[0]))
    draft = Model.open(ModelOptions(args.model_draft or bundled[1]))
    contexts = Contexts(target, draft, 24, None)
    variants = (_paced if args.kind == "paced" else _real)(contexts, args)
    chosen = _prompts(target, args.prompts, args.seed)
    sampling = Sampling(temperature=args.temp, top_k=40, top_p=0.95, min_p=0.05)
    _warm_up(variants, chosen[0], sampling, target.end_tokens)
    runs = list(interleave(variants, chosen, sampling, args.tokens, target.end_tokens))
    _report(runs, [variant.name for variant in variants])


def _warm_up(variants: list[Variant], prompt: Prompt, sampling: Sampling, ends: frozenset[int]) -> None:
    for _ in interleave(variants, [prompt], sampling, 24, ends):
        pass


def _prompts(target: Model, count: int, seed: int) -> list[Prompt]:
    by_task: dict[str, list[Prompt]] = {}
    for prompt in prompts():
        tokens = target.template.encode_chat((Message("user", prompt.prompt),))
        by_task.setdefault(prompt.task, []).append(Prompt(prompt.task, tuple(tokens)))
    chosen = [prompt for of_task in by_task.values() for prompt in of_task[:count]]
    random.Random(seed).shuffle(chosen)
    return chosen


def _paced(contexts: Contexts, args: argparse.Namespace) -> list[Variant]:
    pass_s = args.pass_ms / 1000
    verify, step = Pacing(pass_s, 0.02), Pacing(pass_s * args.ratio, 0.01)
    assert contexts.draft is not None
    target, draft = PacedModel(contexts.target, verify), PacedModel(contexts.draft, step)
    costs = Experience(
        CostCurve({size: verify(size) for size in range(1, 18)}),
        CostCurve({width: step(width) for width in range(1, 26)}),
    )

    def one_core_each() -> None:
        contexts.target.set_threads(1)
        if contexts.draft is not None:
            contexts.draft.set_threads(1)

    ways = {"off": OFF, **{name: WAYS[name] for name in args.ways.split(",") if name}}
    return [
        Variant(name, Engine(target, draft), settings, deepcopy(costs), one_core_each)
        for name, settings in ways.items()
    ]


def _real(contexts: Contexts, args: argparse.Namespace) -> list[Variant]:
    def threads(target: int, draft: int) -> Callable[[], None]:
        def prepare() -> None:
            contexts.target.set_threads(target)
            if contexts.draft is not None:
                contexts.draft.set_threads(draft)

        return prepare

    apart, alone = threads(1, 1), threads(2, 2)
    apart()
    one_core = measure(contexts.target, contexts.draft, 1.0, together=False)
    together = measure(contexts.target, contexts.draft, 1.0, together=True)
    alone()
    all_cores = measure(contexts.target, contexts.draft, 1.0, together=False)
    for name, costs in (("1 core", one_core), ("both at once", together), ("2 cores", all_cores)):
        print(f"{name:13} verify ms: {_curve(costs.verify, range(1, 10))}")
        print(f"{name:13} draft  ms: {_curve(costs.step, (1, 2, 4, 8, 16))}")
    guesses = ", ".join(
        f"{p.mode} {p.tokens_per_s:.0f} (K={p.draft_length})" for p in predict(all_cores, together)
    )
    print(f"auto would choose {predict(all_cores, together)[0].mode}: {guesses}")

    def variant(
        name: str, settings: EngineSettings, costs: Experience, prepare: Callable[[], None]
    ) -> Variant:
        return Variant(name, Engine(contexts.target, contexts.draft), settings, deepcopy(costs), prepare)

    found = [variant("off 1 core", OFF, one_core, apart), variant("off 2 cores", OFF, all_cores, alone)]
    for name in args.ways.split(","):
        settings = WAYS[name]
        if settings.mode == "sd":
            found.append(variant(f"{name}, 1 core", settings, one_core, apart))
            found.append(variant(f"{name}, 2 cores", settings, all_cores, alone))
        else:
            found.append(variant(f"{name}, 1+1 cores", settings, together, apart))
    return found


def _curve(curve: CostCurve, sizes: range | tuple[int, ...]) -> str:
    return "  ".join(f"{size}: {curve(size) * 1e3:.2f}" for size in sizes)


def _report(runs: list[Run], names: list[str]) -> None:
    tasks = sorted({run.task for run in runs})
    for task in [*tasks, "all"]:
        of_task = [run for run in runs if task in {run.task, "all"}]
        print(f"\n{task}")
        baseline = [run for run in of_task if run.variant == names[0]]
        for name in names:
            mine = [run for run in of_task if run.variant == name]
            print(f"  {name:24}{_line(figures(mine), ratio(mine, baseline))}")


def _line(found: Figures, against: tuple[float, float, float]) -> str:
    hit = "   -" if found.hit_rate is None else f"{found.hit_rate:4.2f}"
    acceptance = "   -" if found.acceptance is None else f"{found.acceptance:4.2f}"
    spent = (found.verify_s, found.draft_s, found.wait_s, found.python_s)
    parts = ("verify", "draft", "wait", "python")
    times = "  ".join(f"{part} {part_s * 1e3:5.2f}" for part, part_s in zip(parts, spent, strict=True))
    return (
        f"{found.tokens_per_s:6.1f} tok/s  x{against[0]:.2f} [{against[1]:.2f}, {against[2]:.2f}]  "
        f"E {found.tokens_per_round:.2f}  j {found.drafted:.1f}  acc {acceptance}  hit {hit}  ms: {times}  "
        f"of bound {found.of_bound:.3f}"
    )


if __name__ == "__main__":
    main()
