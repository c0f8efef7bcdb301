"""The drawing of a run of the tuner on a terminal."""

from __future__ import annotations

import io
import os
import pty
import sys
import threading

import pytest

from localspec.cli.tune import display
from localspec.cli.tune.display import Canvas, TuneView, view
from localspec.tuning.events import StageBegan
from tests.cli.tuning_script import machine


class Screen(io.StringIO):
    """What a terminal shows of what was written: enough of one for a drawing in place."""

    def rows(self) -> list[str]:
        rows, at = [""], 0
        text = self.getvalue()
        while text:
            if text.startswith("\x1b["):
                end = next(index for index in range(2, len(text)) if text[index].isalpha())
                argument, letter, text = text[2:end], text[end], text[end + 1 :]
                if letter == "A":
                    at -= int(argument)
                elif letter == "J":
                    rows[at:] = [""]
                continue
            character, text = text[0], text[1:]
            if character == "\n":
                at += 1
                rows += [""] * (at == len(rows))
            elif character != "\r":
                rows[at] += character
        return rows


class TestCanvas:
    def test_each_drawing_takes_the_place_of_the_last(self) -> None:
        screen = Screen()
        canvas = Canvas(screen)
        canvas.draw(["began"], ["one", "two", "three"])
        canvas.draw([], ["four"])
        canvas.draw(["ended"], ["five", "six"])
        assert screen.rows() == ["began", "ended", "five", "six"]
        canvas.draw(["all done"], [])
        assert screen.rows() == ["began", "ended", "all done", ""]

    def test_nothing_new_is_not_drawn_again(self) -> None:
        screen = Screen()
        canvas = Canvas(screen)
        canvas.draw([], ["one", "two"])
        before = screen.getvalue()
        canvas.draw([], ["one", "two"])
        assert screen.getvalue() == before

    def test_lines_that_a_smaller_window_wrapped_are_taken_away(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        screen = Screen()
        canvas = Canvas(screen)
        canvas.draw([], ["x" * 50, "y" * 30])
        monkeypatch.setattr(Canvas, "width", 19)  # a window of 20 columns shows them on 3 and 2 rows
        canvas.draw([], ["z"])
        assert "\x1b[4A" in screen.getvalue()

    def test_no_color_is_honoured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        colourful, plain = Screen(), Screen()
        Canvas(colourful).draw([], ["one", "two"])
        monkeypatch.setenv("NO_COLOR", "1")
        Canvas(plain).draw([], ["one", "two"])
        assert "\x1b[1m" in colourful.getvalue()
        assert plain.getvalue() == "\rone\ntwo" or plain.getvalue() == "one\ntwo"

    @pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")
    def test_width_is_that_of_the_terminal(self) -> None:
        import fcntl
        import struct
        import termios

        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 61, 0, 0))
        with os.fdopen(theirs, "w") as stream:
            assert Canvas(stream).width == 60
        os.close(ours)


class TestLiveView:
    def test_what_was_said_stays_and_the_drawing_goes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        screen, drawn = Screen(), threading.Event()
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr(display, "REDRAWN_S", 0.001)
        draw = Canvas.draw

        def seen(canvas: Canvas, kept: list[str], lines: list[str]) -> None:
            draw(canvas, kept, lines)
            if any("study" in line for line in lines):
                drawn.set()

        monkeypatch.setattr(Canvas, "draw", seen)
        with TuneView(["coding"], Canvas(screen)) as shown:
            for event in machine():
                shown.take(event)
            shown.take(StageBegan("study", "coding", 5))
            assert drawn.wait(20)
            shown.tell("a note")
        rows = screen.rows()
        assert rows[0].endswith("machine: 4 of 4 ways, 0 s")
        assert rows[-2:] == ["a note", ""]
        assert not any("study" in row for row in rows)

    @pytest.mark.parametrize(("terminal", "kind", "draws"), [
        (True, "xterm", True), (True, "dumb", False), (False, "xterm", False), (True, None, False),
    ])  # fmt: skip
    def test_only_a_terminal_that_can_is_drawn_on(
        self, monkeypatch: pytest.MonkeyPatch, terminal: bool, kind: str | None, draws: bool
    ) -> None:
        monkeypatch.setattr(display, "is_terminal", lambda _stream: terminal)
        if kind is None:
            monkeypatch.delenv("TERM", raising=False)
        else:
            monkeypatch.setenv("TERM", kind)
        assert (view(["coding"]).canvas is not None) == draws
