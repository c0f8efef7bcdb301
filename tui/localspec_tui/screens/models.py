"""Choose the models: local ones of the machine that opens them, and downloadable ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from os.path import realpath
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.worker import get_current_worker

from localspec import units
from localspec.app.fetching import Offer, PairFetches, choice_of, make_default
from localspec.app.recommendation import DraftMatch, LocalTarget, RankedPair
from localspec.chat.loading import ModelLoader
from localspec.errors import LocalSpecError, UserError
from localspec.hardware.placement.candidates import Placement
from localspec.models.pair_request import ModelChoice
from localspec.types.models import ModelInfo
from localspec_tui.keys import KeyFooter
from localspec_tui.screens.dialog import Dialog
from localspec_tui.widgets.filtered_list import FilteredList, ListRow, marked
from localspec_tui.widgets.status import error_line

FindModels = Callable[[Sequence[ModelInfo]], Iterable[LocalTarget | RankedPair]]
_LOOKS_S = 0.3  # at downloads
# columns
_SIZE = 10
_STATE = 16
_PROGRESS = {"fetching": "Downloading", "paused": "Paused"}
_DOES = {"offered": "downloads", "fetching": "pauses", "paused": "resumes", "here": "opens"}


class ModelsScreen(Dialog[ModelChoice | None]):
    """Show the models as they are found, and return the chosen ones."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "draft", "Other draft model", id="models.draft"),
        Binding("ctrl+d", "act(True)", "Open at every start", id="models.keep"),
        Binding("escape,f8", "dismiss(None)", "Close", id="models.leave"),
    ]

    def __init__(
        self,
        fetches: PairFetches,
        loader: ModelLoader,
        choices: FindModels,
        host: str,
        *,
        to_fetch: bool,
        title: str = "Models",
    ) -> None:
        """Prepare to show `choices`, of another machine `host` if given; `to_fetch` begins with others."""
        super().__init__()
        self._fetches = fetches
        self._loader = loader
        self._to_fetch = to_fetch
        self._title = title
        self._choices = choices
        self._host = host
        self._found: dict[str, LocalTarget | RankedPair] = {}
        self._drafts: dict[str, int] = {}  # that were chosen, by target
        self._rows: list[ListRow] = []
        self._pressed: str | None = None  # under the cursor when the mouse went down
        self._looking = " …"
        self._at: str | None = None  # row of which
        self._said = ""  # something was said
        self._list = FilteredList("Type to filter")

    def compose(self) -> ComposeResult:
        """Yield the list, the details of one model, and its actions."""
        with Vertical(classes="frame") as frame:
            frame.border_title = self._title
            yield self._list
            yield Static(id="models-detail", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        """Start looking for models, and follow downloads and sizes."""
        self.run_worker(self._find, thread=True, exit_on_error=False)
        self.set_interval(_LOOKS_S, self._show)

    def _find(self) -> None:
        """Find files and plan their placement in a thread, because that takes a while."""
        worker = get_current_worker()
        problem = ""
        try:
            for row in self._choices(self._loader.open_now):
                if isinstance(row, RankedPair):
                    self._fetches.consider(row)
                if worker.is_cancelled:
                    return
                self.call_later(self._take, row)
        except LocalSpecError as error:
            problem = error_line(error)
        self.call_later(self._take, None, problem)

    def _take(self, row: LocalTarget | RankedPair | None, problem: str = "") -> None:
        if row is None:
            self._looking = ""
            self._said = problem
        else:
            self._found[row.pair.name if isinstance(row, RankedPair) else row.key] = row
        self._show()

    # --- what is shown ---

    def _show(self) -> None:
        width = self._list.container_size.width - 4
        open_now = [realpath(model.path) for model in self._loader.open_now[:1]]
        here = [ListRow("", f"On {self._host}{self._looking}" if self._host else "On this machine")]
        pairs = [] if self._host else [ListRow("", f"To download{self._looking}")]
        for key, row in self._found.items():
            if isinstance(row, RankedPair):
                pairs.append(_pair_row(self._fetches.consider(row), width))
            else:
                here.append(_target_row(row, self._draft(row), width, is_open=key in open_now))
        if [*here, *pairs] != self._rows:
            first = pairs[1].key if self._to_fetch and pairs[1:] else None
            self._to_fetch = self._to_fetch and first is None
            self._rows = [*here, *pairs]
            self._list.show(self._rows, first)
        self._explain()

    def _draft(self, target: LocalTarget) -> DraftMatch | None:
        return target.drafts[self._drafts.get(target.key, 0)] if target.drafts else None

    @on(OptionList.OptionHighlighted)
    def _come_to_row(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id != self._at:
            self._at = event.option_id
            self._said = ""
        self._explain()

    def _explain(self) -> None:
        row = self._found.get(self._list.highlighted or "")
        lines = list[str]()
        if isinstance(row, RankedPair):
            lines += _about_pair(self._fetches.consider(row))
        elif row is not None:
            lines += _about_target(row, self._draft(row))
        self.query_one("#models-detail", Static).update("\n".join(filter(None, [*lines, self._said])))

    # --- what can be done ---

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Remember what the mouse finds: its first press on a row shows that, the next one takes it."""
        self._pressed = self._list.highlighted if "option" in event.style.meta else None

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        pressed = self._pressed
        self._pressed = None
        if pressed in (None, event.option_id):
            self.action_act(keeps=False)

    def action_draft(self) -> None:
        """Take the next draft model for the target, or none."""
        row = self._found.get(self._list.highlighted or "")
        if isinstance(row, LocalTarget) and row.drafts:
            self._drafts[row.key] = (self._drafts.get(row.key, 0) + 1) % len(row.drafts)
            self._show()

    @work(exclusive=True, exit_on_error=False)
    async def action_act(self, keeps: bool) -> None:
        """Open the models of the row, also at every start if chosen; download missing ones, or pause that."""
        row = self._found.get(self._list.highlighted or "")
        try:
            if keeps and self._host:
                raise UserError(
                    f"these models are on {self._host}", "`localspec setup --host` chooses models there"
                )
            if isinstance(row, RankedPair) and self._fetches.consider(row).stage != "here" and not keeps:
                self._fetches.turn(row.pair.name)
            elif row is not None:
                choice = await asyncio.to_thread(self._choice, row)
                if keeps:
                    await asyncio.to_thread(make_default, choice)
                    self._said = "these models now open at every start"
                else:
                    self.dismiss(choice)
                    return
        except LocalSpecError as error:
            self._said = error_line(error)
        self._explain()

    def _choice(self, row: LocalTarget | RankedPair) -> ModelChoice:
        if isinstance(row, LocalTarget):
            if (draft := self._draft(row)) is None:
                raise UserError(f"{row.title} cannot be opened: {row.problem}")
            return ModelChoice(row.model.path.absolute(), draft.path)
        offer = self._fetches.consider(row)
        if offer.stage != "here":
            raise UserError("these models are not downloaded yet", "Enter downloads them")
        return choice_of(offer.pair)


def sentence(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def _look(name: str, size: str, state: str, width: int) -> Content:
    text = Content(name).truncate(max(8, width - _SIZE - _STATE), ellipsis=True, pad=True)
    return text.append(Content.styled(f"{size:>{_SIZE}}{state:>{_STATE}}", "dim"))


def _speed(placement: Placement | None) -> str:
    if placement is None:
        return "does not fit"
    speed = placement.tokens_per_s
    return "speed unknown" if speed is None else f"~{units.rate(speed)} tokens/s"


def _target_row(found: LocalTarget, draft: DraftMatch | None, width: int, *, is_open: bool) -> ListRow:
    state = _speed(draft.placement) if draft else "cannot open"
    size = units.size(found.model.bytes)
    words = f"{found.title} {found.model.name} {found.licence}"
    return ListRow(found.key, _look(marked(found.title, is_open), size, state, width), words)


def _pair_row(offer: Offer, width: int) -> ListRow:
    pair = offer.pair
    size = units.size(offer.pair.download_bytes)
    state = _speed(pair.placement) if offer.stage == "offered" else offer.stage_shown
    name = marked(f"{pair.pair.target.title} {pair.pair.target.quant}", False)
    return ListRow(pair.pair.name, _look(name, size, state, width), f"{pair.names} {pair.licences} {state}")


def _about_target(found: LocalTarget, draft: DraftMatch | None) -> Iterator[str]:
    shape = found.model.shape
    facts = [shape.architecture, units.number(shape.parameters), shape.quant] if shape else []
    yield ", ".join(filter(None, [found.model.name, *facts, found.licence]))
    if draft is None or draft.placement is None:
        yield f"Cannot be opened: {found.problem}"
    else:
        at = found.drafts.index(draft) + 1
        count = len(found.drafts)
        yield f"Draft model: {draft.name} ({at} of {count}). Enter opens them."
        yield sentence("; ".join(draft.placement.reasons[:2]))
    yield f"Folder: {found.model.path.parent}"


def _about_pair(offer: Offer) -> Iterator[str]:
    pair = offer.pair
    yield pair.names
    yield f"{units.size(pair.download_bytes)} to download; {pair.speed} here; licence {pair.licences}"
    yield f"Cannot be opened here: {pair.problem}" if pair.problem else sentence("; ".join(pair.reasons))
    source = ", ".join(model.source for model in pair.missing)
    yield f"{f'Source: {source}. ' * bool(source)}Enter {_DOES[offer.stage]} them."
    yield offer.problem
    if offer.stage in ("fetching", "paused"):
        yield f"{_PROGRESS[offer.stage]}: {str(offer.progress).strip()}"
