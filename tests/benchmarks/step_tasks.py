"""Tasks of two or three steps in one line, for `small_tasks.py --steps`."""

from __future__ import annotations

from collections.abc import Mapping

from tests.benchmarks.small_tasks import PROJECT, Task

STEP_PROJECT = {
    **PROJECT,
    "README.md": (
        "# Shelf\n\nShelf keeps the list of your books.\nYou recieve a mail when a book is due.\n\n"
        "## Use\n\nRun `python src/main.py`.\n"
    ),
    "notes.txt": "Ask Ann whether we recieve the parcel on Monday.\nBuy paper.\n",
    "docs/usage.md": "# Usage\n\nChoose a color for each shelf.\n",
    "docs/old.md": "This page is out of date.\n",
    "src/main.py": (
        "import shelf\n\nLIMIT = 10\n\n# TODO: read the path from the arguments\n"
        'for title in shelf.load_books("books.txt")[:LIMIT]:\n    print(title)\n'
    ),
}


def task(
    question: str,
    changed: Mapping[str, tuple[str, str]] | None = None,
    *,
    has: Mapping[str, str] | None = None,
    says: tuple[str, ...] = (),
    gone: tuple[str, ...] = (),
) -> Task:
    """Return a task in this project."""
    return Task(
        question,
        changed or {},
        says=says,
        project=STEP_PROJECT,
        has=has or {},
        gone=gone,
        any_message=True,
    )


STEP_TASKS = {
    "story": task(
        "Which files here mention recieve, and fix the typo in README.md.",
        {"README.md": ("recieve", "receive")},
        says=("README.md", "notes.txt"),
    ),
    "version": task(
        "What is the version in setup.cfg? Then set it to 1.3.0.",
        {"setup.cfg": ("1.2.0", "1.3.0")},
        says=("1.2.0",),
    ),
    "summary": task(
        "Read notes.txt and write a file summary.txt with one sentence about it.", has={"summary.txt": "Ann"}
    ),
    "delete": task(
        "List the files in docs, then delete docs/old.md.", gone=("docs/old.md",), says=("usage.md",)
    ),
    "count": task(
        "Count the lines of requirements.txt and write the number into count.txt.", has={"count.txt": "2"}
    ),
    "rename": task(
        "Rename add_book to put_book in src/shelf.py, and load_books to read_books in src/main.py.",
        {"src/shelf.py": ("add_book", "put_book"), "src/main.py": ("load_books", "read_books")},
    ),
    "author": task(
        "Find out who the author is in setup.cfg, and create AUTHORS.txt with the name.",
        has={"AUTHORS.txt": "Ann"},
    ),
    "two files": task(
        "Add pytest to requirements.txt, on a line of its own, and create a file tests.txt with the text: "
        "run pytest",
        {"requirements.txt": ("httpx", "httpx\npytest")},
        has={"tests.txt": "run pytest"},
    ),
    "limit": task(
        "Set LIMIT in src/main.py to 25; then tell me what add_book in src/shelf.py does.",
        {"src/main.py": ("LIMIT = 10", "LIMIT = 25")},
        says=("append",),
    ),
    "paper": task(
        "Show me what is in notes.txt and then change paper to ink there.",
        {"notes.txt": ("paper", "ink")},
        says=("parcel",),
    ),
    "hello": task(
        "Create hello.txt with the text Hello! Then list the files in this folder.",
        has={"hello.txt": "Hello"},
        says=("setup.cfg",),
    ),
    "todos": task(
        "Which files in src have a TODO, and what is the name in setup.cfg?",
        says=("main.py", "shelf.py", "shelf"),
    ),
    "read again": task(
        "Read setup.cfg, then write the name in it to name.txt, and read name.txt again.",
        has={"name.txt": "shelf"},
        says=("shelf",),
    ),
    "three files": task(
        "Create mon.txt with the text Monday, create tue.txt with the text Tuesday, and create wed.txt with "
        "the text Wednesday.",
        has={"mon.txt": "Monday", "tue.txt": "Tuesday", "wed.txt": "Wednesday"},
    ),
}
