"""Write a chat to a file, and read one: nothing in it is taken on trust."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec.chat import foreign
from localspec.chat.foreign.parts import LeftOut
from localspec.chat.headings import marks, speaker, when
from localspec.chat.markdown import closed, fenced
from localspec.chat.messages import AnswerRecord, ChatInfo, StoredMessage, WholeChat
from localspec.chat.store.record_codec import from_plain, to_plain
from localspec.chat.thinking import split
from localspec.chat.tree import Tree
from localspec.chat.untagged import record_with_opening_tag, with_opening_tag
from localspec.errors import UserError
from localspec.storage.text_file import decode_text
from localspec.values import InvalidValueError, read

if TYPE_CHECKING:
    from localspec.chat.store import Store

FORMAT = "localspec-chat"
SCHEMA = 1
MAX_MESSAGES = 100_000
MAX_CHARACTERS = 16 * 2**20  # of one text
_YEAR_9999 = 253_370_764_800.0  # the year 9999 begins; later times overflow in eastern time zones

_COUNTED = ("id", "messages", "shown")  # which a store counts by itself
MAX_BYTES = 512 * 2**20  # of a file that is imported
_READABLE = f"supported are the JSON of `localspec history export` and {foreign.EXPORTS}"
Format = Literal["md", "html", "json"]


def to_markdown(
    chat: ChatInfo, path: Sequence[StoredMessage], records: Mapping[int, AnswerRecord] | None = None
) -> str:
    """Return one branch of a chat as Markdown; `records` name the models of its answers."""
    parts = [f"# {chat.title or 'Untitled'}", when(chat.created)]
    if chat.system:
        parts.append("## System prompt\n\n" + closed(chat.system))
    for message in path:
        parts.extend(_message_parts(message, (records or {}).get(message.id)))
    return "\n\n".join(part for part in parts if part) + "\n"


def to_json(chat: ChatInfo, messages: Sequence[StoredMessage], records: Mapping[int, AnswerRecord]) -> str:
    """Return a chat with all its branches as one line of JSON."""
    described = asdict(chat)
    for name in _COUNTED:
        del described[name]
    value = {
        "format": FORMAT,
        "schema": SCHEMA,
        "tagged": True,  # answers have the tag with which their prompt opened the thinking
        "chat": described,
        "messages": [_message_json(message, records.get(message.id)) for message in messages],
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def chat_text(store: Store, chat: ChatInfo, form: Format) -> str:
    """Return a chat in the wanted form: its shown branch as Markdown or a page, or all of it as JSON."""
    messages = store.messages(chat.id)
    if form != "json":
        shown = Tree.of(messages, chat.leaf).answered().path
        if form == "md":
            return to_markdown(chat, shown, store.outlines(chat.id))
        from localspec.chat.page import to_page  # the parser and the languages: 0.1 s

        return to_page(chat, shown, store.outlines(chat.id))
    records = {m.id: record for m in messages if (record := store.record(m.id)) is not None}
    return to_json(chat, messages, records) + "\n"


def _message_json(message: StoredMessage, record: AnswerRecord | None) -> dict[str, object]:
    value = asdict(message)
    del value["chat"]
    if not message.summary:
        del value["summary"]
    return value if record is None else {**value, "record": to_plain(record)}


def _message_parts(message: StoredMessage, record: AnswerRecord | None) -> Iterator[str]:
    yield f"## {speaker(message)}" + "".join(f" ({mark})" for mark in marks(message, record))
    if message.role == "user" or message.is_step:
        yield closed(message.content.strip("\n"))
    for part in split(message.content) if message.role == "assistant" else ():
        yield _quoted(part.text) if part.kind == "thinking" else closed(part.text.strip("\n"))
    for call in message.calls:
        yield f"Calls `{' '.join(call.name.split())}`\n\n{fenced(call.arguments, 'json')}"
    if message.run is not None and not message.is_step:
        yield fenced(message.content)
    for attachment in message.attachments:
        name = " ".join(attachment.name.replace("`", "'").split())
        ending = attachment.source.rpartition(".")[2] if "." in attachment.source else ""
        yield f"`{name}`\n\n" + fenced(attachment.text or "\n", ending if ending.isalnum() else "")
    if message.summary:
        yield "## Summary of the messages above (read by the model in their place)"
        yield closed(message.summary.strip("\n"))


def _quoted(thinking: str) -> str:
    """Return thinking as a quotation, which sets it apart wherever Markdown is read."""
    return "\n".join(f"> {line}".rstrip() for line in ("**Thinking**", "", *thinking.split("\n")))


def parse_all(text: str, name: str = "", left_out: Counter[LeftOut] | None = None) -> tuple[WholeChat, ...]:
    """Return the chats of exports that follow each other, with the numbers that the file uses.

    They may be another program's, of which `left_out` counts what could not be taken over.
    Raises UserError with `name` and the place of the first thing that is wrong.
    """
    if not text.strip():
        raise UserError(f"{name or 'the text'} is empty", _READABLE)
    decoder = json.JSONDecoder()
    end = 0
    found: list[WholeChat] = []
    counts = Counter[LeftOut]() if left_out is None else left_out
    is_first = True
    while is_first or end < len(text):
        try:
            value, end = decoder.raw_decode(text, _skip_space(text, end))
            others = foreign.chats_of(value, counts)
            found += [_parsed(value)] if others is None else others
        except (UserError, ValueError, RecursionError) as error:
            where = f"{name}: " * bool(name) + f"chat {len(found) + 1} of the file: " * bool(found)
            raise _explained(error, where) from None
        is_first = False
        end = _skip_space(text, end)
    return tuple(found)


def read_chats(path: Path, name: str = "", left_out: Counter[LeftOut] | None = None) -> tuple[WholeChat, ...]:
    """Return the chats of an exported file, which mistakes in it may call by another name, as `parse_all`."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"`{path}` is larger than {MAX_BYTES >> 20} MiB", "import its chats one by one")
        data = path.read_bytes()
        if data.startswith(b"PK"):
            import zipfile  # 10 ms

            if zipfile.is_zipfile(path):
                hint = "unpack it, and import its conversations.json"
                raise UserError(f"`{path}` is a ZIP archive", hint)
        text = decode_text(data, f"`{path}`")
    except OSError as error:
        raise UserError(f"cannot read `{path}`: {error.strerror or error}", "check the name") from None
    return parse_all(text, name or f"`{path}`", left_out)


def _skip_space(text: str, place: int) -> int:
    """Return the start of the next chat; concatenated files keep their byte order marks."""
    while text[place : place + 1].isspace() or text[place : place + 1] == "\ufeff":
        place += 1
    return place


def _explained(error: Exception, where: str) -> UserError:
    if isinstance(error, UserError):
        return UserError(f"{where}{error.message}", error.hint)
    if isinstance(error, InvalidValueError):
        return UserError(f"{where}not a chat that can be imported: {error}", _READABLE)
    words = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return UserError(f"{where}not JSON: {words}", _READABLE)


def _parsed(value: object) -> WholeChat:
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise InvalidValueError(f'"format" is not "{FORMAT}"')
    schema = read(int, value.get("schema"), "schema")
    if schema > SCHEMA:
        raise UserError(f"the file was written by a newer LocalSpec (schema {schema})", "update LocalSpec")
    if schema != SCHEMA:
        raise InvalidValueError(f"schema is {schema}, not {SCHEMA}")
    listed = value.get("messages")
    if not isinstance(listed, list):
        raise InvalidValueError("messages is not a list")
    if len(listed) > MAX_MESSAGES:
        raise InvalidValueError(f"there are {len(listed)} messages, more than {MAX_MESSAGES}")
    messages: dict[int, StoredMessage] = {}
    records: dict[int, AnswerRecord] = {}
    for i, item in enumerate(listed):
        message = _message(item, messages, f"messages[{i}]")
        messages[message.id] = message
        if isinstance(item, Mapping) and item.get("record") is not None:
            records[message.id] = from_plain(item["record"], f"messages[{i}].record")
    if value.get("tagged") is not True:
        records = {id_: record_with_opening_tag(each, messages[id_].content) for id_, each in records.items()}
        messages = {id_: _tagged(message) for id_, message in messages.items()}
    return _chat(value.get("chat"), messages), tuple(messages.values()), records


def _chat(value: object, messages: Mapping[int, StoredMessage]) -> ChatInfo:
    chat = read(ChatInfo, _without_own_numbers(value, *_COUNTED, draft=""), "chat")
    _check_texts("chat", [chat.title, chat.profile, chat.folder, chat.system or ""])
    _check_time(chat.created, "chat.created")
    _check_time(chat.updated, "chat.updated")
    if chat.leaf is not None and chat.leaf not in messages:
        raise InvalidValueError(f"chat.leaf: there is no message {chat.leaf}")
    return replace(chat, messages=len(messages))


def _without_own_numbers(value: object, *names: str, **others: object) -> object:
    """Return an object with 0 for what the store numbers and counts by itself."""
    return {**value, **dict.fromkeys(names, 0), **others} if isinstance(value, Mapping) else value


def _message(value: object, earlier: Mapping[int, StoredMessage], where: str) -> StoredMessage:
    found = read(StoredMessage, _without_own_numbers(value, "chat"), where)
    if found.id in earlier:
        raise InvalidValueError(f"{where}.id: there are two messages {found.id}")
    if found.parent is not None and found.parent not in earlier:
        raise InvalidValueError(f"{where}.parent: there is no message {found.parent} before this one")
    _check_time(found.created, f"{where}.created")
    files = (part for file in found.attachments for part in (file.name, file.text))
    _check_texts(where, [found.content, found.summary, *files, *(call.arguments for call in found.calls)])
    return replace(found, state="stopped") if found.state == "writing" else found


def _tagged(message: StoredMessage) -> StoredMessage:
    if message.role != "assistant":
        return message
    return replace(message, content=with_opening_tag(message.content))


def _check_texts(where: str, texts: Sequence[str]) -> None:
    if max(map(len, texts)) > MAX_CHARACTERS:
        raise InvalidValueError(f"{where} has a text of more than {MAX_CHARACTERS} characters")


def _check_time(value: float, where: str) -> None:
    if not 0 <= value < _YEAR_9999:
        raise InvalidValueError(f"{where} is not a valid time")
