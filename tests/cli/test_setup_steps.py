"""The questions of setup, without a terminal and without a machine."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from localspec.cli.setup.steps import Answer, Ask, Reply, Step, converse, question, read, usual
from localspec.errors import UserError


class Told:
    """Work that only keeps what it was told; downloads are needed for the first recommendation."""

    def __init__(self, fails: Iterable[Step] = ()) -> None:
        self.shown: list[Step] = []
        self.done: list[tuple[Step, Answer]] = []
        self.fails = list(fails)

    def last(self, at: Step) -> Answer:
        return [answer for step, answer in self.done if step == at][-1]

    @property
    def writes(self) -> bool:
        return ("write", Reply.YES) in self.done

    def show(self, step: Step) -> int:
        self.shown.append(step)
        if step == "place" and step in self.fails:
            self.fails.remove(step)
            raise UserError("does not fit")
        return 3

    def do(self, step: Step, answer: Answer) -> bool:
        self.done.append((step, answer))
        if step in self.fails:
            self.fails.remove(step)
            raise UserError("did not work")
        return answer == 1

    def asked(self, ask: Ask | None, given: Answer | None = None) -> Told:
        converse(self.show, self.do, ask, given)
        return self


def talk(work: Told, *lines: str, given: Answer | None = None) -> Told:
    """Answer the questions with lines; after the last one the input ends."""
    left = list(lines)
    return work.asked(lambda _: left.pop(0) if left else None, given)


def test_enter_all_the_way_takes_the_recommendation() -> None:
    work = Told()
    talk(work, "\n", "\n", "\n", "\n", "\n")
    assert work.shown == ["measure", "choose", "download", "place", "write"]
    assert [answer for _, answer in work.done] == [Reply.YES, 1, Reply.YES, Reply.YES, Reply.YES]


def test_nobody_is_asked_and_the_same_is_done() -> None:
    asked = talk(Told(), *["y", "1", "yes", "Y", "y"])
    assert Told().asked(None).done == asked.done


def test_every_step_can_be_skipped() -> None:
    work = Told()
    talk(work, "s", "skip", "no", "n")
    assert work.shown == ["measure", "choose", "place", "write"]
    assert {answer for _, answer in work.done} == {Reply.SKIP}


def test_a_download_can_be_skipped() -> None:
    work = Told()
    assert talk(work, "", "1", "s", "", "").writes
    assert work.done[2] == ("download", Reply.SKIP)


def test_every_step_can_be_taken_back() -> None:
    work = Told()
    talk(work, "", "1", "b", "t", "b", "2", "", "b", "b", "3", "s", "y")
    assert work.shown == [
        "measure", "choose", "download", "choose", "place", "choose", "place", "write", "place", "choose",
        "place", "write",
    ]  # fmt: skip
    assert (work.last("choose"), work.last("place"), work.writes) == (3, Reply.SKIP, True)
    assert talk(Told(), "back", "q").shown == ["measure", "measure"]


@pytest.mark.parametrize("at", range(5))
def test_every_step_can_be_repeated(at: int) -> None:
    usual_lines = ["", "", "", "", ""]
    work = Told()
    talk(work, *usual_lines[:at], "a", *usual_lines[at:])
    assert work.writes
    assert len(work.shown) == 6


@pytest.mark.parametrize("at", range(5))
def test_leaving_at_any_step_writes_nothing(at: int) -> None:
    assert not talk(Told(), *[""] * at, "q").writes
    assert not talk(Told(), *[""] * at).writes


def test_a_reply_that_no_one_understands_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    work = Told()
    assert talk(work, "perhaps", "", "9", "f", "y", 'f "x', "2", "", "y").writes
    error = capsys.readouterr().err
    with pytest.raises(UserError, match="one or two models"):
        read("choose", "f one two three", 3)
    for words in (
        "`perhaps` is not an answer",
        "no number 9",
        "one or two models",
        "`y` is no",
        "not closed",
    ):
        assert words in error
    assert work.shown == ["measure", "choose", "place", "write"]


def test_what_fails_is_reported_and_other_models_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    work = Told(["download", "place", "choose"])
    talk(work, "", "2", "1", "", "2", "3", "", "")
    assert work.last("choose") == 3
    assert work.shown == [
        "measure", "choose", "choose", "download", "choose", "place", "choose", "place", "write",
    ]  # fmt: skip
    assert capsys.readouterr().err.count("error: ") == 3


def test_without_questions_a_failure_ends_it() -> None:
    for step in ("choose", "place"):
        with pytest.raises(UserError):
            Told([step]).asked(None)


def test_without_questions_a_failed_download_makes_room_for_the_next_pair() -> None:
    work = Told(["download"]).asked(None)
    assert work.shown == ["measure", "choose", "download", "choose", "download", "place", "write"]
    assert work.writes


def test_models_that_were_named_are_not_asked_for_again() -> None:
    given = ("a.gguf", "b.gguf")
    work = Told()
    assert talk(work, "", "", "", given=given).writes
    assert work.last("choose") == given
    other = Told()
    talk(other, "", "b", "2", "", "", given=given)
    assert other.last("choose") == 2


def test_reading_replies() -> None:
    assert read("choose", "t\n", 3) == Reply.BUNDLED
    assert read("choose", "", 0) == Reply.BUNDLED
    assert read("choose", "f 'my big.gguf' C:\\small.gguf", 3) == ("my big.gguf", "C:\\small.gguf")
    assert read("choose", "file one", 3) == ("one",)
    assert read("write", " Skip ", 0) is Reply.SKIP
    assert usual("choose", 0) == Reply.BUNDLED


def test_questions_name_the_replies_they_take() -> None:
    assert "1 to 3, Enter for 1" in question("choose", 3)
    assert "Enter" not in question("choose", 0)
    assert "s: skip" in question("write", 0)
