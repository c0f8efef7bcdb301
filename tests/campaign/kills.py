"""Kills at any moment: afterwards everything opens, and nothing that is older than half a second is lost."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import patch

import psutil

from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.chat.store.database import MIGRATIONS, migrate
from localspec.chat.store.search import search_text
from localspec.demo import bundled_pair
from tests.campaign.log import Log, allowed_s, require
from tests.models.hub_server import Hub, Repository, serving

LOST_S = 0.5  # what is newer may be lost
_LONGEST_PAUSE_S = 1.0
ROOT = Path(__file__).parents[2]
_HEAD = f"""
import sys, time
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tui")!r}]
from localspec.chat.store import Store
folder = Path(sys.argv[1])
"""
_ANSWERS = f"""
from localspec.types.events import TextDelta
from tests.chat.talk import options
from tests.scripted import ScriptedModels, Script
from localspec.chat.open_chat import OpenChat
late_s = 0.0  # by which the machine has let this program wait at most
def slowly():
    global late_s
    for number in range(10_000):
        yield str(number) + " "
        pause_s = 0.005 if number % 40 else {_LONGEST_PAUSE_S}  # now and then the models pause
        began_s = time.monotonic()
        time.sleep(pause_s)
        late_s = max(late_s, time.monotonic() - began_s - pause_s)
store = Store(folder / "chats.db")
chat = OpenChat(store, store.new_chat().id)
chat.ask("Count!")
for event in chat.answer(ScriptedModels(Script(slowly()), context=10**6), options()):
    if isinstance(event, TextDelta):
        print(time.monotonic(), late_s, event.text, flush=True)
"""
_ADDS = """
store = Store(folder / "chats.db")
chat = store.new_chat().id
parent = None
while True:
    parent = store.add(chat, parent, "user", "walnut").id
    print(time.monotonic(), parent, flush=True)
"""
_MIGRATES = """
print(time.monotonic(), "begins", flush=True)
Store(folder / "chats.db").close()
print(time.monotonic(), "ends", flush=True)
time.sleep(60)
"""


_CHAT = "title, created, updated, profile"
_MESSAGE = "chat, role, state, created, written, content"


def python(code: str, folder: Path) -> subprocess.Popen[str]:
    """Start a program that prints when it did what."""
    command = [sys.executable, "-P", "-c", _HEAD + code, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return variables that put all files of a program into a folder."""
    kinds = {f"LOCALSPEC_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "STATE")}
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tui'}"
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": paths, **kinds, **more}


def program(words: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start LocalSpec with no one in front of it."""
    return subprocess.Popen(
        [sys.executable, "-m", "localspec", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(variables),
        start_new_session=True,
    )


def killed(process: subprocess.Popen[str], after_s: float) -> tuple[float, list[tuple[float, str]]]:
    """Kill a program so long after its first line; return when that was, and what it had printed."""
    assert process.stdout is not None
    with process:
        first = process.stdout.readline()
        time.sleep(after_s)
        moment = time.monotonic()
        process.kill()
        lines = [first, *process.stdout.read().split("\n")]
    told = []
    for line in lines:
        with suppress(ValueError):  # the last one may be cut
            at, _, what = line.partition(" ")
            told.append((float(at), what.rstrip("\n")))
    return moment, told


def answer(rng: random.Random, folder: Path) -> None:
    """Kill an answer: what was shown half a second before is on the disk."""
    moment, told = killed(python(_ANSWERS, folder), rng.uniform(0.0, 2.5))
    late_s = max((moment - at - _LONGEST_PAUSE_S for at, _ in told[-1:]), default=0.0)
    shown = ""
    for at, what in told:
        late, _, text = what.partition(" ")
        if at < moment - LOST_S - 2 * max(0.0, late_s, float(late)):  # the machine was busy
            shown += text
    with Store(folder / "chats.db", lambda: time.time() + 60) as store:
        (chat,) = store.chats()
        question, *answers = OpenChat(store, chat.id).path
        require(question.content == "Count!", "the question is gone")
        kept = answers[0].content if answers else ""
        require(
            kept.split()[: len(shown.split())] == shown.split(), f"kept {kept[-20:]!r} of {shown[-20:]!r}"
        )
        require(not answers or answers[0].state == "stopped", f"it is {answers and answers[0].state}")
        store.search("count")


def adding(rng: random.Random, folder: Path) -> None:
    """Kill a program that adds messages: those that it said were added are there."""
    _, told = killed(python(_ADDS, folder), rng.uniform(0.0, 0.4))
    with Store(folder / "chats.db") as store:
        (chat,) = store.chats()
        held = {message.id for message in store.messages(chat.id)}
        missing = {int(number) for _, number in told if number.isdigit()} - held
        require(not missing, f"{len(missing)} messages are gone")
        require(len(store.search("walnut ", limit=10**6)) >= len(held), "the index does not know them all")


def migration(rng: random.Random, folder: Path) -> None:
    """Kill the program while it brings an old file up to date."""
    file = folder / "chats.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.create_function("search_text", 1, search_text, deterministic=True)
        migrate(connection, MIGRATIONS[:1])
        connection.execute("BEGIN")
        connection.execute(f"INSERT INTO chats ({_CHAT}) VALUES ('old', 1, 1, 'general')")
        add = f"INSERT INTO messages ({_MESSAGE}) VALUES (1, 'user', 'complete', 1, 1, ?)"
        connection.executemany(add, [(f"walnut {number}",) for number in range(2_000)])
        connection.execute("COMMIT")
    killed(python(_MIGRATES, folder), rng.choice((0.0, rng.uniform(0.0, 0.03))))
    with Store(file) as store:
        require(len(store.messages(1)) == 2_000, "messages are gone")
        require(len(store.search("walnut 77 ")) == 1, "the index is gone")


def download(rng: random.Random, folder: Path) -> None:
    """Kill a download: the next one continues and has the right bytes."""
    content = bundled_pair()[1].read_bytes() + rng.randbytes(24 << 20)
    name, file = "someone/tiny-GGUF", "tiny-Q4_K_M.gguf"
    quiet = patch("socketserver.BaseServer.handle_error", lambda *_: None)  # of connections that are cut
    with quiet, serving(Hub({name: Repository({file: content})})) as hub:
        variables = environment(folder, HF_ENDPOINT=hub.url, NO_PROXY="*")
        with program(["pull", name], variables) as process:
            give_up = time.monotonic() + 20
            while len(hub.downloads) < 2 and time.monotonic() < give_up and process.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.3))
            process.kill()
        code, output = ended(["models", "--json"], variables)
        require(code == 0, f"`models` ended with {code}: {output[-300:]}")
        code, output = ended(["pull", name], variables)
        require(code == 0, f"the second `pull` ended with {code}: {output[-300:]}")
    (held,) = folder.rglob(f"snapshots/*/{file}")
    require(held.read_bytes() == content, "the file has other bytes")
    require(not [*folder.rglob("*.incomplete")], "a part of it is left behind")


def tuner(rng: random.Random, folder: Path) -> None:
    """Kill a search for settings, with its engines: what it kept can be shown, and no one is left."""
    target, draft = map(str, bundled_pair())
    words, variables = ["-m", target, "-md", draft], environment(folder)
    with program(["tune", *words, "--quick", "--task", "dialogue"], variables) as process:
        time.sleep(rng.uniform(0.3, 8.0))
        engines = children(process.pid)
        process.kill()
    gone(engines)
    code, output = ended(["tune", *words, "--show"], variables)
    require(
        code in (0, 1, 2) and "Traceback" not in output, f"`tune --show` ended with {code}: {output[-300:]}"
    )


def screen(rng: random.Random, folder: Path) -> None:
    """Kill the screen in the middle of an answer, start it again, and find the question."""
    from tests.tui.terminal import Terminal

    target, draft = map(str, bundled_pair())
    words, variables = ["-m", target, "-md", draft], environment(folder)
    question = "Tell me a story about a dog."
    with Terminal(words, variables=variables) as terminal:
        terminal.shows("Ask anything")
        terminal.send(question)
        terminal.shows("about a dog.")
        terminal.send("\r")
        until = time.monotonic() + rng.uniform(0.0, 2.0)
        sent = time.monotonic()
        while time.monotonic() < until:
            terminal.read(0.02)
        engines = children(terminal.process.pid)
        held_s = time.monotonic() - sent
        terminal.kill()
    gone(engines)
    with Store(folder / "data" / "chats.db") as store:
        kept = [message.content for chat in store.chats() for message in store.messages(chat.id)]
        drafts = [store.chat(number).draft for number in (store.last_chat(),) if number is not None]
        require(question in kept + drafts or held_s < LOST_S, f"kept {kept}, not sent {drafts}")
    with Terminal(words, variables=variables) as terminal:
        terminal.shows("about a dog." if question in kept else "Ask anything")
        terminal.send("\x11")
        require(terminal.leave() == 0, "it does not leave in order")


def ended(words: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """Run LocalSpec to its end."""
    with program(words, variables) as process:
        output, _ = process.communicate(timeout=60)
    return process.returncode, output.decode("utf-8", "replace")


def children(pid: int) -> list[psutil.Process]:
    """Return the processes that a program has started."""
    with suppress(psutil.Error):
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        return found
    return []


def gone(engines: Sequence[psutil.Process]) -> None:
    """Look that processes end by themselves when their program was killed."""
    _, alive = psutil.wait_procs(engines, timeout=allowed_s(5.0))
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    require(not alive, f"{len(alive)} processes are left: {alive}")


_FOLDERS = {"config", "data", "state", ".cache"}
KINDS = (answer, adding, migration, download, screen, answer, tuner, adding, migration, download)


def kills(log: Log, folder: Path) -> None:
    """Kill one after the other, each in a folder of its own."""
    log.in_turn(KINDS, folder, _within_the_folders)


def _within_the_folders(own: Path) -> None:
    written = {path.name for path in own.iterdir() if not path.name.startswith("chats.db")}
    require(written <= _FOLDERS, f"files outside the folders that are told: {written - _FOLDERS}")
