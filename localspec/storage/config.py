"""The user's config.toml: looks, keys, the models to open, and habits of the chat.

Owns reading, checking, and naming other models in it. Everything is optional, and so is the file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from localspec.errors import UserError
from localspec.gguf import part_name
from localspec.storage.paths import PRIVATE_FILE, config_dir, expanded, write_atomically
from localspec.storage.profiles import files_in, shipped_files
from localspec.storage.toml_file import Changes, TomlTable, edited, read_table
from localspec.units import parse_file_size
from localspec.values import Line, Range

MAX_CONTEXT = 2**24
MIN_CONTEXT = 64
READING_WIDTH = 100
CompactionMode = Literal["off", "ask", "auto"]
StepsMode = Literal["auto", "on", "off"]
"""Whether requests of several steps to models with tools are split: to small ones, to all, or to none."""
"""What happens near the limit of the context: nothing, a question, or a summary at once."""
_CHAT = ("profile", "sidebar", "footer", "vim", "width", "titles", "notify", "ignore_circles", "read_ahead",
         "compact")  # fmt: skip
_KiB = Annotated[int, Range(1, 65536)]
_NAMES = Path(__file__).with_name("keys.toml")
_RULE = re.compile(r"[^\s:]+(?::.*\S)?")  # the name of a tool, and a pattern
_KEY = re.compile(r"(?:(?:ctrl|shift|alt|super|hyper|meta)\+)*(?:[^\s+,]+|\+)")


@dataclass(frozen=True, slots=True)
class NamedPair:
    """A pair that `serve --models` offers by a name: paths, or names that `localspec models` lists."""

    name: str
    target: str = ""
    draft: str = ""
    context: int | None = None
    embeddings: str = ""  # a model for embeddings instead of a pair
    rerank: str = ""  # a model for reranking instead


@dataclass(frozen=True, slots=True)
class Config:
    """The user's configuration."""

    theme: str = ""  # empty follows the default
    keys: tuple[tuple[str, str], ...] = ()  # a binding's id and its keys, with commas between them
    backend: Path | None = None  # of a GPU, loaded beside those that llama.cpp was built with
    target: Path | None = None
    draft: Path | None = None
    context: int = 0
    templates: tuple[tuple[str, Path | None], ...] = ()  # by the name of a model file; None: the file's own
    pairs: tuple[NamedPair, ...] = ()
    rpc: str = ""  # HOST:PORT,... of `localspec share` on other machines, whose devices this machine uses
    host: str = ""  # USER@MACHINE where models are to be opened; empty is this machine
    remote_program: str = "localspec"  # the name of the program there
    cache_disk: int = 0  # bytes of disk for the KV caches of conversations
    profile: Line = "auto"
    sidebar: bool = True
    footer: bool = True
    vim: bool = False
    width: Annotated[int, Range(0, 1000)] = READING_WIDTH  # columns of messages; 0 takes all
    titles: bool = True
    notify: Line = "bell"
    ignore_circles: bool = False
    read_ahead: bool = True
    compact: CompactionMode = "ask"
    attachment_bytes: int = 256 * 1024
    tools_allowed: tuple[str, ...] = ()  # rules, as `tools/rules.py` reads them
    tools_denied: tuple[str, ...] = ()
    tool_steps: StepsMode = "auto"
    private_hosts: tuple[str, ...] = ()  # HOST or HOST:PORT that a tool may fetch pages from

    def template_of(self, model: Path) -> Path | None:
        """Return the file with the chat template for a model; None for the one in the model's file."""
        return next((file for pattern, file in self.templates if _is_called(model, pattern)), None)


def example() -> str:
    """Return a config.toml that shows and explains every field."""
    return Path(__file__).with_name("example.toml").read_text(encoding="utf-8")


def read_config(path: Path) -> Config:
    """Read config.toml, the default if there is none; raises UserError that names the line at fault."""
    usual = Config()
    try:
        path.stat()
    except FileNotFoundError:
        return usual
    except OSError:  # a closed folder: the next line says so
        pass
    root = read_table(path)
    root.allow(
        ("theme", "backend", "models", "pairs", "templates", "chat", "tuning", "attachments", "tools", "keys")
    )
    models = root.table("models")
    chat = root.table("chat")
    attachments = root.table("attachments")
    tools = root.table("tools")
    models.allow(("target", "draft", "context", "rpc", "host", "program", "cache_disk"))
    of_chat = chat.fields_of(Config, _CHAT)
    root.table("tuning").allow(("learn",))  # which once counted answers; nothing follows from it any more
    attachments.allow(("max_kib",))
    tools.allow(("allow", "deny", "private_hosts", "steps"))
    if theme := root.line("theme"):
        root.expect("theme", theme, read_table(_NAMES).texts("themes"), "theme")
    target, draft = (_file(models, key, path.parent) for key in ("target", "draft"))
    if draft is not None and target is None:
        models.complain("draft", "`draft` names a draft model, but there is no `target`")
    if "profile" in chat:
        own = files_in(path.parent / "profiles")
        chat.expect("profile", of_chat["profile"], {usual.profile, *shipped_files(), *own}, "profile")
    if "notify" in chat:
        chat.expect("notify", of_chat["notify"], ("bell", "desktop", "off"), "notice")
    return Config(
        theme=theme,
        backend=_file(root, "backend", path.parent),
        keys=tuple(_keys(root.table("keys"))) if "keys" in root else (),
        target=target,
        draft=draft,
        context=_context(models),
        templates=tuple(_templates(root.table("templates"), path.parent)),
        pairs=tuple(_pairs(root.table("pairs"), path.parent)),
        rpc=models.line("rpc"),
        host=models.line("host"),
        remote_program=models.line("program", usual.remote_program),
        cache_disk=_size(models, "cache_disk"),
        attachment_bytes=attachments.value("max_kib", _KiB, usual.attachment_bytes // 1024) * 1024,
        tools_allowed=_tool_rules(tools, "allow"),
        tools_denied=_tool_rules(tools, "deny"),
        tool_steps=tools.value("steps", StepsMode, usual.tool_steps),
        private_hosts=tools.value("private_hosts", tuple[Line, ...], ()),
        **of_chat,
    )


def check_models(path: Path, config: Config) -> None:
    """Raise the UserError that names the line of config.toml with a model that is not there."""
    for key, model in (("target", config.target), ("draft", config.draft)):
        with suppress(OSError):  # in a closed folder; opening the file reports it
            if model is not None and not model.exists():
                hint = "correct the path; `localspec setup` chooses what opens without -m"
                read_table(path).table("models").complain(key, f"`{key}` names no file: {model}", hint)


def _templates(table: TomlTable, folder: Path) -> Iterator[tuple[str, Path | None]]:
    for name, holder, key in table.leaves():  # `Qwen3.gguf = ...` without quotes is a table in TOML
        if "/" in name and not name.startswith(("/", "~", "*")):
            hint = "write the name of the model's file, with * for any text, or its whole path"
            table.complain(key, f"`{name}` is not the name of a file", hint)
        yield name, _file(holder, key, folder)


def _pairs(table: TomlTable, folder: Path) -> Iterator[NamedPair]:
    for name in table:
        pair = table.table(name)
        pair.allow(("target", "draft", "context", "embeddings", "rerank"))
        encoder = next((key for key in ("embeddings", "rerank") if key in pair), None)
        if encoder is not None:
            pair.allow((encoder,))
        else:
            pair.require("target", "name a file, or a model of `localspec models`")
        yield NamedPair(
            name,
            _model(pair, "target", folder),
            _model(pair, "draft", folder),
            _context(pair) if "context" in pair else None,
            _model(pair, "embeddings", folder),
            _model(pair, "rerank", folder),
        )


def _model(table: TomlTable, key: str, folder: Path) -> str:
    """Return the path of a file, or else the name of a model."""
    path = _file(table, key, folder)
    with suppress(OSError):  # too long for a path, or in a closed folder
        if path is not None and path.exists():
            return str(path)
    return table.line(key)


def _is_called(model: Path, pattern: str) -> bool:
    """Return whether a pattern means a model: by its whole path, or its file's name with or without .gguf."""
    wanted = expanded(pattern).as_posix().lower()
    part = part_name(model.name)
    names = (model.name, model.stem, *([part.prefix, f"{part.prefix}.gguf"] if part else []))
    texts = (model.absolute().as_posix(),) if "/" in wanted else names
    return any(text.lower() == wanted or fnmatchcase(text.lower(), wanted) for text in texts)


def _file(table: TomlTable, key: str, folder: Path) -> Path | None:
    text = table.line(key)
    if not text:
        return None
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:  # `~name`
        table.complain(key, f"`{key}` begins with the home folder of an unknown user: `{text}`")


def _size(table: TomlTable, key: str) -> int:
    """Return the bytes of a size such as "10 GiB"; 0 without one."""
    text = table.line(key)
    size = parse_file_size(text) if text else 0
    if size is None:
        table.complain(key, f"`{key}` is not a size: `{text}`", 'write it like "500 MiB" or "10 GiB"')
    return size


def _context(table: TomlTable) -> int:
    context = table.value("context", Annotated[int, Range(0, MAX_CONTEXT)], 0)
    if 0 < context < MIN_CONTEXT:
        hint = f"use 0 or {MIN_CONTEXT} and more"
        table.complain("context", f"`context` of {context} is too small", hint)
    return context


def _tool_rules(table: TomlTable, key: str) -> tuple[str, ...]:
    rules: tuple[str, ...] = table.value(key, tuple[Line, ...], ())
    for at, rule in enumerate(rules):
        if not _RULE.fullmatch(rule):
            hint = "write the name of a tool, and after a colon a pattern: run_command:git status*"
            table.complain(key, f"`{rule}` is not a rule for tools", hint, item=at)
    return rules


def _keys(keys: TomlTable) -> Iterator[tuple[str, str]]:
    known = read_table(_NAMES)
    ids = known.texts("bindings")
    names = known.texts("keys")
    for name, table, key in keys.leaves():  # `message.copy = ...` without quotes is a table in TOML
        table.expect(key, name, ids, "key binding")
        yield name, _chords(table, key, name, names)


def _chords(table: TomlTable, key: str, name: str, known: Collection[str]) -> str:
    chords = table.words(key)
    if not chords:
        table.complain(key, f"`{name}` names no key", "leave it out to use the default")
    for chord in chords:
        last = chord.rpartition("+")[2]
        if not _KEY.fullmatch(chord) or (len(last) > 1 and last not in known):
            close = difflib.get_close_matches(last, known, n=1)
            like = f"`{close[0]}`" if close else "`f2`, `ctrl+k` or `shift+tab`"
            table.complain(key, f"`{chord}` is not a key", f"write keys like {like}")
    return ",".join(chords)


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a configuration file that has not been written; `old` is None without a file."""

    path: Path
    old: str | None
    new: str

    @property
    def changes(self) -> bool:
        """Return whether there is anything to write."""
        return self.old != self.new

    def diff(self) -> Iterable[str]:
        """Return the change as lines with + and - in front."""
        old = (self.old or "").splitlines()
        new = self.new.splitlines()
        name = str(self.path)
        before = "nothing" if self.old is None else name
        return difflib.unified_diff(old, new, before, name, lineterm="", n=2)

    def write(self) -> None:
        """Write the file in one step; raises StoreError and leaves the old one if that fails."""
        mode = PRIVATE_FILE if self.old is None else self.path.stat().st_mode & 0o777
        write_atomically(self.path, self.new, mode)


def models_table(target: Path | None, draft: Path | None, context: int | None = None) -> Changes:
    """Return the new [models] table; no target means the default pair, context None leaves it unchanged."""
    table: dict[str, str | int | None] = {}
    for key, path in (("models.target", target), ("models.draft", draft)):
        table[key] = text = None if path is None else str(path)
        if text is not None and not text.isprintable():
            raise UserError(
                f"config.toml cannot name {text!r}: it has a character that does not print",
                "give the file or its folder another name",
            )
    return table if context is None else table | {"models.context": context}


def keep(changes: Changes) -> None:
    """Write values into the user's config.toml; raises UserError and StoreError, and leaves it alone then."""
    prepare(config_dir() / "config.toml", changes).write()


def prepare(path: Path, wanted: Changes) -> Edit:
    """Return the change of a file, or of the example if there is none; raises UserError."""
    if not path.exists():
        return Edit(path, None, edited(example(), wanted))
    config = read_config(path)  # complains with the line, while nothing has been touched
    if not config.context and not wanted.get("models.context"):  # that is what no line says, too
        wanted = {key: value for key, value in wanted.items() if key != "models.context"}
    with path.open(encoding="utf-8", newline="") as file:
        old = file.read()
    return Edit(path, old, edited(old, wanted))
