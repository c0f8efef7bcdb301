from __future__ import annotations

from localspec.chat.messages import Attachment, Role, StoredMessage
from localspec.chat.prompting import exchanges_of, to_prompt


def branch(*contents: str, dropped: tuple[int, ...] = ()) -> list[StoredMessage]:
    """Return a branch whose messages say what they are: `q...` a question, all else an answer."""
    roles: list[Role] = ["user" if content.startswith("q") else "assistant" for content in contents]
    return [
        StoredMessage(number, 1, number - 1 or None, role, content, 0.0, dropped=number in dropped)
        for number, (role, content) in enumerate(zip(roles, contents, strict=True), 1)
    ]


def sent(path: list[StoredMessage], *, continues: bool = False) -> list[str]:
    return [message.content for message in to_prompt("", path, continues=continues)]


def test_questions_and_answers_alternate() -> None:
    assert sent(branch("q1", "a1", "q2")) == ["q1", "a1", "q2"]


def test_questions_with_no_answer_between_them_stay_apart() -> None:
    assert sent(branch("q1", "q2", "a2", "q3")) == ["q1", "q2", "a2", "q3"]
    assert sent(branch("q1", "", "q2")) == ["q1", "q2"]


def test_a_greeting_before_the_first_question_is_sent() -> None:
    path = branch("a0", "q1", "a1", "q2")
    assert sent(path) == ["a0", "q1", "a1", "q2"]
    assert [len(group) for group in exchanges_of(path)] == [3, 1]
    assert sent(branch("a0")) == []  # no one asks anything


def test_thinking_is_not_sent_back() -> None:
    thought = "<think>\nhm\n</think>\n\na1"
    assert sent(branch("q1", thought, "q2")) == ["q1", "a1", "q2"]
    assert sent(branch("q1", "<think>\nhm, and then", "q2")) == ["q1", "q2"]


def test_an_answer_that_continues_is_sent_as_it_stands() -> None:
    thought = "<think>\nhm\n</think>\n\nso "
    assert sent(branch("q1", "<think>x</think>a1", "q2", thought), continues=True) == [
        "q1",
        "a1",
        "q2",
        thought,
    ]
    assert sent(branch("q1", ""), continues=True) == ["q1"]


def test_an_exchange_is_left_out_whole() -> None:
    for dropped in ((1,), (2,), (1, 2)):
        assert sent(branch("q1", "a1", "q2", dropped=dropped)) == ["q2"]


def test_the_question_that_waits_is_always_sent() -> None:
    assert sent(branch("q1", "a1", "q2", dropped=(3,))) == ["q1", "a1", "q2"]
    assert sent(branch("q1", "a1", "q2", "a2", dropped=(3, 4))) == ["q1", "a1"]
    assert sent(branch("q1", "a1", "q2", "a2", dropped=(3, 4)), continues=True) == ["q1", "a1", "q2", "a2"]


def test_an_empty_answer_ends_no_exchange() -> None:
    groups = exchanges_of(branch("q1", "", "q2", "a2", "q3"))
    assert [[message.id for message in group] for group in groups] == [[1, 2, 3, 4], [5]]
    assert len(exchanges_of(branch("q1", "a1", "", "q2"))) == 2


def test_files_are_written_out_before_the_question() -> None:
    files = (Attachment("a.txt", "one\n"), Attachment("b.md", "```py\nx\n```"), Attachment("c", ""))
    path = [StoredMessage(1, 1, None, "user", "why?", 0.0, attachments=files)]
    (message,) = to_prompt("", path)
    assert message.content == (
        "File a.txt:\n```\none\n```\n\nFile b.md:\n````\n```py\nx\n```\n````\n\nFile c:\n```\n```\n\nwhy?"
    )
