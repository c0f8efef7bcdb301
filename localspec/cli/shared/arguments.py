"""The flags that commands share, in llama.cpp's spellings where it has them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, Self, TypeVar, get_args

from localspec.errors import UserError
from localspec.models.names import parse
from localspec.models.pair_request import USUAL_BATCH, USUAL_FAN_OUT, ModelRequest, PairRequest
from localspec.safe_text import safe_line
from localspec.storage.config import MAX_CONTEXT, MIN_CONTEXT
from localspec.storage.paths import expanded
from localspec.types.models import Adapter, GivenTemplate, KvType, SplitMode, TensorOverride
from localspec.types.request import (
    SEEDS,
    Acceptance,
    EngineSettings,
    Fallback,
    FanOutShape,
    Mode,
    Sampling,
    TemplateVariables,
)
from localspec.units import parse_file_size
from localspec.values import range_of

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

SERVER_PORT = 8080  # llama-server's
KEY_VARIABLE = "LOCALSPEC_API_KEY"  # of `serve`, and of what attaches to it
MAX_DRAFT_LENGTH = 256
MAX_FAN_OUT = 64
_DAY_S = 24 * 3600
_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s?)?", re.IGNORECASE)
MODES = ("auto", *get_args(Mode))  # that one can ask for
_SAMPLING = Sampling()
_SETTINGS = EngineSettings()
_DRAFT_KINDS = ("draft-simple", "draft-mtp", "draft-eagle3")  # llama.cpp's
N = TypeVar("N", int, float)


def _ranged(convert: Callable[[str], N], low: float, high: float, what: str) -> Callable[[str], N]:
    def read(text: str) -> N:
        with suppress(ValueError):
            value = convert(text)
            if low <= value <= high:
                return value
        raise argparse.ArgumentTypeError(f"`{text}` is not {what}")

    return read


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from `low` to `high`."""
    return _ranged(int, low, high, f"a whole number from {low} to {high}")


def decimal(low: float, high: float) -> Callable[[str], float]:
    """Return a reader of numbers from `low` to `high`."""
    return _ranged(float, low, high, f"a number from {low:g} to {high:g}")


def _or_minus_one(low: int, high: int) -> Callable[[str], int | None]:
    """Return a reader of whole numbers in which -1 means none, as in llama.cpp."""
    return lambda text: None if text == "-1" else whole(low, high)(text)


def length_of_time(shortest_s: int) -> Callable[[str], float]:
    """Return a reader of lengths of time such as 90s, 3m, 1h30m, 1h30, or seconds, up to a day."""

    def read(text: str) -> float:
        found = _TIME.fullmatch(text.strip().replace(" ", ""))
        if found is None or not any(found.groups()):
            raise argparse.ArgumentTypeError(f"`{text}` is not a time such as 90s, 3m or 1h30m")
        hours, minutes, seconds = (int(group or 0) for group in found.groups())
        if found[1] and not found[2] and found[0][-1].isdigit():  # 1h30 means 1h30m
            minutes = seconds
            seconds = 0
        total_s = 3600 * hours + 60 * minutes + seconds
        if not shortest_s <= total_s <= _DAY_S:
            raise argparse.ArgumentTypeError(f"`{text}` is not between {shortest_s}s and 24h")
        return float(total_s)

    return read


def lora_files(text: str) -> list[Adapter]:
    """Return the LoRA adapters that a list with commas names."""
    return [Adapter(expanded(name).absolute()) for name in text.split(",") if name]


def scaled_lora_files(text: str) -> list[Adapter]:
    """Return the LoRA adapters of a list with commas, each with its scale after a colon."""
    found = list[Adapter]()
    for part in text.split(","):
        name, _, scale = part.rpartition(":")
        if not name:
            raise argparse.ArgumentTypeError(f"`{part}` is not FILE:SCALE, such as style.gguf:0.5")
        found.append(Adapter(expanded(name).absolute(), decimal(-1000, 1000)(scale)))
    return found


def file_size(text: str) -> int:
    """Read a size of files in bytes, such as 10G or 500 MiB."""
    size = parse_file_size(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"`{text}` is not a size such as 10G or 500M, or 0")
    return size


def context_size(text: str) -> int:
    """Read a context size in tokens; 0 means the model's own."""
    value = whole(0, MAX_CONTEXT)(text)
    if 0 < value < MIN_CONTEXT:
        raise argparse.ArgumentTypeError(
            f"`{text}` is too small: use 0 (the model's own) or {MIN_CONTEXT} to {MAX_CONTEXT}"
        )
    return value


def gpu_layers(text: str) -> int | None:
    """Read the number of layers for the GPU; `auto` and `all` mean all that fit."""
    if text in ("auto", "all", "-1"):
        return None
    return _ranged(int, 0, 10_000, "a whole number from 0 to 10000, `auto` or `all`")(text)


def tensor_split(text: str) -> tuple[float, ...]:
    """Read shares such as `3,1`: the parts of a model on each device."""
    try:
        shares = tuple(decimal(0, 1e6)(part) for part in text.replace("/", ",").split(","))
    except argparse.ArgumentTypeError:
        shares = ()
    if not shares or sum(shares) == 0:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a list of shares such as `3,1`, at least one above 0"
        )
    return shares


def tensor_overrides(text: str) -> tuple[TensorOverride, ...]:
    """Read overrides such as `exps=CPU,output=CUDA0`: patterns of tensor names, and their devices."""
    found = []
    for part in text.split(","):
        pattern, equals, device = (word.strip() for word in part.rpartition("="))
        if not (equals and pattern and device):
            raise argparse.ArgumentTypeError(
                rf"`{part}` is not a pattern and a device such as `blk\.[0-9]\.ffn_.*_exps=CPU`"
            )
        found.append(TensorOverride(pattern, device))
    return tuple(found)


def device_names(text: str) -> tuple[str, ...]:
    """Read device names such as `CUDA0,CUDA1`; `none` and `cpu` mean the CPU alone."""
    if text.lower() in ("none", "cpu"):
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"`{text}` is not a list of device names such as `CUDA0,CUDA1`")
    return names


def on_off_auto(text: str) -> bool | Literal["auto"]:
    """Read a switch that may decide for itself."""
    values: dict[str, bool | Literal["auto"]] = {"on": True, "off": False, "auto": "auto"}
    if text not in values:
        raise argparse.ArgumentTypeError(f"`{text}` is not one of on, off, auto")
    return values[text]


def template_file(text: str) -> Path | Literal["own"]:
    """Read the path of a chat template; an empty one means the template in the model's file."""
    return expanded(text) if text else "own"


def given_template(text: str) -> GivenTemplate | Literal["own"]:
    """Read a chat template, or its name; an empty one means the template in the model's file."""
    return GivenTemplate(text) if text.strip() else "own"


def template_variables(text: str) -> TemplateVariables:
    """Read the variables of a chat template from a JSON object of plain values."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or not all(
        isinstance(v, bool | int | float | str) for v in value.values()
    ):
        raise argparse.ArgumentTypeError(
            'not a JSON object of plain values such as {"enable_thinking": false}'
        )
    return tuple(value.items())


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UserError`."""

    color: bool  # whether help has colours, from Python 3.14 on

    def with_output(self, form: str = "instead of text", verbose: str = "log and tracebacks") -> Self:
        """Add the flags that commands have last, --json and -v, and return the parser."""
        add_json_flag(self.add_argument, form)
        add_verbose_flag(self.add_argument, verbose)
        return self

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the arguments of a command, and send its log where they say."""
        args = self.parse_args(argv)
        set_up_logging(verbose=args.verbose)
        return args

    def flag(self, name: str) -> tuple[str, argparse.Action] | None:
        """Return the flag of a name without its dashes, as it is spelled, and what it does."""
        known = self._option_string_actions
        spelled = (f"--{name}", f"-{name}")
        return next(((each, known[each]) for each in spelled if each in known), None)

    @property
    def flag_names(self) -> list[str]:
        """Return the long names of all flags, without their dashes."""
        return [name.removeprefix("--") for name in self._option_string_actions if name.startswith("--")]

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help; unlike argparse's own, this raises OSError where the disk is full."""
        (sys.stdout if file is None else file).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Raise a UserError instead of leaving the process."""
        raise UserError(message.removeprefix("argument "), f"see `{self.prog.rstrip()} --help`")


def verb_parser(verb: str, description: str) -> Parser:
    """Return an empty parser for one command."""
    parser = Parser(
        prog=f"localspec {verb}",
        description=description,
        allow_abbrev=False,  # `--temp` must not mean something else when a longer flag appears
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=100),
    )
    parser.color = False  # `sanitised_output` would show the sequences; parsers of commands inherit it
    return parser


def with_command(
    verb: str, argv: Sequence[str], commands: Collection[str], hint: Callable[[str], str]
) -> list[str]:
    """Return the arguments with `list` for a command that is not there; refuse one that does not exist."""
    place = next((at for at, word in enumerate(argv) if not word.startswith("-")), None)
    if place is None:
        return [*argv] if {"-h", "--help"} & {*argv} else ["list", *argv]
    first = argv[place]
    if first not in commands:
        close = get_close_matches(first.lower(), commands, n=1)
        meant = f"; did you mean `{close[0]}`?" if close else ""
        raise UserError(f"`localspec {verb}` has no command `{first}`{meant}", hint(first))
    return [first, *argv[:place], *argv[place + 1 :]]


def add_pooling_flag(add: Callable[..., argparse.Action]) -> None:
    """Add the flag for the pooling of embeddings."""
    about = "vectors of embeddings: by their mean, the first or the last token, or none: one for each token"
    about += " (as the model's file says)"
    add("--pooling", choices=("none", "mean", "cls", "last"), help=about)


def add_unified_flag(add: Callable[..., argparse.Action]) -> None:
    """Add the flag for conversations that share the cells of one context, or have a part of it each."""
    about = "--no-kv-unified: an equal part of the context for each of --parallel conversations, instead of "
    about += "one that they share; reads long prompts faster beside each other on a CPU"
    add("--kv-unified", action=argparse.BooleanOptionalAction, help=about)


def add_model_flags(parser: Parser, *, may_skip_plan: bool = True) -> None:
    """Add the flags for models and their placement, which `pair_request` reads."""
    group = parser.add_argument_group("models (without -m: those in config.toml, else the bundled ones)")
    add = group.add_argument
    hub = partial(add, type=parse, default=argparse.SUPPRESS, metavar="USER/REPO[:QUANT]")
    add("-m", "--model", metavar="FILE", help="target model: a GGUF file, or a name from `localspec models`")
    add("-md", "--model-draft", "--spec-draft-model", metavar="FILE", help="the same for the draft model")
    about = "target model on Hugging Face; downloaded on first use"
    hub("-hf", "-hfr", "--hf-repo", dest="model", help=about)
    about = "file in the -hf repository, if the quant does not identify it"
    add("-hff", "--hf-file", metavar="FILE", help=about)
    about = 'Jinja chat template for the target; "" means the one in its file'
    add("--chat-template-file", dest="chat_template", type=template_file, metavar="FILE", help=about)
    about = "the same as text, or the name of one that llama.cpp has: chatml, llama3, gemma, ..."
    add("--chat-template", dest="chat_template", type=given_template, metavar="TEXT", help=about)
    adapter = partial(add, dest="adapters", action="extend", default=[])
    about = "LoRA adapter for the target, a GGUF file; repeatable. The draft model drafts without it"
    adapter("--lora", type=lora_files, metavar="FILE", help=about)
    about = "the same, with a share of it that is added to the weights, such as 0.5"
    adapter("--lora-scaled", type=scaled_lora_files, metavar="FILE:SCALE", help=about)
    names = ("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf")
    hub(*names, dest="model_draft", help="draft model on Hugging Face")
    about = "context size in tokens (0: as the model was trained, at most 8192; more in `serve`)"
    add("-c", "--ctx-size", dest="context", type=context_size, metavar="N", help=about)
    for short, flag, name, least, most, about in (
        ("-t", "--threads", "threads", 0, 1024, "CPU threads (0: all cores)"),
        ("-td", "--threads-draft", "draft_threads", 1, 1024, "CPU threads of the draft model"),
        ("-b", "--batch-size", "batch", 1, 65536, f"logical batch size in tokens ({USUAL_BATCH})"),
        ("-ub", "--ubatch-size", "micro_batch", 1, 65536, "physical batch size (512, or 128 without -fa)"),
    ):
        add(short, flag, dest=name, type=whole(least, most), metavar="N", help=about)
    switch = partial(add, type=on_off_auto, metavar="on|off|auto")
    about = "flash attention (off on the CPU for small heads; otherwise, and with auto, llama.cpp chooses)"
    switch("-fa", "--flash-attn", dest="flash_attention", help=about)
    about = "cache all tokens in layers with a sliding window, so edits of old messages are faster"
    add("--swa-full", action="store_true", help=about)
    for short, flag, name, about in (
        ("-ctk", "--cache-type-k", "kv_type_k", "type of the K cache"),
        ("-ctv", "--cache-type-v", "kv_type_v", "type of the V cache"),
        ("-ctkd", "--cache-type-k-draft", "draft_kv_type_k", "the same for the draft model"),
        ("-ctvd", "--cache-type-v-draft", "draft_kv_type_v", "the same for the draft model"),
    ):
        add(short, flag, dest=name, choices=get_args(KvType), metavar="TYPE", help=about)
    about = "read model files into memory instead of mapping them"
    add("--no-mmap", dest="mmap", action="store_false", help=about)
    _add_device_flags(parser)
    add = parser.add_argument_group("placement").add_argument
    add(
        "--reserve",
        metavar="SIZES",
        help="memory to leave free on each device, such as 0=1GiB,1=2GiB,cpu=4GiB",
    )
    add(
        "--explain",
        action="store_true",
        help="print the placement, its reasons, and every rejected alternative",
    )
    if may_skip_plan:
        about = "skip the plan; llama.cpp places the models even if they do not fit"
        add("--no-fit", action="store_true", help=about)


def add_machine_flag(add: Callable[..., argparse.Action]) -> None:
    """Add the file that describes another machine."""
    about = (
        'plan for the machine that a TOML file describes, not for this one. It needs memory = "64 GB" '
        "and may have name, free, cores, rate, measured; then for each GPU a table [[gpu]] with memory, and "
        'if known name, rate = "360 GB/s" (as its maker states), measured, pcie = "4 x16", free, '
        "display = true, id, and unified = true if it uses the machine's memory"
    )
    add("--machine", type=expanded, metavar="FILE", help=about)


def planned_for(description: Path) -> str:
    """Return the line that says which machine a result is for."""
    return f"for the machine in {description}, not this one:"


def pair_request(args: argparse.Namespace) -> PairRequest:
    """Return the pair request of the flags; commands without speculation flags leave those open."""
    mode = getattr(args, "mode", None)
    return PairRequest(
        target=ModelRequest(
            name=args.model,
            devices=args.devices,
            gpu_layers=args.gpu_layers,
            threads=args.threads,
            kv_type_k=args.kv_type_k,
            kv_type_v=args.kv_type_v,
            experts_at_home=args.experts_at_home,
            overrides=tuple(args.overrides),
            adapters=tuple(args.adapters),
        ),
        draft=ModelRequest(
            name=args.model_draft,
            devices=args.draft_devices,
            gpu_layers=args.draft_gpu_layers,
            threads=args.draft_threads,
            kv_type_k=args.draft_kv_type_k,
            kv_type_v=args.draft_kv_type_v,
            experts_at_home=args.draft_experts_at_home,
            overrides=tuple(args.draft_overrides),
        ),
        file=args.hf_file,
        draft_kind=getattr(args, "spec_type", None),
        chat_template=args.chat_template,
        mode=None if mode == MODES[0] else mode,
        draft_length=getattr(args, "draft_length", None),
        max_fan_out=max(USUAL_FAN_OUT, getattr(args, "fan_out", None) or 0),
        context=args.context,
        split_mode=args.split_mode,
        main_gpu=args.main_gpu,
        tensor_split=args.tensor_split,
        flash_attention=args.flash_attention,
        swa_full=args.swa_full,
        batch=args.batch,
        micro_batch=args.micro_batch,
        mmap=args.mmap,
        reserve=_reserve(args.reserve),
        plans=not getattr(args, "no_fit", False),
    )


def _reserve(text: str | None) -> tuple[tuple[str, int], ...]:
    if text is None:
        return ()
    from localspec.hardware.memory.budget import parse_reserve  # 20 ms that few need

    return parse_reserve(text)


def _add_device_flags(parser: Parser) -> None:
    add = parser.add_argument_group("devices").add_argument
    layers = partial(add, type=gpu_layers, metavar="N|auto|all")
    layers("-ngl", "--gpu-layers", "--n-gpu-layers", help="layers of the target on the GPU")
    names = ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl")
    layers(*names, dest="draft_gpu_layers", help="layers of the draft")
    add(
        "-ts",
        "--tensor-split",
        type=tensor_split,
        default=(),
        metavar="3,1",
        help="share of the target for each device, such as 3,1",
    )
    about = "how to split the target over devices; tensor divides each matrix"
    add("-sm", "--split-mode", choices=get_args(SplitMode), help=about)
    add(
        "-mg",
        "--main-gpu",
        type=whole(0, 63),
        default=0,
        metavar="N",
        help="device to use when the target is not split",
    )
    devices = partial(add, type=device_names, metavar="NAMES")
    devices("-dev", "--device", dest="devices", help="devices of the target, or none")
    about = "devices of the draft model"
    devices("-devd", "--device-draft", "--spec-draft-device", dest="draft_devices", help=about)
    _add_expert_flags(add)


def _add_expert_flags(add: Callable[..., argparse.Action]) -> None:
    target = "experts_at_home"
    draft = "draft_experts_at_home"
    number = partial(add, type=whole(0, 1024), metavar="N")
    number("-ncmoe", "--n-cpu-moe", dest=target, help="keep the experts of the first N layers in RAM")
    everything = partial(add, action="store_const", const="all")
    everything("-cmoe", "--cpu-moe", dest=target, help="keep all experts in RAM")
    same = "the same for the draft model"
    number("-ncmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe", dest=draft, help=same)
    everything("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe", dest=draft, help=same)
    overrides = partial(add, type=tensor_overrides, default=[], action="extend", metavar="PATTERN=DEVICE,...")
    about = "put weights on another device than their layer, such as 'ffn_.*_exps=CPU'; repeatable"
    overrides("-ot", "--override-tensor", dest="overrides", help=about)
    aliases = ("--override-tensor-draft", "--spec-draft-override-tensor")
    overrides("-otd", *aliases, dest="draft_overrides", help=same)


def add_sampling_flags(parser: Parser) -> None:
    """Add what chooses the next token and ends an answer."""
    add = add_sampler_flags(
        parser,
        _SAMPLING,
        "defaults: the profile, else what the model's file recommends (SmolLM2: its model card, which "
        "takes precedence over built-in profiles), else the value in parentheses",
    )
    add("-s", "--seed", type=_or_minus_one(*SEEDS), metavar="N", help="seed, -1 draws one (-1)")
    most = _or_minus_one(1, 2**31 - 1)
    add("-n", "--predict", "--n-predict", type=most, metavar="N", help="maximum number of tokens to generate")
    about = (
        "let an answer or its thinking repeat itself endlessly (by default, both are ended, unless -n "
        "is given)"
    )
    add("--ignore-circles", action=argparse.BooleanOptionalAction, default=None, help=about)
    about = "maximum number of tokens of thinking; 0 is none, -1 is no limit (-1)"
    budget = whole(-1, 2**31 - 1)
    add("--reasoning-budget", dest="thinking_budget", type=budget, metavar="N", help=about)
    about = "end the answer before this text, after any thinking; repeatable"
    add("--stop", action="append", default=[], metavar="TEXT", help=about)


def add_sampler_flags(parser: Parser, s: Sampling, about: str) -> Callable[..., argparse.Action]:
    """Add the sampling flags, with the defaults of `usual`; return the function that adds to their group."""
    add = parser.add_argument_group("sampling", about).add_argument
    for flags, name, help_text in (
        (("--temp", "--temperature"), "temperature", f"temperature, 0 is greedy ({s.temperature})"),
        (("--top-k",), "top_k", f"0 is off ({s.top_k})"),
        (("--top-p",), "top_p", f"1 is off ({s.top_p})"),
        (("--min-p",), "min_p", f"0 is off ({s.min_p})"),
        (("--repeat-penalty",), "repetition_penalty", "1 is off (1)"),
        (("--presence-penalty",), "presence_penalty", "0 is off (0)"),
        (("--frequency-penalty",), "frequency_penalty", "0 is off (0)"),
        (
            ("--repeat-last-n",),
            "penalty_window",
            f"number of answer tokens that the penalties look back on ({s.penalty_window})",
        ),
    ):
        low, high = range_of(Sampling, name)
        is_whole = isinstance(getattr(s, name), int)
        read = whole(int(low), int(high)) if is_whole else decimal(low, high)
        add(*flags, dest=name, type=read, metavar="N" if is_whole else "X", help=help_text)
    return add


def add_prompt_flags(parser: Parser) -> None:
    """Add what surrounds the question."""
    add = parser.add_argument_group("prompt").add_argument
    add("-sys", "--system-prompt", metavar="TEXT", help="system prompt")
    add("-sysf", "--system-prompt-file", metavar="FILE", help="file with the system prompt")
    about = (
        "profile for the system prompt, sampling and settings that no flag sets; auto chooses by the "
        "question: coding or general"
    )
    add("--profile", metavar="NAME", help=about)
    about = 'variables of the chat template, such as {"enable_thinking": false}'
    add("--chat-template-kwargs", type=template_variables, default=(), metavar="JSON", help=about)


class _SpecType(argparse.Action):
    """Reads llama.cpp's kinds of speculation: one of a draft, one of repetitions, both, or none."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, *_: object
    ) -> None:
        drafts = set[str]()
        repeats = False
        for kind in str(values).split(","):
            if kind in _DRAFT_KINDS:
                drafts.add(kind)
            elif kind.startswith("ngram-"):
                repeats = True
            elif kind != "none":
                known = ", ".join(("none", *_DRAFT_KINDS, "ngram-simple"))
                raise argparse.ArgumentError(self, f"`{kind}` is not one of {known}")
        if len(drafts) > 1:
            raise argparse.ArgumentError(self, f"one draft at a time, not {' and '.join(sorted(drafts))}")
        namespace.spec_type = next(iter(drafts), None)
        namespace.mode = "sd" if drafts else "ngram" if repeats else "off"
        namespace.fallback = "ngram" if drafts and repeats else namespace.fallback


def add_speculation_flags(parser: Parser) -> None:
    """Add how to speculate."""
    group = parser.add_argument_group(
        "speculation", "defaults: the profile, else the result of `tune`, else the value in parentheses"
    )
    add = group.add_argument
    s = _SETTINGS
    add("--mode", choices=MODES, help="decoding mode; auto picks the fastest on this machine (auto)")
    about = "the mode in llama.cpp's words: none, draft-simple, draft-mtp, draft-eagle3, ngram-simple"
    add("--spec-type", action=_SpecType, metavar="TYPES", help=about)
    length = partial(add, type=whole(1, MAX_DRAFT_LENGTH), dest="draft_length")
    about = f"maximum draft length in tokens ({s.draft_length})"
    length("--draft-length", "--spec-draft-n-max", metavar="N", help=about)
    for alias in ("--draft-max", "--draft"):
        length(alias, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add_drafting_flags(add)


def add_drafting_flags(add: Callable[..., argparse.Action]) -> None:
    """Add how drafts are made and judged, whatever their mode and length."""
    s = _SETTINGS
    about = f"number of verification outcomes to prepare drafts for, in mode ssd ({s.fan_out_budget})"
    add("--fan-out", type=whole(1, MAX_FAN_OUT), metavar="N", help=about)
    add(
        "--fan-out-shape",
        choices=get_args(FanOutShape),
        help=f"which outcomes to prepare for ({s.fan_out_shape})",
    )
    add(
        "--draft-temperature",
        type=decimal(0, 10),
        metavar="X",
        help="factor on the temperature for the draft model (1)",
    )
    add(
        "--saguaro-c",
        type=decimal(0, 1),
        metavar="X",
        help="factor on the probabilities of the draft model's top tokens, Saguaro's C (1: off)",
    )
    about = (
        "how drafts are accepted: by rejection sampling, or where they match the target's own sample, so "
        f"that a seed gives the same text in every mode ({s.acceptance})"
    )
    add("--acceptance", choices=get_args(Acceptance), help=about)
    about = "end a draft when the draft model's confidence falls below X (default: decided by measured costs)"
    add("--min-confidence", "--spec-draft-p-min", type=decimal(0, 1), metavar="X", help=about)
    about = "ngram: in sd and ssd, also draft by copying earlier text (ngram; in bench, --modes decides)"
    add("--fallback", choices=get_args(Fallback), help=about)


def add_answer_flags(parser: Parser) -> None:
    """Add every flag of a command that writes answers."""
    add_model_flags(parser)
    add_sampling_flags(parser)
    add_prompt_flags(parser)
    add_speculation_flags(parser)
    add_output_flags(parser)


def add_output_flags(parser: Parser) -> None:
    """Add what is printed besides the answer."""
    add = parser.add_argument_group("output").add_argument
    add("--stats", action="store_true", help="print statistics to standard error at the end")
    add_json_flag(add)
    marks = argparse.BooleanOptionalAction
    add("--color", action=marks, default=None, help="colour tokens by source (NO_COLOR turns it off)")
    add_verbose_flag(add)


def add_thinking_flags(parser: Parser) -> None:
    """Add whether the thinking before an answer is printed."""
    add = parser.add_argument_group("thinking").add_mutually_exclusive_group().add_argument
    about = "print the thinking to standard error (the default on a terminal)"
    add("--show-thinking", action="store_true", default=None, help=about)
    add(
        "--hide-thinking",
        dest="show_thinking",
        action="store_false",
        default=None,
        help="do not print the thinking",
    )


def add_json_flag(add: Callable[..., argparse.Action], about: str = "instead of text") -> None:
    """Add what makes a command print JSON."""
    add("--json", action="store_true", help=f"print one JSON object {about}")


def add_verbose_flag(add: Callable[..., argparse.Action], about: str = "log and tracebacks") -> None:
    """Add the flag for more output."""
    add("-v", "--verbose", action="store_true", help=f"print {about} to standard error")


def set_up_logging(*, verbose: bool) -> None:
    """Send LocalSpec's own log and llama.cpp's to standard error if `verbose`, and nowhere otherwise."""
    import logging  # 5 ms that `--help` does without

    class OneLine(logging.Formatter):
        def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name in `logging`
            return safe_line(super().formatMessage(record))

    handler: logging.Handler = logging.StreamHandler() if verbose else logging.NullHandler()
    handler.setFormatter(OneLine("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("localspec")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.NOTSET)
