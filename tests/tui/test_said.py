"""A notice stays until it can be read, also while an answer is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat.loading import Failed
from localspec.errors import UserError
from localspec.types.events import PromptProgress
from localspec_tui.screens.chat import screen
from localspec_tui.widgets import notice
from tests.scripted import Gate, says
from tests.tui.desktop import Desktop, burst, desktop

pytestmark = pytest.mark.asyncio


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(notice, "monotonic", clock)
    return clock


async def midway(desk: Desktop, gate: Gate) -> None:
    await desk.enter("go")
    await desk.until(gate.reached.is_set)
    await desk.shows("one two")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("/foo\r", "there is no command `/foo`"),
        ("@nofile.txt", "there is no file `nofile.txt`"),
        (["ctrl+up", "e"], "an answer is being written; stop it first: Esc"),
        (["ctrl+up", "r"], "an answer is being written; stop it first: Esc"),
        (["f5"], "profile "),
        (["f6"], "mode plain from the next answer on, saved with this chat"),
    ],
)
async def test_what_is_reported_during_an_answer_can_be_read(
    tmp_path: Path, clock: Clock, keys: str | list[str], said: str
) -> None:
    gates = [Gate() for _ in range(3)]
    script = says("one two ", gates[0], "three four ", gates[1], "five six ", gates[2], "seven")
    async with desktop(tmp_path, says("before"), script, size=(80, 24)) as desk:
        await desk.answered("question")
        await midway(desk, gates[0])
        await desk.press(*("enter" if key == "\r" else key for key in keys))
        await desk.shows(said)
        gates[0].open()
        await desk.shows("three four")
        clock.now += 3.9
        gates[1].open()
        await desk.shows("five six")
        assert said in desk.status()
        clock.now += 60
        gates[2].open()
        await desk.until(lambda: not desk.chat.pane.working)
        assert said not in desk.status()


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
async def test_what_is_reported_of_an_answer_goes_with_it(tmp_path: Path) -> None:
    gate, other = Gate(), Gate()
    scripts = says(PromptProgress(10, 100), gate, "never"), says("one ", other), says("two")
    async with desktop(tmp_path, *scripts, size=(80, 24)) as desk:
        await desk.enter("question")
        await desk.shows("reading the prompt: 10 of 100 tokens")
        await desk.press("escape")
        await desk.until(lambda: "reading the prompt" not in desk.status())
        await desk.enter("question")
        await desk.until(other.reached.is_set)
        await desk.press("ctrl+r")
        await desk.shows("an answer is being written; stop it first: Esc")
        other.open()
        await desk.until(lambda: "stop it first" not in desk.status())


@pytest.mark.slow
async def test_a_key_that_would_quit_is_reported_as_long_as_it_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "QUIT_WITHIN_S", 600.0)
    async with desktop(tmp_path) as desk:
        await burst(desk, ["ctrl+c", *"draft"])
        await desk.shows("Ctrl+C again quits")
        assert desk.app.is_running
        assert desk.composer.text == "draft"


@pytest.mark.slow
async def test_a_key_that_would_have_quit_is_a_first_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "QUIT_WITHIN_S", 0.1)
    async with desktop(tmp_path) as desk:
        for _ in range(2):
            await desk.press("ctrl+c")
            await desk.until(lambda: "again quits" not in desk.status())
            assert desk.app.is_running


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
async def test_a_stop_is_reported_as_long_as_prompts_wait(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate), size=(80, 24)) as desk:
        await desk.enter("question")
        await desk.until(gate.reached.is_set)
        await desk.enter("waits")
        await desk.press("escape")
        await desk.shows("stopped; Enter in an empty prompt sends the next queued prompt")
        await desk.press("alt+up")
        await desk.until(lambda: desk.composer.text == "waits")
        assert "stopped;" not in desk.status()


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
async def test_models_that_did_not_open_are_no_news_once_some_are_open(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        line = desk.chat.pane.status
        await line.show_state(Failed(UserError("no memory for them"), "Enter tries again"))
        assert "no memory for them; Enter tries again" in desk.status()
        await line.show_state(desk.loader.state)
        assert "no memory" not in desk.status()


async def test_a_long_sentence_stays_longer(tmp_path: Path, clock: Clock) -> None:
    async with desktop(tmp_path) as desk:
        line = desk.chat.pane.notice
        line.say("word " * 50)
        clock.now += 10
        line.show_transient("")
        assert "word" in line.said
        clock.now += 10
        line.show_transient("")
        assert not line.said


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
async def test_an_error_goes_when_something_succeeds_and_what_was_chosen_stays(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), says("two")) as desk:
        await desk.press("ctrl+r")
        await desk.shows("there is no answer to regenerate")
        await desk.press("f3")
        await desk.until(lambda: "there is no question" not in desk.status())
        await desk.enter("/foo")
        await desk.shows("there is no command")
        await desk.answered("question")
        assert "there is no command" not in desk.status()
        await desk.press("f6")
        await desk.answered("question")
        assert "mode plain from the next answer on, saved with this chat" in desk.status()
