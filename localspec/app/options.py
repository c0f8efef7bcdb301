"""Check arguments against each other and turn them into values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from localspec.chat.answer_settings import AUTO, DRAFT_MODES, SessionRequest, with_auto
from localspec.errors import UserError
from localspec.models.default_pair import default_pair, moved, on_this_computer
from localspec.models.names import Reference, file_named
from localspec.storage.config import Config, check_models, read_config
from localspec.storage.paths import config_dir
from localspec.storage.profiles import DEFAULT_PROFILE, Profile, Speculation, files_in, profile
from localspec.storage.text_file import STANDARD_INPUT, read_text
from localspec.types import Grammar, GrammarKind, Mode, ModelOptions, Request, Sampling

MODES = ("auto", *get_args(Mode))  # that one can ask for
USUAL_BATCH = ModelOptions(Path()).batch
OWN_TEMPLATE = Path()  # as the chat template that is asked for: the one in the model's own file
USUAL_FAN_OUT = 16  # outcomes that there is room for without asking

_IS_TEXT: dict[GrammarKind, Callable[[str], bool]] = {
    "json_schema": lambda given: given.lstrip().startswith("{"),
    "gbnf": lambda given: "::=" in given,
}
"""What tells a text, which llama.cpp's --json-schema and --grammar take, from the name of a file."""

_DRAFT_FLAGS = {
    "draft_threads": "-td",
    "draft_gpu_layers": "-ngld",
    "draft_devices": "-devd",
    "draft_kv_type_k": "-ctkd",
    "draft_kv_type_v": "-ctvd",
}


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Which models to open, and how."""

    target: ModelOptions
    draft: ModelOptions | None
    draft_threads: int | None
    max_fan_out: int
    asked_for_gpu: bool
    notes: tuple[str, ...] = ()  # what a person should know of this choice


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Models on disk that a person chose; the target's own file as draft stands for the head in it."""

    target: Path
    draft: Path | None


def chosen(
    args: argparse.Namespace, choice: ModelChoice, *, keeps_template: bool = False
) -> argparse.Namespace:
    """Return arguments that name these models, and ask for nothing that takes a draft where there is none.

    A chat template that flags name stays only if it `keeps_template`: it was meant for another model.
    """
    config = read_config(config_dir() / "config.toml")
    given = {**vars(args), "hf_file": None, "spec_type": None, "context": _context(args, config)}
    given["model"], given["model_draft"] = str(choice.target), choice.draft and str(choice.draft)
    if not keeps_template:
        given["chat_template"] = None
    if choice.draft is None:
        given |= {**dict.fromkeys(_DRAFT_FLAGS), "mode": MODES[0]}
    return argparse.Namespace(**given)


def pair_options(args: argparse.Namespace) -> PairOptions:
    """Return the models that the arguments name; raises UserError for combinations without sense.

    Where they name none, config.toml does, or else it is the default pair. Models of the hub that are not on
    disk come through `args.fetch`; those of a cache must pass `args.check`.
    """
    args = _with_configured_models(args)
    if args.model_draft and not args.model:
        raise UserError(
            "-md or -hfd names a draft model, but there is no target",
            "name the target too: -m FILE or -hf USER/REPO",
        )
    batch = args.batch or USUAL_BATCH
    micro_batch = args.micro_batch or min(512, batch)
    if micro_batch > batch:
        raise UserError(
            f"-ub/--ubatch-size {micro_batch} is larger than the batch of {batch}",
            "lower -ub or raise -b/--batch-size",
        )
    if args.mode == "ssd" and isinstance(args.model, Reference) and not args.model_draft:
        raise _no_draft(args.mode)  # a head in the file would not do either, so it need not be downloaded
    asked = args.chat_template
    given = None if asked == OWN_TEMPLATE else _template(asked)  # before anything is downloaded
    target_path, draft_path = _paths(args)
    template = _template(template_of(target_path)) if asked is None else given
    draft_path, notes = _drafting(args, target_path, draft_path)
    _check_draft_flags(args, has_draft=draft_path is not None)
    flags = {each.name: getattr(args, each.name) for each in fields(ModelOptions) if _is_given(args, each)}
    settled = {"path": target_path, "micro_batch": micro_batch, "chat_template": template}
    target = ModelOptions(**flags | settled)
    return PairOptions(
        target=target,
        draft=_draft_options(args, draft_path, target) if draft_path else None,
        draft_threads=args.draft_threads,
        max_fan_out=max(USUAL_FAN_OUT, args.fan_out or 0),
        asked_for_gpu=bool(getattr(args, "gpu_layers", 0) or getattr(args, "draft_gpu_layers", 0)),
        notes=notes,
    )


def _context(args: argparse.Namespace, config: Config) -> int:
    """Return the context that is asked for: the flag's, also where it says 0, or else config.toml's."""
    given: int | None = args.context
    return config.context if given is None else given


def _is_given(args: argparse.Namespace, field: Field[Any]) -> bool:
    """Tell whether a flag says what a field is to be; None says it only where it is a value of the field."""
    return hasattr(args, field.name) and (getattr(args, field.name) is not None or field.default is None)


def _template(path: Path | None) -> Path | None:
    """Return the file of a chat template, once it is known to hold a text; raises `UserError`."""
    if path is not None:
        from localspec.llama.template.template_file import read_template  # and what starts processes: 10 ms

        read_template(path)
    return path


def template_of(model: Path) -> Path | None:
    """Return the chat template that config.toml names for a model; None for the one in the model's file."""
    return read_config(config_dir() / "config.toml").template_of(model)


def _drafting(
    args: argparse.Namespace, target: Path, draft: Path | None
) -> tuple[Path | None, tuple[str, ...]]:
    """Return the file to draft with, which may be the target's own, and what else than was asked for is done.

    Raises `UserError` where --spec-type wants another kind.
    """
    from localspec.models.heads import kind_of_draft, unsupported_draft

    notes: tuple[str, ...] = ()
    if draft is not None and (problem := unsupported_draft(draft)):
        draft, notes = None, (problem,)
    wanted = getattr(args, "spec_type", None)
    kind = kind_of_draft(target, draft)
    if draft is None and kind is not None and args.mode not in ("off", "ngram"):
        draft = target
    if kind is not None and args.mode == "ssd":
        notes += ("a head waits for what its target reads and cannot draft ahead: mode sd stands in for ssd",)
    if wanted is not None and draft is not None and wanted != (found := f"draft-{kind or 'simple'}"):
        raise UserError(f"--spec-type {wanted} does not fit {draft.name}: that is {found}", f"use {found}")
    return draft, notes


def _with_configured_models(args: argparse.Namespace) -> argparse.Namespace:
    """Let the models and the context of config.toml stand in where no flag names models."""
    path = config_dir() / "config.toml"
    config = with_moved(read_config(path))
    if args.model or args.model_draft:
        return args
    configured: dict[str, str | int | None] = {"context": _context(args, config)}
    if config.target is not None:
        check_models(path, config)
        configured["model"] = str(config.target)
        configured["model_draft"] = str(config.draft) if config.draft is not None else None
    return argparse.Namespace(**{**vars(args), **configured})


def with_moved(config: Config) -> Config:
    """Return a configuration in which model files of packages are where these are installed now."""
    return replace(config, target=moved(config.target), draft=moved(config.draft))


def _paths(args: argparse.Namespace) -> tuple[Path, Path | None]:
    target = args.model
    if args.hf_file is not None:
        if not isinstance(target, Reference):
            raise UserError("-hff names a file, but no repository", "name the repository too: -hf USER/REPO")
        target = replace(target, file=args.hf_file)
    if target:
        draft = args.model_draft
        return _model_path(target, args), _model_path(draft, args) if draft else None
    return default_pair()


def _model_path(named: str | Reference, args: argparse.Namespace) -> Path:
    """Return the file of a model: of the hub, with a name that `localspec models` lists, or a path."""
    if isinstance(named, Reference):
        from localspec.models.hub import resolve

        return resolve(named, args.fetch, args.check)
    return local_file(named, args.check)


def local_file(text: str, check: Callable[[Sequence[Path]], None] | None = None) -> Path:
    """Return the file that a text means: its path, or its name in `localspec models`; raises UserError."""
    path = file_named(text)
    if path is not None:
        return path
    from localspec.models.local import named, no_such_model

    models = on_this_computer()
    model = named(text, models)
    if model is None:
        raise no_such_model(text, models)
    if check is not None:
        check(model.files)
    return model.path


def _check_draft_flags(args: argparse.Namespace, *, has_draft: bool) -> None:
    if has_draft:
        if args.context and args.draft_length and args.draft_length >= args.context:
            raise UserError(
                f"--draft-length {args.draft_length} does not fit a context of {args.context} tokens",
                "lower --draft-length or raise -c/--ctx-size",
            )
        return
    if args.mode in DRAFT_MODES:
        raise _no_draft(args.mode)
    for name, flag in _DRAFT_FLAGS.items():
        if getattr(args, name, None) is not None:
            raise UserError(f"{flag} speaks of a draft model, but there is none", "add -md FILE")


def _no_draft(mode: str) -> UserError:
    return UserError(f"--mode {mode} needs a draft model", "add -md FILE, or use --mode ngram")


def _draft_options(args: argparse.Namespace, path: Path, target: ModelOptions) -> ModelOptions:
    return ModelOptions(
        path=path,
        context=target.context,
        gpu_layers=getattr(args, "draft_gpu_layers", None),
        devices=args.draft_devices,
        kv_type_k=args.draft_kv_type_k or "f16",
        kv_type_v=args.draft_kv_type_v or "f16",
        flash_attention=target.flash_attention,
        batch=target.batch,
        micro_batch=target.micro_batch,
        threads=args.draft_threads or 0,
        mmap=target.mmap,
    )


def speculation_given(args: argparse.Namespace) -> Speculation:
    """Return how the arguments want the answer to be decoded; a mode of None means the one that pays here."""
    given = {field.name: getattr(args, field.name, None) for field in fields(Speculation)}
    mode = None if args.mode == AUTO else args.mode
    return Speculation(**given | {"mode": mode, "fan_out_budget": args.fan_out})


def session_request(args: argparse.Namespace) -> SessionRequest:
    """Return what the flags ask of answers; raises UserError."""
    reads_standard_input(args)  # where two flags want it, neither reads it
    if "" in args.stop:
        raise UserError("--stop got an empty text", "leave it out, or name the text that ends the answer")
    usual = read_config(config_dir() / "config.toml").ignore_circles
    answer = Request(
        "",
        max_tokens=args.predict,
        ignores_circles=usual if args.ignore_circles is None else args.ignore_circles,
        stop=tuple(args.stop),
        seed=args.seed,
        template_variables=args.chat_template_kwargs,
    )
    return SessionRequest(
        speculation_given(args),
        sampling_given(args),
        system_prompt(args),
        answer,
        is_auto=args.mode == AUTO,
    )


def sampling_given(args: argparse.Namespace) -> dict[str, Any]:
    """Return what flags settle of the sampling, by name."""
    given = {field.name: getattr(args, field.name) for field in fields(Sampling)}
    return {name: value for name, value in given.items() if value is not None}


def reads_standard_input(args: argparse.Namespace) -> bool:
    """Tell whether a flag takes standard input for the file that it names; raises UserError where two do."""
    names = ("system_prompt_file", "json_schema", "json_schema_file", "grammar", "grammar_file")
    taken = [name for name in names if getattr(args, name, None) == STANDARD_INPUT]
    if len(taken) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in taken)
        raise UserError(f"{flags} both read standard input", "name a file for one of them")
    return bool(taken)


def profiles_named(name: str | None) -> tuple[Profile, ...]:
    """Return the profile of that name, and those that it may follow; without a name one that asks nothing."""
    folder = config_dir() / "profiles"
    if name is None:
        return (Profile(DEFAULT_PROFILE, "General", "", "dialogue", "", Sampling(), folder),)
    if name != AUTO or AUTO in files_in(folder):
        return (profile(name, folder),)
    *others, auto = with_auto((profile(DEFAULT_PROFILE, folder), profile("coding", folder)))
    return (auto, *others)


def system_prompt(args: argparse.Namespace) -> str | None:
    """Return the system prompt that was given, None if none was; raises UserError."""
    text: str | None = args.system_prompt
    file: str | None = args.system_prompt_file
    if text is not None and file is not None:
        raise UserError("-sys and -sysf both give a system prompt", "keep one of them")
    return text if file is None else read_text(file, "system prompt").rstrip("\r\n")


def grammar(args: argparse.Namespace) -> Grammar | None:
    """Return the grammar that was given, None if none was; raises UserError for one that cannot be used."""
    schemas, grammars = (args.json_schema, args.json_schema_file), (args.grammar, args.grammar_file)
    if sum(each is not None for each in (*schemas, *grammars)) > 1:
        raise UserError("--json-schema and --grammar both say what the answer looks like", "keep one of them")
    kinds: tuple[GrammarKind, ...] = ("json_schema", "gbnf")
    whats = ("JSON schema", "grammar")
    for kind, what, (given, file) in zip(kinds, whats, (schemas, grammars), strict=True):
        if given is not None and _IS_TEXT[kind](given):
            found = Grammar(kind, given)
        elif (named := given if file is None else file) is not None:
            found = Grammar(kind, read_text(named, what))
        else:
            continue
        from localspec.llama.grammar import check  # numpy and llguidance: 0.1 s

        check(found)
        return found
    return None
