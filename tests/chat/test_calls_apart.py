"""An answer's text apart from its calls: nothing is lost, and every character keeps its provenance."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import cycle

import pytest

from localspec.chat.calls.form import tool_format
from localspec.chat.calls.pieces import Piece
from localspec.chat.calls.reader import AnswerReader
from localspec.chat.tool_use.calls_apart import calls_apart
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, GenerationEvent, Summary, TextDelta, TextPiece, ThinkingOpened
from tests.chat.tool_models import ANY, WritesCalls, called

TOOL = json.dumps({"type": "function", "function": {"name": "look", "parameters": ANY}})
CALL = called("look", path="a")
FORM = tool_format(WritesCalls().render)


def events(text: str, rng: random.Random, opening: str = "") -> Iterator[GenerationEvent]:
    """Yield a text in random pieces whose provenance changes from each to the next."""
    if opening:
        yield ThinkingOpened(opening)
    origins = cycle(Provenance)
    while text:
        length = rng.randrange(1, 8)
        yield TextDelta((TextPiece(text[:length], next(origins)),))
        text = text[length:]
    yield Finished("stop", Summary())


def parted(text: str, seed: int, opening: str = "") -> tuple[str, list[str]]:
    """Return the text alone, and the arguments of each call."""
    reader = AnswerReader(FORM, [TOOL])
    said, calls = "", list[str]()
    for event in calls_apart(events(text, random.Random(seed), opening), reader):
        if isinstance(event, TextDelta):
            said += event.text
        elif isinstance(event, Piece):
            if event.id:
                calls.append("")
            calls[-1] += event.text
    return said, calls


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "text",
    [
        "Just a text.",
        "<think>\nwhat is <tool_call>?\n</think>\n\nIt is a tag: `<tool_call>`.\n",
        'So:\n```\n<tool_call>\n{"name": "look", "arguments": {"path": "a"}}\n</tool_call>\n```\n',
        "An end that may begin one: <tool_",
        "  blank space around  \n",
    ],
)
def test_a_text_without_calls_comes_through_unchanged(text: str, seed: int) -> None:
    assert parted(text, seed) == (text, [])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CALL, ""),
        (f"I look.\n\n{CALL}", "I look."),
        (f"<think>\nA file.\n</think>\n\n{CALL}", "<think>\nA file.\n</think>"),
        (f"<think>\nA file.\n</think>\n\nI look.\n{CALL}", "<think>\nA file.\n</think>\n\nI look."),
        (f"First.\n{CALL}\nThen.\n", "First.\n\nThen.\n"),
    ],
)
def test_a_call_is_cut_out(text: str, said: str, seed: int) -> None:
    found, calls = parted(text, seed)
    assert (found.split(), calls) == (said.split(), ['{"path": "a"}'])


@pytest.mark.parametrize("seed", range(5))
def test_thinking_that_the_prompt_has_opened_is_text(seed: int) -> None:
    found, calls = parted(f"A file.\n</think>\n\n{CALL}", seed, "<think>\n")
    assert (found.strip(), len(calls)) == ("A file.\n</think>", 1)


def test_every_character_keeps_its_provenance() -> None:
    text = f"Some words before. {CALL}"
    wanted = [piece for event in events(text, random.Random(3)) if isinstance(event, TextDelta)
              for piece in event.pieces]  # fmt: skip
    origins = [piece.provenance for piece in wanted for _ in piece.text]
    found = [
        (character, piece.provenance)
        for event in calls_apart(events(text, random.Random(3)), AnswerReader(FORM, [TOOL]))
        if isinstance(event, TextDelta)
        for piece in event.pieces
        for character in piece.text
    ]
    assert found == list(zip("Some words before.", origins, strict=False))
