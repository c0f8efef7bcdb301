"""`localspec show`: a model's details and memory use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec import units
from localspec.app.opening import template_report_of
from localspec.cli.shared.arguments import Parser, context_size, verb_parser
from localspec.cli.shared.console import SUCCESS, print_result, say
from localspec.errors import UserError
from localspec.gguf import kept_states
from localspec.hardware.memory.needs import LayerSplit, MemoryRequest, estimate
from localspec.models.names import looks_like_reference, parse
from localspec.models.pair_files import local_file
from localspec.models.shape import ModelShape, read_shape
from localspec.safe_text import safe_line
from localspec.types.request import Recommendation

if TYPE_CHECKING:
    from localspec.llama.template.report import TemplateReport

Needs = dict[str, int]  # by the columns of the table

_CONTEXTS = (2048, 8192, 32768, 131072)
_HEADINGS = ("CONTEXT", "WEIGHTS", "CACHE", "COMPUTING", "TOTAL")


def parser() -> Parser:
    """Return the parser of `localspec show`."""
    result = verb_parser(
        "show",
        "Show a model's details, and its memory use with contexts of several sizes. "
        "For a model on Hugging Face, only the header is read.",
    )
    add = result.add_argument
    add(
        "model",
        metavar="MODEL",
        help="a GGUF file, a name from `localspec models`, or USER/REPO:QUANT on Hugging Face",
    )
    add("-c", "--ctx-size", type=context_size, default=0, metavar="N", help="only for a context of this size")
    return result.with_output(verbose="tracebacks")


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    path, shape = _find(args.model)
    needs = [_needs(shape, context) for context in _contexts(shape, args.ctx_size)]
    template = None if path is None else template_report_of(path)
    notes = [*recommended_lines(shape.recommended), *_habits(template)]
    lines = [*described(shape), *notes, "", *_table(needs)]
    print_result(as_json(shape, path, template, needs), lines, as_json=args.json, escaped=True)
    if not args.json:
        say("for one conversation on one device, without a draft model and the GPU driver's own memory")
    return SUCCESS


def described(shape: ModelShape) -> list[str]:
    """Return a model in words."""
    layers = len(shape.layers)
    windows = [layer.window for layer in shape.layers if layer.window]
    cached = [layer for layer in shape.layers if layer.key_values]
    kind = f"{shape.architecture}, {units.number(shape.parameters)} parameters in {shape.quant}"
    lines = [
        shape.name,
        f"  {kind}, {units.size(shape.file_bytes)} on disk",
        f"  {layers} layers, {shape.width:,} wide, {shape.heads} attention heads",
        f"  a token reads {units.memory(shape.read_bytes, 0.1)} of weights",
    ]
    if shape.doubt:
        lines.insert(3, f"  {shape.doubt}")
    if shape.experts_used:
        lines[-1] += f": {shape.experts_used} experts of each layer and what they share"
    if cached:
        per_token = sum(2 * (layer.key_values + layer.value_values) for layer in cached)
        lines.append(f"  and leaves {per_token / 1024:,.1f} KiB in the cache (in f16)")
    if windows:
        lines.append(f"  {len(windows)} of the layers look back {max(windows):,} tokens at most")
    if shape.state_bytes:
        lines.append(f"  recurrent state of {units.memory(shape.state_bytes, 0.1)}, {_ways_back(shape)}")
    lines.append(f"  {shape.vocabulary:,} tokens in the vocabulary {shape.vocabulary_family}")
    lines.append(f"  trained on up to {shape.training_context:,} tokens of context")
    return [safe_line(line) for line in lines]  # a file may call itself anything


def recommended_lines(recommended: Recommendation) -> list[str]:
    """Return lines about the sampling that the model's maker recommends, and ignored parts of it."""
    values = ", ".join(f"{name} {value:g}" for name, value in recommended.sampling.settled.items())
    lines = [f"  recommended sampling, {recommended.source}: {values}"] if values else []
    if recommended.unused:
        lines.append(f"  not used of what the file recommends: {', '.join(recommended.unused)}")
    return [safe_line(line) for line in (*lines, *(f"  {problem}" for problem in recommended.wrong))]


def _ways_back(shape: ModelShape) -> str:
    snapshots, _ = kept_states(shape.architecture, 1)
    if snapshots:
        return f"and as a target up to {snapshots} snapshots, to take back as many draft tokens"
    return "and processes text again after a rejection: speculation helps where most drafts are accepted"


def as_json(
    shape: ModelShape, path: Path | None, template: TemplateReport | None, needs: Sequence[Needs]
) -> dict[str, object]:
    """Return the JSON of a model; sizes are in bytes."""
    return {
        "name": shape.name,
        "path": str(path) if path else None,
        **_picked(shape, "architecture quant parameters file_bytes weight_bytes read_bytes"),
        "layers": len(shape.layers),
        "window_layers": sum(layer.window is not None for layer in shape.layers),
        **_picked(shape, "width heads experts_used tied vocabulary vocabulary_family training_context"),
        "chat_template": None if template is None else asdict(template),
        "recommended_sampling": shape.recommended.sampling.settled,
        "recommended_unused": [*shape.recommended.unused, *shape.recommended.wrong],
        "needs": needs,
    }


def _picked(value: object, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}


def _habits(template: TemplateReport | None) -> list[str]:
    """Return lines about the chat template; none without one."""
    if template is None:
        return []
    return ["", "  chat template", *(safe_line(f"    {line}") for line in template.lines())]


def _find(named: str) -> tuple[Path | None, ModelShape]:
    """Return a local model with its file, or one on the Hub without."""
    try:
        path = local_file(named)
    except UserError:
        if not looks_like_reference(named):
            raise
        from localspec.models.hub import remote_shape

        return None, remote_shape(parse(named))
    return path, read_shape(path)


def _contexts(shape: ModelShape, asked: int) -> tuple[int, ...]:
    longest = shape.training_context or _CONTEXTS[-1]
    usual = tuple(context for context in _CONTEXTS if context <= longest)
    return (asked,) if asked else usual or (longest,)


def _needs(shape: ModelShape, context: int) -> Needs:
    """Return the memory of a context."""
    [need] = estimate(shape, MemoryRequest(LayerSplit(), context))
    return {"context": context, **_picked(need, "weights cache compute total")}


def _table(needs: Sequence[Needs]) -> list[str]:
    rows = []
    for need in needs:
        context, *sizes = need.values()
        rows.append([f"{context:,}", *(units.memory(size, 0.1) for size in sizes)])
    return units.columns([_HEADINGS, *rows], frozenset(range(len(_HEADINGS))))
