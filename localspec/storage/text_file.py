"""Text from users and other programs: decoded by its byte order mark, else as UTF-8."""

from __future__ import annotations

import codecs

from localspec.errors import UserError
from localspec.storage.paths import expanded
from localspec.storage.standard_input import StandardInput

STANDARD_INPUT = "-"
"""The name of standard input where a file is expected."""
_MARKS = (  # UTF-32's begins like UTF-16's
    (codecs.BOM_UTF8, "UTF-8", "utf-8"),
    (codecs.BOM_UTF32_LE, "UTF-32", "utf-32-le"),
    (codecs.BOM_UTF32_BE, "UTF-32", "utf-32-be"),
    (codecs.BOM_UTF16_LE, "UTF-16", "utf-16-le"),
    (codecs.BOM_UTF16_BE, "UTF-16", "utf-16-be"),
)
_CONVERT = "save it as UTF-8, or convert it: `iconv -f {} -t utf-8`"
_LATIN = "LATIN1"  # the most likely encoding if no other fits
_SAMPLE = 1024  # bytes


def read_text(file: str, what: str) -> str:
    """Return the text of a file, or of standard input for `-`; raises UserError.

    `what` describes its content in errors.
    """
    if file == STANDARD_INPUT:
        return decode_text(StandardInput().wait(), "standard input")
    named = f"{what} file `{file}`"
    try:
        data = expanded(file).read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {named}: {getattr(error, 'strerror', None) or error}") from None
    return decode_text(data, named).replace("\r\n", "\n")


def decode_text(data: bytes, name: str, *, offset: int = 0) -> str:
    """Decode bytes at an offset of a text, without a byte order mark at its beginning.

    Raises UserError with the text's name and the first bad byte.
    """
    mark, encoding, codec = _encoding(data) if offset == 0 else (b"", "UTF-8", "utf-8")
    try:
        text = data[len(mark) :].decode(codec)
    except UnicodeDecodeError as error:
        place = len(mark) + error.start
        bad = f"byte {data[place]:#04x} at offset {offset + place}"
        hint = _CONVERT.format(_LATIN)
        raise UserError(f"{name} is not {encoding} text: {bad}", hint) from None
    if "\0" in text:
        wide = _looks_wide(data)
        place = offset + len(mark) + len(text[: text.index("\0")].encode(codec))
        raise UserError(
            f"{name} is binary: a zero byte at offset {place}",
            _CONVERT.format(wide) if wide else "only text can be read",
        )
    return text


def is_wide(data: bytes) -> bool:
    """Return whether a text begins with a byte order mark of an encoding in which no byte ends a line."""
    return _encoding(data)[1] != "UTF-8"


def _encoding(data: bytes) -> tuple[bytes, str, str]:
    return next((each for each in _MARKS if data.startswith(each[0])), (b"", "UTF-8", "utf-8"))


def _looks_wide(data: bytes) -> str:
    """Return the encoding of a text in UTF-16 without a byte order mark; empty if it seems to be none."""
    sample = data[:_SAMPLE]
    for first, name in ((1, "UTF-16LE"), (0, "UTF-16BE")):
        zeros = sample[first::2]
        others = sample[1 - first :: 2]
        if zeros and zeros.count(0) == len(zeros) and 0 not in others:
            return name
    return ""
