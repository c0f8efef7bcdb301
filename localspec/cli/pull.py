"""`localspec pull`: download models from the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import units
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import StatusLine, say
from localspec.cli.shared.errors import SUCCESS
from localspec.models.names import Reference, parse

if TYPE_CHECKING:
    from localspec.models.hub.download import DownloadProgress
    from localspec.models.hub.repository import RemoteModel

SCHEMA = 1


def parser() -> Parser:
    """Return the parser of `localspec pull`."""
    result = verb_parser(
        "pull",
        "Download models from the Hugging Face hub, and print where they are. What was broken off goes on "
        "where it stopped; what has arrived is checked. HF_TOKEN opens gated repositories, HF_ENDPOINT names "
        "another hub, and LLAMA_CACHE or HF_HUB_CACHE the folder that models go to.",
    )
    result.add_argument(
        "model", nargs="+", metavar="USER/REPO[:QUANT]",
        help="which model; without a quant Q4_K_M, else Q8_0, else the first. USER/REPO/FILE.gguf is a file",
    )  # fmt: skip
    result.add_argument("--json", action="store_true", help="print one JSON object instead of paths")
    result.add_argument("-v", "--verbose", action="store_true", help="print tracebacks to standard error")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(argv)
    references = [parse(text) for text in args.model]  # all of them, before the first long download
    pulled = []
    for reference in references:
        path = fetch(reference)
        pulled.append({"name": str(reference), "path": str(path)})
        if not args.json:
            print(path, flush=True)
    if args.json:
        print(json.dumps({"schema": SCHEMA, "models": pulled}))
    return SUCCESS


def fetch(reference: Reference) -> Path:
    """Download a model with progress on standard error, and return its file."""
    from localspec.models.hub.repository import pull  # huggingface_hub: 0.2 s

    status = StatusLine()

    def found(model: RemoteModel, to_come: int) -> None:
        files = "" if len(model.files) == 1 else f" in {len(model.files)} files"
        what = f"{model.files[0].name}, {units.size(model.bytes)}{files}"
        rest = f"; {units.size(to_come)} are still to come" if to_come < model.bytes else ""
        say(f"pulling {reference}: {what}{rest}" if to_come else f"{reference} is here already: {what}")

    def on_progress(progress: DownloadProgress) -> bool:
        status.update(progress_line(progress))
        return True

    try:
        path = pull(reference, on_progress=on_progress, on_found=found)
    except KeyboardInterrupt:
        status.clear()
        say(f"stopped; what has arrived is kept, and `localspec pull {reference}` goes on with it")
        raise
    finally:
        status.clear()
    return path


def progress_line(progress: DownloadProgress) -> str:
    """Return how far a download is, how fast, and how long it will take."""
    share = progress.done / progress.total if progress.total else 1.0
    parts = [f"{share:4.0%}  {units.size(progress.done)} of {units.size(progress.total)}"]
    if progress.rate:
        parts.append(f"{units.size(progress.rate)}/s")
    if progress.left_s is not None:
        parts.append(f"{units.duration(progress.left_s)} left")
    return "  ".join(parts)
