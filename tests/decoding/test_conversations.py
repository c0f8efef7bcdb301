"""Which conversations' caches are kept, which make room, and what is taken up again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.conversations import FEWEST, _Store
from localspec.decoding.engine import Engine
from localspec.decoding.prefixes import common_prefix
from localspec.decoding.rounds import DecodeParams, Round
from localspec.types.models import CachesOnDisk
from localspec.types.request import EngineSettings
from localspec.types.saved_states import CachedText, ConversationCopy, SavedState
from tests.contract import GREEDY, NO_END, OFF, latency_model
from tests.fake_model import FakeModel

SD = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
BYTES = 10  # of a token


class Savable(FakeModel):
    """A toy whose sequence 0 can be saved."""

    fails = False

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        held = self.tokens()
        if not held or not room(BYTES * len(held)):
            return None
        return SavedState(len(held), np.repeat(np.array(held, np.uint8), BYTES))

    def restore(self, saved: SavedState, text: Sequence[int]) -> None:
        for sequence in range(self.max_sequences):
            self.truncate(0, sequence)
        self._sequences[0] = [] if self.fails else list(map(int, saved.state[::BYTES]))


class Talks:
    """Conversations alternately on one engine."""

    def __init__(self, tokens: int, settings: EngineSettings = OFF) -> None:
        """Keep N tokens of conversations."""
        self.target, self.draft = Savable(sequences=1), Savable(sequences=8, noise=1.0)
        self.engine = Engine(self.target, self.draft)
        self.engine.conversations.keep(tokens * BYTES)
        self.settings = settings

    def ask(self, prompt: Sequence[int], tokens: int = 1) -> int:
        """Return how many tokens of a prompt are read."""
        self.engine.turn_to(prompt)
        params = DecodeParams(GREEDY, "rejection", 4, tokens, NO_END)
        text = [*prompt]
        for event in self.engine.rounds(prompt, self.settings, params, latency_model(), 0):
            if isinstance(event, Round):
                text += event.tokens
        fresh = Engine(FakeModel())
        expected = [*prompt]
        for event in fresh.rounds(prompt, OFF, params, latency_model(), 0):
            if isinstance(event, Round):
                expected += event.tokens
        assert text == expected
        assert self.target.tokens() == text[: self.target.length()]
        figures = self.engine.conversations.figures()
        assert figures.bytes <= figures.limit
        return len(prompt) - self.engine.reused

    def read_ahead(self, prompt: Sequence[int], settled: int) -> bool:
        """Return whether the beginning of a prompt, with an unsent question, is read."""
        drafts = self.settings.mode == "sd"
        return bool(list(self.engine.read_ahead(prompt, settled, 64, drafts=drafts)))

    @property
    def kept(self) -> int:
        return self.engine.conversations.figures().count


def text(first: int, tokens: int = 400) -> list[int]:
    return [first] + [(first * 7 + 3 * number) % 16 for number in range(tokens - 1)]


A, B, C, D = map(text, range(4))


@pytest.mark.parametrize("settings", [OFF, SD], ids=["off", "sd"])
def test_conversations_alternately_are_read_once(settings: EngineSettings) -> None:
    talks = Talks(tokens=10_000, settings=settings)
    assert [talks.ask(prompt, 9) for prompt in (A, B, C)] == [400] * 3
    for prompt in (A, B, C, B, A):
        assert talks.ask(prompt, 9) == 1
    if settings is SD:
        assert talks.draft.length() > 400
    assert talks.kept == 2  # the third is in the cache


def test_without_a_limit_nothing_is_kept() -> None:
    talks = Talks(tokens=0)
    assert [talks.ask(prompt) for prompt in (A, B, A)] == [400] * 3
    assert talks.kept == 0


def test_the_least_recently_used_makes_room() -> None:
    talks = Talks(tokens=1250)
    for prompt in (A, B, C, B, D):  # which is one too many: A was used least recently
        talks.ask(prompt)
    assert [talks.ask(prompt) for prompt in (C, B)] == [1, 1]
    assert talks.ask(A) == 400


def test_a_conversation_that_fits_in_no_way_is_not_kept_and_spares_others() -> None:
    talks = Talks(tokens=900)
    for prompt in (A, B, text(9, 1000)):
        talks.ask(prompt)
    assert talks.kept == 2
    assert [talks.ask(A), talks.kept] == [1, 1]
    assert talks.ask(B) == 1


@pytest.mark.parametrize("settings", [OFF, SD], ids=["off", "sd"])
@pytest.mark.parametrize("limit", [0, 3000])
def test_unsent_questions_that_change_take_no_memory_from_conversations(
    limit: int, settings: EngineSettings
) -> None:
    talks = Talks(limit, settings)
    for prompt in (A, B):
        talks.ask(prompt)
    kept = talks.kept
    for typed in (text(3, 200), text(4, 300), text(5, 100)):
        assert talks.read_ahead([*B, *typed], len(B))
        assert talks.kept == kept
    assert talks.ask([*B, *text(6, 20)]) == 20
    assert talks.kept == kept
    assert talks.ask(A) == (1 if limit else 400)


def test_a_conversation_that_was_read_ahead_is_kept_when_another_is_opened() -> None:
    talks = Talks(tokens=10_000)
    assert talks.read_ahead([*A, 5, 6, 7], len(A))
    assert talks.read_ahead(B, len(B))
    assert talks.kept == 1
    assert talks.ask(A) == 1


def test_a_lower_limit_drops_at_once() -> None:
    talks = Talks(tokens=10_000)
    for prompt in (A, B, C):
        talks.ask(prompt)
    talks.engine.conversations.keep(450 * BYTES)
    assert talks.kept == 1
    assert talks.ask(B) == 1


def test_a_longer_turn_replaces_what_was_kept_of_the_shorter() -> None:
    talks = Talks(tokens=10_000)
    for end in (400, 500, 600):
        talks.ask(text(1, end))
        talks.ask(text(2, end))
    assert talks.kept == 1
    talks.engine.forget()
    assert talks.kept == 2


def test_short_ones_and_small_edits_are_not_worth_it() -> None:
    talks = Talks(tokens=10_000)
    talks.ask(text(1, FEWEST - 10))
    talks.ask(B)
    assert talks.kept == 0
    talks.ask([*B[: 400 - FEWEST + 10], 5, 5, 5])
    assert talks.kept == 0


def test_two_that_continue_from_one_beginning_are_both_kept() -> None:
    talks, beginning = Talks(tokens=10_000), text(5, 1000)
    one, other = [*beginning, *A], [*beginning, *B]
    assert [talks.ask(prompt) for prompt in (one, other, one, other)] == [1400, 400, 1, 1]


def test_another_prompt_takes_the_beginning_and_leaves_the_copy() -> None:
    talks = Talks(tokens=10_000)
    talks.ask(one := [*text(5, 1000), *A])
    talks.ask(B)
    assert talks.ask([*text(5, 1000), *C]) == 400
    assert talks.ask(one) == 1


def test_what_cannot_be_restored_is_read_again() -> None:
    talks = Talks(tokens=10_000, settings=SD)
    talks.ask(A)
    talks.ask(B)
    talks.target.fails = talks.draft.fails = True
    assert talks.ask(A) == 400


def test_a_draft_model_that_cannot_be_saved_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    talks = Talks(tokens=10_000, settings=SD)
    monkeypatch.setattr(talks.draft, "save", lambda _: None)
    for prompt in (A, B):
        talks.ask(prompt, 9)
    assert [talks.ask(prompt, 9) for prompt in (A, B)] == [1, 1]


class Shelf:
    """A disk that notes what is asked of it, and has one copy."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []  # with the first token of the text
        self.copy: ConversationCopy | None = None

    def find(
        self,
        prompt: Sequence[int],
        adapters: tuple[float, ...],
        at_hand: int,
        most: int,
        is_wanted: Callable[[], bool],
    ) -> ConversationCopy | None:
        return self.copy

    def keep(self, copy: ConversationCopy, *, at_once: bool = False) -> None:
        self.asked.append(("write now" if at_once else "write", copy.tokens[0]))

    def drop(self, copy: ConversationCopy) -> None:
        self.asked.append(("drop", copy.tokens[0]))

    def hurry(self, copy: ConversationCopy) -> None:
        self.asked.append(("hurry", copy.tokens[0]))

    def figures(self) -> CachesOnDisk:
        return CachesOnDisk()

    def erase(self, text: Sequence[int], adapters: tuple[float, ...]) -> None:
        self.asked.append(("erase", text[0]))


def on_disk(tokens: int) -> tuple[Talks, Shelf]:
    talks, shelf = Talks(tokens), Shelf()
    talks.engine.conversations.keep(tokens * BYTES, shelf)
    return talks, shelf


def test_copies_go_to_the_disk_while_they_rest() -> None:
    talks, shelf = on_disk(tokens=900)
    for prompt in (A, B, C, B):
        talks.ask(prompt)
    assert shelf.asked == [("write", 0), ("write", 1), ("hurry", 0), ("write", 2), ("drop", 1)]


def test_the_text_in_the_caches_is_written_once_and_stays_there() -> None:
    talks, shelf = on_disk(tokens=900)
    talks.ask(A)
    for _ in range(2):
        if talks.engine.conversations.is_unwritten:
            talks.engine.conversations.write_present()
    assert shelf.asked == [("write now", 0)]
    assert talks.ask([*A, 5, 6]) == 2
    assert talks.engine.conversations.is_unwritten


def test_what_stays_in_memory_and_what_is_short_goes_to_no_disk() -> None:
    talks, shelf = on_disk(tokens=10_000)
    for prompt in (A, text(1, 100), B):
        talks.ask(prompt)
        talks.engine.conversations.kept_as = None
        assert not talks.engine.conversations.is_unwritten
    talks.engine.forget()
    assert (shelf.asked, talks.kept) == ([], 2)


def test_a_copy_from_disk_is_taken_up_as_one_in_memory() -> None:
    talks, _ = on_disk(tokens=10_000)
    talks.ask(A)
    talks.engine.forget()
    (copy,) = talks.engine.conversations.store.saved
    others, shelf = on_disk(tokens=10_000)
    shelf.copy = copy
    others.ask(B)
    found = others.engine.conversations.find_on_disk([*A, 5], (), 0, lambda: True)
    assert found is copy
    for _ in range(2):
        others.engine.conversations.take_in(copy)
    assert others.kept == 1
    assert others.ask([*A, 5]) == 1


def test_a_private_copy_that_is_taken_up_stays_private() -> None:
    talks, shelf = on_disk(tokens=10_000)
    talks.ask(A)
    talks.engine.conversations.kept_as = None
    talks.ask(B)
    talks.engine.conversations.kept_as = "chat1"
    talks.engine.turn_to(A)  # and its answer is stopped before it begins
    assert not talks.engine.conversations.is_unwritten
    assert shelf.asked == [("write", 1), ("drop", 0)]


TEXTS = st.lists(st.integers(0, 2), max_size=5)


def copy_of(text: Sequence[int], adapters: tuple[float, ...] = ()) -> ConversationCopy:
    saved = SavedState(len(text), np.zeros(BYTES * len(text), np.uint8))
    return ConversationCopy(CachedText((*text,), saved), adapters=adapters)


@given(st.lists(st.tuples(TEXTS, st.booleans(), st.booleans())), TEXTS)
def test_the_longest_copy_is_found_among_all(
    texts: list[tuple[list[int], bool, bool]], prompt: list[int]
) -> None:
    store = _Store()
    for text, is_adapted, is_removed in texts:
        copy = copy_of(text, (1.0,) if is_adapted else ())
        store.add(copy)
        if is_removed:
            store.remove(copy)
    for adapters in ((), (1.0,)):
        shared = [common_prefix(each.tokens, prompt) for each in store.usable(adapters)]
        found, length = store.longest(prompt, adapters)
        assert length == max(shared, default=0)
        if found is not None:
            assert found.adapters == adapters
            assert common_prefix(found.tokens, prompt) == length
    assert store.size == sum(each.size for each in store.saved)


def test_a_copy_replaces_those_of_earlier_turns_among_many_of_the_same_beginning() -> None:
    talks = Talks(100_000)
    random = np.random.default_rng(0)

    def words() -> list[int]:
        return [int(token) for token in random.integers(0, 16, 30)]

    system = words()
    talk = [*system, *words(), *words()]
    store = talks.engine.conversations.store
    others = [copy_of([*system, *words()]) for _ in range(200)]
    earlier = [copy_of([*talk[:60], *ending]) for ending in ((), (0,), (15,), (15, 3))]  # of templates
    talks.ask(talk)
    for copy in random.permutation(np.array([*others, *earlier], object)):
        store.add(copy)
    talks.engine.forget()
    assert {each for each in store.saved if each.tokens[:60] == (*talk[:60],)} == {[*store.saved][-1]}
    assert talks.kept == len(others) + 1
