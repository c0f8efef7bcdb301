"""Names of tools as models write them: some put a namespace before the name that they were given."""

from __future__ import annotations

import re
from collections.abc import Collection

ANSWERS_DIRECTLY = frozenset(("directly-answer", "directly_answer"))
"""Names with which a model says that it calls nothing and answers (Command R+)."""
_NAMESPACE = re.compile(r"[\w-]+?(?:__|[.:/])")
_LONGEST = 300  # characters of a name


def offered(name: object, tools: Collection[str]) -> str | None:
    """Return the tool that a name means, None if there is no such tool."""
    if not isinstance(name, str) or len(name) > _LONGEST:
        return None
    while name not in tools:
        namespace = _NAMESPACE.match(name)
        if namespace is None:
            return None
        name = name[namespace.end() :]
    return name


def may_begin_name(text: str, tools: Collection[str]) -> bool:
    """Return whether a text may be the beginning of a tool's name, which was cut."""
    bare = text
    while not any(tool.startswith(bare) for tool in tools):
        namespace = _NAMESPACE.match(bare)
        if namespace is None:
            return False
        bare = bare[namespace.end() :]
    return True
