from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.markdown import CodeBlock, FenceScanner, closed, code_blocks
from localspec.code_fences import widened
from localspec_tui.widgets.markdown.parse import parsed

LINES = ("text", "", "```", "```py", "````", "~~~", "~~~~ sh", "  ```", "   ~~~", "```x`y", "`a` ```", "``` ")
FILES = ("```markdown", "```md", "~~~ md", "> ```md", "1. ```markdown", "````MD", "```sh")
NESTED = ("> ```", "> a", "> > ~~~", "- ```", "  ```", "1. a", "    a", "# a", "| a |", "|---|", "<div>")
TEXTS = st.lists(st.sampled_from(LINES), max_size=12).map("\n".join)
NESTED_TEXTS = st.lists(st.sampled_from(LINES + NESTED + FILES), max_size=12).map("\n".join)


def codes(text: str) -> list[tuple[str, str, bool]]:
    return [(block.fence, block.code, block.is_open) for block in code_blocks(text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("no code\n`x` and ``` inside", []),
        ("```\na\n```", [("```", "a\n", False)]),
        ("see\n```python title=x\na\n\nb\n```\nend", [("```", "a\n\nb\n", False)]),
        ("~~~\n```\n~~~\n", [("~~~", "```\n", False)]),
        ("````md\n```\na\n```\n````", [("````", "```\na\n```\n", False)]),
        ("  ```\n  a\n  ```", [("```", "a\n", False)]),
        ("```a\n1\n```\n```b\n2\n```", [("```", "1\n", False), ("```", "2\n", False)]),
        ("```py\nhalf", [("```", "half", True)]),
        ("```py\nhalf\n\n", [("```", "half\n\n", True)]),
        ("```", [("```", "", True)]),
        ("```\na\n```b", [("```", "a\n```b", True)]),
        ("```one line```\nno code", []),
        ("~~~ sh\n~~~", [("~~~", "", False)]),
        ("> ```\n> a\n> ```\n> end", [("```", "a\n", False)]),
        ("> ```\n> a", [("```", "a", True)]),
        ("> ```\n> a\n\nend", [("```", "a\n", False)]),  # the quotation ends it
        ("1. do:\n\n   ```sh\n   a\n   ```\n2. done", [("```", "a\n", False)]),
        ("```py\n\ta = 1\n```", [("```", "\ta = 1\n", False)]),
        ("- in a list\n\n  ~~~\n  b\n  ~~~", [("~~~", "b\n", False)]),
        ("so:\n\n    indented", [("", "indented\n", False)]),
    ],
)  # fmt: skip
def test_blocks_are_found_in_order_and_unchanged(text: str, wanted: list[tuple[str, str, bool]]) -> None:
    assert codes(text) == wanted


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_block_knows_where_it_is(line_end: str) -> None:
    text = line_end.join(["see", "```", "a", "```", "end"])
    (block,) = code_blocks(text)
    assert text[block.start : block.end] == line_end.join(["```", "a", "```", ""])
    assert block == CodeBlock(block.start, block.end, "a\n", "```")


@given(NESTED_TEXTS)
def test_code_is_what_the_screen_shows_as_code(text: str) -> None:
    shown = [token.content for token in parsed(text) if token.type in {"fence", "code_block"}]
    assert [block.code for block in code_blocks(text)] == shown


@given(TEXTS)
def test_text_that_comes_line_by_line_has_the_same_code(text: str) -> None:
    blocks, scanner, at = code_blocks(text), FenceScanner(), 0
    for line in text.splitlines(keepends=True):
        assert scanner.add(line) == any(block.start <= at < block.end for block in blocks)
        at += len(line)
    assert scanner.is_in_code == any(block.is_open for block in blocks)


@given(NESTED_TEXTS)
def test_what_follows_a_closed_text_is_not_a_code(text: str) -> None:
    blocks = code_blocks(f"{closed(text)}\n\nwhat follows")
    assert not any("what follows" in block.code for block in blocks)


README = """\
# Title

```sh
make
```

As plain text:

```
built
```

1. Then:
   ```py
   run()
   ```
"""


@pytest.mark.parametrize("language", ["markdown", "md", "MD", "{.markdown}", "mdx title=README"])
@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_a_markdown_file_keeps_its_own_fences_of_the_same_length(language: str, fence: str) -> None:
    file = README.replace("```", fence)
    text = f"Here:\n\n{fence}{language}\n{file}{fence}\n\nAnything else?\n\n{fence}sh\nls\n{fence}\n"
    assert [(block.code, block.is_open) for block in code_blocks(text)] == [(file, False), ("ls\n", False)]
    block = code_blocks(text)[0]
    assert text[block.start : block.end] == f"{fence}{language}\n{file}{fence}\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("```md\na:\n```\nb\n```\nc\n```\n\nend", ["a:\n```\nb\n```\nc\n"]),
        ("```md\n# a\n```\n\nThen:\n\n```\nb\n```", ["# a\n", "b\n"]),
        ("```md\n# a\n```\nThen:\n```sh\nb\n```\nand\n```sh\nc\n```", ["# a\n", "b\n", "c\n"]),
        ("```md\n# a\n```\nThen:\n\n```\nb\n```\n", ["# a\n", "b\n"]),
        ("```md\n```md\n```sh\na\n```\n```\n```\n\nb", ["```md\n```sh\na\n```\n```\n"]),
        ("```md\n```sh\na\n```\nhalf", ["```sh\na\n```\nhalf"]),
        ("```py\n```sh\na\n```\n\nb", ["```sh\na\n"]),
        ("> ```md\n> ```sh\n> a\n> ```\n> b\n> ```\n\nc", ["```sh\na\n```\nb\n"]),
        ("1. ```md\n   ```sh\n   a\n   ```\n   ```\n2. b", ["```sh\na\n```\n"]),
        ("```md\n- ```\n  a\n  ```\n\nb\n```\n\nc", ["- ```\n  a\n  ```\n\nb\n"]),
        ("~~~md\n```sh\na\n```\n~~~\n\nb", ["```sh\na\n```\n"]),
    ],
)  # fmt: skip
def test_the_end_of_a_markdown_file_is_found(text: str, wanted: list[str]) -> None:
    assert [block.code for block in code_blocks(text)] == wanted


@given(NESTED_TEXTS)
def test_no_line_moves_where_fences_become_longer(text: str) -> None:
    assert widened(text).count("\n") == text.count("\n")
    assert widened(widened(text)) == widened(text)


def test_text_that_comes_line_by_line_knows_a_fence_in_a_markdown_file() -> None:
    scanner = FenceScanner()
    lines = ["```md\n", "```sh\n", "a\n", "```\n", "b\n", "```\n", "c\n"]
    assert [scanner.add(line) for line in lines] == [True] * 6 + [False]
