"""Print chats, hits and what was done: as lines, or as JSON with a schema number."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli.shared.console import colours_unwanted, is_terminal

if TYPE_CHECKING:
    from localspec.chat.messages import ChatInfo, SearchHit

SCHEMA = 1
# What a model wrote must not move the cursor or retitle the window.
_CONTROL = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")})
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def print_chats(chats: Sequence[ChatInfo], *, as_json: bool) -> None:
    """Print one line for each chat."""
    if as_json:
        _print_json("chats", [_chat_json(chat) for chat in chats])
        return
    width = max((len(str(chat.id)) for chat in chats), default=0)
    for chat in chats:
        print_text(f"{_chat_line(chat, width)}\n")


def print_hits(hits: Sequence[SearchHit], *, as_json: bool) -> None:
    """Print where something was found, the chat above the excerpts from it."""
    if as_json:
        _print_json(
            "hits",
            [
                {
                    "chat": _chat_json(hit.chat),
                    "message": hit.message,
                    "excerpt": hit.excerpt,
                    "marks": hit.marks,
                }
                for hit in hits
            ],
        )
        return
    bold = is_terminal(sys.stdout) and not colours_unwanted()
    above = None
    for hit in hits:
        if hit.chat.id != above:
            print_text(f"{_chat_line(hit.chat)}\n")
            above = hit.chat.id
        if hit.message is not None:
            sys.stdout.write(f"    {_marked(hit) if bold else hit.excerpt}\n")


def print_text(text: str) -> None:
    """Print a text of a chat; a terminal gets no control characters."""
    ending = "" if text.endswith("\n") else "\n"
    sys.stdout.write((text.translate(_CONTROL) if is_terminal(sys.stdout) else text) + ending)


def print_files(files: Sequence[Path], *, as_json: bool) -> None:
    """Print which files were written."""
    if as_json:
        _print_json("files", [str(file) for file in files])
    else:
        sys.stdout.writelines(f"{file}\n" for file in files)


def print_changed(what: str, ids: Sequence[int], *, as_json: bool) -> None:
    """Print for programs which chats were changed."""
    if as_json:
        _print_json(what, list(ids))


def print_path(path: Path, *, as_json: bool) -> None:
    """Print which file holds the chats."""
    if as_json:
        _print_json("path", str(path))
    else:
        print(path)


def count(number: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def names(chats: Sequence[ChatInfo]) -> str:
    """Return titles in quotes."""
    return ", ".join(f'"{chat.title or "Untitled"}"' for chat in chats)


def _chat_line(chat: ChatInfo, width: int = 0) -> str:
    from localspec.chat.export_m import when

    pin = "  (pinned)" if chat.pinned else ""
    title = chat.title or "Untitled"
    return f"{chat.id:>{width}}  {when(chat.updated)}  {count(chat.messages, 'message'):>13}  {title}{pin}"


def _marked(hit: SearchHit) -> str:
    parts, end = [], 0
    for start, stop in hit.marks:
        parts += [hit.excerpt[end:start], _BOLD, hit.excerpt[start:stop], _PLAIN]
        end = stop
    return "".join([*parts, hit.excerpt[end:]])


def _chat_json(chat: ChatInfo) -> dict[str, object]:
    return {
        "id": chat.id,
        "title": chat.title,
        "created": chat.created,
        "updated": chat.updated,
        "pinned": chat.pinned,
        "messages": chat.messages,
        "profile": chat.profile,
    }


def _print_json(name: str, value: object) -> None:
    print(json.dumps({"schema": SCHEMA, name: value}))
