"""What a pair of models really takes of each device: llama.cpp plans it all, and allocates nothing.

llama.cpp runs in a process of its own. A model file that brings it down cannot harm more than that, and on a
card its driver's own memory is given back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import EngineError, LocalSpecError, UserError
from localspec.hardware.device_info import DeviceNeed
from localspec.hardware.memory.estimate import estimate, logits_bytes
from localspec.hardware.memory.fit import size
from localspec.hardware.placement.constraints import CacheTypes, LayerSplit, MemoryRequest
from localspec.hardware.placement.sizes import context_size, draft_options
from localspec.hardware.rates import PROCESSOR
from localspec.models.shape import read_shape
from localspec.types import ModelOptions

if TYPE_CHECKING:
    from localspec.llama import Context, Model


Needs = tuple[DeviceNeed, ...]

_MAX_FAN_OUT = 16
_TIMEOUT_S = 120.0  # a header on a slow disk, a driver that starts


def exact(
    target: ModelOptions,
    draft: ModelOptions | None = None,
    *,
    max_fan_out: int = _MAX_FAN_OUT,
    timeout_s: float = _TIMEOUT_S,
) -> tuple[Needs, ...]:
    """Return what the target takes of each device, and what the draft model takes.

    Contexts are those that LocalSpec opens, the draft model's with its branches.
    Raises `UserError` for what cannot be opened, `EngineError` where llama.cpp fails or cannot tell.
    """
    question = {"models": [_plain(options) for options in (target, draft) if options], "fan": max_fan_out}
    answer = _ask(json.dumps(question), timeout_s)
    if "error" in answer:
        if answer["kind"] == "user":
            raise UserError(answer["error"], answer["hint"])
        raise EngineError(answer["error"])
    return tuple(tuple(DeviceNeed(**need) for need in needs) for needs in answer["needs"])


def _plain(options: ModelOptions) -> dict[str, Any]:
    return {**asdict(options), "path": str(options.path)}


def _ask(question: str, timeout_s: float) -> dict[str, Any]:
    folder = str(Path(__file__).resolve().parents[3])
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "localspec.hardware.memory.exact"],
            input=question,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONIOENCODING": "utf-8"},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"llama.cpp has not told its memory needs in {timeout_s:g} seconds") from None
    except OSError as error:
        raise EngineError(f"no process for llama.cpp could be started: {error.strerror}") from error
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.strip().splitlines()
        raise EngineError(
            f"llama.cpp ended while it worked out its memory needs (code {done.returncode})"
            + (f": {lines[-1].strip()}" if lines else "")
        ) from None
    return answer


def main() -> None:
    """Answer the question on standard input; run in the child process."""
    try:
        answer: dict[str, Any] = {"needs": _all_needs(json.load(sys.stdin))}
    except UserError as error:
        answer = {"error": error.message, "hint": error.hint, "kind": "user"}
    except LocalSpecError as error:
        answer = {"error": str(error), "hint": "", "kind": "engine"}
    sys.stdout.write(json.dumps(answer) + "\n")


def _all_needs(question: dict[str, Any]) -> list[list[dict[str, Any]]]:
    from localspec.llama import Context, Model

    needs: list[list[dict[str, Any]]] = []
    size = 0
    for number, plain in enumerate(question["models"]):
        tuples = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
        options = ModelOptions(**{**plain, **tuples, "path": Path(plain["path"])})
        with closing(Model.open(options, allocate=False)) as model:
            if number:
                options = draft_options(options, size, on_processor=_on_processor(model))
            else:
                size = context_size(options.context, model.training_context)
                options = replace(options, context=size)
            context = Context(model, options, sequences=question["fan"] + 1 if number else 1)
            needs.append([asdict(need) for need in needs_of(context)])
    return needs


def _on_processor(model: Model) -> bool:
    """Tell whether the processor computes at least a part of a model."""
    layers = model.options.gpu_layers
    return not model.cards or (layers is not None and layers < model.layers)


def needs_of(context: Context) -> tuple[DeviceNeed, ...]:
    """Return what an open context and its model hold on each device; `EngineError` where nobody can tell."""
    from localspec.llama.memory import breakdown

    rows = logits_bytes(context.vocabulary_size, context.max_sequences)
    return tuple(
        DeviceNeed(row.device, row.weights, row.cache, row.compute + (rows if row.device == PROCESSOR else 0))
        for row in breakdown(context)
    )


def expected_of(context: Context, options: ModelOptions) -> tuple[DeviceNeed, ...]:
    """Return what the formula expects of a context opened so; raises UserError for a file without shape."""
    shape = read_shape(options.path)
    sitting = MemoryRequest(
        _spread(options, len(shape.layers)),
        context.context_size,
        CacheTypes(options.kv_type_k, options.kv_type_v),
        options.flash_attention,
        options.micro_batch,
        context.max_sequences,
    )
    return estimate(shape, sitting)


def _spread(options: ModelOptions, layers: int) -> LayerSplit:
    """Return the seats that options give; where they leave it to llama.cpp, the processor."""
    if not options.devices or not options.gpu_layers:
        return LayerSplit()
    shares = options.tensor_split or (options.gpu_layers,)
    counts = [int(share) for share in shares]
    counts[-1] -= 1  # what follows the layers counts as one
    return LayerSplit(options.devices, tuple(min(count, layers) for count in counts))


def compare(name: str, actual: Iterable[DeviceNeed], expected: Iterable[DeviceNeed]) -> str:
    """Return a line for the log: what a model took of each device, and what was expected."""
    foreseen = {need.device: need.total for need in expected}
    words = []
    for need in actual:
        guess = foreseen.pop(need.device, 0)
        if need.total or guess:
            error = f" ({100 * (guess - need.total) / need.total:+.1f} %)" if need.total else ""
            words.append(f"{need.device} {size(need.total)}, expected {size(guess)}{error}")
    words += [f"{device} nothing, expected {size(guess)}" for device, guess in foreseen.items() if guess]
    return f"memory of {name}: " + "; ".join(words)


if __name__ == "__main__":
    main()
