"""Train the demo pair: tokenizer, target model, distilled draft model.

    python -m training.train tokenizer --data DATA    # DATA/tokenizer.json
    python -m training.train encode --data DATA       # DATA/train.bin, DATA/heldout.npz
    python -m training.train target --data DATA --out RUN --minutes 45
    python -m training.train draft --data DATA --out RUN --teacher RUN/target.pt --minutes 15

The packed text of the repository is used unless DATA holds another corpus.txt[.xz].
CPU and CUDA are both supported; bfloat16 autocast is on by default. Several processes can share the work;
on a CPU one process per core is much faster than one process with many threads:

    python -m torch.distributed.run --nproc-per-node 2 -m training.train target --data DATA ...
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from localspec.errors import UserError
from training.encode import REPEATS, encode_corpus, load_tokenizer, train_tokenizer
from training.loop import RunSettings, TrainingRun
from training.losses import distillation_loss, next_token_loss
from training.model import Checkpoint, Config, Model
from training.progress import show_progress


@dataclass(frozen=True, slots=True)
class Defaults:
    """The shape and the learning rate of a model, if the command line is silent."""

    dim: int
    layers: int
    ffn: int
    lr: float


TARGET = Defaults(dim=256, layers=6, ffn=768, lr=4e-3)
DRAFT = Defaults(dim=128, layers=2, ffn=512, lr=6e-3)


def run_tokenizer(arguments: argparse.Namespace) -> None:
    """Train the tokenizer."""
    train_tokenizer(arguments.data, arguments.vocab, arguments.sample_mb, arguments.seed)


def run_encode(arguments: argparse.Namespace) -> None:
    """Encode the corpus."""
    encode_corpus(arguments.data, {**REPEATS, **dict(arguments.repeat)}, arguments.seed)


def run_target(arguments: argparse.Namespace) -> None:
    """Train the target."""
    checkpoint = first_checkpoint(arguments)
    function = torch.compile(next_token_loss, dynamic=False) if arguments.compile else next_token_loss
    loss = partial(function, checkpoint.model)
    TrainingRun(run_settings(arguments), checkpoint.model, loss, checkpoint.tokens).run()


def run_draft(arguments: argparse.Namespace) -> None:
    """Distil the draft from the target."""
    checkpoint = first_checkpoint(arguments)
    teacher = Checkpoint.load(arguments.teacher, arguments.device).model
    teacher.eval().requires_grad_(False)
    function = torch.compile(distillation_loss, dynamic=False) if arguments.compile else distillation_loss
    loss = partial(function, checkpoint.model, teacher, hard_weight=arguments.hard_weight)
    TrainingRun(run_settings(arguments), checkpoint.model, loss, checkpoint.tokens).run()


def first_checkpoint(arguments: argparse.Namespace) -> Checkpoint:
    """Return the model that the run starts from: an earlier one, or a new one."""
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if arguments.init:
        return Checkpoint.load(arguments.init, arguments.device)
    if arguments.dim % arguments.head_dim:
        raise UserError(f"--dim {arguments.dim} is no multiple of --head-dim {arguments.head_dim}")
    torch.manual_seed(arguments.seed)
    shape = Config(
        vocab=load_tokenizer(arguments.data).get_vocab_size(),
        dim=arguments.dim,
        layers=arguments.layers,
        ffn=arguments.ffn,
        heads=arguments.dim // arguments.head_dim,
        context=arguments.context,
    )
    return Checkpoint(Model(shape).to(arguments.device), tokens=0, seconds=0.0)


def run_settings(arguments: argparse.Namespace) -> RunSettings:
    """Return what the command line says about the run."""
    if not arguments.minutes and not arguments.tokens:
        raise UserError("the run has no end", "give --minutes, --tokens or both")
    fields = set(RunSettings.__dataclass_fields__) - {"name", "amp"}
    chosen = {name: getattr(arguments, name) for name in fields}
    return RunSettings(name=arguments.command, amp=not arguments.fp32, **chosen)


def repeat(text: str) -> tuple[str, float]:
    """Read KIND=TIMES."""
    kind, _, times = text.partition("=")
    if kind not in REPEATS:
        raise argparse.ArgumentTypeError(f"no kind {kind!r}; there are {', '.join(REPEATS)}")
    return kind, float(times)


def add_training_flags(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    """Add what target and draft have in common."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the checkpoint and the log")
    add("--dim", type=int, default=defaults.dim)
    add("--layers", type=int, default=defaults.layers)
    add("--ffn", type=int, default=defaults.ffn)
    add("--head-dim", type=int, default=64)
    add("--context", type=int, default=1024)
    add("--seq", type=int, default=512, help="window length for most of the run")
    add("--long-fraction", type=float, default=0.12, help="last part run at full context")
    add("--batch-tokens", type=int, default=16384)
    add("--accumulate", type=int, default=1)
    add("--lr", type=float, default=defaults.lr)
    add("--weight-decay", type=float, default=0.05)
    add("--minutes", type=float, default=0)
    add("--tokens", type=float, default=0)
    add("--decay-from", type=float, default=0.45, help="progress at which the rate starts to fall")
    add("--init", type=Path, help="continue from this checkpoint (weights only)")
    add("--device", default=device)
    add("--compile", action="store_true")
    add("--fp32", action="store_true", help="no bfloat16 autocast")
    add("--log-every", type=int, default=20)
    add("--eval-minutes", type=float, default=8)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(
        prog="train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)
    tokenizer = commands.add_parser("tokenizer", help="train the byte-level BPE tokenizer")
    tokenizer.add_argument("--vocab", type=int, default=8192)
    tokenizer.add_argument("--sample-mb", type=float, default=40)
    tokenizer.set_defaults(run=run_tokenizer)
    encode = commands.add_parser("encode", help="encode the corpus with the tokenizer")
    encode.add_argument(
        "--repeat", action="append", type=repeat, default=[], metavar="KIND=TIMES", help="0 drops a kind"
    )
    encode.set_defaults(run=run_encode)
    target = commands.add_parser("target", help="train the target with next-token loss")
    add_training_flags(target, TARGET)
    target.set_defaults(run=run_target)
    draft = commands.add_parser("draft", help="distil the draft from the target")
    add_training_flags(draft, DRAFT)
    draft.add_argument("--teacher", type=Path, required=True)
    draft.add_argument("--hard-weight", type=float, default=0.1)
    draft.set_defaults(run=run_draft)
    for command in (tokenizer, encode, target, draft):
        command.add_argument("--data", type=Path, required=True)
        command.add_argument("--seed", type=int, default=1)
    return top


def main(argv: Sequence[str] | None = None) -> None:
    """Run one step of the training."""
    show_progress()
    arguments = parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
