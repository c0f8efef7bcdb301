"""Unsent text: the prompt and the queue, saved with the chat, and the files that they name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import SuspendNotSupported
from textual.widgets import TextArea

from localspec.app.editor import edit_text, editor_command
from localspec.chat.attachments import (
    Attached,
    Completion,
    as_text,
    attach,
    describe_all,
    reference_at_end,
)
from localspec.chat.chat_filter import folders, tags
from localspec.chat.commands.completion import complete_input
from localspec.chat.commands.own import own_commands
from localspec.chat.dropped import as_references
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import Attachment
from localspec.chat.prompting import Count, check_alone, question_of
from localspec.chat.reading_ahead import ReadingAhead
from localspec.chat.session import ChatSession
from localspec.errors import Cancelled, EngineDied, LocalSpecError, StoreError, UserError
from localspec.models.default_pair import on_this_computer
from localspec.pdf import stop_reading
from localspec.types.request import Message
from localspec_tui.screens.chat.status import NOTICE_S, ChatStatus
from localspec_tui.widgets.composer.composer import Composer, QueuedPromptAsked
from localspec_tui.widgets.status import error_line

if TYPE_CHECKING:
    from localspec.tools.mcp.server import McpServer

REST_S = 0.35
SLOW_S = 0.8  # a PDF file of a few pages is read by then
READING = "reading the attached files"
CHARACTERS_PER_TOKEN = 6  # of text typed since the last count; rather too few than too many


def _tokens_of(files: Sequence[Attachment], count: Count) -> list[int | None]:
    """Return the tokens of each file, without those of the turn that it is counted in."""
    turn = count((Message("user", ""),)) if files else 0
    return [count((Message("user", file.text),)) - turn for file in files]


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A prompt's tokens with its files, None if they are not known; each file with its own; and notes.

    `question` is the prompt without what names its files to the program, None for one that cannot be sent.
    """

    tokens: int | None
    files: tuple[tuple[Attachment, int | None], ...] = ()
    notes: tuple[str, ...] = ()
    question: str | None = None


class ChatComposer(Composer):
    """The composer of the open chat."""

    def __init__(
        self,
        session: ChatSession,
        loader: ModelLoader,
        folder: Path,
        attachment_bytes: int,
        status: ChatStatus,
        reading: ReadingAhead,
    ) -> None:
        super().__init__(self._complete, self._named)
        self._session = session
        self._loader = loader
        self._folder = folder
        self._attachment_bytes = attachment_bytes
        self._status = status
        self._notice = status.notice
        self._reading = reading
        self._is_kept = True  # what was written and not yet sent
        self._said = ""  # of a prompt
        self._refused: str | None = None  # the prompt that could not be sent
        self._readings = 0  # of files, for this prompt and one that is being sent
        self.is_reading = False  # which takes long
        self._stop = Event()  # of the reading of resources for a prompt that is being sent
        self._stopped: str | None = None  # the prompt whose files are not read until it is sent
        self._looked_at = ""  # the prompt that was weighed last,
        self._weighed = _Weighed(0)  # and what it weighs
        self._counted = (0, 0)  # characters of the prompt, and the tokens that they take with their files

    def on_unmount(self) -> None:
        """Save the unsent text."""
        if self._session.queue or not self._is_kept:
            with suppress(StoreError):
                self._session.store.set_draft(*self.unsent())

    def refuse(self, text: str, error: LocalSpecError) -> None:
        """Take a prompt back that cannot be sent, and say why."""
        if self.text.strip():  # something else is being written there already, and its line comes next
            self.wait(text)
            self.notify(error_line(error), severity="error", timeout=NOTICE_S, markup=False)
        else:
            self.text = text
        self._refused = text
        self._said = error_line(error)
        if isinstance(error, Cancelled):
            self._stopped = text
        self._weighed = _Weighed(None)  # or its files would be reported instead
        self._notice.say(self._said, is_error=True)

    def begin_command(self, name: str) -> None:
        """Put a command before what is being written."""
        self.text = f"/{name} {self.text}"
        self.focus()

    def write_elsewhere(self) -> None:
        """Open the prompt in the user's editor; raises `UserError` where nothing came of it."""
        command = editor_command("localspec")
        try:
            with self.app.suspend():  # nothing is drawn; an answer is written on in its thread
                text = edit_text(command, self.text, self._notice.say)
        except SuspendNotSupported:
            raise UserError("an editor cannot be opened in this terminal", "write the prompt below") from None
        if text != self.text:
            self.put(text)
        self.focus()

    def _complete(self, text: str) -> Sequence[Completion]:
        def names(kind: str) -> Sequence[str]:
            if kind == "model":
                return [
                    model.name for model in on_this_computer() if model.kind == "model" and not model.problem
                ]
            if kind in ("tag", "folder"):
                of_kind = tags if kind == "tag" else folders
                return of_kind(self._session.store.chats())
            themes = sorted(self.app.available_themes)
            return themes if kind == "theme" else [profile.name for profile in self._session.profiles]

        servers = self._servers_in(text)
        own = own_commands(lambda: servers).commands if text.startswith("/") else ()
        return complete_input(text, names, self._folder, own, servers)

    def _servers_in(self, text: str) -> Mapping[str, McpServer]:
        """Return the MCP servers if a text may name one; what they say later is shown then."""
        servers = self._session.servers_named_in(text)
        self._listen(servers)
        return servers

    def _listen(self, servers: Mapping[str, McpServer]) -> None:
        for server in servers.values():
            server.memory.on_news = self._hear_news

    def _hear_news(self) -> None:
        """Look again at what is written, since a server has answered; called in its thread."""
        if self.is_attached:
            self.app.call_later(self.complete_again)
            self.app.call_later(self.look_again)

    async def put_above(self, text: str) -> None:
        """Put a text before what is being written; nothing in it is a command or names a file."""
        text = await asyncio.to_thread(lambda: as_text(text, self._folder, self._servers_in(text)))
        text = f" {text}" if text.startswith("/") else text
        self.put(f"{text}\n\n{self.text}" if self.text.strip() else text)
        self.focus()

    def _named(self, before: str, pasted: str) -> str | None:
        """Return references to pasted paths, None if they would mean nothing or the text is no path."""
        is_begun = before.endswith("@")
        if before.startswith("/") or reference_at_end(before if is_begun else f"{before}@") is None:
            return None
        named = as_references(pasted, self._folder)
        return None if named is None else f"{named[is_begun:]} "

    @on(TextArea.Changed)
    def _draft_changed(self) -> None:
        if self.text:  # a sent prompt counts until it is a question of the chat
            more = round((len(self.text) - self._counted[0]) / CHARACTERS_PER_TOKEN)
            self._status.count_in(max(0, self._counted[1] + more))
        self._keep_soon()

    def _keep_soon(self) -> None:
        """Save the prompts when typing pauses: a kill loses only what was just typed."""
        self._is_kept = False
        self.look_again()

    def look_again(self) -> None:
        """Weigh the prompt, and have it read with the open chat, once nothing happens for a moment."""
        self._look_after_draft()

    def show_read(self) -> None:
        """Say next to the attached files that they are read."""
        line = self._line()
        if self._weighed.files and self._notice.said == self._said != line:
            self._said = line
            self._notice.say(line, about="prompt")

    def _line(self) -> str:
        """Return the line about the prompt."""
        files = [file for file, _ in self._weighed.files]
        lines = describe_all(
            files, [count for _, count in self._weighed.files], self._reading.files_read(files)
        )
        return "; ".join((*lines, *self._weighed.notes))

    @work(group="draft", exclusive=True, exit_on_error=False)
    async def _look_after_draft(self) -> None:
        await asyncio.sleep(REST_S)
        text = self.text
        if text == self._stopped:
            await asyncio.to_thread(self._session.store.set_draft, *self.unsent())
            return
        with self._reading_told():
            self._weighed = weighed = await asyncio.to_thread(self._keep_and_weigh, text, *self.unsent())
        if weighed.tokens is not None and text == self.text:
            self._counted = (len(text), weighed.tokens)
            self._status.count_in(weighed.tokens)
        if weighed.question is not None:
            await asyncio.to_thread(
                self._reading.ask, weighed.question, [file for file, _ in weighed.files], weighed.tokens or 0
            )
        line = self._line()
        is_new = text != self._looked_at
        self._looked_at = text
        if (line and is_new) or (self._notice.said == self._said and text != self._refused):
            self._said = line
            self._notice.say(line, about="prompt")

    def _keep_and_weigh(self, text: str, chat_id: int, unsent: str) -> _Weighed:
        """Save the unsent text and weigh the prompt; open models again that have died."""
        models = self._loader.ready
        tokens = None if text.strip() else 0
        try:
            self._session.store.set_draft(chat_id, unsent)
            found = self._attached(text)
            question = found.text
            files = found.files
            counts: list[int | None] = [None] * len(files)
            if models is not None and text.strip():
                count = models.count_tokens
                tokens = count((Message("user", question_of(question, files)),))
                counts = _tokens_of(files, count)
                check_alone(self._session.chat.system, question, files, models.target, count)
        except LocalSpecError as error:
            if isinstance(error, EngineDied):
                self._loader.reopen(models)
            return _Weighed(tokens, notes=(error_line(error),))
        return _Weighed(tokens, tuple(zip(files, counts, strict=True)), found.notes, question)

    async def attach(self, text: str) -> Attached:
        """Read the files that a prompt names, in a thread; raises `UserError` as `attach` does."""
        self._stop = stop = Event()
        with self._reading_told():
            return await asyncio.to_thread(self._attached, text, stop)

    def _attached(self, text: str, stop: Event | None = None) -> Attached:
        """Read the files that a prompt names; without a `stop`, it is still being written."""
        resources = self._session.resources_named_in(text, stop)
        self._listen(resources.servers)
        return attach(text, self._folder, self._attachment_bytes, resources)

    @contextmanager
    def _reading_told(self) -> Iterator[None]:
        """Say that files are read if that takes long, as some PDF files do."""
        before = self._notice.said
        timer = self.set_timer(SLOW_S, self._tell_reading)
        self._readings += 1
        try:
            yield
        finally:
            timer.stop()
            self._readings -= 1
            if not self._readings:
                self.is_reading = False
                if self._notice.said == READING:
                    self._notice.say("" if before == READING else before)

    def _tell_reading(self) -> None:
        self.is_reading = True
        self._notice.say(READING, about="prompt")
        self.screen.refresh_bindings()

    def stop_reading(self) -> None:
        """Stop the reading of attached files; a prompt that is being sent comes back."""
        self._stopped = self.text
        self._stop.set()
        stop_reading()

    def unsent(self) -> tuple[int, str]:
        """Return the open chat and its unsent text: the queue and the prompt."""
        return self._unsent(self.text)

    def leave(self, text: str) -> tuple[int, str]:
        """Stop saving for the open chat, left with that text in the prompt; return all that is unsent."""
        self.workers.cancel_group(self, "draft")
        return self._unsent(text)

    def _unsent(self, text: str) -> tuple[int, str]:
        self._is_kept = True
        prompts = (*self._session.queue, text)
        return self._session.chat.info.id, "\n\n".join(each for each in prompts if each.strip())

    # --- prompts that wait ---

    def wait(self, text: str) -> None:
        """Queue a prompt."""
        self._session.queue.append(text)
        self._queue_changed()

    def next_waiting(self) -> str | None:
        """Take the first prompt that waits out of the queue; there may be none."""
        if not self._session.queue:
            return None
        text = self._session.queue.pop(0)
        self._queue_changed()
        return text

    def _queue_changed(self) -> None:
        self.set_queue(self._session.queue)
        if not self._session.queue:
            self._notice.over("queue")
        self._keep_soon()

    @on(QueuedPromptAsked)
    def _change_queued(self, event: QueuedPromptAsked) -> None:
        queue = self._session.queue
        if event.index >= len(queue):  # its turn has come meanwhile
            return
        text = queue.pop(event.index)
        if event.change == "edit":
            if self.text.strip():  # what is being written waits instead
                queue.append(self.text)
            self.text = text
            self.focus()
        self._queue_changed()
