"""What was written and not yet sent: kept with its chat when the fingers rest, the files it names weighed."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from textual.timer import Timer

from localspec.chat.attachments import attach, describe
from localspec.errors import LocalSpecError, StoreError
from localspec.types import Message
from localspec_tui.screens.chat.reporting import in_words
from localspec_tui.widgets.status import StatusLine

if TYPE_CHECKING:
    from localspec_tui.screens.chat.pane import ChatPane
    from localspec_tui.screens.chat.screen import ChatScreen

REST_S = 0.4


class Unsent:
    """The prompt below and the prompts that wait; a kill loses no more of them than was just typed."""

    def __init__(self, pane: ChatPane, chat_screen: ChatScreen, attachment_bytes: int) -> None:
        self._pane = pane
        self._screen = chat_screen
        self._desk = chat_screen.desk
        self._attachment_bytes = attachment_bytes
        self._resting: Timer | None = None  # until everything is kept
        self._text = self._said = self._refused = ""

    def changed(self, text: str | None = None) -> None:
        """Look after the prompt, which is this now, and those that wait when the fingers rest."""
        self.forget()
        self._text = self._text if text is None else text
        self._resting = self._pane.set_timer(REST_S, partial(self._rested, self._desk.chat.info.id))

    def forget(self) -> None:
        """Keep nothing after all, because somebody else does."""
        if self._resting is not None:
            self._resting.stop()
            self._resting = None

    def refuse(self, text: str, error: LocalSpecError) -> None:
        """Say why a prompt could not be sent, until it is another."""
        self._refused, self._said = text, in_words(error)
        self._screen.say(self._said)

    def keep(self, text: str) -> None:
        """Keep the prompts that wait and this one with the open chat."""
        self._desk.store.set_draft(self._desk.chat.info.id, self._with_queue(text))

    def keep_at_end(self) -> None:
        """Keep what was not kept yet: the program ends."""
        if self._resting is not None or self._desk.queue.items:
            with suppress(StoreError):
                self.keep(self._text)

    def _with_queue(self, text: str) -> str:
        return "\n\n".join(each for each in (*self._desk.queue.items, text) if each.strip())

    def _rested(self, chat_id: int) -> None:
        self._resting = None
        work = partial(self._look_after, chat_id, self._text, self._with_queue(self._text))
        self._pane.run_worker(work, thread=True, exclusive=True, group="draft", exit_on_error=False)

    def _look_after(self, chat_id: int, text: str, unsent: str) -> None:
        """Belongs to a thread: keep what is not sent, and weigh the files that the prompt names."""
        try:
            self._desk.store.set_draft(chat_id, unsent)
            _, files = attach(text, self._screen.folder, self._attachment_bytes)
            tokens = [self._count(file.text) for file in files]
        except LocalSpecError as error:
            line = in_words(error)
        else:
            line = "; ".join(describe(*pair) for pair in zip(files, tokens, strict=True))
        self._pane.app.call_from_thread(self._tell, text, line)

    def _tell(self, text: str, line: str) -> None:
        """Say what there is to say of a prompt, or take back what was said of the one before."""
        said = self._screen.query_one(StatusLine).said
        if line or (said == self._said and text != self._refused):
            self._said = line
            self._screen.say(line)

    def _count(self, text: str) -> int | None:
        models = self._screen.loader.ready
        return None if models is None else models.count_tokens((Message("user", text),))
