"""Untrusted text made safe for a terminal: shown, never executed."""

from __future__ import annotations

import re

_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LINE_ENDS = {0x0B: "\n", 0x0C: "\n", 0x85: "\n", 0x2028: "\n", 0x2029: "\n"}
_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # these reorder text, which can disguise it
_CONTROL = {
    code: None for code in (*range(0x20), *range(0x7F, 0xA0), *_REORDERING) if chr(code) not in "\n\t"
}
_TABLE = _CONTROL | _LINE_ENDS
_TABLE_OF_A_LINE = _CONTROL | dict.fromkeys((9, 10, 13, *_LINE_ENDS), " ")


def safe_text(text: str) -> str:
    """Return a text without control sequences of terminals, its lines ended by line feeds."""
    if text.isprintable():
        return text
    if "\x1b" in text:
        text = _SEQUENCES.sub("", text)
    return text.replace("\r\n", "\n").translate(_TABLE)


def safe_line(text: str) -> str:
    """Return a name or a message in one line; control sequences leave a visible trace."""
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_TABLE_OF_A_LINE)


def whole_text(text: str) -> str:
    """Return a text without halves of surrogate pairs, which represent bytes of a name that are not UTF-8.

    Each becomes an escape sequence, so different names stay different.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
