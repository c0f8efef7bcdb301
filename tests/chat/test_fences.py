from __future__ import annotations

import pytest

from localspec.chat.thinking import CodeBlock, code_block_at, code_blocks, line_end


def codes(text: str) -> list[tuple[str, str, bool]]:
    return [(block.language, block.code, block.closed) for block in code_blocks(text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("no code\n`x` and ``` inside", []),
        ("```\na\n```", [("", "a\n", True)]),
        ("see\n```python title=x\na\n\nb\n```\nend", [("python", "a\n\nb\n", True)]),
        ("~~~\n```\n~~~\n", [("", "```\n", True)]),
        ("````md\n```\na\n```\n````", [("md", "```\na\n```\n", True)]),
        ("  ```\n  a\n  ```", [("", "  a\n", True)]),
        ("```a\n1\n```\n```b\n2\n```", [("a", "1\n", True), ("b", "2\n", True)]),
        ("```py\nhalf", [("py", "half", False)]),
        ("```", [("", "", False)]),
        ("```\na\n```b", [("", "a\n```b", False)]),
        ("```one line```\nno code", []),
        ("~~~ sh\n~~~", [("sh", "", True)]),
    ],
)
def test_blocks_are_found(text: str, wanted: list[tuple[str, str, bool]]) -> None:
    assert codes(text) == wanted


def test_a_block_knows_where_it_is() -> None:
    text = "see\n```\na\n```\nend"
    [block] = code_blocks(text)
    assert block == CodeBlock(4, 14, "a\n")
    assert text[block.start : block.end] == "```\na\n```\n"
    assert code_block_at(text, 4) == block
    assert code_block_at(text, 0) is None


def test_lines_end_after_their_line_end_or_with_the_text() -> None:
    assert (line_end("ab\nc", 0), line_end("ab\nc", 3)) == (3, 4)
