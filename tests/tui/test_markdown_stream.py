"""Markdown while it is written: nothing is lost or blank, and the end equals a reading in one go."""

from __future__ import annotations

import pytest

from localspec_tui.widgets.markdown.blocks import Block, clean
from localspec_tui.widgets.markdown.parse import (
    CODE_LINES,
    LONGEST_OPEN,
    GrowingMarkdown,
    build,
    code,
)
from tests.tui.transcripts import Host, said, shown, until

SAMPLE = """# Title

Some **bold** words, `code` and a [link](https://example.org).
A second line.

- one
- two
  - nested
- three

1. first
2. second

> quoted

```python
def double(x):
    return 2 * x
```

| a | b |
|---|--:|
| 1 | 2 |

Last words."""


def texts(blocks: list[Block] | tuple[Block, ...], width: int = 60) -> list[str]:
    return [f"{block.first}{block.at(width).plain}" for block in blocks]


def grown(source: str, size: int) -> GrowingMarkdown:
    growing = GrowingMarkdown()
    for start in range(0, len(source), size):
        growing.append(source[start : start + size])
    return growing


@pytest.mark.parametrize("size", [1, 3, 17, 1_000])
def test_text_in_pieces_reads_as_in_one_go(size: int) -> None:
    assert texts(grown(SAMPLE, size).blocks) == texts(build(SAMPLE))


@pytest.mark.parametrize("size", [50, 400])
@pytest.mark.parametrize(
    "source",
    [
        pytest.param("word " * 4_000, id="a long paragraph"),
        pytest.param("x" * 12_000, id="a long word"),
        pytest.param("漢字" * 3_000, id="wide characters"),
        pytest.param("```\n" + "y" * 9_000, id="a long line of open code"),
        pytest.param("- item\n" * 900, id="a long list"),
        pytest.param("~~~py\n" + "value = 1\n" * 300, id="long open code"),
    ],
)
def test_no_character_is_lost_on_the_way(source: str, size: int) -> None:
    def letters(text: str) -> str:
        return "".join(character for character in text if character.isalnum())

    growing = grown(source, size)
    shown_text = "".join(
        block.content.plain for block in growing.blocks if block.style != "prose--fence-head"
    )
    assert letters(shown_text) == letters(source.removeprefix("~~~py"))


def test_open_code_is_shown_while_it_is_open() -> None:
    growing = grown("Look:\n\n```python\nprint(1)\nprint(2", 4)
    assert texts(growing.blocks) == ["Look:", " python  copy", " print(1)\nprint(2"]
    growing.append(")\n```\n\nDone")
    assert texts(growing.blocks)[-2:] == [" print(1)\nprint(2)", "Done"]


def test_work_of_an_update_does_not_grow_with_the_text() -> None:
    growing = grown(SAMPLE * 3 + "\n\n" + "A paragraph of its own.\n\n" * 500, 2_000)
    before = list(growing.blocks)
    first = growing.append("more")
    assert len(before) - first <= 2
    assert all(now is then for now, then in zip(growing.blocks[:first], before, strict=False))


def test_code_is_cut_into_small_blocks() -> None:
    growing = grown("```\n" + "line\n" * 200, 64)
    assert max(block.content.plain.count("\n") + 1 for block in growing.blocks) <= CODE_LINES
    assert len(growing.blocks) - growing.closed <= 1


@pytest.mark.parametrize("size", [1, 17, 1_000])
@pytest.mark.parametrize("quarters", [1, 8, 13])  # of a block of code
def test_long_code_reads_as_in_one_go(size: int, quarters: int) -> None:
    lines = "a = 1\nb = 2\n\nc = 3\nd = 4\n" * quarters
    source = f"Look:\n\n```python\n{lines}```\n\nor\n\n- x\n\n  ~~~\n  a\n  ~~~\n\n```\nlast\n```\n\nDone"
    growing = grown(source, size)
    assert texts(growing.blocks) == texts(build(source))
    assert [repr(block) for block in growing.blocks if block.style == "prose--fence-head"] == [
        repr(block) for block in build(source) if block.style == "prose--fence-head"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 17, 1_000])
@pytest.mark.parametrize("lines", [1, 25, 70])
def test_a_markdown_file_with_fences_is_one_block_while_it_comes(size: int, lines: int) -> None:
    block = "```py\n" + "a = 1\n" * lines + "```\n\nText\n\n"
    file = f"# Title\n\n{block * 3}```sh\nmake\n```\n"
    growing = grown(f"Look:\n\n```markdown\n{file}```\n\nDone", size)
    heads = [block for block in growing.blocks if block.style == "prose--fence-head"]
    code_shown = [block.content.plain for block in growing.blocks if block.style == "prose--fence"]
    assert len(heads) == 1
    assert "\n".join(code_shown) + "\n" == file
    assert texts(growing.blocks)[-1] == "Done"


def test_long_open_text_continues_before_a_word() -> None:
    source = "- some words - 1. and # more " * 300
    growing = grown(source, 50)
    assert len(growing.blocks) > 3
    assert not any(block.gap for block in growing.blocks)
    assert all(block.content.plain[0].isalpha() for block in growing.blocks)


def test_long_open_text_is_cut() -> None:
    growing = grown("word " * 5_000, 100)
    assert all(len(block.content.plain) <= LONGEST_OPEN for block in growing.blocks)
    assert len(growing.blocks) - growing.closed == 1


def test_carriage_return_between_two_pieces_is_one_line_end() -> None:
    growing = GrowingMarkdown()
    growing.append("```\r")
    growing.append("\na = 1\r")
    growing.append("\nb = 2")
    assert texts(growing.blocks)[-1] == " a = 1\nb = 2"


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("[bold]not markup[/bold]", "[bold]not markup[/bold]"),
        ("<b>html</b> stays", "<b>html</b> stays"),
        ("<div>\nblock\n</div>", "<div>\nblock\n</div>"),
        ("\x1b[31mred\x1b[0m\x07 \x1b]0;title\x07end", "red end"),
        ("![a picture](http://x/y.png)", "[a picture]"),
        ("roses\nviolets", "roses\nviolets"),
        ("- [ ]", "[ ]"),
        ("[ ] no list", "[ ] no list"),
    ],
)
def test_text_is_shown_as_it_is_meant(source: str, seen: str) -> None:
    assert [block.content.plain for block in build(source)] == [seen]


@pytest.mark.parametrize("size", [1, 1_000])
def test_tasks_have_boxes(size: int) -> None:
    source = "- [ ] open\n- [x] **done**\n  - [X] nested\n- other\n\n1. [ ] numbered\n\n   [ ] not first"
    assert texts(grown(source, size).blocks) == [
        "☐ open",
        "☑ done",
        "  ☑ nested",
        "• other",
        "1. ☐ numbered",
        "     [ ] not first",
    ]


def test_names_in_code_are_not_underlined() -> None:
    blocks = code("def not_hidden(): pass", "python")
    styles = [str(span.style) for block in blocks for span in block.content.spans]
    assert styles
    assert not [style for style in styles if "underline" in style]


def test_joined_emoji_take_the_columns_that_any_terminal_gives_them() -> None:
    assert clean("👨\u200d👩\u200d👧 ক\u200dষ 👍🏽") == "👨👩👧 ক\u200dষ 👍"
    assert grown("👨\u200d👩\u200d👧 👍🏽", 1).blocks[0].content.plain == "👨👩👧 👍"


def test_table_fits_any_width() -> None:
    (table,) = build("| name | value |\n|---|--:|\n| " + "long words " * 10 + "| 1 |\n| 漢字 | 2 |")
    for width in (16, 20, 40, 120):
        lines = table.at(width).split("\n")
        assert all(line.cell_length <= width for line in lines), width
    assert "value: 2" in table.at(5).plain


HARD = {
    "a line without spaces": "x" * 10_000,
    "a long message": "some words and more " * 1_000,
    "wide": "漢字仮名交じり文" * 200,
    "emoji": "👩‍👩‍👧‍👦🇫🇷👍🏽 " * 100,
    "right to left": "שלום עולם مرحبا بالعالم " * 50,
    "control": "".join(map(chr, range(0x20))) + "\x1b[2J\x9b1m\u202eabc\u2066\ud7ff",
    "html": "<script>alert(1)</script>\n\n<table><tr><td>x</table>",
    "brackets": "[red]a[/red] [/] [link=x] [@click=app.quit]b[/] \\[",
    "a wide table": "|" + "a very long header|" * 30 + "\n|" + "---|" * 30 + "\n|" + "cell|" * 30,
    "an empty table": "||\n|-|\n",
    "deep lists": "".join(f"{'  ' * depth}- level {depth}\n" for depth in range(60)),
    "deep quotes": ">" * 80 + " deep",
    "odd fences": "```\n~~~\n````\n```\n```python {1,2} title='x'\na\n",
    "an unknown language": "```no-such-language\nx\n```",
    "unfinished": "**bold [link](htt",
    "empty": "",
    "blank": " \n\n \n",
}


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("width", [20, 100])
async def test_anything_can_be_shown_and_streamed(name: str, width: int) -> None:
    host = Host()
    async with host.run_test(size=(width, 30)) as pilot:
        item = shown(2, "start\n\n", state="writing")
        await host.transcript.show([shown(1, HARD[name] or " "), item])
        for start in range(0, len(HARD[name]), 997):
            host.transcript.stream(HARD[name][start : start + 997], [])
            await pilot.pause()
        await host.transcript.replace(said(item, f"start\n\n{HARD[name]}\n\n~~~\n\nthe end"))
        await until(pilot, "the end")


@pytest.mark.asyncio
async def test_final_text_replaces_what_was_guessed_on_the_way() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        source = "See [the site][1].\n\n" + "word " * 700 + "\n\n[1]: https://example.org\n"
        item = shown(2, " ", state="writing")
        await host.transcript.show([item])
        host.transcript.stream(source, [])
        await host.transcript.replace(said(item, source))
        host.transcript.action_scroll_home()
        await until(pilot, "See the site.")
        await pilot.click(offset=host.place("the site"))
        assert host.opened == ["https://example.org"]
