"""An open chat without a screen: its controller, a view that remembers, and what is asked there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.answering import LiveUpdate
from localspec.chat.answers import Answers
from localspec.chat.controller import ChatController
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import Attachment, Outcome, StoredMessage
from localspec.chat.open_chat import OpenChat
from localspec.chat.running_answer import RunningAnswer
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.chat.tool_use.consent import CallAsked
from localspec.storage.profiles import Speculation, profiles
from localspec.types.request import Mode, Request
from tests.scripted import Gate, Script, ScriptedModels

QUESTIONS = (
    "Write a Python function that checks whether a number is prime.",
    "Write a Python function that adds two numbers.",
)


class Others:
    """Remembers what it hears of chats that are not shown."""

    def __init__(self, told: list[str], over: asyncio.Event) -> None:
        self.told, self.over = told, over

    def began(self, *, is_shown: bool) -> None:
        self.over.clear()
        if not is_shown:
            self.told.append("began elsewhere")

    def asks(self, answer: RunningAnswer, asked: CallAsked) -> None:
        self.told.append(f"{answer.chat.info.title} asks {asked.tool.name}")

    def ended(self, answer: RunningAnswer, outcome: Outcome) -> None:
        self.told.append(f"{answer.chat.info.title} {outcome}")

    def rests(self, answer: RunningAnswer, error: BaseException | None) -> None:
        self.told.append(f"{answer.chat.info.title} rests")
        self.over.set()


class View:
    """A face that remembers what it was told."""

    def __init__(self, session: ChatSession) -> None:
        self.session = session
        self.told: list[str] = []
        self.text = ""
        self.errors: list[BaseException | None] = []
        self.over = asyncio.Event()
        self.unsent: tuple[int, str] = (0, "")

    async def show(self, at: int | None = None, focus: int | None = None) -> None:
        self.told.append("shown")

    async def show_messages(self) -> None:
        self.told.append("messages")

    async def show_question(self, question: StoredMessage) -> None:
        self.told.append(f"asked {question.content}")

    @property
    def chat(self) -> OpenChat:
        return self.session.chat

    @property
    def is_seen(self) -> bool:
        return True

    def began(self) -> None:
        self.told.append("began")
        self.text = ""

    async def show_opened(self, at: int | None, news: LiveUpdate | None) -> None:
        self.told.append("opened")
        self.text = "" if news is None else news.text

    async def show_news(self, answer: RunningAnswer, news: LiveUpdate) -> None:
        self.text += news.text

    def rests(self) -> None:
        self.told.append("rests")

    def ended(self, answer: RunningAnswer, error: BaseException | None) -> None:
        self.errors.append(error)
        self.told.append("ended")
        self.over.set()

    def take_unsent(self) -> tuple[int, str]:
        return self.unsent


class Rig:
    """A controller with all that it works on."""

    def __init__(self, store: Store, loader: ModelLoader, request: SessionRequest | None = None) -> None:
        self.store, self.loader = store, loader
        self.session = ChatSession(store, profiles(Path("nowhere")).good, request or SessionRequest())
        self.tasks: list[asyncio.Task[None]] = []
        self.view = View(self.session)
        self.answers = Answers(store, loader, Others(self.view.told, self.view.over), self._start)
        self.controller = ChatController(self.session, self.answers, self.view)

    def _start(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        self.tasks.append(asyncio.ensure_future(work()))

    @property
    def texts(self) -> list[str]:
        return [message.content for message in self.session.chat.path]

    async def asked(self, text: str) -> None:
        """Ask and wait for the end of the answer."""
        await self.controller.ask(prompt(text))
        await self.ended()

    async def new(self) -> None:
        """Leave the open chat for a new one."""
        self.view.unsent = (self.session.chat.info.id, "")
        await self.controller.switch_chat(self.session.new)

    async def ended(self) -> None:
        await asyncio.wait_for(self.view.over.wait(), 10)


def prompt(
    text: str, until: asyncio.Event | None = None
) -> Callable[[], Awaitable[tuple[str, Sequence[Attachment]]]]:
    async def read() -> tuple[str, Sequence[Attachment]]:
        if until is not None:
            await until.wait()
        return text, ()

    return read


@asynccontextmanager
async def controlled(
    folder: Path, *scripts: Script, models: ScriptedModels | None = None
) -> AsyncIterator[Rig]:
    with Store(folder / "chats.db") as store:
        loader = ModelLoader(lambda _on_progress: models or ScriptedModels(*scripts))
        rig = Rig(store, loader)
        try:
            yield rig
        finally:
            rig.answers.close()
            loader.close()
            await asyncio.gather(*rig.tasks)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - threads could not set an event here
            await asyncio.sleep(0.001)


async def asked(rig: Rig, text: str, gate: Gate | None = None) -> int:
    """Ask something in the open chat, wait until its answer is at the gate, and return the chat."""
    await rig.controller.ask(prompt(text))
    if gate is not None:
        await asyncio.to_thread(gate.reached.wait, 10)
    return rig.session.chat.info.id


async def opened(rig: Rig, chat: int, at: int | None = None) -> None:
    rig.view.unsent = (rig.session.chat.info.id, "")
    await rig.controller.open_chat(chat, at)


def kept(rig: Rig, chat: int) -> list[str]:
    return [message.content for message in rig.store.messages(chat)]


async def idle(rig: Rig) -> None:
    await until(lambda: not rig.answers.is_busy)


def greedy(mode: Mode) -> SessionRequest:
    """Return settings with which real models repeat their answers."""
    return SessionRequest(
        Speculation(mode=mode, min_confidence=0.2),
        sampling={"temperature": 0.0},
        answer=Request("", max_tokens=40),
    )


async def answered_alone(rig: Rig) -> list[list[str]]:
    """Ask the questions, each in a chat of its own and after the end of the last; return what is said."""
    alone = []
    for question in QUESTIONS:
        await rig.new()
        await rig.asked(question)
        alone.append(rig.texts)
    return alone


async def answered_together(rig: Rig) -> list[list[str]]:
    """Ask the questions in chats of their own before any answer has ended; return what is said."""
    chats = []
    for question in QUESTIONS:
        await rig.new()
        chats.append(await asked(rig, question))
    await asyncio.gather(*rig.tasks)
    return [kept(rig, chat) for chat in chats]
