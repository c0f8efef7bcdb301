"""What is asked of a target, and how its answers are kept and read again."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from localspec.errors import UserError
from localspec.types.request import Message
from training.answers import Conversation, save
from training.documents import Document
from training.made.requests import SLOT, SYSTEM_SHARE, TABLES, Request, Requests
from training.teacher_text import CANDIDATES, HELD_OUT, TeacherText, split_shards

CODE = (
    "import math\n\n\ndef area(radius: float) -> float:\n"
    '    """Return the area of a circle.\n\n    It is pi * r ** 2.\n    """\n'
)
DOCUMENTS = (
    Document("gsm8k", "<|im_start|>user\nTwo and two?<|im_end|>\n<|im_start|>assistant\nFour.<|im_end|>"),
    Document("algorithms", CODE + "    return math.pi * radius**2\n"),
)


def taken(count: int, seed: int = 1) -> list[Request]:
    requests = Requests(DOCUMENTS, random.Random(seed))
    return [requests.take() for _ in range(count)]


def test_every_template_and_its_words_fit_together() -> None:
    for template in TABLES["templates"]:
        assert set(SLOT.findall(template)) <= set(TABLES["words"]), template
    assert not [text for request in taken(300) for text in SLOT.findall(request.messages[-1].content)]


def test_requests_are_many_and_different() -> None:
    composed = [each.messages[-1].content for each in taken(400) if each.kind == "composed"]
    assert len(set(composed)) > 0.9 * len(composed) > 100


def test_requests_come_from_the_text_at_hand() -> None:
    by_kind = {each.kind: each.messages[-1].content for each in taken(300)}
    assert by_kind["sums"] == "Two and two?"
    assert '"""Return the area of a circle.' in by_kind["completion"]
    assert "math.pi" not in by_kind["completion"]
    assert "talk" not in by_kind


def test_some_requests_bring_a_system_prompt() -> None:
    systems = sum(each.messages[0].role == "system" for each in taken(600))
    assert 0.7 * SYSTEM_SHARE < systems / 600 < 1.3 * SYSTEM_SHARE


def test_a_follow_up_keeps_the_conversation() -> None:
    first = Request("composed", (Message("user", "Why?"),))
    second = first.followed("Because.", random.Random(1))
    assert [each.role for each in second.messages] == ["user", "assistant", "user"]
    assert second.messages[1].content == "Because."
    assert second.messages[2].content in TABLES["followups"]


def conversation(prompt: list[int], answer: list[int]) -> Conversation:
    made = Conversation(Request("x", ()), [*prompt, *answer], len(prompt), 0.5, 99)
    for token in answer:
        logs = np.log(np.full(CANDIDATES, 0.5 / (CANDIDATES - 1), np.float32))
        logs[0] = np.log(0.5)
        made.candidates.append((token + np.arange(CANDIDATES), logs))
    return made


def test_answers_are_read_as_they_were_saved(tmp_path: Path) -> None:
    save(tmp_path / "001-00000.npz", [conversation([7, 8, 9], [10, 11]), conversation([5], [6])])
    text = TeacherText.read([tmp_path / "001-00000.npz"])
    assert text.ids.tolist() == [7, 8, 9, 10, 11, 5, 6]
    assert text.written.tolist() == [False, False, False, True, True, False, True]
    written = np.flatnonzero(text.written)
    assert text.top[text.row[written], 0].tolist() == [10, 11, 6]
    np.testing.assert_allclose(text.chances.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(text.chances[:, 0], 0.5, atol=1e-3)
    assert list(tmp_path.iterdir()) == [tmp_path / "001-00000.npz"]


def test_the_frequent_tokens_are_those_with_most_weight(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", [conversation([1], [300, 300, 300, 20])])
    text = TeacherText.read([tmp_path / "a.npz"])
    assert text.frequent(400, 2).tolist() == [20, 300]


def test_answers_that_judge_are_not_trained_on(tmp_path: Path) -> None:
    for number in range(HELD_OUT + 2):
        (tmp_path / f"{number:05}.npz").touch()
    train, judge = split_shards(tmp_path)
    assert len(judge) == 2
    assert not set(train) & set(judge)
    assert len(train) + len(judge) == HELD_OUT + 2


def test_without_answers_nothing_can_be_distilled(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too few answers"):
        split_shards(tmp_path)


@pytest.mark.parametrize(
    ("answer", "repeats"), [([1, 2, 3] * 40, True), (list(range(120)), False), ([1] * 90, False)]
)
def test_answers_that_go_round_in_circles_are_noticed(answer: list[int], repeats: bool) -> None:
    assert conversation([0], answer).repeats() is repeats
