"""What the slash commands of the open chat do: each takes the pane of the chat and what follows its name."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable

from localspec.app import figures
from localspec.chat import commands, foreign
from localspec.chat.export import chat_text, read_chats
from localspec.chat.foreign.parts import LeftOut
from localspec.chat.references import path_named
from localspec.chat.settings import sources
from localspec.errors import UserError
from localspec.storage.config import keep
from localspec.storage.paths import write_atomically
from localspec.units import MODE_NAMES, counted
from localspec_tui.keys import collect
from localspec_tui.screens.chat.pane import COMPARED, ChatPane
from localspec_tui.screens.chat.status import NOTICE_S
from localspec_tui.screens.dialogs import AskScreen, EditScreen, NoteScreen
from localspec_tui.screens.help import HelpScreen
from localspec_tui.screens.profiles import ProfilesScreen
from localspec_tui.screens.search import SearchScreen
from localspec_tui.screens.settings import SettingsScreen
from localspec_tui.widgets.sidebar import Change, ChangeAsked, ChatPicked


def _change(pane: ChatPane, change: Change, title: str = "") -> None:
    pane.post_message(ChangeAsked(change, pane.session.chat.info, title))


async def _run_help(pane: ChatPane, _argument: str) -> None:
    own = (await pane.templates()).specs
    pane.app.push_screen(HelpScreen(collect(pane.screen), own))


async def _run_mode(pane: ChatPane, argument: str) -> None:
    if argument:
        mode, models = commands.read_mode(argument), pane.loader.ready
        if mode in {"sd", "ssd"} and models is not None and models.draft is None:
            raise UserError(
                f"mode {mode} needs a draft model", "start again with -md FILE, or use /mode ngram"
            )
        await asyncio.to_thread(pane.session.settle, mode=mode or "auto")
        pane.show_figures()
    kept = ", kept with this chat" * bool(argument)
    pane.status.say(f"mode {MODE_NAMES.get(pane.session.mode or '', 'auto')}{kept}, from the next answer on")


async def _run_profile(pane: ChatPane, argument: str) -> None:
    async def take(chosen: tuple[str, bool] | None) -> None:
        pane.show_figures()
        if chosen is not None:
            await _run_profile(pane, chosen[0])
            if chosen[1]:
                await _run_settings(pane, "")

    if not argument:
        pane.ask(ProfilesScreen(pane.session), take)
        return
    await asyncio.to_thread(pane.session.choose_profile, argument)
    pane.show_figures()
    pane.status.say(f"profile {pane.session.profile.title}: {pane.session.profile.description}")


async def _run_system(pane: ChatPane, argument: str) -> None:
    async def take(text: str | None) -> None:
        if text is not None:
            await asyncio.to_thread(pane.session.settle, system_prompt=text)
            pane.status.say("this chat keeps a system prompt of its own" if text else "no system prompt")

    if argument:
        await take("" if argument == "-" else argument)
    else:
        pane.ask(EditScreen("System prompt of this chat", pane.session.chat.system), take)


async def _run_temperature(pane: ChatPane, argument: str) -> None:
    if argument:
        await asyncio.to_thread(pane.session.settle, temperature=commands.read_temperature(argument))
    temperature = pane.session.sampling(pane.loader.ready).temperature
    pane.status.say(f"temperature {temperature:g}{', kept with this chat' * bool(argument)}")


async def _run_settings(pane: ChatPane, _argument: str) -> None:
    async def reopen(sure: bool | None) -> None:
        if sure:
            await pane.until_free()
            await pane.reload()

    async def take(kept: tuple[str, bool] | None) -> None:
        if kept is not None:
            pane.show_figures()
            pane.status.say(kept[0])
            if kept[1]:
                pane.ask(AskScreen("Open the models anew now, with the other context?", no="Later"), reopen)

    found = await asyncio.to_thread(sources, pane.session, pane.loader.ready)
    pane.ask(SettingsScreen(pane.session, found), take)


async def _run_branch(pane: ChatPane, argument: str) -> None:
    step = commands.read_branch(argument or "next")
    for item in reversed(pane.session.chat.shown()):
        if item.branches > 1:
            await pane.switch(item.message, step)
            return
    raise UserError("there are no branches here", "edit a question or answer it again to make one")


def _run_attach(pane: ChatPane, argument: str) -> None:
    name, composer = commands.unquoted(argument), pane.composer
    reference = f'@"{name}"' if " " in name else f"@{name}"
    composer.text = f"{composer.text.rstrip()} {reference} ".lstrip()
    composer.focus()


def _run_copy(pane: ChatPane, argument: str) -> None:
    answer = pane.last("assistant").content
    if not argument:
        pane.copy(answer, "the last answer")
    elif (code := commands.last_code_block(answer)) is not None:
        pane.copy(code, "the last code block")
    else:
        raise UserError("the last answer has no code block")


async def _run_export(pane: ChatPane, argument: str) -> None:
    (form, file), chat = commands.read_export(argument), pane.session.chat
    target = path_named(file or f"chat-{chat.info.id}.{form}", pane.folder)
    if await asyncio.to_thread(os.path.exists, target):  # a name that no disk takes is refused in writing
        raise UserError(f"{target.name} is there already", f"name another file: /export {form} FILE")
    text = await asyncio.to_thread(chat_text, pane.session.store, chat.info, form)
    await asyncio.to_thread(write_atomically, target, text)
    pane.status.say(f"written to {target}")


async def _run_import(pane: ChatPane, argument: str) -> None:
    path = path_named(commands.unquoted(argument), pane.folder)
    left_out: Counter[LeftOut] = Counter()
    found = await asyncio.to_thread(read_chats, path, "", left_out)
    if not found:
        raise UserError(f"`{path.name}` holds no chats", "choose another file")
    added = [await asyncio.to_thread(pane.session.store.add_missing, *chat) for chat in found]
    await asyncio.to_thread(pane.session.store.fill_file)
    new = sum(each.is_new for each in added)
    grown = [each for each in added if not each.is_new and each.messages]
    there, lacking = len(added) - new - len(grown), foreign.in_words(left_out)
    told = "; ".join([f"imported {counted(new, 'chat')}", *(each.growth() for each in grown)])
    told += f"; {there} already there" * bool(there)
    pane.notify(told + f"; left out: {lacking}" * bool(lacking), timeout=NOTICE_S, markup=False)
    await pane.open_chat(added[-1].chat.id)


def _run_search(pane: ChatPane, argument: str) -> None:
    def take(picked: ChatPicked | None) -> None:
        if picked is not None:
            pane.post_message(picked)

    pane.app.push_screen(SearchScreen(pane.session.search, argument), take)


async def _run_stats(pane: ChatPane, _argument: str) -> None:
    record = await pane.record_of(pane.last("assistant"), "answer", "it was written or edited by hand")
    lines = figures.table(record.settings, record.reason, record.summary)
    if record.plain is not None:
        lines.append(f"plain decoding, measured here: {record.plain.tokens_per_s:.1f} tok/s")
    pane.app.push_screen(NoteScreen("Figures of this answer", "\n".join(lines)))


def _run_theme(pane: ChatPane, argument: str) -> None:
    if not argument:
        pane.app.search_themes()
    elif argument in pane.app.available_themes:
        pane.app.theme = argument
    else:
        raise UserError(f"there is no theme `{argument}`", "Tab lists them")


def _run_tag(pane: ChatPane, argument: str) -> None:
    """Put words with # before the title, where the list finds them, or take them away if all are there."""
    pane.last()  # a chat without a message is not in the list
    words = pane.session.chat.info.title.split()
    tags = [f"#{word.lstrip('#')}" for word in dict.fromkeys(argument.split()) if word.strip("#")]
    if set(tags) <= set(words):
        words = [word for word in words if word not in tags]
    else:
        words = [*(tag for tag in reversed(tags) if tag not in words), *words]
    _change(pane, "rename", " ".join(words))


async def _run_vim(pane: ChatPane, _argument: str) -> None:
    is_on = not pane.composer.prompt.vim_mode
    pane.composer.prompt.vim_mode = "INSERT" if is_on else ""
    await asyncio.to_thread(keep, {"chat.vim": is_on})
    pane.status.say(f"vim keys are {'on' if is_on else 'off'}, kept in config.toml")


COMMANDS: dict[str, Callable[[ChatPane, str], object]] = {
    "help": _run_help,
    "keys": _run_help,
    "new": lambda pane, _: pane.leave_for(pane.session.new),
    "mode": _run_mode,
    "profile": _run_profile,
    "settings": _run_settings,
    "system": _run_system,
    "temp": _run_temperature,
    "regen": lambda pane, mode: pane.regenerate(pane.last(), commands.read_mode(mode or "auto")),
    "edit": lambda pane, _: pane.edit(pane.last("user")),
    "continue": lambda pane, _: pane.go_on(pane.last("assistant")),
    "branch": _run_branch,
    "attach": _run_attach,
    "editor": lambda pane, _: pane.composer.write_elsewhere(),
    "room": lambda pane, _: pane.make_room(),
    "copy": _run_copy,
    "export": _run_export,
    "import": _run_import,
    "rename": lambda pane, title: _change(pane, "rename", title),
    "tag": _run_tag,
    "pin": lambda pane, _: _change(pane, "pin"),
    "delete": lambda pane, _: _change(pane, "delete"),
    "search": _run_search,
    "stats": _run_stats,
    "timeline": lambda pane, _: pane.timeline.toggle_class("hidden"),
    "origins": lambda pane, _: pane.transcript.action_toggle("origins"),
    "compare": lambda pane, modes: pane.compare(pane.last(), commands.read_modes(modes) or COMPARED),
    "thinking": lambda pane, _: pane.transcript.action_toggle("thinking"),
    "log": lambda pane, _: pane.log_panel.toggle_class("hidden"),
    "theme": _run_theme,
    "vim": _run_vim,
    "reload": lambda pane, _: pane.reload(),
    "exit": lambda pane, _: pane.app.exit(0),
}
