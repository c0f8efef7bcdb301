"""Whether a call may be run, may not, or needs consent: rules of config.toml, and choices made in chats.

A rule is the name of a tool, with * for any text, and after a colon a pattern for what the call is about: the
path, the command or the address. `read_file`, `time.*` (all tools of an MCP server), `write_file:docs/**`,
`run_command:git status*`, `fetch_page:https://docs.python.org/*`. A rule that denies a path also keeps
search_files from showing its lines; a rule for a command cannot know all that a command does.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import urlsplit

from localspec.errors import UserError
from localspec.tools.finding import anywhere
from localspec.tools.options import has_risky_option
from localspec.tools.tool import Arguments, Tool
from localspec.tools.workspace import Workspace

_SHELL_SIGNS = frozenset(";&|<>$`(){}\\\n\r\0")  # what more than one plain command needs
_BETWEEN_COMMANDS = re.compile(r"[;&|<>$`(){}\n\r]+")
_QUOTES = str.maketrans("", "", "\"'\\")
_ASSIGNMENT = re.compile(r"\w+=")
_WRAPPERS = frozenset(
    "bash command dash doas env exec ionice nice nohup setsid sh stdbuf sudo time timeout xargs zsh".split()
)
_CHOOSABLE = ("none", "reads", "fetches")
Kind = Literal["", "path", "command", "url"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about: its text, of one kind; empty if a rule can only name the tool."""

    kind: Kind = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class ConsentRules:
    """Rules of config.toml, and those that the user chose in a chat for this workspace."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Consent:
    """Whether a call is run, and the rule that says so; empty if none does."""

    answer: Literal["allow", "deny", "ask"]
    rule: str = ""


def consent(tool: Tool, subject: Subject, rules: ConsentRules) -> Consent:
    """Return whether a call may be run.

    A rule that denies goes before all others. Choices made in a chat count for no tool that writes or runs.
    """
    name = full_name(tool)
    for rule in rules.deny:
        if _denies(rule, name, subject):
            return Consent("deny", rule)
    if tool.effect == "none" and not tool.source:
        return Consent("allow")
    chosen = rules.chosen if tool.effect in _CHOOSABLE else ()
    for rule in (*rules.allow, *chosen):
        if _allows(rule, name, subject):
            return Consent("allow", rule)
    return Consent("ask")


def may_be_allowed(tool: Tool, rules: ConsentRules) -> bool:
    """Return whether rules allow some calls of a tool, so that it can be offered where no user is asked."""
    found = consent(tool, Subject(), rules)
    if found.answer != "ask":
        return found.answer == "allow"
    return any(fnmatchcase(full_name(tool), rule.partition(":")[0]) for rule in rules.allow)


def choice(tool: Tool, subject: Subject) -> str:
    """Return the rule that "always" saves for the workspace; empty if such a call needs consent each time."""
    if tool.effect not in _CHOOSABLE:
        return ""
    if subject.kind != "url":
        return full_name(tool)
    address = urlsplit(subject.text)
    return f"{full_name(tool)}:{address.scheme}://{address.netloc}/*" if address.netloc else ""


def full_name(tool: Tool) -> str:
    """Return the name of a tool in rules: `server.tool` for what models know as `server__tool`."""
    return f"{tool.source}.{tool.own_name}" if tool.source else tool.name


def subject_of(tool: Tool, arguments: Arguments, workspace: Workspace) -> Subject:
    """Return the subject of a call of our own tools; of a path, that in the workspace without links."""
    if tool.source:
        return Subject()
    if isinstance(command := arguments.get("command"), str):
        return Subject("command", command.strip())
    if isinstance(url := arguments.get("url"), str):
        return Subject("url", _plain_url(url))
    path = arguments.get("path", ".")
    if not isinstance(path, str) or "path" not in tool.parameters.get("properties", {}):
        return Subject()
    try:
        return Subject("path", workspace.locate(path).name)
    except UserError:
        return Subject("path")


def denied_path(rules: Sequence[str], tools: Sequence[str], path: str) -> bool:
    """Return whether a rule of `deny` is about a path for one of the tools."""
    subject = Subject("path", path)
    return any(_denies(rule, tool, subject) for rule in rules for tool in tools)


def _allows(rule: str, name: str, subject: Subject) -> bool:
    tool, colon, pattern = rule.partition(":")
    if not fnmatchcase(name, tool):
        return False
    if not colon:
        return True
    if subject.kind == "command":
        return _is_plain(subject.text) and _matches_command(pattern, subject.text)
    return bool(subject.text) and _fits(pattern, subject)


def _denies(rule: str, name: str, subject: Subject) -> bool:
    tool, colon, pattern = rule.partition(":")
    if not fnmatchcase(name.casefold(), tool.casefold()):
        return False
    if not colon:
        return True
    if not subject.kind:  # of a tool that has no such thing, or of an MCP server, whose arguments are its own
        return "." in tool
    if not subject.text:  # what cannot be compared is denied
        return True
    folded = pattern.casefold()
    return any(_fits(folded, Subject(subject.kind, text.casefold())) for text in _readings(subject))


def _fits(pattern: str, subject: Subject) -> bool:
    if subject.kind == "path":
        return anywhere(pattern, finds_hidden=True).matches(subject.text.split("/"))
    return fnmatchcase(subject.text, pattern)


def _is_plain(command: str) -> bool:
    """Return whether a command is a single one that writes no file as far as one can see."""
    return _SHELL_SIGNS.isdisjoint(command) and not has_risky_option(command.translate(_QUOTES).split())


def _matches_command(pattern: str, command: str) -> bool:
    """Compare a command with a pattern; `*` behind a word adds arguments, not letters of another command."""
    if pattern.endswith("*") and pattern[-2:-1].isalnum():
        return fnmatchcase(command, pattern[:-1]) or fnmatchcase(command, f"{pattern[:-1]} *")
    return fnmatchcase(command, pattern)


def _readings(subject: Subject) -> Iterator[str]:
    """Yield the texts that a rule of `deny` is compared with: of a command, also its parts by their names."""
    yield subject.text
    if subject.kind == "path":
        *folders, _ = subject.text.split("/")
        yield from ("/".join(folders[: length + 1]) for length in range(len(folders)))
    if subject.kind == "command":
        for part in _BETWEEN_COMMANDS.split(subject.text):
            yield from _bare(part.translate(_QUOTES).split())


def _bare(words: list[str]) -> Iterator[str]:
    """Yield a command by its bare name, and the one that it only passes on, as `env A=1 sudo rm x` does."""
    for start, word in enumerate(words):
        name = posixpath.basename(word)
        yield " ".join([name, *words[start + 1 :]])
        is_flag = start > 0 and word.startswith("-")
        if name not in _WRAPPERS and not is_flag and not _ASSIGNMENT.match(word):
            return


def _plain_url(url: str) -> str:
    """Return an address without what could lead elsewhere; empty if it has such a part."""
    try:
        parts = urlsplit(url.strip())
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    folders = parts.path.lower().replace("%2e", ".").split("/")
    if "@" in parts.netloc or "\\" in url or ".." in folders or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{host}{port}{parts.path or '/'}{query}"
