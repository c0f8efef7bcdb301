"""Several answers on shared models: each decodes as if alone, and their calls are made together.

A `Seat` is one conversation's sequence of a shared model, as a model of its own. One thread writes all
answers. Each is a greenlet there, which runs until it asks a model for something; when all have asked, one
call is made for them. So rows, which are views of a model's memory, stay valid until their answer asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from itertools import count
from typing import TypeVar

from greenlet import getcurrent, greenlet

from localspec.decoding.event_channel import EventChannel
from localspec.decoding.model import EFFICIENT_READ, LanguageModel, SeveralSeats
from localspec.errors import Cancelled, EngineError
from localspec.types.candidates import Rows, TokenRun
from localspec.types.saved_states import SavedState

SHORT = 16  # tokens that are not cut: a draft, or the end of a prompt
STALL_S = 0.15  # that reading a prompt may add to a pass for which other answers wait
READING_S = 1.0  # of a pass in which only prompts are read, or no more of them than `EFFICIENT_READ`
APART = 1024  # tokens of answers beside which a long piece of a prompt is read in a call of its own
LEAST_READ = 16  # tokens of prompts in each pass that reads some, however long that takes
_IDLE_S = 10.0  # after which a thread without answers ends

_Event = TypeVar("_Event")


class Participant:
    """An answer, from when it is asked for: where it stands, and what others want of it."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self.is_alone = is_alone  # its calls go to the models directly
        self.is_cancelled = False
        self.is_crowded_out = False  # there is no room for its text beside the others'
        self.adapters: tuple[float, ...] | None = None  # scales of LoRA adapters; None: whatever is in use
        self.wants_pause = False
        self.wants_change = False  # it is alone, and another comes, or all others have left
        self.number: int | None = None  # the later it came, the larger
        self.writing: greenlet | None = None  # while it is written beside others
        self.asked: Asked | None = None


class Asked:
    """What an answer has asked a model for, and the part that is done."""

    def __init__(self, seat: Seat, tokens: Sequence[int], rows: int, number: int) -> None:
        self.seat = seat
        self.tokens = tokens
        self.rows = rows
        self.number = number  # in the order in which answers asked
        self.done = 0
        self.has_had_a_call = False  # since the target's last one
        self.has_waited = False  # for a call that read others' prompts

    @property
    def left(self) -> int:
        """Return the number of tokens to append."""
        return len(self.tokens) - self.done

    @property
    def is_reading(self) -> bool:
        """Whether this is a prompt, which can be read in pieces."""
        return self.rows < 2 and self.left > SHORT

    @property
    def unread(self) -> int:
        """Return the number of tokens of its prompt that are still to be read."""
        return max(self.left, self.seat.promised - self.seat.length())

    def run(self, count: int) -> TokenRun:
        """Return the next tokens as a run."""
        rows = self.rows if count == self.left else 0
        return TokenRun(self.seat.sequence, self.tokens[self.done : self.done + count], rows)


class Cells:
    """The cells of a shared model: which prefixes several sequences share."""

    def __init__(self, model: SeveralSeats, seats: Sequence[Seat]) -> None:
        self._model = model
        self._seats = seats
        self._shared: dict[Seat, tuple[Seat, int]] = {}  # the source of a prefix, and its length

    def shared(self, source: Seat, target: Seat, length: int) -> None:
        """Note that an empty sequence got a prefix of another one."""
        self._shared[target] = source, length

    def cut(self, seat: Seat, length: int) -> None:
        """Note that a sequence was cut: what it reads then has cells of its own."""
        for target, (source, shared) in self._shared.items():
            if shared > length and seat in (target, source):
                self._shared[target] = source, length

    def left(self) -> int:
        """Return the number of free cells, without those for the prompts of answers that have begun.

        Where each conversation has its own, its context's size is the only limit.
        """
        if not self._model.is_unified:
            return self._model.cells
        taken = {seat: max(seat.length(), seat.promised) for seat in self._seats}
        for target, (source, shared) in self._shared.items():
            taken[target] -= min(shared, source.length(), target.length())
        return self._model.cells - sum(taken.values())


class SharedPasses:
    """The calls that several answers make together."""

    def __init__(self, target: SeveralSeats, draft: SeveralSeats | None = None) -> None:
        self._models = [target] if draft is None else [target, draft]
        self._changed = threading.Condition()
        self._arrived: list[tuple[Participant, Callable[[], None]]] = []  # with what writes them
        self._has_thread = False
        self._in_call: list[Asked] = []
        self._participants: list[Participant] = []  # the first to come first
        self._numbers = count(1)
        self._may_take_s = STALL_S
        self._pieces: dict[tuple[SeveralSeats, float], int] = {}  # by how long the call may take
        self._token_s = dict.fromkeys(self._models, 0.0)  # for which a token of the last whole piece was read
        self._shortest = dict.fromkeys(self._models, False)  # prompt next, not the one that came first
        self.make_room: Callable[[SeveralSeats, int], bool] = lambda _model, _tokens: False
        """Frees cells of conversations that rest; returns whether that is enough."""
        self.seats: list[tuple[Seat, ...]] = [  # by conversation, the target's first
            tuple(Seat(model, number, self) for model in self._models) for number in range(target.seats)
        ]
        for model, seats in zip(self._models, zip(*self.seats, strict=True), strict=True):
            cells = Cells(model, seats)
            lock = threading.RLock()
            for seat in seats:
                seat.cells = cells
                seat.lock = lock

    def written(self, participant: Participant, events: Iterator[_Event]) -> Iterator[_Event]:
        """Yield the events of an answer that is written beside others, whose thread makes them.

        No other answer waits for the reader. Closing this cancels the answer and waits for its end.
        """
        channel = EventChannel[_Event]()
        with self._changed:
            self._arrived.append((participant, partial(channel.send_all, events)))
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._work, name="localspec-passes", daemon=True).start()
            self._changed.notify()
        try:
            yield from channel.received()
        finally:
            if not channel.is_over:
                self.cancel(participant)
                channel.wait()

    def ask(self, seat: Seat, tokens: Sequence[int], rows: int) -> Rows:
        """Append tokens to a seat's sequence in a call with others; raises its error, or `Cancelled`."""
        thread = getcurrent().parent
        assert thread is not None
        seat.participant.asked = Asked(seat, tokens, rows, next(self._numbers))
        found: Rows = thread.switch()
        return found

    def cancel(self, participant: Participant) -> None:
        """End an answer before its next call; callable from any thread."""
        with self._changed:
            participant.is_cancelled = True
            if self._in_call and all(asked.seat.participant.is_cancelled for asked in self._in_call):
                self._in_call[0].seat.model.cancel()

    def _work(self) -> None:
        while self._take_in():
            for participant in self._participants.copy():
                if participant.is_cancelled:
                    self._go_on(participant, Cancelled("the answer was stopped"))
            self._call()

    def _take_in(self) -> bool:
        """Let answers begin that have come; return False where there are none, and none come for a while."""
        with self._changed:
            if not self._participants and not self._changed.wait_for(lambda: self._arrived, _IDLE_S):
                self._has_thread = False
                return False
            arrived = self._arrived
            self._arrived = []
        for participant, write in arrived:
            if participant.number is None:
                participant.number = next(self._numbers)
            participant.writing = greenlet(write)
            self._participants.append(participant)
            self._participants.sort(key=_came)
            self._go_on(participant)
        return True

    def _go_on(self, participant: Participant, reply: Rows | BaseException | None = None) -> None:
        """Let an answer run until it asks for something, or ends."""
        writing = participant.writing
        assert writing is not None
        participant.asked = None
        if isinstance(reply, BaseException):
            writing.throw(reply)
        else:
            writing.switch(*[] if reply is None else [reply])
        if writing.dead:
            participant.writing = None
            self._participants.remove(participant)

    def _call(self) -> None:
        """Make the next call, and let the answers go on that have what they asked for."""
        runs = self._chosen()
        if not runs:
            return
        seat = runs[0][0].seat
        failure: BaseException | None = None
        found = list[Rows]()
        before = seat.model.busy_s
        with self._changed:
            self._in_call = [asked for asked, _ in runs]
        try:
            with seat.lock:
                _choose(seat.model, [asked.seat.wanted for asked, _ in runs])
                found = seat.model.evaluate_runs([asked.run(count) for asked, count in runs])
        except BaseException as error:  # noqa: BLE001  every answer in the call has to hear of it
            failure = error
        with self._changed:
            self._in_call = []
            seat.model.resume()  # after which no cancel is for this call
        if failure is not None:
            for asked, _ in runs:
                self._go_on(asked.seat.participant, copy(failure))
        else:
            self._hand_out(runs, found, seat.model.busy_s - before)

    def _hand_out(self, runs: list[tuple[Asked, int]], found: list[Rows], seconds: float) -> None:
        total = len(runs)
        rows = sum(asked.rows for asked, _ in runs)
        reads = any(asked.is_reading or asked.left > count for asked, count in runs)
        if reads:
            read = sum(count for asked, count in runs if asked.is_reading)
            self._fit_piece(runs[0][0].seat.model, read, max(seconds, 1e-6))
            self._make_wait(runs, seconds)
        for (asked, done), part in zip(runs, found, strict=True):
            seat = asked.seat
            seat.spent_s += seconds
            seat.others = rows - asked.rows
            seat.calls = total
            seat.was_reading = reads or asked.has_waited
            asked.done += done
            if not asked.left:
                self._go_on(seat.participant, part)

    def _make_wait(self, runs: list[tuple[Asked, int]], seconds: float) -> None:
        """Count a call that read prompts for the answers whose tokens had to wait for its end."""
        model = runs[0][0].seat.model
        called = {asked.seat for asked, _ in runs}
        for asked in filter(None, (participant.asked for participant in self._participants)):
            seat = asked.seat
            if seat.model is model and seat not in called and not asked.is_reading:
                seat.spent_s += seconds
                asked.has_waited = True

    def _fit_piece(self, model: SeveralSeats, read: int, seconds: float) -> None:
        """Read as many tokens of prompts in the next call as would have taken its time in this one.

        Where other programs have the processors, small pieces take hardly less time: they grow again.
        """
        piece = self._piece(model)
        taken = max(piece, read)
        fitting = _scaled(taken, self._may_take_s / seconds)
        if fitting < EFFICIENT_READ:
            fitting = min(EFFICIENT_READ, _scaled(taken, READING_S / seconds))
        else:
            fitting -= fitting % EFFICIENT_READ
        if read >= piece:
            self._token_s[model] = seconds / read
        if fitting < piece or read >= piece:
            self._pieces[model, self._may_take_s] = min(model.max_tokens // 2, max(LEAST_READ, fitting))

    def _piece(self, model: SeveralSeats) -> int:
        return self._pieces.get((model, self._may_take_s), EFFICIENT_READ)

    def _chosen(self) -> list[tuple[Asked, int]]:
        """Return the parts of the next call, with the number of tokens of each.

        The draft model comes first, so that the target verifies drafts of all answers at once. But its
        prompts are read between the target's calls, one piece after each.
        """
        asked = sorted((each.asked for each in self._participants if each.asked), key=_number)
        if not asked:
            return []
        self._may_take_s = READING_S if all(each.is_reading for each in asked) else STALL_S
        target = self._models[0]
        draft = self._models[-1]
        drafting = [each for each in asked if each.seat.model is not target]
        verifying = [each for each in asked if each.seat.model is target]
        if drafting and (not verifying or any(not each.has_had_a_call for each in drafting)):
            runs = self._fitting(draft, drafting)
            for each, _ in runs:
                each.has_had_a_call = True
        else:
            runs = self._fitting(target, verifying)
            for each in drafting:
                each.has_had_a_call = False
        return runs if self._have_room(runs) else []

    def _fitting(self, model: SeveralSeats, asked: Sequence[Asked]) -> list[tuple[Asked, int]]:
        """Return the parts that fit into a call: whole drafts, the oldest first, and pieces of prompts.

        Of a model that reads them apart, long pieces take turns with drafts that follow long texts.
        """
        tokens = model.max_tokens
        rows = model.max_rows
        runs = list[tuple[Asked, int]]()
        for each in asked:
            if not each.is_reading and each.left <= tokens and each.rows <= rows:
                runs.append((each, each.left))
                tokens = tokens - each.left
                rows = rows - each.rows
        room = min(tokens, int(READING_S / max(self._token_s[model], 1e-6)))
        shares = self._shares(asked, min(self._piece(model), tokens), room, shortest=self._shortest[model])
        if self._are_apart(model, runs, shares):
            if any(each.has_waited for each, _ in runs):
                return runs
            runs = []
            rows = model.max_rows
        if shares:
            self._shortest[model] = not self._shortest[model]
        for each, share in shares:
            count = share - 1 if share == each.left and each.rows > rows else share
            if count > 0:
                runs.append((each, count))
                rows -= each.rows if count == each.left else 0
        return runs

    def _are_apart(
        self, model: SeveralSeats, drafts: list[tuple[Asked, int]], shares: list[tuple[Asked, int]]
    ) -> bool:
        """Return whether drafts and pieces of prompts are better in calls of their own.

        Of a divided cache llama.cpp computes the first token of each run apart, which shortens a piece.
        """
        if not model.reads_apart or not drafts or sum(share for _, share in shares) < EFFICIENT_READ:
            return False
        return not model.is_unified or sum(asked.seat.length() for asked, _ in drafts) >= APART

    def _shares(
        self, asked: Sequence[Asked], piece: int, room: int, *, shortest: bool
    ) -> list[tuple[Asked, int]]:
        """Divide a piece among prompts: the one that came first and the shortest take turns, then the others.

        So prompts of the same length are read one by one, and a short one does not wait for long ones. What
        would be left inefficiently short of a prompt goes with the rest of it, where that is no more than
        `room`.
        """
        reading = sorted(filter(_is_reading, asked), key=_unread)
        if reading and not shortest:
            first = min(reading, key=_arrival)
            reading.remove(first)
            reading.insert(0, first)
        shares = []
        for each in reading:
            share = min(each.left, piece)
            if each.left - share < min(share, EFFICIENT_READ) and each.left <= room:
                share = each.left
            shares.append((each, share))
            piece = max(0, piece - share)
            room -= share
        return shares

    def _have_room(self, runs: Sequence[tuple[Asked, int]]) -> bool:
        """Return whether there are cells for a call; if not, let the answer go that came last."""
        if not runs:
            return True
        seat = runs[0][0].seat
        needed = sum(asked.seat.growth(count) for asked, count in runs)
        if needed <= seat.cells.left() or self.make_room(seat.model, needed):
            return True
        last = self._participants[-1]
        if all(seats[0].participant in (NO_ONE, last) for seats in self.seats):
            return True  # its own text is too long for the model, which says so
        last.is_crowded_out = True
        self._go_on(last, Cancelled("there is no room beside other answers"))
        return False


def _scaled(piece: int, ratio: float) -> int:
    """Return a piece that is larger or smaller, at most twice or half as large."""
    return int(piece * min(2.0, max(0.5, ratio)))


def _came(participant: Participant) -> int:
    return participant.number or 0


def _arrival(asked: Asked) -> int:
    return _came(asked.seat.participant)


def _number(asked: Asked) -> int:
    return asked.number


def _is_reading(asked: Asked) -> bool:
    return asked.is_reading


def _unread(asked: Asked) -> int:
    return asked.unread


def _choose(model: SeveralSeats, wanted: Sequence[int | None]) -> None:
    """Have the device choose as many candidates as the most demanding answer needs."""
    counts = [count for count in wanted if count is not None]
    model.choose(max(counts) if len(counts) == len(wanted) else None)


NO_ONE = Participant(is_alone=True)
"""Has a seat that no answer has: what else works with the models then is alone."""


class Seat(LanguageModel):
    """A conversation's sequence of a shared model; branches are there for an answer that is alone."""

    cells: Cells
    lock: AbstractContextManager[bool]  # of the model, around everything but calls of one that is alone

    def __init__(self, model: SeveralSeats, number: int, passes: SharedPasses) -> None:
        self.model = model
        self.sequence = model.seat(number)
        self.participant = NO_ONE
        self.promised = 0  # tokens of the prompt that its answer will read
        self.wanted: int | None = None  # candidates of a row
        self.others = 0  # rows of other answers in the last call
        self.calls = 1  # runs in it
        self.was_reading = False  # whether a prompt was among them
        self.spent_s = 0.0  # in native calls for it, those for others among them
        self.max_draft = model.max_draft
        self._passes = passes

    @property
    def name(self) -> str:
        """Return the model's name."""
        return self.model.name

    @property
    def vocabulary_size(self) -> int:
        """Return the number of token ids."""
        return self.model.vocabulary_size

    @property
    def context_size(self) -> int:
        """Return the size of a sequence in tokens."""
        return self.model.context_size

    @property
    def busy_s(self) -> float:
        """Return the seconds of native calls for this conversation."""
        return self.spent_s

    @property
    def max_sequences(self) -> int:
        """Return the number of sequences: with branches, if its answer is alone."""
        has_branches = self.participant.is_alone and self.participant is not NO_ONE
        return self.model.max_sequences if has_branches else 1

    def length(self, sequence: int = 0) -> int:
        """Return the number of tokens in a sequence."""
        return self.model.length(sequence or self.sequence)

    def growth(self, tokens: int) -> int:
        """Return the cells that further tokens take besides those that it was promised."""
        length = self.length()
        return max(0, length + tokens - max(length, self.promised))

    def choose(self, count: int | None) -> None:
        """Return only the `count` likeliest tokens of each row, or more, if the device can."""
        self.wanted = count
        if self.participant.is_alone:
            self.model.choose(count)

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens, alone or in a call with other answers."""
        if not self.participant.is_alone:
            return self._passes.ask(self, tokens, logits)
        model = self.model
        if self.cells.left() < (growth := self.growth(len(tokens))):
            self._passes.make_room(model, growth)
        before = model.busy_s
        try:
            return model.evaluate_in(self.sequence, tokens, logits)
        finally:
            self.spent_s += model.busy_s - before

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append `tokens[i]` to `sequences[i]`; an answer in company has no branches."""
        if not self.participant.is_alone:
            if any(sequences):
                raise EngineError("answers that share a model have no branches")
            return self.evaluate(tokens, len(tokens))
        before = self.model.busy_s
        try:
            return self.model.step(tokens, [each or self.sequence for each in sequences])
        finally:
            self.spent_s += self.model.busy_s - before

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on."""
        own = sequence or self.sequence
        if length >= self.model.length(own):
            return  # as after most rounds; it does not grow meanwhile
        with self.lock:
            self.model.truncate(length, own)
            if not sequence:
                self.cells.cut(self, length)

    def branchable(self, end: int) -> bool:
        """Return whether a branch can share the sequence up to position `end`."""
        return end <= self.length()

    def share(self, source: int, target: int, end: int) -> None:
        """Share the cells of a sequence with a branch, or the other way round."""
        with self.lock:
            self.model.share(source or self.sequence, target or self.sequence, end)

    def share_prefix(self, source: Seat, length: int) -> int:
        """Take up to `length` tokens that another conversation holds, without reading; return their number.

        What this one held is forgotten. Where each has cells of its own, they are copied.
        """
        with self.lock:
            length = min(length, source.length())
            self.truncate(0)
            if length > 0 and self.model.is_unified:
                self.model.share(source.sequence, self.sequence, length)
                self.cells.shared(source, self, length)
            elif length > 0:
                saved = self.model.save_in(source.sequence, lambda _size: True)
                if saved is not None:
                    self.model.restore_in(self.sequence, saved)
                length = min(length, self.length())
                self.truncate(length)
        return length

    def drop_branches(self) -> None:
        """Empty the branches: they belong to the text of one conversation."""
        with self.lock:
            for branch in range(1, self.model.max_sequences):
                if self.model.length(branch):
                    self.model.truncate(0, branch)

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of the sequence."""
        with self.lock:
            return self.model.save_in(self.sequence, room)

    def restore(self, saved: SavedState, text: Sequence[int]) -> None:
        """Restore the sequence from a copy; if that fails or there is no room, it is empty."""
        self.truncate(0)
        if saved.length > self.cells.left() and not self._passes.make_room(self.model, saved.length):
            return
        with self.lock:
            self.model.restore_in(self.sequence, saved)

    def cancel(self) -> None:
        """Stop the running or the next call of an answer that is alone."""
        if self.participant.is_alone:
            self.model.cancel()

    def resume(self) -> None:
        """Take back a `cancel` that no call has noticed."""
        if self.participant.is_alone:
            self.model.resume()
