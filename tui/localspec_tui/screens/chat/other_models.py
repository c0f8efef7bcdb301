"""Models that could be open instead: how far they are downloaded, and opening them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.app.fetching import Offer, PairFetches, choice_of, make_default
from localspec.chat.answers import Answers
from localspec.chat.loading import ModelLoader, Opener
from localspec.errors import LocalSpecError, UserError
from localspec.inference.interface import OpenModels
from localspec.models.pair_request import ModelChoice
from localspec_tui.keys import key_of
from localspec_tui.screens.chat.elsewhere import Elsewhere
from localspec_tui.screens.chat.message_actions import OtherModelsWanted
from localspec_tui.screens.chat.panes import Panes
from localspec_tui.screens.dialogs import AskScreen

if TYPE_CHECKING:
    from localspec_tui.screens.models import FindModels


class OtherModels:
    """Opens other models for all chats; what it asks and says comes in the pane that keys act on."""

    def __init__(self, panes: Panes, answers: Answers, elsewhere: Elsewhere) -> None:
        self.opener: Callable[[ModelChoice], Opener] | None = None
        self.choices: FindModels | None = None  # where others can be opened
        self.host = ""  # of another machine that opens them
        self.fetches = PairFetches()
        self.looks_for_better = False  # pairs than the one included
        self._panes = panes
        self._answers = answers
        self._elsewhere = elsewhere
        self._offers: dict[str, Offer] = {}  # as they were last shown
        self._reported = ""  # the one that a line was about

    @property
    def _loader(self) -> ModelLoader:
        return self._answers.loader

    @property
    def _best(self) -> Offer | None:
        """The best pair for this machine, unless it is open."""
        offer = self.fetches.best
        models = self._loader.ready
        is_open = offer and models and offer.stage == "here" and offer.pair.files[0] == models.target.path
        return None if is_open else offer

    # --- downloads ---

    def look(self) -> None:
        """Look for better models than those that are open, if that is wanted, and show what is known."""
        if self.looks_for_better:
            self.fetches.look()
        self.show()

    def show(self) -> None:
        """Show how far pairs are; what the user should know who does not look at the welcome page is said."""
        best = self._best
        before = self._offers
        self._offers = dict(self.fetches.offers)
        if self._offers.get(self._reported) is not before.get(self._reported):
            for pane in self._panes.all:
                pane.notice.over("downloads")
        on_the_way = [each for each in self._offers.values() if each.stage == "fetching"]
        on_the_way += [best] if best is not None and best.stage == "paused" else []
        here = self._panes.active
        for pane in self._panes.all:
            pane.title_bar.fetching = on_the_way[0].stage_shown if on_the_way else ""
            pane.welcome.show_offer(best, key_of(pane.screen, "chat.fetch"))
        for name, offer in self._offers.items():
            is_best = offer is best
            if offer is before.get(name) or (is_best and not here.welcome.has_class("hidden")):
                continue  # already reported, or on the welcome page
            if line := self._news(offer, is_new=name not in before, is_best=is_best):
                here.notice.say(line, is_error=bool(offer.problem), about="downloads")
                self._reported = name

    def _news(self, offer: Offer, *, is_new: bool, is_best: bool) -> str:
        """Return the sentence about a change of an offer; empty for none."""
        key = key_of(self._panes.active.screen, "chat.fetch" if is_best else "chat.setup")
        if offer.problem:
            return f"{offer.problem}; {key} tries again"
        if offer.stage == "here" and (is_best or not is_new):
            what = "better models are" if is_best else f"{offer.pair.pair.target.title} is"
            return f"{what} downloaded: {key} opens them"
        if offer.stage == "paused" and is_best and is_new:
            return f"better models are partly downloaded: {key} resumes"
        return ""

    async def fetch_best(self) -> None:
        """Download the best models for this machine, pause that, or open them once they are downloaded."""
        if (offer := self._best) is None:
            raise UserError("there are no better models to download", "/model lists others")
        if offer.stage == "here":
            await self.open(await asyncio.to_thread(choice_of, offer.pair), keeps=True)
            self._panes.active.notice.say("these models now open at every start")
        else:
            self._panes.active.notice.say("")  # what was said of it so far
            self.fetches.turn(offer.pair.pair.name)

    # --- opening ---

    async def open(
        self, choice: ModelChoice, *, keeps: bool = False, again: OtherModelsWanted | None = None
    ) -> None:
        """Open other models, with `keeps` also at every start; the previous ones stay if that fails.

        Where chats are being answered, the user is asked first. Then the question `again`, if any, is
        answered with these models.
        """
        answered = [chat.info.title for chat in self._answers.being_answered().values()]

        async def decide(sure: bool | None) -> None:
            if sure:
                await self._switch(choice, keeps=keeps)
                if again is not None:
                    await again.pane.controller.answer_again(again.message, target=choice.target)

        if not answered:
            await decide(True)
            return
        names = ", ".join(f"“{title}”" for title in answered)
        question = f"Opening other models stops the answers in {names}. Their text so far is saved."
        ask = AskScreen(question, yes="Open", no="Keep writing", is_careful=True)
        self._panes.active.ask(ask, decide)

    async def _switch(self, choice: ModelChoice, *, keeps: bool) -> None:
        assert self.opener is not None
        open_them = self.opener(choice)

        def open_and_keep(on_progress: Callable[[float], bool]) -> OpenModels:
            models = open_them(on_progress)
            try:
                make_default(choice)
            except LocalSpecError:
                models.close()
                raise
            return models

        await self._answers.stop_all()
        self._loader.switch(open_and_keep if keeps else open_them)

    async def choose(
        self, name: str = "", *, to_fetch: bool = False, again: OtherModelsWanted | None = None
    ) -> None:
        """Open models by name, or show the list; with `to_fetch` it begins at those to download.

        A question or answer `again` is answered again with them.
        """
        from localspec.app.recommendation import choice_named  # the placement: 0.1 s
        from localspec_tui.screens.models import ModelsScreen

        if self.choices is None:
            raise UserError("these models are on a server", "start without --attach to choose others")
        host = self.host if self._elsewhere.use_local_models else ""
        if name and not host:
            choice = await asyncio.to_thread(choice_named, name, self._loader.open_now)
            await self.open(choice)
            return

        async def take(choice: ModelChoice | None) -> None:
            if choice is not None:
                await self.open(choice, again=again)

        title = "Models" if again is None else "Answer again with other models"
        screen = ModelsScreen(self.fetches, self._loader, self.choices, host, to_fetch=to_fetch, title=title)
        self._panes.active.ask(screen, take)
