"""What the slash commands, the palette and the keys of the chat do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from localspec.chat import commands
from localspec.chat.attachments import path_named
from localspec.chat.commands import Command
from localspec.chat.export import chat_text, read_chats
from localspec.chat.prompting import exchanges
from localspec.errors import UserError
from localspec.storage.paths import write_atomically
from localspec_tui.keys import collect
from localspec_tui.messages import ChatPicked
from localspec_tui.screens.dialogs import EditScreen
from localspec_tui.screens.help import HelpScreen
from localspec_tui.screens.make_room import MakeRoomScreen
from localspec_tui.screens.search import SearchScreen
from localspec_tui.widgets.composer.composer import Composer
from localspec_tui.widgets.log_panel import LogPanel
from localspec_tui.widgets.timeline import Timeline
from localspec_tui.widgets.title_bar import TitleBar
from localspec_tui.widgets.transcript.transcript import Transcript

if TYPE_CHECKING:
    from localspec_tui.screens.chat.screen import ChatScreen


class SlashCommands:
    """One method per command; each raises `UserError` for what makes no sense."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._desk = screen.desk
        self._deeds = screen.deeds

    async def run(self, command: Command) -> None:
        """Run a command."""
        deed: Callable[[str], Awaitable[None]] = getattr(self, f"_{command.name}")
        await deed(command.argument)

    async def _help(self, _argument: str) -> None:
        self._screen.app.push_screen(HelpScreen(collect(self._screen)))

    _keys = _help

    async def _new(self, _argument: str) -> None:
        await self._screen.pane.put_away(self._desk.new)
        await self._screen.show_chat()
        self._screen.pane.take_up_draft()
        self._screen.query_one(Composer).focus()

    async def _mode(self, argument: str) -> None:
        if argument:
            mode, models = commands.read_mode(argument), self._screen.loader.ready
            if mode in {"sd", "ssd"} and models is not None and models.draft is None:
                raise UserError(
                    f"mode {mode} needs a draft model", "start again with -md FILE, or use /mode ngram"
                )
            self._desk.choose_mode(mode)
            self._screen.reporter.show_chat()
        self._screen.say(f"mode {self._desk.mode or 'auto'}, from the next answer on")

    async def _profile(self, argument: str) -> None:
        if argument:
            await asyncio.to_thread(self._desk.choose_profile, argument)
            self._screen.reporter.show_chat()
        profile = self._desk.profile
        self._screen.say(f"profile {profile.title}: {profile.description}")

    async def _system(self, argument: str) -> None:
        async def take(text: str | None) -> None:
            if text is not None:
                await asyncio.to_thread(self._desk.set_system, text)
                self._screen.say("this chat has a system prompt of its own" if text else "no system prompt")

        if argument:
            await take("" if argument == "-" else argument)
        else:
            self._screen.ask(EditScreen("System prompt of this chat", self._desk.system), take)

    async def _temp(self, argument: str) -> None:
        if argument:
            self._desk.temperature = commands.read_temperature(argument)
        sampling = self._desk.sampling(self._screen.loader.ready)
        self._screen.say(f"temperature {sampling.temperature:g}")

    async def _regen(self, argument: str) -> None:
        mode = commands.read_mode(argument) if argument else None
        path = self._desk.chat.path
        await self._deeds.regenerate(path[-1] if path else self._deeds.last("user"), mode)

    async def _edit(self, _argument: str) -> None:
        await self._deeds.edit(self._deeds.last("user"))

    async def _continue(self, _argument: str) -> None:
        await self._deeds.go_on(self._deeds.last("assistant"))

    async def _branch(self, argument: str) -> None:
        step = commands.read_branch(argument or "next")
        for item in reversed(self._desk.chat.shown()):
            if item.branches > 1:
                await self._deeds.switch(item.message, step)
                return
        raise UserError("there are no branches here", "edit a question or answer it again to make one")

    async def _attach(self, argument: str) -> None:
        composer = self._screen.query_one(Composer)
        name = commands.unquoted(argument)
        reference = f'@"{name}"' if " " in name else f"@{name}"
        composer.text = f"{composer.text.rstrip()} {reference} ".lstrip()
        composer.focus()

    async def _drop(self, _argument: str) -> None:
        self._deeds.must_be_idle()
        models, chat = self._screen.ready_models(), self._desk.chat
        found = await asyncio.to_thread(exchanges, chat.path, models.count_tokens)
        if not found:
            raise UserError("there is nothing that could be left out", "ask something first")

        async def take(dropped: tuple[int, ...] | None) -> None:
            if dropped is not None:
                await asyncio.to_thread(self._desk.leave_out, dropped)
                await self._screen.show_chat()

        self._screen.ask(MakeRoomScreen(found, models.target.context), take)

    async def _copy(self, argument: str) -> None:
        answer = self._deeds.last("assistant").content
        if not argument:
            await self._deeds.copy(answer, "the last answer")
        elif (code := commands.last_code_block(answer)) is not None:
            await self._deeds.copy(code, "the last code block")
        else:
            raise UserError("the last answer has no code block")

    async def _export(self, argument: str) -> None:
        wanted, chat = commands.read_export(argument), self._desk.chat
        target = path_named(wanted.file or f"chat-{chat.info.id}.{wanted.format}", self._screen.folder)
        if await asyncio.to_thread(os.path.exists, target):  # a name that no disk takes is refused in writing
            raise UserError(
                f"{target.name} is there already", f"name another file: /export {wanted.format} FILE"
            )
        text = await asyncio.to_thread(chat_text, self._desk.store, chat.info, wanted.format)
        await asyncio.to_thread(write_atomically, target, text)
        self._screen.say(f"written to {target}")

    async def _import(self, argument: str) -> None:
        path = path_named(commands.unquoted(argument), self._screen.folder)
        found = await asyncio.to_thread(read_chats, path)
        added = [await asyncio.to_thread(self._desk.store.add_chat, *chat) for chat in found]
        await self._screen.open_chat(added[-1].id)

    async def _rename(self, argument: str) -> None:
        await self._deeds.rename(self._desk.chat.info.id, argument)

    async def _pin(self, _argument: str) -> None:
        info = self._desk.chat.info
        await self._deeds.pin(info.id, pinned=not info.pinned)

    async def _delete(self, _argument: str) -> None:
        await self._deeds.delete(self._desk.chat.info.id)

    async def _search(self, argument: str) -> None:
        def take(picked: ChatPicked | None) -> None:
            if picked is not None:
                self._screen.post_message(picked)

        self._screen.app.push_screen(SearchScreen(self._desk.search, argument), take)

    async def _stats(self, _argument: str) -> None:
        await self._screen.reporter.show_stats(self._deeds.last("assistant"))

    async def _timeline(self, _argument: str) -> None:
        self._screen.query_one(Timeline).toggle_class("hidden")

    async def _origins(self, _argument: str) -> None:
        transcript = self._screen.query_one(Transcript)
        transcript.origins = not transcript.origins

    async def _compare(self, argument: str) -> None:
        path = self._desk.chat.path
        message = path[-1] if path else self._deeds.last("user")
        await self._deeds.compare(message, *([commands.read_modes(argument)] if argument else []))

    async def _thinking(self, _argument: str) -> None:
        transcript = self._screen.query_one(Transcript)
        transcript.thinking = not transcript.thinking

    async def _log(self, _argument: str) -> None:
        self._screen.query_one(LogPanel).toggle_class("hidden")

    async def _theme(self, argument: str) -> None:
        if not argument:
            self._screen.app.search_themes()
        elif argument in self._screen.app.available_themes:
            self._screen.app.theme = argument
        else:
            raise UserError(f"there is no theme `{argument}`", "Tab lists them")

    async def _tune(self, argument: str) -> None:
        from localspec.app.tuning import read_tasks  # 0.1 s that the start does without
        from localspec_tui.screens.tune import TuneScreen

        tasks = read_tasks(argument.replace(",", " ").split())
        if self._screen.tuner is None:
            raise UserError("these models cannot be tuned from here", "run `localspec tune` in a shell")
        await self._screen.pane.until_free()
        models = self._screen.query_one(TitleBar).models
        self._screen.app.push_screen(TuneScreen(self._screen.tuner, self._screen.loader, models, tasks))

    async def _setup(self, _argument: str) -> None:
        command = [sys.executable, "-m", "localspec", "setup"]
        try:
            with self._screen.app.suspend():
                code = subprocess.call(command)  # noqa: ASYNC221 - the terminal is the other program's meanwhile
        except SuspendNotSupported:
            raise UserError("this terminal cannot be lent out", "run `localspec setup` in a shell") from None
        if code == 0:
            self._screen.loader.reopen()
            self._screen.loader.start()  # where none are open

    async def _exit(self, _argument: str) -> None:
        self._screen.app.exit(0)
