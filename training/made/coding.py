"""Requests for small functions and classes, with answers that are correct."""

from __future__ import annotations

import random
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from training.chat_text import chat
from training.documents import Document

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
OTHER_NAMES = {
    "numbers": ["numbers", "values", "nums"],
    "items": ["items", "data", "elements"],
    "text": ["text", "string", "s"],
    "path": ["path", "filename"],
    "target": ["target", "value", "x"],
    "total": ["total", "result"],
    "char": ["char", "letter", "c"],
}
INFINITIVES = {"searches": "search", "flattens": "flatten", "capitalizes": "capitalize"}
NODE = (
    "class Node:\n    def __init__(self, value):\n        self.value = value\n        self.next = None\n\n\n"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is asked for, the code, and one sentence about it."""

    request: str
    code: str
    why: str


def made_coding(rng: random.Random, count: int = 14000) -> Iterator[Document]:
    """Yield chats about code."""
    for _ in range(count):
        answer = class_answer(rng) if rng.random() < 0.12 else function_answer(rng)
        yield Document("made-coding", chat(rng, *conversation(rng, answer)))


def conversation(rng: random.Random, answer: Answer) -> list[str]:
    """Return two turns, or four with thanks or a question."""
    is_function = answer.code.startswith("def")
    here = "Here is the function:\n\n" if is_function else "Here is the class:\n\n"
    lead = rng.choice(["", "", here, "Sure! Here is one way to do it:\n\n", "Of course:\n\n"])
    is_explained = rng.random() < 0.6
    tail = f"\n\n{answer.why}" if is_explained else ""
    turns = [answer.request, f"{lead}```python\n{answer.code}\n```{tail}"]
    if rng.random() >= 0.2:
        return turns
    if is_explained:
        thanks = rng.choice(["Thanks!", "Thank you, that works."])
        return [*turns, thanks, rng.choice(["You are welcome!", "I am glad it helps."])]
    question = rng.choice(["How does it work?", "Can you explain it?", "Please explain the code."])
    return [*turns, question, answer.why]


def class_answer(rng: random.Random) -> Answer:
    """Choose a class."""
    entry = rng.choice(TABLES["class"])
    request = rng.choice(
        [
            f"Write a Python class for {entry['what']}.",
            f"Write a class for {entry['what']} in Python.",
            f"Can you write a Python class for {entry['what']}?",
        ]
    )
    node = NODE if entry["name"] == "LinkedList" else ""
    code = f"{node}class {entry['name']}:\n{textwrap.indent(entry['body'], '    ')}"
    return Answer(request, code, entry["why"])


def function_answer(rng: random.Random) -> Answer:
    """Choose a function, and vary its names, its types, its docstring and its example."""
    entry = rng.choice(TABLES["function"])
    name, is_typed = rng.choice(entry["names"]), rng.random() < 0.6
    parameters, body = renamed(rng, entry)
    body = re.sub(rf"\b({'|'.join(entry['names'])})\(", f"{name}(", body)
    if not is_typed:
        parameters = re.sub(r":[^,\]]*(\[.*?\]+)?", "", parameters)
    result = f" -> {entry['returns']}" if is_typed else ""
    task: str = entry["task"]
    docstring = f'"""{task[0].upper() + task[1:]}."""\n' if rng.random() < 0.5 else ""
    code = f"def {name}({parameters}){result}:\n{textwrap.indent(docstring + body, '    ')}"
    if "call" in entry and rng.random() < 0.45:
        code += f"\n\n\nprint({name}{entry['call']})  # {entry['result']}"
    return Answer(function_request(rng, task), code, entry["why"])


def renamed(rng: random.Random, entry: Mapping[str, str]) -> tuple[str, str]:
    """Return parameters and body, some of their variables under other names."""
    parameters, body = entry["parameters"], entry["body"]
    for old, names in OTHER_NAMES.items():
        if re.search(rf"\b{old}\b", parameters + body) and rng.random() < 0.5:
            new = rng.choice(names)
            if not re.search(rf"\b{new}\b", parameters + body):
                parameters, body = (re.sub(rf"\b{old}\b", new, text) for text in (parameters, body))
    return parameters, body


def function_request(rng: random.Random, task: str) -> str:
    """Ask for a function that does the task; it starts with a verb in the third person."""
    verb, _, rest = task.partition(" ")
    order = f"{INFINITIVES.get(verb, verb.removesuffix('s'))} {rest}"
    return rng.choice(
        [
            f"Write a Python function that {task}.",
            f"Write a Python function that {task}.",
            f"Write a function that {task}.",
            f"Can you write a Python function that {task}?",
            f"How do I write a function that {task}?",
            f"I need a Python function that {task}.",
            f"Show me how to {order} in Python.",
            f"Python code to {order}, please.",
        ]
    )
