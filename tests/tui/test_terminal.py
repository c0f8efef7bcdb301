from __future__ import annotations

import sys

import pytest
from textual import _parser, events
from textual.message import Message

if sys.platform == "win32":
    pytest.skip("Textual has another driver there", allow_module_level=True)

from textual.drivers.linux_driver import LinuxDriver

from localspec_tui.cell_widths import MarksMeasured
from localspec_tui.terminal import InputParser, TerminalDriver


class Line:
    """A terminal at the end of a line that brings pieces with pauses between them, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_s = 1000.0
        monkeypatch.setattr(_parser, "get_time", lambda: self._now_s)
        self._parser = InputParser(clock=lambda: self._now_s)
        self.events: list[Message] = []

    def bring(self, *pieces: str, pause_s: float = 0.0) -> Line:
        """Bring pieces, each with a pause behind it."""
        for piece in pieces:
            self.events += self._parser.feed(piece)
            self.rest(pause_s)
        return self

    def rest(self, seconds: float) -> None:
        """Bring nothing for a while."""
        end_s = self._now_s + seconds
        while self._now_s < end_s:
            self._now_s = min(end_s, self._now_s + 0.1)
            self.events += self._parser.tick()

    def heard(self) -> list[str]:
        """Return keys and pastes, once nothing more comes."""
        self.rest(3.0)
        return [words(event) for event in self.events if isinstance(event, events.Paste | events.Key)]


def words(event: events.Paste | events.Key) -> str:
    return event.text if isinstance(event, events.Paste) else event.key


def heard(*pieces: str) -> list[str]:
    """Return the keys and pastes that pieces of input come to, once nothing more comes."""
    parser, found = InputParser(), list[Message]()
    for piece in pieces:
        found.extend(parser.feed(piece))
    found.extend(parser.tick())
    return [words(event) for event in found if isinstance(event, events.Paste | events.Key)]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["a\x1b[200~b\x1b[201~c"], ["a", "b", "c"]),
        (["\x1b[200~one\rtwo\r\nthree\x1b[201~\r"], ["one\ntwo\nthree", "enter"]),
        (["\x1b[200~one\x1b[201~\rtwo\x1b[201~"], ["one\ntwo"]),
        (["\x1b[200~a\x1b", "[31mred\x1b[0m\x1b[20", "1~x"], ["ared", "x"]),
        (["\x1b[200~" + "\x1b" * 40 + "\r\x1b[201~"], ["\n"]),
        (["\x1b[200~", "\x1b[201~", "z"], ["", "z"]),
        (["\x1b[1114112u", "z"], ["z"]),
        (["\x1b[999999999999999u", "\x1b[A"], ["up"]),
    ],
)
def test_pastes_are_text_in_their_place_and_no_sequence_is_too_odd(
    pieces: list[str], expected: list[str]
) -> None:
    assert heard(*pieces) == expected


NOT_TYPED = [
    "\x1b[<35;45;12M",
    "\x1b[<0;145;12m",
    "\x1b[<65;28;-1M",
    "\x1b[M !!",
    "\x1b[?2026;2$y",
    "\x1b[?62;22c",
    "\x1b[?61;4;6;7;14;21;22;23;24;28;32;42;52c",  # longer than Textual reads
    "\x1b[48;24;80;480;800t",
    "\x1b[12;40R",
    "\x1b[5n",
    "\x1b[999;999z",  # which no one knows
    "\x1b]11;rgb:1a1a/1b1b/1c1c\x07",
    "\x1b]52;c;aGVsbG8=\x1b\\",
    "\x1bP>|tmux 3.3a\x1b\\",
    "\x1bP1$r0m\x1b\\",
    "\x1b_Gi=31;OK\x1b\\",
]


@pytest.mark.parametrize("sequence", NOT_TYPED)
@pytest.mark.parametrize("pause_s", [0.0, 0.3, 0.9])
def test_sequence_in_pieces_is_one_and_no_key(
    monkeypatch: pytest.MonkeyPatch, sequence: str, pause_s: float
) -> None:
    first = 2 if sequence[1] in "[]" else 3  # Escape and Alt with a letter may have been typed
    whole = Line(monkeypatch).bring(f"a{sequence}b").events
    for cut in range(first, len(sequence)):
        line = Line(monkeypatch).bring(f"a{sequence[:cut]}", f"{sequence[cut:]}b", pause_s=pause_s)
        assert line.heard() == ["a", "b"], cut
        assert list(map(type, line.events)) == list(map(type, whole)), cut
        lost = Line(monkeypatch).bring(f"a{sequence[:cut]}", pause_s=3.0).bring("b")
        assert lost.heard() == ["a", "b"], cut


def test_rest_of_a_sequence_whose_escape_went_for_a_key_is_not_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(monkeypatch).bring("\x1b", "[<35;45", ";12M", "\x1b", "[1;5A", "x", pause_s=0.3)
    assert line.heard() == ["escape", "escape", "ctrl+up", "x"]
    assert any(isinstance(event, events.MouseMove) for event in line.events)


@pytest.mark.parametrize(
    ("pieces", "keys"),
    [
        (["\x1b"], ["escape"]),
        (["\x1b", "x"], ["escape", "x"]),
        (["\x1bx"], ["alt+x"]),
        (["\x1b", "[1] is a note"], ["escape", "left_square_bracket", "1", "right_square_bracket"]),
        (["\x1b[A", "\x1bOA", "\x1b[1;5C"], ["up", "up", "ctrl+right"]),
        (["\x1b[1;", "5C"], ["ctrl+right"]),
        (["\x1b[<35;4", "x"], ["x"]),
        (["\x1b[<35;4", "\x1b[A"], ["up"]),
        (["\x1b[20", "0~one\rtwo\x1b[2", "01~"], ["one\ntwo"]),
    ],
)
def test_keys_are_keys_however_they_come(
    monkeypatch: pytest.MonkeyPatch, pieces: list[str], keys: list[str]
) -> None:
    assert Line(monkeypatch).bring(*pieces, pause_s=0.3).heard()[: len(keys)] == keys


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            ["Explain this:\rdef f(x):\r    return x\rThanks"],
            ["Explain this:\ndef f(x):\n    return x\nThanks"],
        ),
        (["a\nb"], ["a\nb"]),
        (["Capital of\rFrance is?"], ["Capital of\nFrance is?"]),
        (["a\r\nb\r\n"], ["a\nb\n"]),
        (["a\r\r\tb"], ["a\n\n\tb"]),
        (["é\r日本"], ["é\n日本"]),
        (["one\r", "two\rthree", "\rfour\r"], ["one\ntwo\nthree\nfour\n"]),  # no pause between them
        (["x" * 4095 + "\r", "y" * 100], ["x" * 4095 + "\n" + "y" * 100]),
        (["a\rb\x1b[<35;45;12M"], ["a\nb"]),
        (["hi\r"], ["h", "i", "enter"]),
        (["h", "i", "\r", "y", "o"], ["h", "i", "enter", "y", "o"]),
        (["\rhi"], ["enter", "h", "i"]),
        (["hi\r", "y", "o"], ["h", "i", "enter", "y", "o"]),
        (["hi\r\r"], ["h", "i", "enter", "enter"]),
        (["hi\r\x11"], ["h", "i", "enter", "ctrl+q"]),
        (["hi\r\x1b[A"], ["h", "i", "enter", "up"]),
    ],
)
def test_text_that_comes_with_its_returns_at_once_is_pasted(
    monkeypatch: pytest.MonkeyPatch, pieces: list[str], expected: list[str]
) -> None:
    assert Line(monkeypatch).bring(*pieces).heard() == expected


def test_return_after_typed_text_waits_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(monkeypatch).bring("hi\r", pause_s=0.1)
    assert [event.key for event in line.events if isinstance(event, events.Key)] == ["h", "i", "enter"]


@pytest.mark.parametrize(
    ("answer", "widths"), [("\x1b[2;3R", [True]), ("\x1b[2;2R", [False]), ("\x1b[7;3R", [])]
)
def test_where_the_cursor_is_after_a_spacing_mark_is_its_width_and_no_key(
    answer: str, widths: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = list[Message]()
    monkeypatch.setattr(LinuxDriver, "process_message", lambda _driver, message: passed.append(message))
    driver = object.__new__(TerminalDriver)
    parser = InputParser()
    for event in [*parser.feed(answer), *parser.tick()]:
        driver.process_message(event)
    assert [each.take_cells for each in passed if isinstance(each, MarksMeasured)] == widths
    assert len(passed) == len(widths)
