"""Choose a profile, and copy, edit and delete your own."""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static

from localspec.app.editor import edit_profile
from localspec.chat.answer_settings import AUTO, is_auto
from localspec.chat.session import ChatSession
from localspec.errors import LocalSpecError, UserError
from localspec.storage.config import keep, read_config
from localspec.storage.paths import config_dir
from localspec.storage.profiles import DEFAULT_PROFILE, Profile, copy_profile, profiles, shipped_files
from localspec_tui.keys import KeyFooter
from localspec_tui.screens.dialog import Dialog
from localspec_tui.screens.dialogs import AskScreen, LineScreen
from localspec_tui.widgets.filtered_list import FilteredList, ListRow, marked
from localspec_tui.widgets.status import error_line


class ProfilesScreen(Dialog[tuple[str, bool]]):
    """Return the name of the profile that is taken, and whether its settings are to be opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "do('copy')", "Copy under a new name", id="profiles.copy"),
        Binding("ctrl+o", "choose(True)", "Use it and open the settings", id="profiles.settings"),
        Binding("ctrl+g", "do('edit')", "Edit its file", id="profiles.edit"),
        Binding("delete", "do('delete')", "Delete it", id="profiles.delete"),
        Binding("ctrl+d", "do('keep')", "Use for new chats", id="profiles.keep"),
        Binding("escape", "dismiss(None)", "Close", id="profiles.leave"),
    ]

    def __init__(self, session: ChatSession) -> None:
        super().__init__()
        self._session = session
        self._folder = config_dir() / "profiles"
        self._list = FilteredList("Type to filter")
        self._note = Static(classes="note", markup=False)

    def compose(self) -> ComposeResult:
        """Stack the profiles over what is said of them."""
        with Vertical(classes="frame") as frame:
            frame.border_title = "Profiles"
            yield self._list
            yield self._note
        yield KeyFooter()

    async def on_mount(self) -> None:
        """Show the profiles as their files are now."""
        await self._show(self._session.profile.name)

    async def _show(self, name: str, note: str = "") -> None:
        found = await asyncio.to_thread(profiles, self._folder)
        self._session.shared.take_profiles(found.good)
        self._list.show(map(self._row, self._session.profiles), name)
        self._note.update(note or "; ".join(f"not used: {problem}" for problem in found.problems))

    def _row(self, profile: Profile) -> ListRow:
        whose = "own" if self._is_own(profile) else "included"
        words = f"{profile.name} {profile.title} {profile.task} {whose} {profile.description}"
        head = f"{marked(profile.title, profile == self._session.profile):<18} "
        head += f"{'' if is_auto(profile) else profile.task:<10} {whose:<9}"
        return ListRow(profile.name, Content.assemble((head, "bold"), " ", profile.description), words)

    def _is_own(self, profile: Profile) -> bool:
        return profile.path.parent == self._folder

    @on(OptionList.OptionSelected)
    def action_choose(self, to_settings: object = False) -> None:
        """Take the profile under the cursor."""
        if self._list.highlighted is not None:
            self.dismiss((self._list.highlighted, to_settings is True))

    @work
    async def action_do(self, what: str) -> None:
        """Do something with the profile under the cursor."""
        doing = {"copy": self._copy, "edit": self._edit, "delete": self._delete, "keep": self._keep}
        known = {profile.name: profile for profile in self._session.profiles}
        try:
            if self._list.highlighted is not None:
                await doing[what](known[self._list.highlighted])
        except (LocalSpecError, OSError) as error:
            self._note.update(error_line(error))

    async def _copy(self, like: Profile) -> None:
        heading = f"Title of the copy of {like.title}"
        title = ""
        problem = ""
        while True:
            line = await self.app.push_screen_wait(LineScreen(heading, title, problem))
            if line is None:
                return
            title = line[:40]
            name = re.sub(r"\W+", "-", title.lower()).strip("-")[:40]
            source = DEFAULT_PROFILE if is_auto(like) else like.name
            try:
                await asyncio.to_thread(copy_profile, source, name, self._folder, title)
            except UserError as error:
                problem = error_line(error)
            else:
                await self._show(name, f"{title} is a copy that you can edit")
                return

    async def _edit(self, profile: Profile) -> None:
        try:
            with self.app.suspend():
                code, is_changed = edit_profile(profile.name, self._folder)
        except SuspendNotSupported:
            raise UserError("an editor cannot be opened in this terminal") from None
        except UserError as error:
            await self._show(profile.name, error_line(error))  # the file may be another all the same
            return
        ended = f"the editor ended with code {code}; " if code else ""
        await self._show(profile.name, ended + ("saved" if is_changed else "nothing was changed"))

    async def _delete(self, profile: Profile) -> None:
        if not self._is_own(profile):
            raise UserError(f"{profile.title} comes with LocalSpec and cannot be deleted")
        question = f"Delete the profile {profile.title} (file {profile.path.name})?"
        if profile.name in shipped_files():
            question += " The included profile of that name is used again."
        if await self.app.push_screen_wait(AskScreen(question, yes="Delete", no="Keep", is_careful=True)):
            await asyncio.to_thread(_remove, profile)
            await self._show(profile.name, f"{profile.title} is deleted")

    async def _keep(self, profile: Profile) -> None:
        await asyncio.to_thread(keep, {"chat.profile": profile.name})
        self._session.shared.usual_profile = profile.name
        self._note.update(f"new chats use {profile.title}, saved in config.toml")


def _remove(profile: Profile) -> None:
    """Delete a file, which config.toml may no longer name then."""
    if read_config(config_dir() / "config.toml").profile == profile.name not in shipped_files():
        keep({"chat.profile": AUTO})
    profile.path.unlink(missing_ok=True)
