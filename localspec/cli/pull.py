"""`localspec pull`: download models from Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import SUCCESS, print_json
from localspec.cli.shared.opening import fetch
from localspec.errors import ModelFileError
from localspec.models.names import parse


def parser() -> Parser:
    """Return the parser of `localspec pull`."""
    result = verb_parser(
        "pull",
        "Download models from Hugging Face, and print their paths. Interrupted downloads resume, and files "
        "are checked. Models that llama.cpp cannot open are rejected by their header, before the download. "
        "HF_TOKEN gives access to gated repositories, HF_ENDPOINT sets another hub, and LLAMA_CACHE or "
        "HF_HUB_CACHE the folder for models.",
    )
    about = (
        "the model; without QUANT, Q4_K_M, else Q8_0, else the first one. QUANT may be a folder or the end "
        "of a file's name; USER/REPO/FILE.gguf is a file"
    )
    result.add_argument("model", nargs="+", metavar="USER/REPO[:QUANT]", help=about)
    about = "download also what this version of LocalSpec cannot open"
    result.add_argument("--force", action="store_true", help=about)
    return result.with_output("instead of paths", "tracebacks")


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    references = [parse(text) for text in args.model]  # all of them, before the first long download
    pulled = []
    for reference in references:
        try:
            path = fetch(reference, force=args.force)
        except ModelFileError as error:
            hint = f"{error.hint}; --force downloads it all the same"
            raise ModelFileError(error.message, hint) from None
        pulled.append({"name": str(reference), "path": str(path)})
        if not args.json:
            print(path, flush=True)
    if args.json:
        print_json({"models": pulled})
    return SUCCESS
