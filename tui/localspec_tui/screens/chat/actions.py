"""What slash commands ask of the screen alone; each takes the pane of the chat and its argument."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from localspec import units
from localspec.chat import figures
from localspec.chat.commands.effects import ActionName
from localspec.chat.commands.registry import SCREEN_NAMES
from localspec.chat.settings import sources
from localspec.chat.thinking import split
from localspec.errors import UserError
from localspec.storage.config import keep
from localspec_tui.keys import collect
from localspec_tui.screens.chat.pane import ChatPane
from localspec_tui.screens.dialogs import AskScreen, NoteScreen
from localspec_tui.screens.help import HelpScreen
from localspec_tui.screens.profiles import ProfilesScreen
from localspec_tui.screens.search import SearchScreen
from localspec_tui.screens.settings import SettingsScreen
from localspec_tui.screens.tools import ToolsScreen
from localspec_tui.widgets.sidebar import ChatPicked


async def _help(pane: ChatPane, _argument: str) -> None:
    own = (await pane.read_own_commands()).commands
    pane.app.push_screen(HelpScreen(collect(pane.screen), own))


def _profile(pane: ChatPane, _argument: str) -> None:
    async def take(chosen: tuple[str, bool] | None) -> None:
        pane.show_figures()
        if chosen is not None:
            name, opens_settings = chosen
            await pane.run_command(SCREEN_NAMES["profile"].called_with(name))
            if opens_settings:
                await pane.run_command(SCREEN_NAMES["settings"].called_with(""))

    pane.ask(ProfilesScreen(pane.session), take)


async def _settings(pane: ChatPane, _argument: str) -> None:
    controller = pane.controller

    async def reopen(sure: bool | None) -> None:
        if sure:
            await controller.free_models()
            await controller.answers.reload()

    async def take(kept: tuple[str, bool] | None) -> None:
        if kept is None:
            return
        words, needs_reopening = kept
        pane.show_figures()
        pane.notice.say(words)
        if needs_reopening:
            pane.ask(AskScreen("Reload the models now to use the new context?", no="Later"), reopen)

    found = await asyncio.to_thread(sources, pane.session, pane.loader.ready)
    pane.ask(SettingsScreen(pane.session, found), take)


def _attach(pane: ChatPane, reference: str) -> None:
    composer = pane.composer
    composer.text = f"{composer.text.rstrip()} {reference} ".lstrip()
    composer.focus()


def _search(pane: ChatPane, words: str) -> None:
    def take(picked: ChatPicked | None) -> None:
        if picked is not None:
            pane.post_message(picked)

    pane.app.push_screen(SearchScreen(pane.session.search, words), take)


async def _figures(pane: ChatPane, _argument: str) -> None:
    answer = pane.session.chat.last("assistant")
    record = await pane.controller.record_of(answer, "answer", "it was written or edited by hand")
    lines = figures.table(record.settings, record.reason, record.summary)
    if record.plain is not None:
        lines.append(f"plain decoding, measured here: {units.rate(record.plain.tokens_per_s)} tokens/s")
    pane.app.push_screen(NoteScreen("Figures of this answer", "\n".join(lines)))


def _thinking(pane: ChatPane, _argument: str) -> None:
    transcript = pane.transcript
    transcript.thinking = not transcript.thinking
    answers = (message.content for message in pane.session.chat.path if message.role == "assistant")
    has_some = any(part.kind == "thinking" for answer in answers for part in split(answer))
    if has_some:
        pane.notice.say("thinking is shown" if transcript.thinking else "thinking is folded")
    else:
        later = "shown" if transcript.thinking else "folded"
        pane.notice.say(f"no answer in this chat has thinking; it would be {later}")


def _theme(pane: ChatPane, name: str) -> None:
    if not name:
        pane.app.search_themes()
    elif name in pane.app.available_themes:
        pane.app.theme = name
    else:
        raise UserError(f"there is no theme `{name}`", "Tab lists them")


async def _vim(pane: ChatPane, _argument: str) -> None:
    prompt = pane.composer.prompt
    is_on = not prompt.vim_mode
    prompt.vim_mode = "INSERT" if is_on else ""
    await asyncio.to_thread(keep, {"chat.vim": is_on})
    pane.notice.say(f"vim keys are {'on' if is_on else 'off'}, saved in config.toml")


def _tools(pane: ChatPane, _argument: str) -> None:
    kit = pane.session.kit
    if kit is None:
        raise UserError("this chat cannot use tools", "open models on this computer")

    async def count(_closed: None) -> None:
        pane.status.count_tools()

    pane.ask(ToolsScreen(pane.session, kit), count)


ACTIONS: dict[ActionName, Callable[[ChatPane, str], object]] = {
    "attach": _attach,
    "compact": lambda pane, _: pane.controller.compact(),
    "editor": lambda pane, _: pane.composer.write_elsewhere(),
    "exit": lambda pane, _: pane.app.exit(0),
    "figures": _figures,
    "fork": lambda pane, _: pane.fork(pane.session.chat.last()),
    "help": _help,
    "log": lambda pane, _: pane.log_panel.toggle_class("hidden"),
    "origins": lambda pane, _: pane.transcript.action_toggle("origins"),
    "profile": _profile,
    "reload": lambda pane, _: pane.controller.answers.reload(),
    "room": lambda pane, _: pane.make_room(),
    "search": _search,
    "settings": _settings,
    "theme": _theme,
    "thinking": _thinking,
    "timeline": lambda pane, _: pane.timeline.toggle_class("hidden"),
    "tools": _tools,
    "vim": _vim,
}
