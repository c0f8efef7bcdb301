from __future__ import annotations

from localspec.chat.session import PromptQueue


def queue_of(*prompts: str) -> PromptQueue:
    queue = PromptQueue()
    for prompt in prompts:
        queue.add(prompt)
    return queue


def test_prompts_leave_in_the_order_in_which_they_came() -> None:
    queue = queue_of("a", "b")
    queue.add("c")
    assert queue.items == ("a", "b", "c")
    assert [queue.take_first() for _ in range(4)] == ["a", "b", "c", None]
    assert len(queue) == 0


def test_a_prompt_is_taken_back_for_editing() -> None:
    queue = queue_of("a", "b", "c")
    assert queue.take(1) == "b"
    assert queue.items == ("a", "c")


def test_prompts_are_removed() -> None:
    queue = queue_of("a", "b", "c")
    queue.remove(0)
    assert queue.items == ("b", "c")
    queue.clear()
    assert not queue.items


def test_a_place_that_is_gone_changes_nothing() -> None:
    queue = queue_of("a")
    assert queue.take(1) is None
    assert queue.take(-1) is None
    queue.remove(5)
    assert queue.items == ("a",)
