"""What a model thinks, apart from what it answers, in `run` and in `chat`."""

from __future__ import annotations

import json
import sys

import pytest

from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.cli.shared import answer, console
from localspec.errors import EngineDied
from localspec.storage.paths import chats_file
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, TextDelta, TextPiece
from localspec.types.request import Request
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import SUMMARY, FakeRuntime, Script, says

HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Four."
THINKS = {
    "opened by the prompt": says("hm", "</think>", "\n\nFour.", opening="<think>\n"),
    "by the model": says("<think>", "\nh", "m\n</thi", "nk>", "\n\n", "Four."),
    "by letters": says(*"[THINK]hm[/THINK]Four."),
    "in channels": says(HARMONY[:31], HARMONY[31:60], HARMONY[60:]),
    "with a tag in the answer": says("<seed:think>hm</seed:think> ", "Four."),
}
TALKS = {
    "of tags": says("It ends with\n", "`</think>`\n", "<think> opens it."),
    "of code": says("```\n<think>\n", "```\nis how it be", "gins"),
    "with blanks": says("  ", "four\n\n", " "),
    "like a tag": says("<thi", "s"),
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard error be a terminal."""
    for module in (answer, console):
        monkeypatch.setattr(module, "is_terminal", lambda stream: stream is sys.stderr)


@pytest.mark.parametrize("script", THINKS.values(), ids=THINKS)
def test_the_answer_alone_is_on_standard_output(fake: FakeRuntime, invoke: Invoke, script: Script) -> None:
    fake.scripts = [script]
    assert invoke("run", "Hi").out == "Four.\n"
    outcome = invoke("run", "Hi", "--show-thinking")
    assert (outcome.out, outcome.err) == ("Four.\n", "Thinking:\nhm\n\n")
    outcome = invoke("run", "Hi", "--json")
    assert outcome.err == ""
    said = json.loads(outcome.out)
    assert (said["text"], said["reasoning"]) == ("Four.", "hm")
    outcome = invoke("chat", "--show-thinking", piped=b"Hi\n")
    assert outcome.out == "Four.\n"
    assert outcome.err.endswith("Thinking:\nhm\n\n")


@pytest.mark.parametrize("script", TALKS.values(), ids=TALKS)
def test_an_answer_that_does_not_think_comes_as_it_is(
    fake: FakeRuntime, invoke: Invoke, script: Script
) -> None:
    fake.scripts = [script]
    text = "".join(event.text for event in script(Request("")) if isinstance(event, TextDelta))
    whole = text if text.endswith("\n") else f"{text}\n"
    assert invoke("run", "Hi", "--show-thinking").out == whole
    said = json.loads(invoke("run", "Hi", "--json").out)
    assert (said["text"], said["reasoning"]) == (text, "")


def test_a_bare_text_has_no_thinking(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("<think>", "hm</think>", "Four.")]
    assert invoke("run", "--no-chat", "Hi").out == "<think>hm</think>Four.\n"
    assert json.loads(invoke("run", "--no-chat", "--json", "Hi").out)["reasoning"] == ""


@pytest.mark.usefixtures("seen")
def test_who_looks_at_standard_error_sees_it_faint(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.scripts = [says("h", "m\x1b[31m", "</think>Four.", opening="<think>")]
    shown = "\x1b[2mThinking:\nh\x1b[0m\x1b[2mm\x1b[0m"
    outcome = invoke("run", "Hi")
    assert outcome.out == "Four.\n"
    assert outcome.err.startswith(shown)
    assert "[31m" not in outcome.err  # what a model writes, no terminal obeys
    assert "Thinking" not in invoke("run", "Hi", "--hide-thinking").err
    assert "Thinking" not in invoke("run", "Hi", "--json").err
    assert "Thinking" in invoke("run", "Hi", "--json", "--show-thinking").err
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\nThinking:\nhm\n\n" in invoke("chat", piped=b"Hi\n").err


def test_colours_by_origin_are_those_of_the_answer(fake: FakeRuntime, invoke: Invoke) -> None:
    origins = (Provenance.ACCEPTED, Provenance.TARGET, Provenance.BONUS)
    pieces = tuple(map(TextPiece, ("hm</thi", "nk>\n\nFo", "ur."), origins))

    def script(_request: Request) -> object:
        yield TextDelta((TextPiece("<think>", Provenance.TARGET),))
        yield TextDelta(pieces)
        yield Finished("stop", SUMMARY)

    fake.scripts = [script]  # type: ignore[list-item]
    assert invoke("run", "Hi", "--color").out == "Fo\x1b[33mur.\x1b[0m\n"


@pytest.mark.parametrize(
    ("pieces", "is_told"),
    [(("<think>hm</think>", "\n\n"), True), (("<think>hm</think>", "Four."), False), ((" ",), False)],
)
def test_thinking_without_an_answer_is_reported(
    fake: FakeRuntime, invoke: Invoke, pieces: tuple[str, ...], is_told: bool
) -> None:
    fake.scripts = [says(*pieces)]
    outcome = invoke("run", "Hi")
    assert outcome.code == 0
    assert ("ended its turn after thinking, without an answer" in outcome.err) is is_told


@pytest.mark.parametrize("opening", ["<think>\n", ""])
def test_an_answer_that_is_cut_while_it_thinks_says_so(
    fake: FakeRuntime, invoke: Invoke, opening: str
) -> None:
    fake.scripts = [
        says(*(["<think>"] if not opening else []), "hm, ", "and", reason="length", opening=opening)
    ]
    outcome = invoke("run", "Hi")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "note: the model was still thinking when its turn ended\n"
    assert json.loads(invoke("run", "Hi", "--json").out)["reasoning"] == "hm, and"
    invoke("chat", typed="Hi\n")
    with Store(chats_file()) as store:
        (chat,) = store.chats()
        kept = OpenChat(store, chat.id)
    assert kept.path[-1].content == "<think>" + "\n" * bool(opening) + "hm, and"
    assert [message.content for message in kept.prompt()] == ["Hi"]


def test_what_was_held_back_is_written_when_the_engine_dies(fake: FakeRuntime, invoke: Invoke) -> None:
    def script(_request: Request) -> object:
        yield TextDelta((TextPiece("So.\n<think>hm", Provenance.TARGET),))
        raise EngineDied("it is gone")

    fake.scripts = [script]  # type: ignore[list-item]
    outcome = invoke("run", "Hi")
    assert outcome.out == "So.\n<think>hm"
    assert "it is gone" in outcome.err


def test_both_flags_at_once_are_rejected(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("run", "Hi", "--show-thinking", "--hide-thinking")
    assert (outcome.code, fake.requests) == (2, [])
    assert "not allowed with" in outcome.err
