"""Models chosen in the chat: those on this machine and those to be downloaded, as a user types and clicks."""

from __future__ import annotations

import threading
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from textual.widgets import OptionList

from localspec.app.recommendation import LocalTarget, choices
from localspec.chat.export import chat_text
from localspec.demo import bundled_pair
from localspec.errors import UserError
from localspec.hardware import machine as machine_module
from localspec.models.pair_request import ModelChoice
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from localspec_tui.screens.models import ModelsScreen
from tests.cli.choosing import entry, pair
from tests.hardware.machines import machine
from tests.llama import tiny
from tests.models.hub_server import Hub
from tests.scripted import Gate, ScriptedModels, says
from tests.tui.desktop import Desktop, desktop
from tests.tui.pairs import BIG, put_in_catalogue

pytestmark = pytest.mark.asyncio
SIZES = ((80, 24), (110, 30), (160, 45))


@pytest.fixture(autouse=True)
def invented_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has a CPU, and the catalogue a pair that would fit and one that would not."""
    monkeypatch.setattr(machine_module, "known_machine", lambda **_: machine())
    put_in_catalogue(monkeypatch, pair(BIG), pair(entry("giant", 900)))


@pytest.fixture
def other(empty_home: Path) -> Path:
    """Another model on disk."""
    folder = empty_home / "cache" / "llama.cpp"
    folder.mkdir(parents=True)
    return tiny.llama(folder / "other-Q8_0.gguf")


@pytest.fixture
def broken(other: Path) -> Path:
    """A file beside it that was cut off."""
    broken = other.with_name("broken.gguf")
    broken.write_bytes(other.read_bytes()[:3000])
    return broken


def included() -> ScriptedModels:
    models = ScriptedModels(says("Hello."))
    models.target = replace(models.target, path=bundled_pair()[0])
    assert models.draft is not None
    models.draft = replace(models.draft, path=bundled_pair()[1])
    return models


async def shown(screen: Desktop) -> list[str]:
    """Open the screen, and wait until it shows all."""
    await screen.press("f8")
    await screen.shows("To download", "Giant")
    return rows(screen)


def rows(screen: Desktop) -> list[str]:
    return [str(option.prompt) for option in screen.app.screen.query_one(OptionList).options]


@pytest.mark.slow
@pytest.mark.usefixtures("broken")
async def test_what_is_here_and_what_could_be_downloaded_at_every_size(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=included, size=(80, 24)) as screen:
        names = await shown(screen)
        assert [row.split()[:2] for row in names] == [
            ["On", "this"],
            ["●", "demo-target"],
            ["other-Q8_0", "411"],
            ["broken", "2.93"],
            ["To", "download"],
            ["Big", "Q4_K_M"],
            ["Giant", "Q4_K_M"],
        ]
        assert "tokens/s" in names[1]
        assert names[3].endswith("cannot open")
        assert names[-1].endswith("does not fit")
        for size in SIZES:
            await screen.pilot.resize_terminal(*size)
            await screen.shows("demo-target (included)", "demo-draft (1 of 2)", "Enter opens them")
        await screen.shows("Enter Choose  Right Other draft  Ctrl+D At every start")
        await screen.press("down", "down")
        await screen.shows("Cannot be opened: ", "/llama.cpp")
        await screen.press("enter")
        await screen.shows("broken cannot be opened: ")
        await screen.press("down", "down")
        await screen.shows("Cannot be opened here: does not fit with")
        await screen.press("enter")
        assert isinstance(screen.app.screen, ModelsScreen)
        await screen.press("f8")
        await screen.shows("Ask anything")
    assert len(screen.opened) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("other")
async def test_what_is_open_is_listed_wherever_it_came_from(tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    mine = tiny.llama(folder / "mine.gguf")

    def opened_from_there() -> ScriptedModels:
        models = included()
        models.target = replace(models.target, path=mine)
        return models

    async with desktop(tmp_path, models=opened_from_there, size=(110, 30)) as screen:
        await screen.press("f8", *"mine")
        await screen.shows("● mine", "Folder: ", "my models")
        assert rows(screen)[0].split() == ["On", "this", "machine"]


@pytest.mark.usefixtures("other")
async def test_files_that_were_open_before_stay_in_the_list(tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    mine, gone = tiny.llama(folder / "mine.gguf"), folder / "gone.gguf"
    listed = [row.model.name for row in choices((), (mine, gone)) if isinstance(row, LocalTarget)]
    assert "mine" in listed
    assert "gone" not in listed


@pytest.mark.slow
@pytest.mark.usefixtures("other")
async def test_a_name_typed_in_a_burst_opens_another_model_and_the_chat_stays(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=included) as screen:
        await screen.answered("Hi")
        await screen.press(*"draft")
        await shown(screen)
        await screen.press(*"OTHER", "enter")
        await screen.until(lambda: screen.loader.ready is not None and len(screen.opened) == 2)
        await screen.until(lambda: screen.chat.pane.title_bar.target == "other-Q8_0")
        assert screen.opened[0].closed
        assert (screen.texts, screen.composer.text) == (["Hi", "Hello."], "draft")
        screen.composer.text = ""
        await screen.answered("And now?")
        answers = [message for message in screen.path if message.role == "assistant"]
        records = [screen.store.record(message.id) for message in answers]
        assert [record and record.target for record in records] == ["large", "other-Q8_0"]
        text = chat_text(screen.store, screen.chat.session.chat.info, "md")
        assert "## Assistant (large)\n" in text
        assert "## Assistant (other-Q8_0)\n" in text


@pytest.mark.slow
async def test_a_draft_model_is_chosen_or_none(tmp_path: Path) -> None:
    choices: list[ModelChoice] = []
    async with desktop(tmp_path, on_choice=choices.append) as screen:
        await shown(screen)
        for key, words in (
            ("right", "Draft model: none (2 of 2)"),
            ("right", "demo-draft (1 of 2)"),
            ("right", "Draft model: none"),
        ):
            await screen.press(key)
            await screen.shows(words)
        await screen.press("enter")
        await screen.until(lambda: len(screen.opened) == 2 and screen.loader.ready)
        assert choices == [ModelChoice(bundled_pair()[0], None)]
        await screen.enter("/mode sd")
        await screen.shows("mode sd needs a draft model")


@pytest.mark.slow
@pytest.mark.usefixtures("other")
async def test_models_that_fail_or_are_stopped_leave_the_old_ones(tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()

    def refuse(_choice: ModelChoice) -> None:
        begun.set()
        assert release.wait(10)
        raise UserError("not enough memory for them")

    async with desktop(tmp_path, models=included, on_choice=refuse, size=(80, 24)) as screen:
        await screen.press(*"half a word")
        await shown(screen)
        await screen.press(*"other", "enter")
        await screen.until(begun.is_set)
        await screen.shows("Loading the models")
        release.set()
        await screen.shows(
            "the other models could not be opened: not enough memory for them", "large + small"
        )
        begun.clear()
        release.clear()
        await screen.enter("/model other-Q8_0")
        await screen.until(begun.is_set)
        await screen.press("escape")
        release.set()
        await screen.shows("loading stopped; the previous models stay open")
        await screen.until(lambda: screen.loader.ready is not None)
        await screen.answered("Hi")
        assert screen.models.target.path == bundled_pair()[0]


@pytest.mark.slow
async def test_any_pair_is_downloaded_paused_gone_on_with_opened_and_kept(hub: Hub, tmp_path: Path) -> None:
    hub.stalls, hub.first_stall = 1, 2  # after the header was read
    async with desktop(tmp_path, models=included, size=(110, 30)) as screen:
        await screen.enter("/setup")
        await screen.shows(
            "To download", "Big Q4_K_M", "licence MIT", "Source: user/big-GGUF, user/small-GGUF"
        )
        await screen.press("enter")
        await screen.shows("downloading ", "Enter pauses")
        await screen.press("escape")
        await screen.shows("downloading ")  # in the title bar
        await shown_pair(screen)
        await screen.press("enter")
        await screen.shows("paused ", "Enter resumes")
        hub.released.set()
        await screen.press("enter")
        await screen.shows("Enter opens them")
        await screen.until(lambda: "Big is downloaded: F8 opens them" in screen.status())  # below the list
        await screen.press("ctrl+d")
        await screen.shows("these models now open at every start")
        config = read_config(config_dir() / "config.toml")
        assert [path and path.name for path in (config.target, config.draft)] == [
            "big-Q4_K_M.gguf",
            "small-Q4_K_M.gguf",
        ]
        await screen.press("enter")
        await screen.until(lambda: screen.chat.pane.title_bar.models == "big-Q4_K_M + small-Q4_K_M")


async def shown_pair(screen: Desktop) -> None:
    await screen.press("f8")
    await screen.shows("Big Q4_K_M")
    await screen.press(*"big")
    await screen.until(lambda: len(rows(screen)) == 2)


@pytest.mark.slow
async def test_the_mouse_shows_a_row_and_then_takes_it(other: Path, tmp_path: Path) -> None:
    async with desktop(tmp_path, models=included, size=(110, 30)) as screen:
        await screen.until(lambda: "large + small" in screen.screen_text())
        await screen.pilot.click(offset=(screen.screen_text().splitlines()[0].index("large"), 0))
        await screen.shows("Giant")
        at = next(y for y, row in enumerate(screen.screen_text().splitlines()) if "other-Q8_0" in row)
        await screen.pilot.click(offset=(40, at))
        await screen.shows("other-Q8_0, llama")
        assert len(screen.opened) == 1
        await screen.press("ctrl+d")
        await screen.shows("these models now open at every start")
        assert read_config(config_dir() / "config.toml").target == other
        await screen.pilot.click(offset=(40, at))
        await screen.until(lambda: len(screen.opened) == 2)


@pytest.mark.slow
@pytest.mark.usefixtures("other")
async def test_a_model_is_named_completed_or_unknown(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=included) as screen:
        screen.composer.focus()
        await screen.press(*"/model oth")
        await screen.shows("other-Q8_0")
        await screen.press("tab", "enter")
        await screen.until(lambda: len(screen.opened) == 2)
        await screen.shows("other-Q8_0")
        await screen.enter("/model nobody-knows-it")
        await screen.shows("no model `nobody-knows-it` is on this computer")
        screen.chat.models.choices = None
        await screen.press("f8")
        await screen.shows("these models are on a server")
    assert len(screen.opened) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("other")
async def test_an_answer_under_way_is_not_cut_off(tmp_path: Path) -> None:
    gate = Gate()
    models = ScriptedModels(says("Hel", gate, "lo."))
    async with desktop(tmp_path, models=partial(copy, models)) as screen:
        await screen.enter("Hi")
        await screen.until(gate.reached.is_set)
        await screen.enter("/model other-Q8_0")
        await screen.shows("Opening other models stops the answers in")
        await screen.press("n")
        gate.open()
        await screen.until(lambda: screen.texts == ["Hi", "Hello."])
    assert len(screen.opened) == 1


@pytest.mark.slow
async def test_models_of_another_machine_are_listed_and_opened_there(tmp_path: Path, other: Path) -> None:
    there = [row for row in choices(()) if isinstance(row, LocalTarget)]
    opened: list[ModelChoice] = []
    async with desktop(tmp_path, models=included, on_choice=opened.append) as screen:
        screen.chat.models.host, screen.chat.elsewhere.use_local_models = "tower", lambda: None
        screen.chat.models.choices = lambda _open_now: there
        await screen.press("f8")
        await screen.shows("On tower", "other-Q8_0")
        assert "To download" not in screen.screen_text()
        await screen.press("ctrl+d")
        await screen.shows("these models are on tower")
        assert read_config(config_dir() / "config.toml").target is None
        await screen.press(*"other", "enter")
        await screen.until(lambda: opened)
    assert opened == [ModelChoice(other, None)]
