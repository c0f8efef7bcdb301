"""What the flags ask of answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from localspec.chat.answer_settings import AUTO, SessionRequest, with_auto
from localspec.errors import UserError
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from localspec.storage.profiles import DEFAULT_PROFILE, Profile, Speculation, files_in, profile
from localspec.storage.text_file import STANDARD_INPUT, read_text
from localspec.types.request import Grammar, GrammarKind, Request, Sampling

_IS_TEXT: dict[GrammarKind, Callable[[str], bool]] = {
    "json_schema": lambda given: given.lstrip().startswith("{"),
    "gbnf": lambda given: "::=" in given,
}
"""What distinguishes a text, which llama.cpp's --json-schema and --grammar take, from the name of a file."""


def speculation_given(args: argparse.Namespace) -> Speculation:
    """Return the decoding settings of the flags; a mode of None means the fastest here."""
    given = {field.name: getattr(args, field.name, None) for field in fields(Speculation)}
    asked = getattr(args, "mode", None)
    mode = None if asked == AUTO else asked
    return Speculation(**given | {"mode": mode, "fan_out_budget": args.fan_out})


def session_request(args: argparse.Namespace) -> SessionRequest:
    """Return the answer settings of the flags; raises UserError."""
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
        thinking_budget=args.thinking_budget,
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
    """Return the sampling settings of the flags, by name."""
    given = {field.name: getattr(args, field.name) for field in fields(Sampling)}
    return {name: value for name, value in given.items() if value is not None}


def reads_standard_input(args: argparse.Namespace) -> bool:
    """Return whether a flag reads standard input as its file; raises UserError if two do."""
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
        raise UserError("-sys and -sysf both give a system prompt", "use only one of them")
    return text if file is None else read_text(file, "system prompt").rstrip("\r\n")


def grammar(args: argparse.Namespace) -> Grammar | None:
    """Return the grammar that was given, None if none was; raises UserError for one that cannot be used."""
    schemas = (args.json_schema, args.json_schema_file)
    grammars = (args.grammar, args.grammar_file)
    if sum(each is not None for each in (*schemas, *grammars)) > 1:
        raise UserError("--json-schema and --grammar cannot be combined", "use only one of them")
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
