from __future__ import annotations

import sys

import pytest
from textual import events
from textual.message import Message

if sys.platform == "win32":
    pytest.skip("Textual has another driver there", allow_module_level=True)

from localspec_tui.terminal import InputParser


def heard(*pieces: str) -> list[str]:
    """Return the keys and pastes that pieces of input come to, once nothing more comes."""
    parser, found = InputParser(), list[Message]()
    for piece in pieces:
        found.extend(parser.feed(piece))
    found.extend(parser.tick())
    return [
        event.text if isinstance(event, events.Paste) else event.key
        for event in found
        if isinstance(event, events.Paste | events.Key)
    ]


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
