"""Who works with shared models: answers in company, one alone, or something else that needs them whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from localspec.decoding.conversations import FEWEST, Conversations, worth
from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.engine import Engine
from localspec.decoding.loop import Decoder
from localspec.decoding.model import SeveralSeats
from localspec.decoding.passes import NO_ONE, Participant, Seat, SharedPasses
from localspec.decoding.prefixes import common_prefix
from localspec.errors import Cancelled, EngineError
from localspec.types.saved_states import ConversationCopy

AHEAD = 32  # tokens of its answer for which there has to be room when one begins beside others
FEWEST_SHARED = 4  # tokens that are worth sharing cells: nothing is copied
FEW = 128  # tokens that something else than an answer may need

AnyEngine = TypeVar("AnyEngine", bound=Engine)
_Event = TypeVar("_Event")


class ConversationPlace(Generic[AnyEngine]):
    """What a conversation has of the models: an engine, on its seats of target and draft model."""

    def __init__(self, engine: AnyEngine, seats: Sequence[Seat] = ()) -> None:
        self.engine = engine
        self.seats = seats
        self.participant: Participant | None = None  # whose answer is being written
        self.prompt = 0  # tokens of its prompt
        self.used = 0  # the larger the number, the later

    def sit(self, participant: Participant | None, prompt: int = 0) -> None:
        """Give the place to an answer with a prompt of that length, or to none."""
        self.participant = participant
        self.prompt = prompt
        for seat in self.seats:
            seat.participant = participant or NO_ONE
            seat.promised = prompt

    def shared(self, text: Sequence[int]) -> int:
        """Return the length of the prefix of a text that is here; of an answer's text only in its prompt."""
        shared = common_prefix(self.engine.decoder.cached_tokens(), text)
        return shared if self.participant is None else min(shared, self.prompt)

    def share_prefix(self, source: ConversationPlace[AnyEngine], text: Sequence[int]) -> None:
        """Take what another place holds of the beginning of a text, where that is more than is here."""
        for own, other in zip(_caches(self.engine), _caches(source.engine), strict=True):
            length = common_prefix(other.cached_tokens(), text)
            if source.participant is not None:
                length = min(length, source.prompt)
            more = length - common_prefix(own.cached_tokens(), text)
            if not isinstance(own.model, Seat) or not isinstance(other.model, Seat):
                continue
            is_copied = not own.model.model.is_unified
            if more >= (worth(other.cached_tokens()) if is_copied else FEWEST_SHARED):
                own.model.share_prefix(other.model, length)
                own.set_cached(text)


@dataclass(frozen=True, slots=True)
class HeldText:
    """A text in a cache, and the scales of LoRA adapters with which it was read."""

    tokens: list[int]
    adapters: tuple[float, ...] = ()


NOTHING = HeldText([])


def _caches(engine: Engine) -> list[Decoder | DraftState]:
    state = engine.drafters.state
    return [engine.decoder] if state is None else [engine.decoder, state]


class Seating(Generic[AnyEngine]):
    """The places, and the answers that are present.

    With one place only, answers come one at a time and nothing is checked.
    """

    def __init__(
        self,
        places: Sequence[ConversationPlace[AnyEngine]],
        passes: SharedPasses | None = None,
        adapt: Callable[[tuple[float, ...]], None] = lambda _scales: None,
        adapters: tuple[float, ...] = (),
    ) -> None:
        """Take the places, what makes their calls where there are several, and what changes LoRA adapters.

        `adapters` are the scales that the target begins with.
        """
        self._adapt = adapt
        places[0].engine.conversations.store.adapters = adapters
        self.places = places
        self._passes = passes
        self._changed = threading.Condition()
        self._placing = threading.RLock()  # one conversation moves at a time
        self._present: list[Participant] = []
        self._alone: Participant | None = None  # decodes without the others
        self.is_closed = False  # something needs the models whole
        self._slots: dict[int, HeldText] = {}  # the last one of each slot
        self._numbers = count(1)
        if passes is not None:
            passes.make_room = self._make_room

    @property
    def are_several(self) -> bool:
        """Return whether several answers can be written at once."""
        return self._passes is not None

    @property
    def _is_unified(self) -> bool:
        """Whether several conversations share the target's cells."""
        return self.places[0].seats[0].model.is_unified

    def answers(self) -> int:
        """Return the number of answers that are present."""
        return len(self._present)

    @contextmanager
    def taken(
        self, participant: Participant, text: Sequence[int], *, reuses: bool = True, slot: int | None = None
    ) -> Iterator[ConversationPlace[AnyEngine]]:
        """Lend the place of a slot, or the best one, with as much of a text as the caches have.

        If not `reuses`, nothing of it is left there. Raises `Cancelled` where there is no room beside others,
        or the slot is taken, and the participant then knows.
        """
        scales = participant.adapters
        found = self._on_disk(text, lambda: not participant.is_cancelled, scales) if reuses else None
        if self._passes is None:
            if participant.is_cancelled:
                raise Cancelled("the answer was stopped")
            self.use_adapters(scales)
            self._take_in(found)
            try:
                yield self.places[0]
            finally:
                self.hold(slot or 0, self.places[0])
            return
        place: ConversationPlace[AnyEngine] | None = None
        try:
            self._come(participant)
            with self._placing:
                self.use_adapters(scales)
                self._take_in(found)
                place = self._place_for(text, reuses=reuses, slot=slot)
                if place is not None:
                    place.sit(participant, len(text))
            if place is None:
                participant.is_crowded_out = True
                raise Cancelled("there is no room beside other answers")
            yield place
        finally:
            self._go(participant, place)

    def _come(self, participant: Participant) -> None:
        """Wait until nothing else has the models whole."""
        with self._changed:
            self._present.append(participant)
            if any(each.adapters != participant.adapters for each in self._present):
                participant.is_crowded_out = True
                raise Cancelled("an answer with other LoRA adapters is being written")
            if self._alone is not None:
                self._alone.wants_change = True
            self._changed.wait_for(
                lambda: participant.is_cancelled or (self._alone is None and not self.is_closed)
            )
        if participant.is_cancelled:
            raise Cancelled("the answer was stopped")

    def _go(self, participant: Participant, place: ConversationPlace[AnyEngine] | None) -> None:
        with self._changed:
            self._present.remove(participant)
            if place is not None:
                place.sit(None)
                self.hold(self.places.index(place), place)
                place.used = next(self._numbers)
            if len(self._present) == 1:
                self._present[0].wants_change = True
            self._changed.notify_all()

    @contextmanager
    def segment(self, participant: Participant, place: ConversationPlace[AnyEngine]) -> Iterator[bool]:
        """Let an answer decode until it `wants_change`: alone, or (False) in company. Raises `Cancelled`."""
        if self._passes is None:
            participant.wants_change = False
            yield True
            return
        with self._changed:
            participant.wants_change = False
            if participant.is_cancelled:
                raise Cancelled("the answer was stopped")
            participant.is_alone = is_alone = self._present == [participant]
            self._alone = participant if is_alone else self._alone
        for seat in place.seats:
            seat.drop_branches()
        try:
            yield is_alone
        finally:
            with self._changed:
                participant.is_alone = False
                if self._alone is participant:
                    self._alone = None
                    self._changed.notify_all()

    def written(self, participant: Participant, events: Iterator[_Event]) -> Iterator[_Event]:
        """Yield the events of an answer in company as `SharedPasses.written` does."""
        assert self._passes is not None
        return self._passes.written(participant, events)

    @contextmanager
    def closed(self, *, waits: bool = True) -> Iterator[None]:
        """Keep answers out of the block, which needs the models whole.

        Wait for the ends of answers that are there, or raise `Cancelled`.
        """
        if self._passes is None:
            yield
            return
        with self._changed:
            if not waits and (self._present or self.is_closed):
                raise Cancelled("the models are in use")
            self._changed.wait_for(lambda: not self._present and not self.is_closed)
            self.is_closed = True
        try:
            for seat in self.places[0].seats:
                seat.drop_branches()
                self._free_cells(seat, FEW)
            yield
        finally:
            with self._changed:
                self.is_closed = False
                self._changed.notify_all()

    def use_adapters(self, scales: tuple[float, ...] | None) -> None:
        """Have the target use its LoRA adapters with these scales; no answer with others may be present.

        What was read with the last ones is saved and leaves, so the places never hold anything that was
        computed with others than the present ones.
        """
        store = self._conversations.store
        if scales is not None and scales != store.adapters:
            self.forget()
            self._adapt(scales)
            store.adapters = scales

    def cancel(self, participant: Participant) -> None:
        """End an answer soon; callable from any thread."""
        if self._passes is None:
            participant.is_cancelled = True
            return
        self._passes.cancel(participant)
        with self._changed:
            self._changed.notify_all()

    def place_of(
        self, text: Sequence[int], is_wanted: Callable[[], bool], slot: int | None = None
    ) -> ConversationPlace[AnyEngine]:
        """Return the place of a slot, or the best one for a text."""
        self._take_in(self._on_disk(text, is_wanted))
        if slot is not None:
            return self._place_of_slot(slot)
        return self._best_of(self.places, {place: place.shared(text) for place in self.places}, text)

    def slot_of(self, place: ConversationPlace[AnyEngine], slot: int | None) -> int:
        """Return the number of the slot of an answer in a place, which was perhaps asked for by its slot."""
        return self.places.index(place) if self.are_several or slot is None else slot

    def hold(self, slot: int, place: ConversationPlace[AnyEngine]) -> None:
        """Remember the text in a place as that of a slot."""
        tokens = place.engine.decoder.cached_tokens()
        self._slots[self._numbered(slot)] = HeldText(tokens, self._conversations.store.adapters)

    def copy_of_slot(self, slot: int) -> ConversationCopy | None:
        """Return a copy of what a slot holds; None if it is empty, or its conversation gave way to others.

        Where there is one place, slots hold conversations that take turns there. Call it in `closed`.
        """
        held = self._slots.get(self._numbered(slot), NOTHING)
        conversations = self._place_of_slot(slot).engine.conversations
        return conversations.copy_of(held.tokens, held.adapters) if held.tokens else None

    def fill_slot(self, slot: int, copy: ConversationCopy) -> None:
        """Put a copy into a slot, instead of what it held; raises `EngineError`. Call it in `closed`."""
        place = self._place_of_slot(slot)
        place.engine.forget()
        for seat in place.seats:
            self._free_cells(seat, len(copy.tokens), (place,))
        place.engine.conversations.take_up(copy)
        self.hold(slot, place)
        if not self._slots[self._numbered(slot)].tokens:
            raise EngineError("llama.cpp cannot continue from this copy of a conversation")

    def empty_slot(self, slot: int) -> int:
        """Forget what a slot holds, with all copies; return the tokens. Call it in `closed`."""
        held = self._slots.pop(self._numbered(slot), NOTHING)
        place = self._place_of_slot(slot)
        is_there = held.adapters == self._conversations.store.adapters
        if is_there and place.engine.decoder.cached_tokens() == held.tokens:
            place.engine.forget(saves=False)
        if held.tokens:
            self._conversations.erase(held.tokens, held.adapters)
        return len(held.tokens)

    def _place_of_slot(self, slot: int) -> ConversationPlace[AnyEngine]:
        return self.places[slot % len(self.places)]

    def _numbered(self, slot: int) -> int:
        """Return the number by which a slot is known: where there are several places, it is one of them."""
        return slot % len(self.places) if self.are_several else slot

    def _on_disk(
        self, text: Sequence[int], is_wanted: Callable[[], bool], scales: tuple[float, ...] | None = None
    ) -> ConversationCopy | None:
        """Read a copy that begins a text from disk, while other answers go on; None if there is no use."""
        present = self._conversations.store.adapters
        adapters = present if scales is None else scales
        at_hand = max(place.shared(text) for place in self.places) if adapters == present else 0
        return self._conversations.find_on_disk(text, adapters, at_hand, is_wanted)

    def _take_in(self, copy: ConversationCopy | None) -> None:
        if copy is not None:
            self._conversations.take_in(copy)

    @property
    def _conversations(self) -> Conversations:
        return self.places[0].engine.conversations

    def forget(self) -> None:
        """Empty all places; save their conversations if that is worth it."""
        for place in self.places:
            place.engine.forget()

    def _place_for(
        self, text: Sequence[int], *, reuses: bool, slot: int | None
    ) -> ConversationPlace[AnyEngine] | None:
        """Prepare a place for a text; None if there is no room beside the other answers."""
        wanted = self.places if slot is None else [self._place_of_slot(slot)]
        free = [place for place in wanted if place.participant is None]
        if not free:
            return None
        shared = {place: place.shared(text) if reuses else 0 for place in self.places}
        source = max(self.places, key=shared.__getitem__)
        place = self._best_of(free, shared, text)
        new = len(text) - shared[source] + AHEAD * len(self._present)
        for seat in place.seats:
            dropped = max(0, seat.length() - shared[place])
            has_room = self._free_cells(seat, new - dropped, (place, source))
            if not has_room and any(each.participant is not None for each in self.places):
                return None
        if not reuses:
            place.engine.forget()
            return place
        # where cells are not shared, taking what another place has is a copy as well
        place.engine.turn_to(text, elsewhere=shared[source] if self._is_unified else 0)
        place.engine.conversations.kept_as = None  # until the answer begins, which has a name for it
        if source is not place:
            place.share_prefix(source, text)
        self._move_out(place)
        return place

    def _move_out(self, place: ConversationPlace[AnyEngine]) -> None:
        """Save the conversations that rest, if copies are kept: calls attend to all cells that are shared."""
        for each in self.places if self._is_unified else ():
            if each is not place and each.participant is None and each.engine.conversations.limit:
                each.engine.forget()

    @staticmethod
    def _best_of(
        places: Sequence[ConversationPlace[AnyEngine]],
        shared: Mapping[ConversationPlace[AnyEngine], int],
        text: Sequence[int],
    ) -> ConversationPlace[AnyEngine]:
        """Return the place that a text continues, else an empty one, else the least recently used."""
        found = max(places, key=lambda each: (shared[each], each.used))
        if shared[found] >= FEWEST and not found.engine.loses(text):
            return found
        return min(places, key=lambda each: (each.engine.loses(()), each.used))

    def _make_room(self, model: SeveralSeats, tokens: int) -> bool:
        with self._placing:
            seats = [seat for seat in self.places[0].seats if seat.model is model]
            return self._free_cells(seats[0], tokens)

    def _free_cells(self, of: Seat, tokens: int, kept: Sequence[ConversationPlace[AnyEngine]] = ()) -> bool:
        """Forget resting conversations until that number of cells is free; return whether it is."""
        while of.cells.left() < tokens:
            resting = [
                each
                for each in self.places
                if each.participant is None and each not in kept and any(seat.length() for seat in each.seats)
            ]
            if not resting:
                return False
            min(resting, key=lambda each: each.used).engine.forget()
        return True
