"""Tools on the screen: a call is shown, asked about, allowed or refused, and its result stays."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import cast

import pytest
from textual.events import AppBlur, AppFocus
from textual.widgets import Input

from localspec.inference.attached import AttachedModels, Server
from localspec.tools.tool import Arguments, Effect
from localspec_tui.screens.tools import ToolsScreen
from localspec_tui.widgets import consent
from localspec_tui.widgets.consent import ConsentBar
from localspec_tui.widgets.transcript.message import ResultView
from tests.chat.tool_models import CallingModels, MadeTools, called, kit_of
from tests.scripted import Script, ScriptedModels, says
from tests.server.running import serving
from tests.server.telling_models import TellingModels
from tests.tui.desktop import Desktop, burst, desktop

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

EFFECTS: dict[str, Effect] = {"look": "reads", "change": "writes"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take answers at once: only the tests of the pause wait for it."""
    monkeypatch.setattr(consent, "READING_S", 0.0)
    monkeypatch.setattr(consent, "WRITING_S", 0.05)


def use(desk: Desktop, tools: MadeTools) -> None:
    """Offer tools in the open chat."""
    desk.chat.session.shared.make_kit = lambda: kit_of(tools)
    desk.chat.session.update_settings(tools=("made",))


def made(text: str = "line 1\nline 2") -> MadeTools:
    return MadeTools(EFFECTS, lambda *_: text)


def models_of(*scripts: Script) -> CallingModels:
    return CallingModels(*scripts)


async def done(desk: Desktop, messages: int) -> None:
    await desk.until(lambda: len(desk.path) == messages and not desk.chat.pane.working)


async def test_an_attached_screen_uses_tools_of_its_own_machine(tmp_path: Path) -> None:
    writing = TellingModels(texts=[called("change", path="a.txt"), "It is changed."])
    with serving(lambda: writing) as there:
        server = Server(there.url)
        async with desktop(tmp_path, models=lambda: cast("ScriptedModels", AttachedModels(server))) as desk:
            use(desk, tools := made("written"))
            await desk.enter("change a.txt")
            await desk.until(lambda: desk.app.focused is desk.chat.query_one(ConsentBar))
            assert tools.ran == []
            await desk.press("y")
            await done(desk, 4)
            assert tools.ran == [("change", {"path": "a.txt"})]
            await desk.shows("It is changed.")


async def test_a_reading_call_runs_by_itself_and_its_result_unfolds(tmp_path: Path) -> None:
    scripts = [says("I look.\n", called("look", path="a.txt")), says("It has two lines.")]
    async with desktop(tmp_path, models=lambda: models_of(*scripts)) as desk:
        use(desk, tools := made())
        await desk.enter("what is in a.txt?")
        await done(desk, 4)
        assert tools.ran == [("look", {"path": "a.txt"})]
        await desk.shows("→ look  path: a.txt", "look, done, the rule reads", "It has two lines.")
        assert "<tool_call>" not in desk.screen_text()
        assert "line 2" not in desk.screen_text()
        (result,) = desk.transcript.query(ResultView)
        result.unfolded = True
        await desk.shows("line 1", "line 2")


async def test_a_writing_call_waits_for_yes(tmp_path: Path) -> None:
    scripts = [says(called("change", path="a")), says("Changed.")]
    async with desktop(tmp_path, models=lambda: models_of(*scripts)) as desk:
        use(desk, tools := made())
        await desk.enter("change it")
        await desk.shows("change wants to change files. Allow it?", "would change")
        assert tools.ran == []
        await desk.until(lambda: desk.app.focused is desk.chat.query_one(ConsentBar))
        await desk.press("y")
        await done(desk, 4)
        assert len(tools.ran) == 1
        await desk.shows("the user allowed it")
        await desk.until(lambda: desk.composer.has_focus_within)
        assert not desk.chat.query_one(ConsentBar).waits


async def test_steps_of_a_question_are_shown_as_asked_by_localspec(tmp_path: Path) -> None:
    scripts = [
        says('["What is in a?", "Change a."]'),
        says(called("look", path="a")),
        says("Two lines."),
        says(called("change", path="a")),
        says("Changed."),
    ]
    async with desktop(tmp_path, models=lambda: models_of(*scripts)) as desk:
        kit = kit_of(tools := made(), steps="auto")
        desk.chat.session.shared.make_kit = lambda: kit
        desk.chat.session.update_settings(tools=("made",))
        await desk.enter("What is in a? Then change it.")
        await desk.until(lambda: desk.app.focused is desk.chat.query_one(ConsentBar))
        await desk.shows("LocalSpec asks for step 2 of 2 of the question", "Change a.")
        await desk.press("y")
        await done(desk, 9)
        assert [name for name, _ in tools.ran] == ["look", "change"]
        await desk.shows("Changed.")
        assert desk.screen_text().count("You ") == 1


async def test_no_with_a_word_reaches_the_model(tmp_path: Path) -> None:
    scripts = [says(called("change", path="a")), says("Well.")]
    async with desktop(tmp_path, models=lambda: models_of(*scripts)) as desk:
        use(desk, tools := made())
        await desk.enter("change it")
        await desk.until(lambda: desk.app.focused is desk.chat.query_one(ConsentBar))
        await desk.press("w")
        await desk.until(lambda: isinstance(desk.app.focused, Input))
        await desk.press(*"use b", "enter")
        await done(desk, 4)
        assert tools.ran == []
        assert desk.path[2].content == "This was not run: the user refused it: use b."


async def test_typing_goes_on_while_consent_is_asked(tmp_path: Path) -> None:
    scripts = [says(called("change", path="a")), says("Well.")]
    gate = Event()

    def act(_name: str, _arguments: Arguments, _stop: Event) -> str:
        assert gate.wait(10)
        return "slow"

    scripts.insert(0, says(called("look", path="a")))
    async with desktop(tmp_path, models=lambda: models_of(*scripts)) as desk:
        use(desk, tools := MadeTools(EFFECTS, act))
        await desk.enter("change it")
        await desk.shows("look is running")
        await burst(desk, "yes and any")
        gate.set()
        await desk.shows("Allow it?")
        await burst(desk, " way")
        assert desk.composer.text == "yes and any way"
        assert [name for name, _ in tools.ran] == ["look"]
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)
        assert [name for name, _ in tools.ran] == ["look"]
        assert not desk.chat.query_one(ConsentBar).waits


async def test_keys_that_come_too_early_allow_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consent, "READING_S", 1000.0)
    async with desktop(tmp_path, models=lambda: models_of(says(called("change", path="a")))) as desk:
        use(desk, tools := made())
        await desk.enter("change it")
        await desk.until(lambda: desk.app.focused is desk.chat.query_one(ConsentBar))
        await burst(desk, ["y", "a", "enter", "y"])
        assert desk.chat.query_one(ConsentBar).waits
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)
        assert tools.ran == []


async def test_a_click_that_brings_the_terminal_back_allows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desktop(tmp_path, models=lambda: models_of(says(called("change", path="a")))) as desk:
        use(desk, tools := made())
        await desk.enter("change it")
        await desk.until(lambda: desk.app.focused is desk.chat.query_one(ConsentBar))
        monkeypatch.setattr(consent, "READING_S", 1000.0)
        desk.chat.query_one(ConsentBar)._since = 0.0
        desk.app.post_message(AppBlur())
        desk.app.post_message(AppFocus())
        await desk.pilot.click("#consent-yes")
        await desk.pilot.pause()
        assert desk.chat.query_one(ConsentBar).waits
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)
        assert tools.ran == []


@pytest.mark.parametrize("words", ["yes, but in b", "yeah", "any way you want", "no", "nay, way"])
async def test_words_that_are_typed_at_a_question_are_a_prompt(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consent, "WRITING_S", 0.3)
    async with desktop(tmp_path, models=lambda: models_of(says(called("change", path="a")))) as desk:
        use(desk, tools := made())
        await desk.enter("change it")
        await desk.until(lambda: desk.app.focused is desk.chat.query_one(ConsentBar))
        await burst(desk, words)
        await desk.until(lambda: desk.composer.text == words)
        await desk.pilot.pause(0.4)  # in which a letter would be taken for an answer
        assert desk.chat.query_one(ConsentBar).waits
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)
        assert tools.ran == []


async def test_all_of_a_long_call_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "\n".join(f"line {number}" for number in range(60)) + "; rm -rf ~"
    tools = MadeTools(EFFECTS, lambda *_: "")
    preview = f"```sh\n{path}\n```"
    monkeypatch.setattr(tools, "preview", lambda _name, _arguments: preview)
    async with desktop(tmp_path, models=lambda: models_of(says(called("change", path=path)))) as desk:
        use(desk, tools)
        await desk.enter("change it")
        bar = desk.chat.query_one(ConsentBar)
        await desk.until(lambda: desk.app.focused is bar and "more line" in str(bar.border_subtitle))
        assert "rm -rf" not in "".join(desk.screen_text().splitlines()[-12:])
        await desk.press(*["pagedown"] * 20)
        await desk.shows("rm -rf ~")
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (120, 40)])
async def test_the_answers_are_in_view_below_a_long_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    tools = MadeTools(EFFECTS, lambda *_: "")
    monkeypatch.setattr(tools, "preview", lambda _name, _arguments: "```diff\n" + "-a\n+b\n" * 30 + "```")
    script = says(called("change", path="a"))
    async with desktop(tmp_path, models=lambda: models_of(script), size=size) as desk:
        use(desk, tools)
        await desk.enter("change it")
        bar = desk.chat.query_one(ConsentBar)
        await desk.until(lambda: "more line" in str(bar.border_subtitle))
        for words in ("wants to change files", "Yes  y", "No, with a word  w", "+b"):
            assert words in desk.screen_text()
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)


async def test_a_call_waits_in_a_chat_that_was_left(tmp_path: Path) -> None:
    scripts = [says(called("change", path="a")), says("Changed.")]
    async with desktop(tmp_path, models=lambda: models_of(*scripts)) as desk:
        use(desk, tools := made())
        await desk.enter("change it")
        await desk.shows("Allow it?")
        first = desk.chat.session.chat.info.id
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.chat.session.chat.info.id != first)
        await desk.until(lambda: any("waits" in each.message for each in desk.app._notifications))
        assert "Allow it?" not in desk.screen_text()
        await desk.chat.pane.open_chat(first)
        await desk.shows("change wants to change files. Allow it?")
        desk.chat.query_one(ConsentBar).focus()
        await desk.press("y")
        await done(desk, 4)
        assert len(tools.ran) == 1


async def test_tools_are_switched_on_in_their_screen(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: models_of(says("Hello."))) as desk:
        desk.chat.session.shared.make_kit = lambda: kit_of(made())
        await desk.enter("/tools")
        await desk.until(lambda: isinstance(desk.app.screen, ToolsScreen))
        await desk.shows("off", "made", "tools of a test")
        await desk.press("enter")
        assert desk.chat.session.tools_on() == ("made",)
        await desk.press("ctrl+t")
        await desk.shows("look: Do look.")
        await desk.press("enter", "escape")
        assert desk.chat.session.tools_on() == ()
        await desk.enter("/tools made on")
        await desk.shows("tools on in this chat: made")
        await desk.enter("/tools nothing on")
        await desk.shows("there are no tools `nothing`")


async def test_tools_are_saved_in_the_profile_and_said_where_they_come_from(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: models_of(says("Hello."))) as desk:
        desk.chat.session.shared.make_kit = lambda: kit_of(made())
        await desk.enter("/tools")
        await desk.shows("On: none, from profile General")
        await desk.press("enter")
        await desk.shows("On: made, set in this chat; profile General has none")
        await desk.press("f2")
        await desk.shows("saved in profile General: made", "On: made, from profile General")
        await desk.press("enter")
        await desk.shows("On: none, set in this chat; profile General has made")
        await desk.press("ctrl+r")
        await desk.shows("On: made, from profile General")
        await desk.press("escape", "ctrl+n")
        await desk.until(lambda: desk.chat.session.tools_on() == ("made",))


async def test_the_tokens_of_tools_are_shown_with_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = CallingModels(says("Hello."))
    monkeypatch.setattr(models, "render", lambda request: "x" * 700 * len(request.tools))
    monkeypatch.setattr(models, "tokenize", lambda text: [(1, b"x")] * len(text))
    async with desktop(tmp_path, models=lambda: models) as desk:
        desk.chat.session.shared.make_kit = lambda: kit_of(made())
        await desk.enter("/tools made on")
        await desk.until(lambda: "(tools 1.4k)" in desk.status())
        await desk.enter("/tools off")
        await desk.until(lambda: "(tools" not in desk.status())
