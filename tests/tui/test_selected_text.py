"""What is selected is copied as it was written, without what is only drawn."""

from __future__ import annotations

import pytest
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import Selection

from localspec.chat.messages import Role
from localspec.types.drafts import Provenance
from localspec.types.events import TextPiece
from localspec_tui.widgets.markdown.parse import build
from localspec_tui.widgets.markdown.prose import BlockLayout, GrowingProse
from localspec_tui.widgets.origins import OriginText
from tests.tui.settled import settled
from tests.tui.transcripts import Host, shown, until

LISTS = """First do this:

1. Run
   ```sh
   make all
   \tindented
   ```
2. Then:
   - nested
   - [x] done
     - deeper

> quoted **words**
> and more
>
> - item
"""
TABLE = """| name | n |
|:-----|--:|
| a \\| b | $x^2$ |
| [link](http://x) | |
| a long cell of words | 10 |
"""


def copied(
    source: str, start: tuple[int, int] | None = None, end: tuple[int, int] | None = None, width: int = 60
) -> str:
    """Return what is copied of a text between two places, each a column and a line."""
    prose = GrowingProse(source)
    prose.set_laid(BlockLayout(build(source), width))
    places = (place and Offset(*place) for place in (start, end))
    found = prose.get_selection(Selection(*places))
    return "" if found is None else found[0]


def test_lists_and_quotations_keep_marks_and_indentation_and_code_loses_its_head() -> None:
    assert copied(LISTS) == (
        "First do this:\n\n1. Run\n\n   make all\n   \tindented\n2. Then:\n   - nested\n   - [x] done\n"
        "     - deeper\n\n> quoted words\n> and more\n> - item"
    )


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("```make\nall: app\n\tcc app.c\n\n\t@echo\n```", "all: app\n\tcc app.c\n\n\t@echo"),
        ("```\na\tb\n```", "a\tb"),
        ("a\tb\nc\td", "a\tb\nc\td"),
        ("    indented\n      code", "indented\n  code"),
        ("- ```py\n  if x:\n      y\n  ```", "if x:\n    y"),
        ("3. c\n4. d", "3. c\n4. d"),
        ("- [ ] a\n- [x] b", "- [ ] a\n- [x] b"),
        ("1. [ ] a", "1. [ ] a"),
        ("- a\n\n  b\n- c", "- a\n\n  b\n\n- c"),
        ("> > a\n> > b", "> > a\n> > b"),
        ("a\n\n---\n\nb", "a\n\n---\n\nb"),
        ("```py\n" + "a = 1\n" * 45 + "```", "a = 1\n" * 44 + "a = 1"),
    ],
)  # fmt: skip
def test_all_of_a_text_is_copied_as_it_was_written(source: str, wanted: str) -> None:
    assert copied(source) == wanted


@pytest.mark.parametrize(
    ("source", "start", "end", "wanted"),
    [
        ("1. first\n2. second\n3. third", (2, 0), (6, 1), "rst\n2. second"),
        ("1. first\n2. second\n3. third", (2, 1), (3, 1), "c"),
        ("1. first\n2. second", (0, 1), (3, 1), "2. sec"),
        ("1. first\n2. second", (2, 0), (0, 1), "rst\n"),
        ("- a\n  - b\n  - c", (0, 1), None, "- b\n- c"),
        ("- do:\n  ```\n  if x:\n    y\n  ```", (0, 2), None, "if x:\n  y"),
        ("- do:\n  ```\n  if x:\n    y\n  ```", (3, 3), None, "x:\n  y"),
        ("- do:\n  ```\n  if x:\n    y\n  ```", (0, 0), (4, 2), "- do:\n"),
        ("> a\n> b", (0, 1), None, "> b"),
        ("a\n\nb", (5, 1), (1, 2), "b"),
        ("a\n\nb", (1, 0), (1, 2), "\n\nb"),
        ("a", (0, 3), None, ""),
    ],
)
def test_part_of_a_text_is_copied_from_where_it_begins(
    source: str, start: tuple[int, int], end: tuple[int, int] | None, wanted: str
) -> None:
    assert copied(source, start, end) == wanted


@pytest.mark.parametrize("width", [60, 14, 6])
def test_a_table_is_copied_as_markdown_at_any_width(width: int) -> None:
    wanted = "| name | n |\n| --- | ---: |\n| a \\| b | $x^2$ |\n| link |  |\n| a long cell of words | 10 |\n"
    assert copied(f"{TABLE}\nend", width=width) == f"{wanted}\nend"


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        ((0, 2), None, "a | b\t$x^2$\nlink\t\na long cell of words\t10"),
        ((0, 2), (20, 2), "a | b"),
        ((2, 2), (20, 2), "| b"),
        ((7, 4), None, "cell of words\t10"),
        ((0, 0), (60, 2), "| name | n |\n| --- | ---: |\n| a \\| b | $x^2$ |"),
        ((1, 0), (60, 2), "ame\tn\na | b\t$x^2$"),
        ((9, 3), (6, 4), "a long"),
    ],
)
def test_part_of_a_table_is_copied_without_lines_and_blanks(
    start: tuple[int, int], end: tuple[int, int] | None, wanted: str
) -> None:
    assert copied(TABLE, start, end) == wanted


def test_tabs_of_an_answer_with_colours_are_copied() -> None:
    prose = OriginText([TextPiece("all:\n\tcc", Provenance.TARGET), TextPiece("\ta", Provenance.BONUS)])
    prose.set_laid(BlockLayout(prose._laid.blocks, 60))
    assert prose.get_selection(Selection(None, None)) == ("all:\n\tcc\ta", "\n")


async def drag(pilot: Pilot[None], start: tuple[int, int], end: tuple[int, int]) -> str:
    await pilot.mouse_down(offset=start)
    await pilot.hover(offset=end)
    await pilot.mouse_up(offset=end)
    await pilot.pause()
    return pilot.app.screen.get_selected_text() or ""


@pytest.mark.asyncio
async def test_the_mouse_begins_at_a_mark_or_between_paragraphs() -> None:
    host = Host()
    async with host.run_test(size=(40, 24)) as pilot:
        source = "Look:\n\n1. first one\n2. second\n\n```\nalpha\n\n\tbeta\n```\n\nend"
        await host.transcript.show([shown(2, source)])
        await until(pilot, "end")
        x, y = host.place("1. first")
        end_x, end_y = host.place("second")
        assert await drag(pilot, (x, y), (end_x + 6, end_y)) == "1. first one\n2. second"
        assert await drag(pilot, (x + 1, y), (end_x + 6, end_y)) == "1. first one\n2. second"
        assert await drag(pilot, (x + 5, y - 1), (end_x + 6, end_y)) == "1. first one\n2. second"
        assert await drag(pilot, (x + 9, y), (end_x, end_y)) == "one\n2. s"
        x, y = host.place("alpha")
        end_x, end_y = host.place("beta")
        assert await drag(pilot, (x, y), (end_x + 3, end_y)) == "alpha\n\n\tbeta"


@pytest.mark.asyncio
async def test_words_that_were_searched_for_are_highlighted_until_that_ends() -> None:
    host = Host()
    async with host.run_test(size=(40, 24)) as pilot:

        def marked() -> list[str]:
            """Return the texts on another ground than that of the rest and of code."""
            grounds = {"#121212", "#241d13"}
            strips = host.screen._compositor.render_strips()
            segments = [each for strip in strips for each in strip if each.style and each.style.bold]
            return [
                each.text
                for each in segments
                if each.style and each.style.bgcolor and each.style.bgcolor.name not in grounds
            ]

        await host.transcript.show([shown(1, "A café"), shown(2, "the Cafe\n\n- and `cafés`, decaf")])
        host.transcript.highlight("cafe")
        await settled(pilot)
        assert marked() == ["café", "Cafe", "café"]
        host.transcript.highlight('"and cafes"')
        await settled(pilot)
        assert "".join(marked()) == "and cafés"
        host.transcript.highlight("")
        await settled(pilot)
        assert marked() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_tabs_of_a_message_are_copied(role: Role) -> None:
    host = Host()
    async with host.run_test(size=(40, 24)) as pilot:
        await host.transcript.show([shown(2, "one\ttwo\nthree\tfour", role=role)])
        await settled(pilot)
        x, y = host.place("one")
        end_x, end_y = host.place("four")
        assert await drag(pilot, (x, y), (end_x + 3, end_y)) == "one\ttwo\nthree\tfour"
