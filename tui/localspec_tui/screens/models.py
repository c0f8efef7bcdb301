"""Choose the models to talk to: of those on this machine, and of those that can be fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from os.path import realpath
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Button, Static
from textual.worker import get_current_worker

from localspec import units
from localspec.app.fetching import PairFetches, choice_of, make_default
from localspec.app.options import ModelChoice
from localspec.app.recommendation import LocalTarget, Partner, Ranked, choices
from localspec.chat.loading import ModelLoader
from localspec.errors import LocalSpecError, UserError
from localspec.inference.interface import OpenModels
from localspec_tui.keys import key_of
from localspec_tui.widgets.filtered_list import FilteredList, ListRow
from localspec_tui.widgets.status import in_words

_LOOKS_S = 0.3  # at downloads
_SIZE, _STATE = 9, 14  # columns
_DOES = {"offered": "Fetch", "fetching": "Pause", "paused": "Go on", "here": "Open"}


class ModelsScreen(ModalScreen[ModelChoice | None]):
    """Show what there is as it is found, and return the models that are to be opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "draft(-1)", "Draft model before", id="models.draft_before"),
        Binding("right", "draft(1)", "Next draft model", id="models.draft"),
        Binding("ctrl+d", "keep", "Open these at every start", id="models.keep"),
        Binding("escape,f8", "dismiss(None)", "Close", id="models.leave"),
    ]

    @dataclass
    class Found(Message):
        """Another row is known, or at the end none, and what went wrong."""

        row: LocalTarget | Ranked | None
        problem: str = ""

    def __init__(self, fetches: PairFetches, loader: ModelLoader, *, to_fetch: bool = False) -> None:
        """Prepare; `to_fetch` begins with what is not here yet."""
        super().__init__()
        self._fetches, self._loader, self._to_fetch = fetches, loader, to_fetch
        self._models: OpenModels | None = None  # that are open now
        self._open: list[str] = []  # their files
        self._here: dict[str, LocalTarget] = {}
        self._pairs: dict[str, Ranked] = {}
        self._drafts: dict[str, int] = {}  # that were chosen, by target
        self._rows: list[ListRow] = []
        self._is_placed = False  # the cursor, where it is to begin
        self._pressed: str | None = None  # under the cursor when the mouse went down
        self._at: str | None = None  # row of which
        self._said = ""  # something was said
        self._looking = "looking for models …"
        self._list = FilteredList("Type to narrow")

    def compose(self) -> ComposeResult:
        """Stack the rows, what is to be known of one, and what can be done with it."""
        with Vertical() as frame:
            frame.border_title = "Models"
            yield self._list
            yield Static(id="models-detail", markup=False)
            with Horizontal():
                yield Button("", id="models-go", variant="primary", compact=True, action="screen.go")
                yield Button("Other draft  →", id="models-draft", compact=True, action="screen.draft(1)")
                words = f"At every start  {key_of(self, 'models.keep')}"
                yield Button(words, id="models-keep", compact=True, action="screen.keep")

    def on_mount(self) -> None:
        """Look what there is, and follow downloads."""
        self.run_worker(self._find, thread=True, exit_on_error=False)
        self.set_interval(_LOOKS_S, self._show)

    def on_resize(self) -> None:
        """Give the names the room that there is."""
        self.call_after_refresh(self._show)

    def _find(self) -> None:
        """Find files and plan where they would sit, which takes a while, in a thread."""
        worker, problem = get_current_worker(), ""
        try:
            for row in choices(self._loader.open_now):
                if isinstance(row, Ranked):
                    self._fetches.consider(row)
                if worker.is_cancelled:
                    return
                self.post_message(self.Found(row))
        except LocalSpecError as error:
            problem = in_words(error)
        self.post_message(self.Found(None, problem))

    @on(Found)
    def _take(self, event: Found) -> None:
        match event.row:
            case LocalTarget() as found:
                key = realpath(found.model.path)
                self._here[key] = found
                self._models = None
            case Ranked() as pair:
                self._pairs[pair.pair.name] = pair
            case None:
                self._looking = event.problem
        self._show()

    # --- what is shown ---

    def _show(self) -> None:
        if self._loader.ready is not self._models:
            self._look_at_open()
        width = self._list.container_size.width - 4
        here = [self._local_row(key, found, width) for key, found in self._here.items()]
        pairs = [self._pair_row(key, pair, width) for key, pair in self._pairs.items()]
        rows = [ListRow("", "On this machine"), *here, ListRow("", "To fetch"), *pairs]
        if rows != self._rows:
            wanted = pairs[:1] if self._to_fetch else [row for row in here if row.key in self._open[:1]]
            first = wanted[0].key if wanted and not self._is_placed else None
            self._is_placed = self._is_placed or bool(wanted)
            self._rows = rows
            self._list.show(rows, first)
        self._explain()

    def _look_at_open(self) -> None:
        """Mark the target that is open, and let its draft model be the one that is open with it."""
        self._models = self._loader.ready
        self._open = [realpath(each.path) for each in self._loader.open_now]
        if self._open and (found := self._here.get(self._open[0])) is not None:
            drafts = [realpath(draft.path or "") for draft in found.drafts]
            at = drafts.index(self._open[1]) if self._open[1:] and self._open[1] in drafts else len(drafts)
            self._drafts.setdefault(self._open[0], at)

    def _local_row(self, key: str, found: LocalTarget, width: int) -> ListRow:
        state = _speed(found.speed(self._draft(key))) if found.alone else "cannot open"
        mark, size = "●" if self._open[:1] == [key] else " ", units.size(found.model.bytes)
        words = f"{found.title} {found.model.name} {found.licence}"
        return ListRow(key, _look(f"{mark} {found.title}", size, state, width), words)

    def _pair_row(self, key: str, pair: Ranked, width: int) -> ListRow:
        offer = self._fetches.consider(pair)
        state = "here" if offer.stage == "here" else offer.stage_shown
        if offer.stage == "offered":
            state = _speed(pair.placement.tokens_per_s) if pair.placement else "does not fit"
        size = units.size(pair.download_bytes)
        name = f"  {pair.pair.target.title} {pair.pair.target.quant}"
        return ListRow(key, _look(name, size, state, width), f"{pair.names} {pair.licences} {state}")

    def _draft(self, key: str) -> Partner | None:
        drafts = self._here[key].drafts
        at = self._drafts.get(key, 0)
        return drafts[at] if at < len(drafts) else None

    @on(FilteredList.Highlighted)
    def _come_to_row(self, event: FilteredList.Highlighted) -> None:
        if event.key != self._at:
            self._at, self._said = event.key, ""
        self._explain()

    def _explain(self) -> None:
        key = self._list.highlighted
        lines, does = [], "Open"
        if key in self._here:
            lines = [*_about_target(self._here[key], self._draft(key))]
        elif key in self._pairs:
            offer = self._fetches.consider(self._pairs[key])
            lines, does = [*_about_pair(self._pairs[key]), offer.problem], _DOES[offer.stage]
            if offer.stage in ("fetching", "paused"):
                lines.append(f"{offer.stage}: {str(offer.progress).strip()}")
        lines += [self._said, self._looking]
        self.query_one("#models-detail", Static).update("\n".join(filter(None, lines)))
        self.query_one("#models-go", Button).label = f"{does}  Enter"
        self.query_one("#models-draft").display = key in self._here and bool(self._here[key].drafts)

    # --- what can be done ---

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Remember what the mouse finds: its first press on a row shows that, the next one takes it."""
        self._pressed = self._list.highlighted if "option" in event.style.meta else None

    @on(FilteredList.Chosen)
    def _choose(self, event: FilteredList.Chosen) -> None:
        pressed, self._pressed = self._pressed, None
        if pressed in (None, event.key):
            self.action_go()

    def action_draft(self, step: int) -> None:
        """Take another draft model for the target, or none."""
        key = self._list.highlighted
        if key in self._here:
            count = len(self._here[key].drafts) + 1
            self._drafts[key] = (self._drafts.get(key, 0) + step) % count
            self._show()

    @work(exclusive=True, exit_on_error=False)
    async def action_go(self) -> None:
        """Open the models of the row, or begin, pause or go on with fetching them."""
        key = self._list.highlighted
        pair = self._pairs.get(key or "")
        try:
            if pair is None or self._fetches.consider(pair).stage == "here":
                self.dismiss(await self._chosen(key))
            elif self._fetches.consider(pair).stage == "fetching":
                self._fetches.pause()
            elif pair.placement is None:
                raise UserError(pair.problem)
            else:
                self._fetches.fetch(pair.pair.name)
        except LocalSpecError as error:
            self._said = in_words(error)
        self._show()

    @work(exclusive=True, exit_on_error=False)
    async def action_keep(self) -> None:
        """Let config.toml name the models of the row."""
        try:
            await asyncio.to_thread(make_default, await self._chosen(self._list.highlighted))
            self._said = "these open at every start from now on"
        except LocalSpecError as error:
            self._said = in_words(error)
        self._show()

    async def _chosen(self, key: str | None) -> ModelChoice:
        """Return the models of a row; raises UserError where they cannot be opened."""
        if key in self._here:
            found, draft = self._here[key], self._draft(key)
            if found.alone is None:
                raise UserError(f"{found.title} cannot be opened: {found.problem}")
            return ModelChoice(found.model.path.absolute(), draft.path if draft else None)
        if key not in self._pairs:
            raise UserError("no models are chosen", "Up and Down choose some")
        offer = self._fetches.consider(self._pairs[key])
        if offer.stage != "here":
            raise UserError("these models are not here yet", "Enter fetches them")
        return await asyncio.to_thread(choice_of, offer.pair)


def _look(name: str, size: str, state: str, width: int) -> Content:
    room = max(8, width - _SIZE - _STATE)
    text = Content(name).truncate(room, ellipsis=True, pad=True)
    return text.append(Content.styled(f"{size:>{_SIZE}}{state:>{_STATE}}", "dim"))


def _speed(tokens_per_s: float | None) -> str:
    return "speed unknown" if tokens_per_s is None else f"~{units.rate(tokens_per_s)} tok/s"


def _about_target(found: LocalTarget, draft: Partner | None) -> Iterator[str]:
    shape = found.model.shape
    facts = [shape.architecture, units.number(shape.parameters), shape.quant] if shape else []
    yield ", ".join(filter(None, [found.model.name, *facts, found.licence]))
    if found.problem:
        yield f"Cannot be opened: {found.problem}"
        yield f"from {found.model.path}"
        return
    count = len(found.drafts)
    if draft is not None:
        yield f"Draft model: {draft.name} ({found.drafts.index(draft) + 1} of {count})"
    else:
        yield "No draft model" + ("" if count else " here fits it; repetitions in the text serve as drafts")
    placement = draft.placement if draft else found.alone
    yield "; ".join(placement.reasons[:2]) if placement else ""
    yield f"from {found.model.path}"


def _about_pair(pair: Ranked) -> Iterator[str]:
    yield pair.names
    yield f"{units.size(pair.download_bytes)} to fetch; {pair.speed} here; licence {pair.licences}"
    yield f"Cannot be opened here: {pair.problem}" if pair.problem else "; ".join(pair.reasons)
    yield "from " + ", ".join(model.source for model in pair.missing)
