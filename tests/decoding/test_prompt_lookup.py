import gc
import random

import pytest

from localspec.decoding.drafters.prompt_lookup import PromptLookupDrafter, SuffixIndex
from tests.decoding.toys import policy_of


def naive(tokens: list[int], minimum: int, limit: int, cap: int = 32) -> tuple[tuple[int, ...], int]:
    """Look at every earlier position; the latest of the longest matches wins."""
    best, longest = -1, minimum - 1
    for end in range(len(tokens) - 1):
        length = 0
        while length < cap and length <= end and tokens[end - length] == tokens[-1 - length]:
            length += 1
        if length >= max(longest, minimum):
            best, longest = end, length
    if best < 0:
        return (), 0
    extended = list(tokens)
    for place in range(limit):
        extended.append(extended[best + 1 + place])
    return tuple(extended[len(tokens) :]), longest


def index_of(tokens: list[int], minimum: int = 3) -> SuffixIndex:
    index = SuffixIndex(minimum)
    index.sync(tokens)
    return index


def test_proposes_what_followed_the_same_words() -> None:
    assert index_of([1, 2, 3, 4, 5, 6, 9, 1, 2, 3]).propose(3) == ((4, 5, 6), 3)


def test_prefers_the_longest_match_to_the_latest() -> None:
    assert index_of([7, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2, 3]).propose(1) == ((50,), 4)


def test_prefers_the_latest_of_equal_matches() -> None:
    assert index_of([7, 1, 2, 3, 50, 8, 1, 2, 3, 60, 9, 1, 2, 3]).propose(1) == ((60,), 3)


def test_a_text_that_repeats_itself_continues() -> None:
    assert index_of([5, 6, 5, 6, 5, 6], minimum=2).propose(5) == ((5, 6, 5, 6, 5), 4)
    assert index_of([1, 1, 1, 1]).propose(4) == ((1, 1, 1, 1), 3)


def test_nothing_to_propose() -> None:
    assert SuffixIndex().propose(4) == ((), 0)
    assert index_of([1, 2]).propose(4) == ((), 0)
    assert index_of([1, 2, 3, 4, 2, 3]).propose(4) == ((), 0)
    assert index_of([1, 2, 3, 1, 2, 3]).propose(0) == ((), 0)


def test_what_would_follow_a_longer_text_is_reported_without_keeping_it() -> None:
    rng = random.Random(3)
    for _ in range(60):
        tokens, more = [rng.randrange(3) for _ in range(40)], [rng.randrange(3) for _ in range(5)]
        index = index_of(tokens)
        assert index.propose_after(more, 6) == index_of([*tokens, *more]).propose(6)
        assert len(index) == len(tokens)
        assert index.propose(6) == index_of(tokens).propose(6)


def test_a_match_is_counted_to_its_cap() -> None:
    block = list(range(100))
    assert index_of([*block, 500, *block]).propose(2) == ((500, 0), 32)


def test_agrees_with_the_naive_search() -> None:
    rng = random.Random(1)
    for minimum in (1, 2, 3):
        for _ in range(60):
            tokens = [rng.randrange(3) for _ in range(rng.randrange(60))]
            assert index_of(tokens, minimum).propose(7) == naive(tokens, minimum, 7)


def test_growing_and_rewinding_equal_starting_again() -> None:
    rng = random.Random(2)
    index = SuffixIndex(2)
    text: list[int] = []
    for _ in range(300):
        match rng.randrange(4):
            case 0:
                del text[rng.randrange(len(text) + 1) :]
                index.truncate(len(text))
            case 1 if text:
                text[rng.randrange(len(text))] = rng.randrange(4)
                index.sync(tuple(text))
            case 2:
                added = [rng.randrange(4) for _ in range(5)]
                text += added
                index.extend(added)
            case _:
                text = [*text, rng.randrange(4)]
                index.sync(text)
        assert len(index) == len(text)
        assert index.propose(6) == index_of(text, 2).propose(6)


@pytest.mark.slow
def test_a_long_text_is_nothing_that_garbage_collections_look_through() -> None:
    index = SuffixIndex()
    index.extend(range(10))
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        index.extend(range(10, 20_000))
        assert len(gc.get_objects()) - before < 1000
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("text", "drafted"), [([1, 2, 3, 4, 5, 1, 2, 3], True), ([9, 2, 3, 4, 5, 1, 2, 3], False)]
)
def test_three_repeated_tokens_are_enough_for_a_draft(text: list[int], drafted: bool) -> None:
    drafter = PromptLookupDrafter(policy_of(), SuffixIndex())
    drafter.begin(text)
    assert (drafter.draft(4).tokens[:1] == (4,)) == drafted
