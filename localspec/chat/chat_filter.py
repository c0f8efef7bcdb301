"""Chats by their tags and folders: `#tag` and `in:Folder` in what is searched for, beside other words.

A tag is a word of the title that begins with # and has a letter, so that #39 stays a number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from localspec.chat.messages import ChatInfo

_TAG = re.compile(r"(?<!\S)#([^\s#]*[^\W\d_][^\s#]*)")
_CONDITION = re.compile(rf"{_TAG.pattern}|(?<!\S)in:(?=\S)", re.IGNORECASE)
_AT_END = re.compile(r"(?<!\S)(?:#\S*|in:.*)\Z", re.IGNORECASE)
_AFTER_TAG = ".,;:!?"

Found = tuple[Callable[[ChatInfo], bool], int]
"""What a chat must be, and where in the text the next word begins."""


def tags_of(title: str) -> tuple[str, ...]:
    """Return the tags in a title, without #."""
    return tuple(dict.fromkeys(tag.rstrip(_AFTER_TAG) for tag in _TAG.findall(title)))


def narrow(chats: Sequence[ChatInfo], text: str) -> tuple[tuple[ChatInfo, ...], str]:
    """Return the chats that have all the tags and are in the folder that a text names, and its other words.

    Case does not count, and the last name may be the beginning of one. What names no tag or folder is words.
    """
    left = list(chats)
    words = ""
    at = 0
    while (found := _CONDITION.search(text, at)) is not None:
        condition = _tagged(text, found) if found[1] else _in_folder(chats, text, found.end())
        if condition is None or not any(map(condition[0], chats)):
            words = words + text[at : found.end()]
            at = found.end()
            continue
        words += text[at : found.start()]
        left = list(filter(condition[0], left))
        at = condition[1]
    return tuple(left), words + text[at:]


def _tagged(text: str, found: re.Match[str]) -> Found:
    wanted = found[1].casefold()
    if found.end() == len(text):
        return lambda chat: any(tag.casefold().startswith(wanted) for tag in tags_of(chat.title)), len(text)
    wanted = wanted.rstrip(_AFTER_TAG)
    return lambda chat: any(tag.casefold() == wanted for tag in tags_of(chat.title)), found.end()


def _in_folder(chats: Iterable[ChatInfo], text: str, start: int) -> Found | None:
    """Return the condition on a folder whose name, which may have spaces, begins at `start`."""
    rest = text[start:].casefold()
    names = {chat.folder for chat in chats if chat.folder}
    if not rest[-1].isspace() and any(name.casefold().startswith(rest) for name in names):
        return lambda chat: bool(chat.folder) and chat.folder.casefold().startswith(rest), len(text)
    whole = (name for name in sorted(names, key=len, reverse=True) if _begins_with(text[start:], name))
    name = next(whole, None)
    return None if name is None else (lambda chat: chat.folder == name, start + len(name))


def _begins_with(text: str, name: str) -> bool:
    return text[: len(name)].casefold() == name.casefold() and text[len(name)].isspace()


def is_found(words: str, text: str) -> bool:
    """Return whether every word that was typed is in a text, whatever their order and case."""
    folded = text.casefold()
    return all(word in folded for word in words.casefold().split())


def completed(chats: Iterable[ChatInfo], text: str) -> str | None:
    """Return a text with the tag or folder at its end written out, the most frequent one that fits."""
    begun = _AT_END.search(text)
    if begun is None:
        return None
    is_tag = begun[0].startswith("#")
    names = [f"#{tag}" for tag in tags(chats)] if is_tag else [f"in:{folder}" for folder in folders(chats)]
    typed = begun[0].casefold()
    fitting = (name for name in names if name.casefold().startswith(typed) and len(name) > len(typed))
    name = next(fitting, None)
    return None if name is None else text + name[len(typed) :]


def tags(chats: Iterable[ChatInfo]) -> tuple[str, ...]:
    """Return the tags of chats, the most frequent ones first."""
    return tuple(
        tag for tag, _ in Counter(tag for chat in chats for tag in tags_of(chat.title)).most_common()
    )


def folders(chats: Iterable[ChatInfo]) -> tuple[str, ...]:
    """Return the folders of chats, the fullest ones first."""
    return tuple(name for name, _ in Counter(chat.folder for chat in chats if chat.folder).most_common())
