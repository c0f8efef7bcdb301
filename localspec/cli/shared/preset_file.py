"""llama-server's file of presets: models by the names of its sections, with flags as keys."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser, DuplicateOptionError, DuplicateSectionError, ParsingError, SectionProxy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial

from localspec.app.offered import EncoderKind
from localspec.cli.shared.arguments import (
    Parser,
    add_model_flags,
    add_pooling_flag,
    add_prompt_flags,
    add_sampling_flags,
    add_speculation_flags,
    add_unified_flag,
    verb_parser,
    whole,
)
from localspec.errors import UserError
from localspec.safe_text import safe_line
from localspec.storage.text_file import read_text

_FOR_ALL = "*"  # the section with flags of all models
_UNNAMED = "default"  # llama-server's name for what stands before the first section
_VARIABLE = "LLAMA_ARG_"  # before the names of environment variables, which are keys as well
_YES = ("1", "true", "on", "yes", "enabled")
_NO = ("0", "false", "off", "no", "disabled")
_ENCODERS: Mapping[str, EncoderKind] = {
    "embedding": "embeddings",
    "embeddings": "embeddings",
    "rerank": "rerank",
    "reranking": "rerank",
}
_OWN = ("alias", "load-on-startup", "dedup-cache-models", *_ENCODERS)
_OF_THE_SERVER = {
    "host": "--host",
    "port": "--port",
    "api-key": "--api-key",
    "models-dir": "--models-dir",
    "models-max": "--models-max",
    "models-preset": "--models-preset",
    "models-autoload": "--models-autoload",
    "sleep-idle-seconds": "--idle",
}
_ALWAYS_SO = ("version", "jinja", "cont-batching", "metrics", "slots", "ui", "no-ui", "webui",
              "no-webui", "offline", "warmup", "no-warmup", "stop-timeout", "tags")  # fmt: skip
_MODELS = ("model", "model_draft", "hf_file")


@dataclass(frozen=True, slots=True)
class Preset:
    """A section: a model's name, its flags with those of the command line, and what no flag says.

    Without a source its name is that of a model on disk.
    """

    name: str
    args: argparse.Namespace
    has_source: bool = True
    aliases: tuple[str, ...] = ()
    encodes: EncoderKind | None = None  # no text is written
    opens_at_start: bool = False
    hides_files: bool = False  # its files are not listed as models of their own


@dataclass(frozen=True, slots=True)
class Presets:
    """The sections of a file, and the flags of all other models."""

    args: argparse.Namespace
    sections: tuple[Preset, ...] = ()


def read_presets(file: str | None, argv: Sequence[str], parser: Parser) -> Presets:
    """Read a file of presets; flags in `argv`, which `parser` reads, override it. Raises UserError."""
    if file is None:
        return Presets(parser.parse_args(argv))
    sections = _sections(file)
    of_all = dict(sections.pop(_FOR_ALL, {}))
    read = _Reader(file, argv, parser)
    presets = tuple(read.preset(name, of_all | keys) for name, keys in sections.items())
    return Presets(read.overridden(_FOR_ALL, of_all), presets)


def _sections(file: str) -> dict[str, dict[str, str]]:
    """Return the keys of each section; raises UserError."""
    ini = ConfigParser(
        delimiters=("=",),
        inline_comment_prefixes=(";", "#"),
        default_section="",
        interpolation=None,
        empty_lines_in_values=False,
    )
    ini.optionxform = str  # type: ignore[assignment,method-assign] # -C and -c are two flags
    text = read_text(file, "preset")
    try:
        ini.read_string(f"[{_UNNAMED}]\n{text}")
    except ParsingError as error:
        raise _broken(file, error.errors[0][0], "this is neither [NAME] nor KEY = VALUE") from None
    except DuplicateSectionError as error:
        raise _broken(file, error.lineno, f"[{error.section}] is there twice") from None
    except DuplicateOptionError as error:
        raise _broken(file, error.lineno, f"`{error.option}` is in [{error.section}] twice") from None
    found = {name: _keys(ini[name]) for name in ini.sections()}
    if not found[_UNNAMED]:
        del found[_UNNAMED]
    return found


def _broken(file: str, line: int | None, problem: str) -> UserError:
    """Return an error about a line of the text that began with a line of ours."""
    return UserError(f"{file}, line {(line or 1) - 1}: {safe_line(problem)}", _EXAMPLE)


_EXAMPLE = "write sections such as [my-model], with lines such as model = /models/my-model.gguf"


def _keys(section: SectionProxy) -> dict[str, str]:
    """Return the keys of a section as flags are called, without those that change nothing here."""
    found = {}
    for key, value in section.items():
        name = key
        if key.startswith(_VARIABLE):
            name = key.removeprefix(_VARIABLE).lower().replace("_", "-")
        if name not in _ALWAYS_SO:
            found[name] = value
    return found


class _Reader:
    """Reads the sections of a file, each with the flags of the command line over its own."""

    def __init__(self, file: str, argv: Sequence[str], parser: Parser) -> None:
        self._file = file
        self._argv = argv
        self._parser = parser
        self._of_models = _parser_of_models()

    def preset(self, name: str, keys: Mapping[str, str]) -> Preset:
        args = self.overridden(name, keys)
        has_source = args.model is not None
        if not has_source:
            args.model = name
        aliases = tuple(filter(None, map(str.strip, keys.get("alias", "").split(","))))
        encodes = (kind for key, kind in _ENCODERS.items() if self._switch(name, keys, key))
        return Preset(
            name,
            args,
            has_source,
            aliases,
            next(encodes, None),
            self._switch(name, keys, "load-on-startup"),
            self._switch(name, keys, "dedup-cache-models"),
        )

    def overridden(self, name: str, keys: Mapping[str, str]) -> argparse.Namespace:
        """Return the flags of a section, with those of the command line over them, but its own models."""
        flags = [
            flag for key, value in keys.items() if key not in _OWN for flag in self._flag(name, key, value)
        ]
        try:
            own = self._of_models.parse_args(flags)
        except UserError as error:
            raise self._error(name, error.message) from None
        models = {each: getattr(own, each, None) for each in _MODELS}
        merged = self._parser.parse_args(self._argv, own)
        if name != _FOR_ALL:
            vars(merged).update(models)
        return merged

    def _flag(self, section: str, key: str, value: str) -> Iterator[str]:
        """Yield the words of a key's flag; raises UserError for one that is not offered."""
        if key in _OF_THE_SERVER:
            hint = f"start the server with {_OF_THE_SERVER[key]}"
            raise self._error(section, f"`{key}` is not for one model, but for the server", hint)
        found = self._of_models.flag(key)
        opposite = self._of_models.flag(key.removeprefix("no-") if key.startswith("no-") else f"no-{key}")
        if found is None and opposite is None:
            raise self._error(section, f"`{key}` is not a flag of models", self._hint(key))
        if found is not None and found[1].nargs != 0:
            yield f"{next(name for name in found[1].option_strings if name.startswith('--'))}={value}"
            return
        chosen = found if self._truth(section, key, value) else opposite
        if chosen is not None:
            yield chosen[0]

    def _hint(self, key: str) -> str:
        close = get_close_matches(key, self._of_models.flag_names, n=1)
        return (
            f"did you mean `{close[0]}`?" if close else "leave it out; `localspec serve --help` has all flags"
        )

    def _switch(self, section: str, keys: Mapping[str, str], key: str) -> bool:
        return self._truth(section, key, keys.get(key, "0"))

    def _truth(self, section: str, key: str, value: str) -> bool:
        lowered = value.lower()
        if lowered not in (*_YES, *_NO):
            raise self._error(section, f"`{key}` is neither on nor off: `{value}`")
        return lowered in _YES

    def _error(self, section: str, message: str, hint: str = "correct it in that section") -> UserError:
        return UserError(f"{self._file}, [{safe_line(section)}]: {message}", hint)


def _parser_of_models() -> Parser:
    """Return a parser of the flags that a preset may have."""
    parser = verb_parser("serve", "")
    for add_flags in (add_model_flags, add_sampling_flags, add_prompt_flags):
        add_flags(parser)
    add_speculation_flags(parser)
    parser.add_argument("-np", "--parallel", type=whole(1, 64), default=argparse.SUPPRESS)
    add_unified_flag(partial(parser.add_argument, default=argparse.SUPPRESS))
    add_pooling_flag(partial(parser.add_argument, default=argparse.SUPPRESS))
    return parser
