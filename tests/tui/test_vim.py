"""Vim's keys in the composer: each command is typed as vim's users type it."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events
from textual.keys import _character_to_key

from localspec.storage.config import Config, read_config
from localspec.storage.paths import config_dir
from tests.scripted import Script
from tests.tui.composer_host import ComposerHost
from tests.tui.desktop import desktop

pytestmark = pytest.mark.slow

ROWS = "one two, three\n\n  four five\nsix"
CASES = [  # what is typed in normal mode at the beginning of ROWS; then where `|` is typed
    ("lll", "one| two, three"),
    ("3l", "one| two, three"),
    ("w", "one |two, three"),
    ("ww", "one two|, three"),
    ("3w", "one two, |three"),
    ("99w", "si|x"),
    ("$", "one two, thre|e"),
    ("$b", "one two, |three"),
    ("$h0", "|one two, three"),
    ("e", "on|e two, three"),
    ("2e", "one tw|o, three"),
    ("G", "si|x"),
    ("Ggg", "|one two, three"),
    ("jj", "|  four"),
    ("jj^", "  |four"),
    ("2jk", "three\n|\n  four"),
]
CHANGES = [  # and what becomes of the text
    ("x", "ne two, three\n\n  four five\nsix"),
    ("3x", " two, three\n\n  four five\nsix"),
    ("$X", "one two, thre\n\n  four five\nsix".replace("thre", "thre"[:3] + "e")),
    ("dw", "two, three\n\n  four five\nsix"),
    ("$bdw", "one two, \n\n  four five\nsix"),
    ("de", " two, three\n\n  four five\nsix"),
    ("wD", "one \n\n  four five\nsix"),
    ("wd$", "one \n\n  four five\nsix"),
    ("$d0", "e\n\n  four five\nsix"),
    ("dd", "\n  four five\nsix"),
    ("2dd", "  four five\nsix"),
    ("Gdd", "one two, three\n\n  four five"),
    ("9dd", ""),
    ("cwsome", "some two, three\n\n  four five\nsix"),
    ("lcwx", "ox two, three\n\n  four five\nsix"),
    ("wCend", "one end\n\n  four five\nsix"),
    ("ccnew", "new\n\n  four five\nsix"),
    ("sm", "mne two, three\n\n  four five\nsix"),
    ("Aend", "one two, threeend\n\n  four five\nsix"),
    ("$Ibegin", "beginone two, three\n\n  four five\nsix"),
    ("ax", "oxne two, three\n\n  four five\nsix"),
    ("onew", "one two, three\nnew\n\n  four five\nsix"),
    ("Onew", "new\none two, three\n\n  four five\nsix"),
    ("yyp", "one two, three\none two, three\n\n  four five\nsix"),
    ("yyGp", "one two, three\n\n  four five\nsix\none two, three"),
    ("Gyy2P", "one two, three\n\n  four five\nsix\nsix\nsix"),
    ("xp", "noe two, three\n\n  four five\nsix"),
    ("yw$p", "one two, threeone \n\n  four five\nsix"),
    ("ddu", ROWS),
    ("xxuu", ROWS),
    ("zqx", "ne two, three\n\n  four five\nsix"),
    ("dzx", "ne two, three\n\n  four five\nsix"),
]


@pytest.mark.asyncio
async def test_commands_of_vim() -> None:
    app = ComposerHost()
    async with app.run_test(size=(60, 40)) as pilot:
        for keys, wanted in [(f"{keys}i|", cursor) for keys, cursor in CASES] + CHANGES:
            app.area.vim_mode = "INSERT"
            app.composer.text = ROWS
            for key in ("escape", *"gg0", *keys):  # in one burst
                app.area.post_message(events.Key(_character_to_key(key) if len(key) == 1 else key, key))
            await pilot.pause()
            found = app.composer.text
            assert wanted in found if "|" in wanted else wanted == found, (keys, found)


@pytest.mark.asyncio
async def test_modes_are_marked_and_enter_sends_in_both() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.area.vim_mode = "INSERT"
        frame = app.area.parent
        await pilot.press(*"hello")
        app.post_message(events.Key("alt+x", "x"))  # a terminal sends this for Escape and a letter at once
        await pilot.pause()
        assert (frame.border_subtitle, app.did, app.composer.text) == ("NORMAL", [], "hell")  # type: ignore[union-attr]
        await pilot.press("enter", *"again", "enter")
        assert app.sent == ["hell", "again"]
        await pilot.press(*"m", "escape", "x", "escape", "ctrl+k")
        assert app.did == ["stop", "search"]  # the second Escape is the screen's
        await pilot.press("k")  # from the first row to the prompt before
        assert app.composer.text == "again"


@pytest.mark.asyncio
async def test_vim_is_kept_and_ctrl_r_is_its_own_only_in_normal_mode(tmp_path: Path) -> None:
    async with desktop(tmp_path, Script("one"), Script("two")) as screen:
        await screen.answered("ask")
        await screen.enter("/vim")
        await screen.shows("vim keys are on")
        assert read_config(config_dir() / "config.toml").vim
        await screen.press(*"text", "escape", *"xu", "ctrl+r")
        assert screen.composer.text == "tex"
        assert not screen.chat.pane.working
        await screen.press("i", "ctrl+r")
        await screen.shows("two")
        await screen.enter("/vim")
        await screen.shows("vim keys are off")
    async with desktop(tmp_path, Script("one"), config=Config(vim=True)) as screen:
        assert screen.composer.prompt.vim_mode == "INSERT"
