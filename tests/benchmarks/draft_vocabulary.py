"""What a draft model gains and loses that knows frequent tokens only, or whose embedding has fewer bits.

    python -m tests.benchmarks.draft_vocabulary PROMPTS DATA -m target.gguf ... -md draft.gguf

DATA has the counts of frequent tokens, none of it measured: the target's own answers to other requests (see
training.answers) and ordinary text. Input that a smaller draft has no token for is left as it
is where outputs are masked ("masked"); a file that was cut reads the most similar token ("as a file").
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np
from numpy.typing import NDArray

from localspec.decoding.measure import time_calls
from localspec.decoding.measurements import (
    CANDIDATES,
    CallCosts,
    CostRequest,
    Costs,
    Overhead,
    Trace,
    TraceSegment,
)
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.decoding.speed_model import BRANCHES, predict
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.tuning.simulator.simulator import Simulator
from localspec.types.candidates import top_candidates
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Sampling
from tests.benchmarks.draft_variants import EMBEDDING, Ids, Variant, by_frequency, stand_ins, write
from training.measure_sets import SETS, read_set
from training.scorer import Scorer
from training.speculation import Floats, softmax

DEPTH, SIZES, BUDGET_S = 200, (1, 2, 3, 4, 5, 9), 0.15
LENGTHS: Mapping[Mode, Sequence[int]] = {"off": (1,), "sd": (1, 2, 4), "ssd": (2, 4)}
PYTHON = tuple(Overhead(mode, 2e-4, 2e-4, handoff_s=1.5e-4) for mode in LENGTHS)
COLUMNS = ("sd", "ssd", "sd T", "ssd T", "sd", "ssd", "sd T", "ssd T")
Seconds = defaultdict[int, list[float]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the target wrote: n tokens, their distributions (n, vocabulary) and the best of each (n, m)."""

    prompt: Sequence[int]
    text: Ids
    p: Floats
    best: Ids


@dataclass(slots=True)
class Times:
    """Seconds of the calls of one target and of every draft beside it."""

    verify: Seconds = field(default_factory=lambda: defaultdict(list))
    step: defaultdict[str, Seconds] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def calls(self, variant: Variant, *, together: bool) -> CallCosts:
        """Return what calls took in the quietest turn: others may be at work on this machine."""
        verify, step = (
            tuple((size, min(seconds)) for size, seconds in sorted(times.items()))
            for times in (self.verify, self.step[variant.name])
        )
        return CallCosts(DEPTH, together, verify, step)


def segment(answer: Answer, logits: NDArray[np.float32], keep: Ids) -> TraceSegment:
    """Return what the simulator reads, of an answer and a draft's logits (n, rows)."""
    text, p = answer.text, answer.p
    best, scores = top_candidates(logits, CANDIDATES)
    ids = keep[best]
    return TraceSegment(
        prompt=tuple(answer.prompt),
        tokens=text.astype(np.int32),
        target_ids=answer.best.astype(np.int32),
        target_probs=np.take_along_axis(p, answer.best, 1).astype(np.float32),
        target_of_token=p[np.arange(len(text)), text].astype(np.float32),
        draft_ids=ids.astype(np.int32),
        draft_logits=scores - scores[:, :1],
        target_of_draft=np.take_along_axis(p, ids, 1).astype(np.float32),
        decode_s=1.0,
        ended=False,
    )


def questions(target: Scorer, folder: Path, count: int) -> Iterator[list[int]]:
    """Yield the prompts of all sets as the measurements of acceptance take them."""
    for name in SETS:
        for question in read_set(folder, name, count, seed=1):
            prompt = target.tokenize(target.render(Message("user", question)))
            if len(prompt) < 700:
                yield prompt


def answer_to(target: Scorer, prompt: Sequence[int], tokens: int, temperature: float) -> Answer:
    """Let the target answer."""
    text = np.array(target.generate(prompt, tokens, temperature, np.random.default_rng(len(prompt))))
    logits = target.logits([*prompt, *text.tolist()])[len(prompt) - 1 : -1]
    if temperature:
        p = softmax(logits, temperature)
    else:
        p = np.zeros(logits.shape)
        p[np.arange(len(text)), text] = 1.0
    return Answer(prompt, text, p, top_candidates(p.astype(np.float32), CANDIDATES)[0])


def judge(variants: Sequence[Variant], given: argparse.Namespace) -> None:
    """Let the target answer greedily and sampled, and note what every variant would have proposed."""
    with ExitStack() as stack:
        target, *drafts = (
            stack.enter_context(Scorer(path, 2)) for path in (given.model[0], *(v.path for v in variants))
        )
        for prompt in questions(target, given.prompts, given.count):
            for temperature in (0.0, given.temp):
                answer = answer_to(target, prompt, given.tokens, temperature)
                ids, rows = np.array([*prompt, *answer.text]), slice(len(prompt) - 1, -1)
                whole = drafts[0].logits(ids.tolist())[rows]
                for variant, draft in zip(variants, drafts, strict=True):
                    logits = draft.logits(variant.read_as[ids].tolist())[rows]
                    variant.segments[temperature].append(segment(answer, logits, variant.keep))
                    compare(variant, answer, logits, whole[:, variant.keep], temperature)


def compare(
    variant: Variant,
    answer: Answer,
    logits: NDArray[np.float32],
    masked: NDArray[np.float32],
    temperature: float,
) -> None:
    """Note how well a variant's logits (n, rows) fit an answer, and the whole draft's in their place."""
    if temperature:
        p, allowed = answer.p[:, variant.keep], softmax(masked, temperature)
        variant.overlap += np.minimum(p, softmax(logits, temperature)).sum(-1).tolist()
        variant.masked_overlap += np.minimum(p, allowed).sum(-1).tolist()
    else:
        variant.match += (variant.keep[logits.argmax(-1)] == answer.text).tolist()
        variant.masked += (variant.keep[masked.argmax(-1)] == answer.text).tolist()


def timed(variants: Sequence[Variant], given: argparse.Namespace) -> dict[tuple[Path, bool], Times]:
    """Time the calls of all pairs in turns; together, each model has one core."""
    found: dict[tuple[Path, bool], Times] = defaultdict(Times)
    with ExitStack() as stack:

        def opened(path: Path) -> Context:
            options = ModelOptions(path, context=512, threads=2)
            model = stack.enter_context(closing(Model.open(options)))
            context = stack.enter_context(closing(Context(model, options, sequences=BRANCHES + 1)))
            context.evaluate(range(DEPTH), 0)
            return context

        drafts = [opened(variant.path) for variant in variants]
        contexts = {path: opened(path) for path in given.model}
        for _ in range(given.turns):
            for variant, draft in zip(variants, drafts, strict=True):
                for (path, target), together in ((i, t) for i in contexts.items() for t in (False, True)):
                    target.set_threads(1 if together else 2)
                    draft.set_threads(1 if together else given.draft_threads)
                    wish = CostRequest(DEPTH, together, SIZES, (1, BRANCHES), BUDGET_S)
                    calls, times = time_calls(target, draft, wish), found[path, together]
                    for size, seconds in calls.verify:
                        times.verify[size].append(seconds)
                    for width, seconds in calls.step:
                        times.step[variant.name][width].append(seconds)
    return found


def expected(costs: Costs, acceptance: float) -> dict[Mode, float]:
    """Return the speed of fixed drafts in that of plain decoding."""
    alone, together = (
        LatencyModel(CostCurve(dict(calls.verify)), CostCurve(dict(calls.step))) for calls in costs.calls
    )
    found = {each.mode: each.tokens_per_s for each in predict(alone, together, acceptance)}
    return {mode: found[mode] / found["off"] for mode in ("sd", "ssd")}


def simulated(variant: Variant, costs: Costs, temperature: float) -> dict[Mode, float]:
    """Return the speed of the engine's own rules in that of plain decoding, at the best draft length."""
    sampling = Sampling(temperature, top_k=0, top_p=1.0, min_p=0.0)
    simulator = Simulator(Trace(sampling, tuple(variant.segments[temperature])), costs)
    rates = {
        mode: max(simulator.rate(EngineSettings(mode=mode, draft_length=length)) for length in lengths)
        for mode, lengths in LENGTHS.items()
    }
    return {mode: rates[mode] / rates["off"] for mode in ("sd", "ssd")}


def report(variants: Sequence[Variant], given: argparse.Namespace) -> None:
    """Print what is lost, then what calls cost and what is gained with each target."""
    print(f"{'':30}  greedy: {'':10} at {given.temp}:")
    print(f"{'draft':14}{'MB':>7}{'covered':>9}" + 2 * f"{'masked':>8}{'as a file':>11}")
    for each in variants:
        text = np.concatenate([part.tokens for parts in each.segments.values() for part in parts])
        size, covered = each.path.stat().st_size / 1e6, float(np.isin(text, each.keep).mean())
        judged = (each.masked, each.match, each.masked_overlap, each.overlap)
        shares = "".join(f"{np.mean(v):{w}.4f}" for v, w in zip(judged, (8, 11, 8, 11), strict=True))
        print(f"{each.name:14}{size:7.2f}{covered:9.4f}{shares}", flush=True)
    times = timed(variants, given)
    for path in given.model:
        one = min(times[path, False].verify[1])
        curve = "  ".join(f"{m}: {min(times[path, False].verify[m]) / one:.2f}" for m in SIZES[1:])
        print(f"\n{path.name}: one token {one * 1e3:.2f} ms; a pass {curve}")
        print(f"{'':14}{'a step':>16}  speed in plain decoding's: fixed drafts, the engine's rules")
        print(f"{'draft':14}{'ms':>8}{'share':>8}" + "".join(f"{c:>8}" for c in COLUMNS))
        for each in variants:
            costs = Costs(tuple(times[path, t].calls(each, together=t) for t in (False, True)), PYTHON)
            gains = [expected(costs, float(np.mean(values))) for values in (each.match, each.overlap)]
            gains += [simulated(each, costs, temperature) for temperature in (0.0, given.temp)]
            step = dict(costs.calls[0].step)[1]
            figures = "".join(f"{gain[mode]:8.3f}" for gain in gains for mode in ("sd", "ssd"))
            print(f"{each.name:14}{step * 1e3:8.3f}{step / one:8.3f}{figures}", flush=True)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("-m", "--model", nargs="+", type=Path, required=True, help="the first one answers")
    parser.add_argument("-md", "--model-draft", type=Path, required=True)
    parser.add_argument("--rows", nargs="*", type=int, default=[32768, 24576, 16384, 12288, 8192])
    parser.add_argument("--types", nargs="*", default=[], help="of the whole embedding: Q5_1, Q4_0, ...")
    parser.add_argument("--count", type=int, default=10, help="prompts of each set")
    parser.add_argument("-n", "--tokens", type=int, default=96)
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--draft-threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=6)
    given = parser.parse_args()
    source = gguf.GGUFReader(given.model_draft)
    kinds = gguf.GGMLQuantizationType
    order = by_frequency(source, given.data, given.model[0])
    shipped = next(tensor.tensor_type for tensor in source.tensors if tensor.name == EMBEDDING)
    with TemporaryDirectory() as folder:
        forms = [(len(order), shipped), *((rows, shipped) for rows in given.rows)]
        variants = list[Variant]()
        for rows, kind in [*forms, *((len(order), kinds[name]) for name in given.types)]:
            keep = np.arange(rows) if rows == len(order) else order[:rows]
            name = f"{rows} {kind.name}"
            variants.append(Variant(name, keep, stand_ins(source, keep), Path(folder) / f"{name}.gguf"))
            write(source, variants[-1], kind)
        judge(variants, given)
        report(variants, given)


if __name__ == "__main__":
    main()
