"""How many small tasks in a folder a model does with our tools, at temperature 0, from one prompt each.

python -m tests.benchmarks.small_tasks -m TARGET [--traces FILE] [--only NAMES] [--steps] [--whole]

Each task begins in a fresh copy of a small project. It is done if the files are right in the end, and the
answer where something is asked; one that is half done is not. With `--steps`, the tasks are those of
`step_tasks.py`, of several steps in a line, and `--whole` splits none. To compare descriptions and results
of tools, run this on two versions of the program.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from localspec.app.tools import tool_kit
from localspec.chat.answer_settings import SessionRequest
from localspec.chat.answer_turns import AnswerTurn, AnswerTurns
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.storage.config import Config
from localspec.storage.profiles import Profile, Speculation
from localspec.types.models import ModelOptions
from localspec.types.request import Request, Sampling

PROJECT = {
    "README.md": "# Shelf\n\nShelf keeps teh list of your books.\n\n## Use\n\nRun `python src/main.py`.\n",
    "notes.txt": "Ask Ann whether teh printer works.\nBuy paper.\n",
    "requirements.txt": "rich\nhttpx\n",
    "setup.cfg": "[metadata]\nname = shelf\nversion = 1.2.0\nauthor = Ann\n",
    "docs/usage.md": "# Usage\n\nChoose a color for each shelf.\nYou recieve a mail when a book is due.\n",
    "src/shelf.py": (
        "def load_books(path):\n    # TODO: check the encoding\n    with open(path) as file:\n"
        "        return sorted(line.strip() for line in file)\n\n\n"
        "def add_book(books, title):\n    books.append(title)\n"
    ),
    "src/main.py": (
        "from shelf import load_books\n\nLIMIT = 10\n\n# TODO: read the path from the arguments\n"
        'for title in load_books("books.txt")[:LIMIT]:\n    print(title)\n'
    ),
}


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked, how files are to be changed, and which words the answer has to have or must not have.

    With `any_message`, all messages of the answer count, and not the last alone.
    """

    question: str
    changed: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # by file, an old and a new text
    new: Mapping[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    says_not: tuple[str, ...] = ()
    project: Mapping[str, str] = field(default_factory=lambda: PROJECT)
    has: Mapping[str, str] = field(default_factory=dict)  # by new file, what has to be in it
    gone: tuple[str, ...] = ()
    any_message: bool = False

    def flaw(self, folder: Path, answer: str) -> str:
        """Return what is wrong in the end; empty if nothing is."""
        wanted = {name: text for name, text in self.project.items() if name not in self.gone}
        for name, (old, new) in self.changed.items():
            wanted[name] = wanted[name].replace(old, new)
        wanted |= self.new
        there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        if other := (wanted.keys() | self.has.keys()) ^ there.keys():
            return f"files: {', '.join(sorted(other))}"
        for name, text in wanted.items():
            if there[name].read_text().rstrip() != text.rstrip():
                return f"{name} is not as it should be"
        if lacking := [name for name, text in self.has.items() if text not in there[name].read_text()]:
            return f"{', '.join(lacking)} lacks something"
        heard = answer.casefold()
        missing = [word for word in self.says if word.casefold() not in heard]
        missing += [f"not {word}" for word in self.says_not if word.casefold() in heard]
        return f"the answer lacks {missing}" if missing else ""


README = {"README.md": ("teh", "the")}
TASKS = {
    "story": Task(
        "which files here mention teh, and fix the typo in README", README, says=("README", "notes.txt")
    ),
    "two steps": Task(
        "Find all files that contain the word teh. Then correct it in README.md and nowhere else.", README
    ),
    "typo": Task("There is a typo in README.md: teh. Please fix it.", README),
    "mentions": Task(
        "Which files mention teh?", says=("README.md", "notes.txt"), says_not=("usage", "shelf.py")
    ),
    "somewhere": Task(
        "The word recieve is misspelt in one of the files. Find it and correct it.",
        {"docs/usage.md": ("recieve", "receive")},
    ),
    "british": Task("change color to colour in docs/usage.md", {"docs/usage.md": ("color", "colour")}),
    "version": Task("Set the version in setup.cfg to 1.3.0.", {"setup.cfg": ("1.2.0", "1.3.0")}),
    "constant": Task(
        "raise LIMIT in src/main.py from 10 to 25", {"src/main.py": ("LIMIT = 10", "LIMIT = 25")}
    ),
    "add line": Task(
        "add pytest to requirements.txt, on a line of its own",
        {"requirements.txt": ("httpx", "httpx\npytest")},
    ),
    "new file": Task(
        "create a file hello.txt with the text: Hello, shelf!", new={"hello.txt": "Hello, shelf!"}
    ),
    "todos": Task("Which files in src have a TODO?", says=("main.py", "shelf.py")),
    "explain": Task("what does load_books in src/shelf.py return?", says=("sort",)),
    "author": Task("Who is the author according to setup.cfg?", says=("Ann",)),
    "folder": Task("What is in the folder docs?", says=("usage.md",)),
}


RULES = (
    "read_file", "list_folder", "find_files", "search_files", "write_file:*", "edit_file:*", "run_command",
)  # fmt: skip


def done(models: Runtime, task: Task, trace: TextIO, config: Config) -> str:
    """Have a task done; return what is wrong in the end."""
    with TemporaryDirectory() as place, Store(None) as store:
        folder = Path(place) / "shelf"
        for name, text in task.project.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        profile = Profile("plain", "Plain", "", "dialogue", "", Sampling(temperature=0.0), Path())
        asked = SessionRequest(
            Speculation(mode="off"), {"temperature": 0.0}, None, Request("", max_tokens=400)
        )
        session = ChatSession(store, (profile,), asked, profile.name, start="aside")
        kit = tool_kit(config, folder, yes=RULES)
        session.shared.make_kit = lambda: kit
        session.update_settings(tools=("files", "run") if task.gone else ("files",))
        session.chat.ask(task.question, ())
        turn = AnswerTurn(AnswerTurns())
        with turn.taken(models):
            for _ in session.answer(models, turn):
                pass
        for message in session.chat.path:
            trace.write(f"\n[{message.role}] {message.content.strip()}\n")
            trace.writelines(f"  -> {call.name} {call.arguments}\n" for call in message.calls)
        said = [message.content for message in session.chat.path if message.role == "assistant"]
        return task.flaw(folder, "\n".join(said if task.any_message else said[-1:]))


def main() -> None:
    """Do the tasks, and print how many are done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", type=Path, required=True)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--only", help="tasks, separated by commas")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    from tests.benchmarks.step_tasks import STEP_TASKS

    tasks = STEP_TASKS if args.steps else TASKS
    names = args.only.split(",") if args.only else list(tasks)
    config = Config(tool_steps="off" if args.whole else "auto")
    options = ModelOptions(args.m, context=8192, gpu_layers=0, threads=args.threads)
    good = 0
    with (
        Runtime.open(OpenPlan(options, None)) as models,
        (args.traces or Path("/dev/null")).open("w") as trace,
    ):
        for name in names:
            began = time.monotonic()
            trace.write(f"\n===== {name}\n")
            flaw = done(models, tasks[name], trace, config)
            trace.write(f"===== {name}: {flaw or 'done'}\n")
            trace.flush()
            good += not flaw
            print(f"{name:12} {flaw or 'done'}  ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{good} of {len(names)} tasks are done", file=sys.stdout)


if __name__ == "__main__":
    main()
