from __future__ import annotations

import lzma
from collections import Counter
from typing import get_args

import pytest

from localspec.demo import DemoTask, prompts
from training.documents import PACKED


def test_every_task_has_equally_many_prompts() -> None:
    found = prompts()
    assert Counter(item.task for item in found) == dict.fromkeys(get_args(DemoTask), 13)
    assert len({item.prompt for item in found}) == len(found)
    assert all(item.prompt == item.prompt.strip() and len(item.prompt) > 20 for item in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["corpus.txt.xz", "corpus-heldout.txt.xz"])
def test_the_pair_has_not_seen_them(name: str) -> None:
    text = lzma.decompress((PACKED / name).read_bytes()).decode()
    assert [item.prompt for item in prompts() if item.prompt in text] == []
