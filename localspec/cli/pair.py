"""`localspec pair`: which draft models can serve a target, and what they should bring."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import FAILURE, SUCCESS, print_result
from localspec.errors import UserError

if TYPE_CHECKING:
    from localspec.app.recommendation import Partner, Target
    from localspec.models.catalogue import Catalogue
    from localspec.models.local import LocalModel

_MODES = {"off": "plain decoding", "sd": "taking turns (SD)", "ssd": "drafting ahead (SSD)"}


def parser() -> Parser:
    """Return the parser of `localspec pair`."""
    result = verb_parser(
        "pair",
        "Find draft models that can serve a target: on this computer, where the vocabularies are compared "
        "token by token, and in the catalogue. Exit code 1 if there is none.",
    )
    result.add_argument("target", metavar="TARGET", help="a GGUF file, or a name that `models` lists")
    return result.with_output(told="log")


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().read(argv)
    from localspec.app.recommendation import partners
    from localspec.cli.recommend import this_machine
    from localspec.models.catalogue import shipped
    from localspec.models.default_pair import on_this_computer

    local, known = on_this_computer(), shipped()
    target = find_target(args.target, local, known)
    found = partners(target, this_machine(), local, known)
    value = {
        "target": {"name": target.name, "path": target.path},
        "drafts": [_partner_json(partner) for partner in found],
    }
    print_result(value, lines(target, found), as_json=args.json)
    return SUCCESS if any(partner.verdict.fits for partner in found) else FAILURE


def find_target(text: str, local: Sequence[LocalModel], known: Catalogue) -> Target:
    """Return the model that a text means: a file, a name on disk, or an entry of the catalogue."""
    from localspec.app.recommendation import Target
    from localspec.models.catalogue import approximate_shape
    from localspec.models.local import named, no_such_model
    from localspec.models.names import file_named
    from localspec.models.shape import read_shape

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


def lines(target: Target, found: Sequence[Partner]) -> Iterator[str]:
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
        for text in _about(target, partner):
            yield f"    {text}"
    if others:
        yield ""
        yield "These cannot serve it:"
    for partner in others:
        yield f"  {partner.name}: {partner.verdict.reason}"


def _about(target: Target, partner: Partner) -> Iterator[str]:
    from localspec.models.pairing import remark
    from localspec.units import rate

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
    if partner.path is None:
        yield f"get it: localspec pull {partner.name}"
    elif placement is not None:
        draft = "" if partner.path == target.path else f" -md {shlex.quote(partner.name)}"
        yield f"measure it: localspec bench -m {shlex.quote(target.name)}{draft}"


def _partner_json(partner: Partner) -> dict[str, object]:
    return {
        "name": partner.name,
        "path": partner.path,
        "verdict": asdict(partner.verdict),
        "problem": partner.problem or None,
        "tokens_per_s": partner.tokens_per_s or None,
        "placement": asdict(partner.placement) if partner.placement else None,
    }
