"""Words that look like a command but are not: the messages instead of asking the model."""

from __future__ import annotations

import re
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
    "login": "", "logout": "", "log": "history", "logs": "history", "mv": "",
    "perplexity": "verify", "plugin": "mcp", "plugins": "mcp", "prompts": "profiles", "prune": "rm", "ps": "",
    "quantize": "", "repl": "chat", "rpc": "share", "rpc-server": "share", "server": "serve",
    "session": "history", "sessions": "history", "status": "doctor", "template": "", "templates": "",
    "tool": "mcp", "tools": "mcp", "tui": "", "ui": "", "uninstall": "rm", "unload": "", "upgrade": "",
    "version": "", "web": "", "worker": "share",
    "bye": "", "exit": "", "quit": "", "settings": "setup",
}  # fmt: skip
_UNLESS_LONG = {
    "add": "pull", "ask": "run", "check": "doctor", "clean": "rm", "complete": "run", "continue": "history",
    "convert": "", "copy": "", "create": "", "delete": "rm", "download": "pull", "export": "history",
    "fetch": "pull", "generate": "run", "get": "pull", "import": "history", "inspect": "show",
    "install": "pull", "launch": "serve", "load": "run", "open": "chat", "prompt": "run", "push": "",
    "register": "", "remove": "rm", "reset": "", "restart": "serve", "resume": "history", "search": "",
    "kill": "", "set": "", "start": "serve", "stop": "", "switch": "", "test": "verify", "update": "",
    "use": "run",
}  # fmt: skip
"""Commands of other programs, with our nearest one, if any; these also begin questions."""
_FEW = 2  # words after one of those; with more it is a question


_WAYS = {
    "auth": "there is no login; HF_TOKEN gives access to private models on Hugging Face",
    "config": "all settings are in config.toml (README, Settings); `localspec setup` chooses models",
    "exit": "nothing is open; /exit leaves a chat",
    "kill": "Ctrl+C ends what runs",
    "ps": "models are only open while a command runs; `localspec models` lists those on disk",
    "search": "`localspec history search` finds chats, `localspec recommend` models",
    "stop": "Ctrl+C stops a command; models are only open while it runs",
    "template": "--chat-template-file, or [templates] in config.toml, replaces a model's",
    "update": "install LocalSpec again to update it (README, Install); `localspec pull` downloads models",
    "version": "`localspec --version` prints it",
}
"""Our equivalent of another program's command that has no command of ours."""
_ALIKE = {
    "login": "auth", "logout": "auth", "configure": "config", "settings": "config", "set": "config",
    "quit": "exit", "bye": "exit", "unload": "stop", "upgrade": "update", "templates": "template",
}  # fmt: skip
_WORD = re.compile(r"[\w'’-]+[,;:]?|[\w'’-]+[.!?]+")


def as_question(words: Sequence[str]) -> str:
    """Return the typed words as a question, if they may be one: three or more, and no flag or file."""
    plain = len(words) > _FEW and all(map(_WORD.fullmatch, words))
    return " ".join(words) if plain and not any(word.startswith("-") for word in words) else ""


def refuse_unknown_verb(argv: Sequence[str], verbs: Collection[str], foreign_flags: Sequence[str]) -> None:
    """Raise UserError where the first of the arguments is meant as a command, and not as a question.

    `foreign_flags` are those among the arguments that no question has.
    """
    word = argv[0]
    if any(map(str.isspace, word)):  # in quotes
        return
    rest = list(takewhile(lambda each: not each.startswith("-"), argv[1:]))
    name = word.lower()
    known = _ALWAYS | _UNLESS_LONG
    near = [] if name in known else get_close_matches(name, verbs, n=1, cutoff=0.6)
    meant = near[0] if near else known.get(name, "")
    is_question = name in _UNLESS_LONG and (len(rest) > _FEW or any(each.endswith("?") for each in rest))
    if not (near or foreign_flags or (name in known and not is_question)):
        return
    message = f"there is no command `{word}`"
    if meant:
        message += f"; did you mean `{meant}`?"
    elif foreign_flags:
        message += f", and no question has {foreign_flags[0]}"
    question = " ".join((word, *rest))
    asking = "these words" if rest else "this very word"
    way = _WAYS.get(_ALIKE.get(name, name), "")
    hints = [way] if way else []
    hints += [
        "`localspec --help` lists the commands",
        f'to ask the model {asking}: `localspec run "{question}"`',
    ]
    raise UserError(message, "; ".join(hints))
