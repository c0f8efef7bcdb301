"""Words that look like a verb and are none: what is told instead of asking the model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from itertools import takewhile

from localspec.errors import UserError

_ALWAYS = {
    "agent": "", "agents": "", "api": "serve", "auth": "", "cache": "models", "chats": "history",
    "completion": "", "completions": "", "config": "setup", "configure": "setup", "cp": "", "daemon": "serve",
    "del": "rm", "diagnose": "doctor", "embed": "", "embedding": "", "embeddings": "", "env": "",
    "eval": "verify", "exec": "run", "extension": "", "extensions": "", "gui": "", "info": "show",
    "init": "setup", "interactive": "chat", "list-devices": "devices", "list-models": "models",
    "login": "", "logout": "", "log": "history", "logs": "history", "mcp": "", "mv": "",
    "perplexity": "verify", "plugin": "", "plugins": "", "prompts": "profiles", "prune": "rm", "ps": "",
    "quantize": "", "repl": "chat", "rpc": "share", "rpc-server": "share", "server": "serve",
    "session": "history", "sessions": "history", "status": "doctor", "template": "", "templates": "",
    "tool": "", "tools": "", "tui": "", "ui": "", "uninstall": "rm", "unload": "", "upgrade": "",
    "version": "", "web": "", "worker": "share",
}  # fmt: skip
_UNLESS_LONG = {
    "add": "pull", "ask": "run", "check": "doctor", "clean": "rm", "complete": "run", "continue": "history",
    "convert": "", "copy": "", "create": "", "delete": "rm", "download": "pull", "export": "history",
    "fetch": "pull", "generate": "run", "get": "pull", "import": "history", "inspect": "show",
    "install": "pull", "launch": "serve", "load": "run", "open": "chat", "prompt": "run", "push": "",
    "register": "", "remove": "rm", "reset": "", "restart": "serve", "resume": "history", "search": "",
    "set": "", "start": "serve", "stop": "", "switch": "", "test": "verify", "update": "", "use": "run",
}  # fmt: skip
"""Verbs of other programs, with ours that is nearest, if any; these also begin questions."""
_FEW = 2  # words behind one of those; with more it is a question


def refuse_unknown_verb(argv: Sequence[str], verbs: Collection[str], foreign_flags: Sequence[str]) -> None:
    """Raise UserError where the first of the arguments is meant as a verb, and not as a question.

    `foreign_flags` are those among the arguments that no question has.
    """
    word = argv[0]
    if any(map(str.isspace, word)):  # in quotes
        return
    rest = list(takewhile(lambda each: not each.startswith("-"), argv[1:]))
    name, known = word.lower(), _ALWAYS | _UNLESS_LONG
    near = [] if name in known else get_close_matches(name, verbs, n=1, cutoff=0.6)
    meant = near[0] if near else known.get(name, "")
    is_question = name in _UNLESS_LONG and (len(rest) > _FEW or any(each.endswith("?") for each in rest))
    if not (near or foreign_flags or (name in known and not is_question)):
        return
    told = f"there is no verb `{word}`"
    if meant:
        told += f"; did you mean `{meant}`?"
    elif foreign_flags:
        told += f", and no question has {foreign_flags[0]}"
    question = " ".join((word, *rest))
    asking = "these words" if rest else "this very word"
    raise UserError(
        told, f'`localspec --help` lists the verbs; to ask the model {asking}: `localspec run "{question}"`'
    )
