"""Python code and its documentation: whole modules, and chats made from documented functions."""

from __future__ import annotations

import ast
import random
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training.chat_text import chat, chunks, clean
from training.documents import Document

VERBS = frozenset(
    "return compute calculate check find get set convert create make remove add print read write parse sort "
    "merge split count test generate build determine take give perform apply implement evaluate solve search "
    "insert delete reverse encode decode encrypt decrypt format raise run call open close load save send "
    "receive start stop update copy replace compare extract fill draw multiply divide subtract sum swap "
    "validate verify yield display show use handle process register initialize iterate map filter append "
    "push pop join strip translate move change".split()
)
LEADS = (
    "",
    "",
    "",
    "Here is the function:\n\n",
    "Here is a Python function:\n\n",
    "Sure! Here is one way to do it:\n\n",
)
NOT_STDLIB = (
    "encodings/",
    "pydoc_data",
    "_sysconfigdata",
    "config-3",
    "stringprep",
    "lib2to3",
    "idlelib",
    "LICENSE",
    "test",
    "html/entities",
    "turtledemo",
)


@dataclass(frozen=True, slots=True)
class DocumentedFunction:
    """A function with the first sentence of its docstring."""

    name: str
    summary: str
    docstring: str
    code: str


def third_person(verb: str) -> str:
    """Return "returns" for "return"."""
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def coding_request(rng: random.Random, summary: str) -> str:
    """Phrase a request for a function from the first line of its docstring."""
    line = summary.strip().rstrip(".:").strip()
    line = line[0].lower() + line[1:]
    first, _, rest = line.partition(" ")
    if first in VERBS:
        if rng.random() < 0.4:
            return f"{rng.choice(['Write', 'Please write', 'Can you write'])} a Python function to {line}."
        line = f"{third_person(first)} {rest}"
    elif first.rstrip("s") not in VERBS and third_person(first) not in {third_person(verb) for verb in VERBS}:
        return f"Write a Python function: {line}."
    start = rng.choice(
        [
            "Write a Python function that",
            "Write a Python function that",
            "Please write a Python function that",
            "Show me a function that",
            "I need a Python function that",
        ]
    )
    return f"{start} {line}."


def documented_functions(source: str) -> Iterator[DocumentedFunction]:
    """Yield the functions of a module whose docstring starts with a usable line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        docstring, code = ast.get_docstring(node), ast.get_source_segment(source, node)
        if not docstring or not code:
            continue
        summary = docstring.strip().split("\n\n", maxsplit=1)[0].replace("\n", " ")
        summary = re.sub(r"\s+", " ", summary).split(". ", maxsplit=1)[0]
        if not 12 <= len(summary) <= 140 or ">>>" in summary or "http" in summary:
            continue
        code = textwrap.dedent(" " * node.col_offset + code)
        if 60 <= len(code) <= 2200:
            yield DocumentedFunction(node.name, summary, docstring, code)


def function_chats(rng: random.Random, function: DocumentedFunction, module: str) -> Iterator[str]:
    """Yield a request for the function, and now and then a question about it."""
    answer = rng.choice(LEADS) + f"```python\n{function.code}\n```"
    yield chat(rng, coding_request(rng, function.summary), answer)
    text = function.docstring.split(">>>", maxsplit=1)[0].strip()
    if not function.name.startswith("_") and 60 < len(text) < 700 and rng.random() < 0.3:
        questions = [
            f"What does {module}.{function.name}() do?",
            f"Explain the function {function.name}() in {module}.py.",
            f"What is {module}.{function.name}() for?",
        ]
        yield chat(rng, rng.choice(questions), text)


def modules(root: Path, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield name and source of every module without very long lines."""
    for path in sorted(root.rglob("*.py")):
        if any(part in path.relative_to(root).as_posix() for part in skip):
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        if source.strip() and max(map(len, source.split("\n"))) <= 400:
            yield path.stem, source


def python_sources(
    root: Path, kind: str, rng: random.Random, skip: tuple[str, ...] = ()
) -> Iterator[Document]:
    """Yield modules as plain text, documented functions as coding chats, docstrings as answers."""
    for name, source in modules(root, skip):
        for piece in chunks(clean(source), 3500):
            yield Document(kind, piece)
        for function in documented_functions(source):
            for text in function_chats(rng, function, name):
                yield Document(f"{kind}-chat", text)


def stdlib(root: Path, rng: random.Random) -> Iterator[Document]:
    """Yield CPython's standard library without tests and tables."""
    return python_sources(root, "stdlib", rng, NOT_STDLIB)


def algorithms(root: Path, rng: random.Random) -> Iterator[Document]:
    """Yield TheAlgorithms/Python."""
    return python_sources(root, "algorithms", rng)


def python_docs(root: Path, _: random.Random) -> Iterator[Document]:
    """Yield Python's documentation with its mark-up simplified."""
    for folder in ("tutorial", "howto", "faq", "library", "reference"):
        for path in sorted((root / folder).glob("*.txt")):
            text = path.read_text(encoding="utf-8", errors="replace")
            text = re.sub(r":[a-z:]+:`~?([^`<]+?)(?: <[^>`]*>)?`", r"`\1`", text).replace("``", "`")
            for piece in chunks(clean(text), 3000):
                yield Document("python-docs", piece)
