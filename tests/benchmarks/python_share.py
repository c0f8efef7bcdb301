"""How much of a round is Python's own, by mode and size of the vocabulary, and which functions take it.

python -m tests.benchmarks.python_share [--rows full,device] [--vocabularies 8192,152000] [--top 12]

The models are the bundled draft model's shape with weights of chance, and the bundled tokenizer filled up
with tokens that no text contains; `--weights bundled` keeps the pair's own weights, and so its acceptance.
With rows from the device, a stand-in hands over made-up candidates of each row after a pause, as a GPU does:
the CPU computes nothing. A step of the drafter's thread is a call of its model with what is around it.
Figures are taken without a profiler. Then the same answers are profiled: what llama.cpp takes, and waiting
for the other thread's messages, is left out; what a thread waits for Python's lock is not.
"""

from __future__ import annotations

import argparse
import cProfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import gguf
import numpy as np

from localspec.decoding.drafters.speculation_cache import SpeculationCache
from localspec.demo import bundled_pair, prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.llama import choosing
from localspec.llama.choosing import SIZES
from localspec.llama.context import Context
from localspec.llama.library import Native
from localspec.types.events import Finished, RoundDone, RoundStats, Summary
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling
from training.gguf_writing import add_tensor, finish
from training.inflate import Matrix, copy_metadata

MODES: tuple[Mode, ...] = ("off", "ngram", "sd", "ssd")
TARGETS_MS = {  # with a vocabulary of 152,000: of the loop at temperature 0 by mode, and of a drafter's step
    "full": {"off": 0.1, "sd": 0.8, "ssd": 0.25, "step": 0.15},
    "device": {"off": 0.06, "sd": 0.25, "ssd": 0.15, "step": 0.06},
}
PASS_S = 1e-3  # of a call of the stand-in for a GPU
FIRST_TEXT, TEXTS = 1000, 7000  # tokens of the bundled tokenizer that are plain text
LARGE = 152_000  # the vocabulary that has targets
WARMER = 1.5  # times as much at other temperatures
NOT_PYTHON = ("context.py:_run", "SimpleQueue", "'acquire' of '_thread")  # the models' work, and waiting
CYCLE = 16  # tokens after which a text of chance repeats itself, for the n-grams
CONTROL = 3  # gguf's type of a token that no text spells


@dataclass(slots=True)
class Measured:
    """The rounds and the sums of some answers."""

    stats: list[RoundStats] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)  # of the drafter's thread: seconds of Python

    def own_ms(self, percentile: float) -> float:
        """Return Python's part of a round."""
        return float(np.percentile([stats.python_s for stats in self.stats], percentile)) * 1e3

    @property
    def step_ms(self) -> float:
        """Return Python's part of a step of the drafter's thread, 0 without one."""
        return float(np.median(self.steps)) * 1e3 if self.steps else 0.0

    @property
    def with_text_ms(self) -> float:
        """Return the mean of a round with what makes text and figures of it."""
        return sum(each.python_s for each in self.summaries) / max(1, len(self.stats)) * 1e3

    @property
    def accepted(self) -> str:
        """Return the draft tokens per round, and how many of them were accepted."""
        drafted, accepted = (
            sum(getattr(stats, name) for stats in self.stats) / max(1, len(self.stats))
            for name in ("drafted", "accepted")
        )
        return f"{accepted:.1f} of {drafted:.1f}"


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocabularies", default="8192,152000")
    parser.add_argument("--rows", default="full,device")
    parser.add_argument("--weights", choices=("random", "bundled"), default="random")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--temps", default="0,0.8")
    parser.add_argument("--rounds", type=int, default=150, help="of each mode")
    parser.add_argument("--top", type=int, default=12, help="functions to list; 0 leaves the profile out")
    parser.add_argument("--threads", type=int, default=1, help="of each model")
    parser.add_argument("--folder", type=Path, help="keeps the models that are made")
    args = parser.parse_args()
    with _folder(args.folder) as folder:
        for size, source in product(map(int, args.vocabularies.split(",")), args.rows.split(",")):
            with rows_from(source):
                _measure_vocabulary(args, folder, size, source)


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def rows_from(source: str) -> Iterator[None]:
    """Let contexts choose as on a GPU, or return all logits."""
    with patch.object(choosing, "output_on_card", lambda _model: source == "device"):
        yield


def _measure_vocabulary(args: argparse.Namespace, folder: Path, size: int, source: str) -> None:
    files = [folder / f"{args.weights}-{part}-{size}.gguf" for part in ("target", "draft")]
    sources = bundled_pair() if args.weights == "bundled" else (bundled_pair()[1],) * 2
    for seed, (model, out) in enumerate(zip(sources, files, strict=True)):
        if not out.exists():
            write_model(model, out, size, seed, is_random=args.weights == "random")
    target, draft = (ModelOptions(path, context=1024, threads=args.threads) for path in files)
    print(f"\nvocabulary {size:,}, {args.weights} weights, {source} rows; milliseconds of Python per round")
    print("temp  mode   rounds    accepted  median   95 %  with text, mean  drafter's step")
    profiles = []
    with Runtime.open(OpenPlan(target, draft)) as runtime:
        if source == "device":
            for seed, context in enumerate((runtime._contexts.target, runtime._contexts.draft)):
                assert context is not None
                Card(context, seed).take_over()
        for temperature, mode in product(map(float, args.temps.split(",")), args.modes.split(",")):
            request = Request(
                "", Sampling(temperature, 40, 0.95, 0.05), EngineSettings(mode, 4, min_confidence=0.0), 100
            )
            answers(runtime, request, 10)  # warms up
            plain = answers(runtime, request, args.rounds)
            print(
                f"{temperature:4}  {mode:5}  {len(plain.stats):6}  {plain.accepted:>10}  "
                f"{plain.own_ms(50):6.3f}  {plain.own_ms(95):5.3f}  {plain.with_text_ms:15.3f}"
                f"  {plain.step_ms:14.3f}{_verdict(size, source, temperature, mode, plain)}"
            )
            if args.top:
                profiles.append((temperature, mode, plain, _profiled(runtime, request, args)))
    for temperature, mode, plain, (profiled, threads) in profiles:
        print(f"\n{size:,} at {temperature}, {mode}: microseconds per round, alone")
        slower = profiled.own_ms(50) / plain.own_ms(50)
        print(f"  (under the profiler a round's Python takes {slower:.1f} times as long)")
        for name, profile in threads.items():
            _print_profile(name, profile, len(profiled.stats), args.top)


class Card:
    """A GPU of which only the candidates are there, and the time that its calls take."""

    def __init__(self, context: Context, seed: int) -> None:
        self._context, self._seed = context, seed
        shape = context.max_rows, context.vocabulary_size
        self._ids, self._logits = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        order = np.random.default_rng(seed).permutation(SIZES[0])
        self._logits[:, : SIZES[0]] = -0.2 * order
        self._places = order * 7

    def take_over(self) -> None:
        """Answer the context's calls from now on."""
        self._context._decode = self._decode
        self._context._chosen_ids = lambda *_: self._ids.ctypes.data
        self._context._chosen_logits = lambda *_: self._logits.ctypes.data

    def _decode(self, _pointer: int, batch: Native) -> int:
        """Let the tokens that follow depend on the last one alone; none of them ends an answer."""
        made = self._context._batch
        tokens = made._tokens[: batch.n_tokens][made._wanted[: batch.n_tokens] > 0]
        found = tokens[:, None] * (31 + self._seed) + self._places
        self._ids[: len(tokens), : SIZES[0]] = FIRST_TEXT + found % TEXTS
        time.sleep(PASS_S)
        return 0


def _verdict(size: int, source: str, temperature: float, mode: str, plain: Measured) -> str:
    limits = TARGETS_MS[source]
    if size != LARGE or mode not in limits:
        return ""
    wanted = [(limits[mode], plain.own_ms(50))]
    if plain.steps:
        wanted.append((limits["step"], plain.step_ms))
    factor = WARMER if temperature > 0 else 1.0
    return "".join(
        f"  target {limit * factor:.3g}: {'met' if found <= limit * factor else 'missed'}"
        for limit, found in wanted
    )


def answers(runtime: Runtime, request: Request, rounds: int) -> Measured:
    """Answer one question after the other until there are N rounds; first rounds do not count."""
    found = Measured()
    with _timed_steps(found.steps):
        _answer(runtime, request, rounds, found)
    return found


@contextmanager
def _timed_steps(seconds: list[float]) -> Iterator[None]:
    """Note what Python takes of each step of a drafter's thread."""
    step = SpeculationCache.step

    def timed(cache: SpeculationCache) -> bool:
        native, started = cache.state.model.busy_s, time.perf_counter()
        has_worked = step(cache)
        spent = time.perf_counter() - started - (cache.state.model.busy_s - native)
        if has_worked:
            seconds.append(spent)
        return has_worked

    with patch.object(SpeculationCache, "step", timed):
        yield


def _answer(runtime: Runtime, request: Request, rounds: int, found: Measured) -> None:
    for number, item in enumerate(prompts() * 1000):
        asked = replace(request, prompt=(Message("user", item.prompt),), seed=number)
        events = [event for event in runtime.generate(asked) if isinstance(event, RoundDone | Finished)]
        found.stats += [event.stats for event in events[1:] if isinstance(event, RoundDone)]
        found.summaries += [event.summary for event in events if isinstance(event, Finished)]
        if len(found.stats) >= rounds:
            break


def _profiled(
    runtime: Runtime, request: Request, args: argparse.Namespace
) -> tuple[Measured, dict[str, list[cProfile.Profile]]]:
    """Answer again with a profile of every thread."""
    mine = cProfile.Profile()
    others: list[cProfile.Profile] = []

    def begin(*_event: object) -> None:
        others.append(cProfile.Profile())
        others[-1].enable()

    threading.setprofile(begin)
    mine.enable()
    try:
        measured = answers(runtime, request, args.rounds)
    finally:
        mine.disable()
        threading.setprofile(None)
    return measured, {"the decoding loop": [mine], "the drafter's thread": others}


def _print_profile(name: str, profiles: Sequence[cProfile.Profile], rounds: int, top: int) -> None:
    spent: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for profile in profiles:
        for entry in profile.getstats():
            label = _label(entry.code)
            if not any(part in label for part in NOT_PYTHON):
                spent[label] += entry.inlinetime
                calls[label] += entry.callcount
    if not spent:
        return
    print(f"  {name}: {sum(spent.values()) / rounds * 1e6:.0f}")
    for label in islice(sorted(spent, key=spent.__getitem__, reverse=True), top):
        print(f"    {spent[label] / rounds * 1e6:7.1f}  {calls[label] / rounds:6.1f} x  {label}")


def _label(code: object) -> str:
    if isinstance(code, str):
        return code.strip("<>")
    path = Path(getattr(code, "co_filename", "?"))
    return f"{path.parent.name}/{path.name}:{getattr(code, 'co_name', '?')}"


def write_model(source: Path, out: Path, vocabulary: int, seed: int, *, is_random: bool) -> None:
    """Write a model like another one, with more tokens, and with weights of chance if that is wanted."""
    reader, random = gguf.GGUFReader(source), np.random.default_rng(seed)
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds: list[int] = reader.fields["tokenizer.ggml.token_type"].contents()
    more = vocabulary - len(tokens)
    if more < 0 or vocabulary % CYCLE:
        raise SystemExit(f"error: {vocabulary} is below {len(tokens)}, or no multiple of {CYCLE}")
    changed = {
        "tokenizer.ggml.tokens": [*tokens, *(f"filler{number}" for number in range(more))],
        "tokenizer.ggml.token_type": [*kinds, *[int(gguf.TokenType.NORMAL)] * more],
        "llama.vocab_size": vocabulary,
    }
    writer = gguf.GGUFWriter(out, "llama")
    copy_metadata(reader, writer, changed)
    for tensor in reader.tensors:
        weight: Matrix = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        scale = weight.std()
        if is_random and weight.ndim > 1:
            weight = random.standard_normal(weight.shape, np.float32) * scale
        if tensor.name == "token_embd.weight":
            filler = random.standard_normal((more, weight.shape[1]), np.float32) * scale / 2
            weight = np.concatenate((weight, filler))
            if is_random:  # what follows a token differs by model, so that drafts fail, and comes round again
                cycles = weight.reshape(-1, CYCLE, weight.shape[1])
                output: Matrix = 4 * np.roll(cycles, seed + 1, axis=1).reshape(weight.shape)
                output[np.flatnonzero(np.array(kinds) == CONTROL)] = 0.0  # nothing ends an answer
                add_tensor(writer, "output.weight", output, gguf.GGMLQuantizationType.BF16)
        add_tensor(writer, tensor.name, weight, gguf.GGMLQuantizationType.BF16)
    finish(writer)


if __name__ == "__main__":
    main()
