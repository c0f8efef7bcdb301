"""The prompts that shipped profiles are tuned with: enough, our own, unlike each other, fit to be asked."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.demo import prompts as demo_prompts
from localspec.storage.profiles import Profile, TuningPrompts, profiles

SHIPPED = profiles(Path("nowhere")).good
PUBLIC = Path(__file__).parents[3] / "shared" / "prompts"
LONGEST = 2700  # characters: the bundled pair reads 1,024 tokens, and the answer has to fit too
GRAM = 8  # words: N in a row are no accident


def own(profile: Profile) -> TuningPrompts:
    assert profile.own_tuning is not None
    return profile.own_tuning


def prompts() -> list[str]:
    return [text for known in SHIPPED for text in (*own(known).prompts, *own(known).held_out)]


def grams(text: str, length: int = GRAM) -> set[tuple[str, ...]]:
    words = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


@pytest.mark.parametrize("profile", SHIPPED, ids=lambda known: known.name)
def test_there_are_enough_to_find_settings_and_to_confirm_them(profile: Profile) -> None:
    assert len(own(profile).prompts) >= 24
    assert len(own(profile).held_out) >= 8


@pytest.mark.parametrize("profile", SHIPPED, ids=lambda known: known.name)
def test_short_and_long_ones_are_mixed_and_held_out_ones_are_alike(profile: Profile) -> None:
    lengths, held_out = (
        [len(text) for text in texts] for texts in (own(profile).prompts, own(profile).held_out)
    )
    assert max(lengths) >= 2 * statistics.median(lengths)
    assert 0.5 < statistics.median(held_out) / statistics.median(lengths) < 2


def test_each_fits_the_smallest_context_and_asks_for_something() -> None:
    assert [text for text in prompts() if not 30 <= len(text) <= LONGEST] == []
    assert [text for text in prompts() if not text.replace("\n", "").isprintable()] == []


def test_work_on_a_given_text_comes_with_the_text() -> None:
    kinds = {known.task: own(known) for known in SHIPPED}
    assert min(len(text) for text in kinds["summarise"].prompts) > 500
    assert sum("\n" in text for text in kinds["coding"].prompts) >= 8
    letters = "".join(kinds["translate"].prompts)
    assert all(letter in letters for letter in "\u00e4\u00e9\u00f3\u0142\u0436\u7684")


def test_no_two_are_alike() -> None:
    texts = prompts()
    counted = Counter(gram for text in texts for gram in grams(text))
    assert [gram for gram, count in counted.items() if count > 1] == []
    assert len({" ".join(text.lower().split()) for text in texts}) == len(texts)


def test_none_is_one_that_comes_with_the_bundled_pair() -> None:
    demo = {known.prompt.lower() for known in demo_prompts()}
    assert [text for text in prompts() if text.lower() in demo] == []


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public sets lie outside of the repository")
def test_none_is_from_the_public_sets() -> None:
    public = set[tuple[str, ...]]().union(*(grams(text) for text in public_texts()))
    assert len(public) > 1000
    assert [text for text in prompts() if grams(text) & public] == []


def public_texts() -> Iterator[str]:
    for path in PUBLIC.glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            for value in json.loads(line).values():
                yield from value if isinstance(value, list) else [str(value)]
