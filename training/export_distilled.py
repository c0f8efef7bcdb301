r"""Write a distilled draft as GGUF, with the tokenizer and chat template of its target.

python -m training.export_distilled RUN/draft.pt --target target.gguf --out draft.gguf \
    --name "SmolLM2 draft" [--type q8_0] [--acceptance 0.45]

--acceptance tells `--mode auto` how many of the guesses the target accepts. An earlier GGUF of ours serves in
place of the checkpoint, to be written with another one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import gguf

from training.export_gguf import write_model
from training.gguf_writing import TYPES, copy_tokenizer
from training.import_gguf import read_gguf
from training.model import Checkpoint
from training.progress import log, show_progress

DESCRIPTION = "A draft model for speculative decoding: it only guesses what its target would write."


def export(trained: Checkpoint, given: argparse.Namespace) -> None:
    """Write a draft as a GGUF file, as the command line says."""
    out, acceptance = given.out, given.acceptance
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(given.name)
    writer.add_description(DESCRIPTION)
    writer.add_license("apache-2.0")
    if acceptance is not None:
        writer.add_float32("localspec.acceptance", acceptance)
    copy_tokenizer(writer, gguf.GGUFReader(given.target))
    write_model(writer, trained, given.type, given.embedding)
    log.info("%s: %.1f MB", out, out.stat().st_size / 1e6)


def main(argv: Sequence[str] | None = None) -> None:
    """Write one checkpoint."""
    show_progress()
    parser = argparse.ArgumentParser(
        prog="export_distilled", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="Draft model")
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--embedding", choices=TYPES, help="type of the embedding, if another")
    parser.add_argument("--acceptance", type=float, help="share of the guesses that the target accepts")
    given = parser.parse_args(argv)
    is_file = given.checkpoint.suffix == ".gguf"
    trained = read_gguf(given.checkpoint) if is_file else Checkpoint.load(given.checkpoint)
    export(trained, given)


if __name__ == "__main__":
    main()
