"""Disks that fill up or can only be read, files that may not grow, clocks that jump.

A small disk in memory is mounted where that is allowed (a note says where not); a limit of the system on the
size of files works everywhere.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from localspec.chat.messages import StoredMessage
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.errors import StoreError
from localspec.storage.paths import write_atomically
from localspec.types.request import Request
from tests.campaign.engine_calls import opened, soon
from tests.campaign.headers import verb
from tests.campaign.kills import environment, program
from tests.campaign.log import Log, require
from tests.chat.sample_record import RECORD
from tests.chat.talk import options
from tests.scripted import ScriptedModels, says

_ENOUGH = 256 << 10
_LIMITED = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
from localspec.chat.store import Store
from localspec.errors import StoreError
store = Store(Path(sys.argv[1]))
chat, number, told = store.new_chat().id, 0, ""
while not told and number < 5_000:
    try:
        number = store.add(chat, None, "user", "walnut " * 200).id
    except StoreError as error:
        told = str(error)
held = store.messages(chat)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.add(chat, None, "user", "more")
assert len(held) == number, (len(held), number)
print(told)
"""


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[bool]:
    """Mount a small disk on a folder; tell whether that was possible."""
    mounted = False
    if sys.platform.startswith("linux"):
        with suppress(OSError):
            mounted = _mount("-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder))
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def full(rng: random.Random, folder: Path) -> None:
    """Write to a disk that is full now and then: saved text stays, and writing goes on when there is room."""
    with small_disk(folder, rng.choice((512, 1024, 4096))) as mounted:
        if not mounted:
            return
        filler, settings = folder / "filler", folder / "settings.toml"
        settings.write_text("old")
        with Store(folder / "chats.db") as store:
            chat = store.new_chat().id
            taken: dict[int, str] = {}
            for _ in range(40):
                _fill(filler, rng)
                _write(rng, store, chat, taken)
                held = {message.id: message.content for message in store.messages(chat)}
                require(held == taken, f"{len(held)} messages, not {len(taken)}, or other texts")
                text = rng.choice(("old", "new")) * rng.choice((1, 3_000))
                with suppress(StoreError):
                    write_atomically(settings, text)
                require(set(settings.read_text()) <= set("oldnew"), "half a settings file")
                require(not [*folder.glob(".*.tmp")], "a temporary file is left behind")
            filler.unlink(missing_ok=True)
            if shutil.disk_usage(folder).free > _ENOUGH:  # the chats may have filled it themselves
                store.add(chat, None, "user", "room again")
        with Store(folder / "chats.db") as store:
            held = {message.id: message.content for message in store.messages(chat)}
            require(held.items() >= taken.items(), "what was taken is gone")


def _fill(filler: Path, rng: random.Random) -> None:
    filler.unlink(missing_ok=True)
    if rng.random() < 0.7:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            for _ in range(rng.choice((10, 100, 10_000))):
                file.write(bytes(4096))


def _write(rng: random.Random, store: Store, chat: int, taken: dict[int, str]) -> None:
    text = "walnut " * rng.choice((1, 1_000, 20_000))
    try:
        if taken and rng.random() < 0.5:
            number = rng.choice([*taken])
            store.write(number, text, "complete", rng.choice((None, RECORD)))
        else:
            number = store.add(chat, None, "assistant", text).id
        taken[number] = text
    except StoreError as error:
        require("no space left" in str(error), f"told as {error}")


def read_only(_rng: random.Random, folder: Path) -> None:
    """Read chats from a disk that can only be read, in a command and in a store that was open before."""
    with small_disk(folder, 8192) as mounted:
        if not mounted:
            return
        variables = environment(folder)
        (folder / "data").mkdir()
        with Store(folder / "data" / "chats.db") as store:
            chat = store.new_chat().id
            store.add(chat, None, "user", "walnut")
            if not _mount("-o", "remount,ro", str(folder)):
                return
            require([message.content for message in store.messages(chat)] == ["walnut"], "not to be read")
            with suppress(StoreError):
                store.add(chat, None, "user", "teapot")
                raise AssertionError("written to a disk that can only be read")
        for words in (["history"], ["history", "search", "walnut"], ["profiles"], ["models"]):
            with program(words, variables) as process:
                output, _ = process.communicate(timeout=60)
            require(process.returncode in (0, 1, 2), f"{words} ended with {process.returncode}")
            require(b"Traceback" not in output, f"{words}: {output[-300:]!r}")


def limited(rng: random.Random, folder: Path) -> None:
    """Write where the system lets no file grow any more."""
    command = [sys.executable, "-c", _LIMITED, str(folder / "chats.db"), str(rng.randrange(300, 900) << 10)]
    result = subprocess.run(
        command, env=environment(folder), capture_output=True, text=True, timeout=60, check=False
    )
    require(result.returncode == 0, result.stderr[-300:])
    require("chats.db" in result.stdout and result.stdout.count("\n") == 1, f"told as {result.stdout!r}")


def clock(rng: random.Random, folder: Path) -> None:
    """Answer, list, cancel and close while the clock jumps by years in both directions."""
    now = time.time()

    def jumping() -> float:
        return max(0.0, now + rng.choice((0.0, 1.0, -1.0, 3600.0, -3600.0, 3e8, -3e8, -now)))

    with patch("time.time", jumping), Store(folder / "chats.db", jumping) as store:
        chat = OpenChat(store, store.new_chat().id)
        for number in range(4):
            chat.ask(f"question {number}")
            for _ in chat.answer(ScriptedModels(says("an answer ", "in parts")), options()):
                continue
        path: tuple[StoredMessage, ...] = OpenChat(store, chat.info.id).path
        require([message.content for message in path][1::2] == ["an answer in parts"] * 4, "other answers")
        require(all(a.id < b.id for a, b in pairwise(path)), "another order")
        require(len(store.chats()) == 1, "the chat is not listed")
        with opened() as worker, soon("an answer that is left"):
            events = worker.generate(Request("hangs 3"))
            next(events)
            events.close()
        with patch.dict("os.environ", environment(folder, LOCALSPEC_DATA_DIR=str(folder))):
            require(verb(["history"]) == 0, "`history` does not list it")
            require(verb(["history", "export", str(chat.info.id)]) == 0, "`history` does not export it")


KINDS = (full, limited, clock, read_only)


def disks(log: Log, folder: Path) -> None:
    """Try every kind alternately, each in a folder of its own."""
    (folder / "probe").mkdir()
    with small_disk(folder / "probe", 64) as mounted:
        if not mounted:
            log.notes.append("no disk can be mounted here: only the sizes of files were limited")
    log.in_turn(KINDS, folder)
