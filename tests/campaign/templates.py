"""Chat templates of strangers: drawn from a small grammar, honest and hostile pieces mixed."""

from __future__ import annotations

import random
from pathlib import Path

from localspec.errors import UserError
from localspec.llama.rendering import Renderer
from localspec.types.request import Message
from tests.campaign.headers import MAX_BYTES, peak_bytes
from tests.campaign.log import PROMPT_S, Log, require

_ENDING_S = 1.0  # from the limit until the process has ended
_VALUES = (
    "messages",
    "messages[0].content",
    "m",
    "m.role",
    "bos_token",
    "x",
    "ns.s",
    "''",
    "'\\x1b[2J'",
    "none",
    "true",
    "-1",
    "10**9",
    "1e308",
    "messages[-1]",
    "loop",
    "self",
    "cycler",
    "lipsum",
    "joiner()",
    "namespace(s='ab')",
    "range(9)",
    "range(10**8)",
    "''.__class__",
    "messages.__class__.__mro__",
    "x.append",
    "'%s' % m",
    "('{0.__class__}').format(m)",
    "'a' * 10**9",
    "[0] * 10**9",
    "dict(a=messages)",
    "strftime_now('%Y' * 999)",
    "{'a': x}",
    "'a' ~ x ~ ns.s",
)
_FILTERS = (
    "length",
    "tojson",
    "trim",
    "upper",
    "list",
    "string",
    "safe",
    "int",
    "first",
    "last",
    "reverse",
    "join('-')",
    "center(10**7)",
    "indent(10**6)",
    "batch(2)|list",
    "attr('__class__')",
    "map('upper')|list",
    "default('d')",
    "selectattr('role', 'equalto', 'user')|list",
    "format(1, 2)",
    "urlize",
    "wordwrap(1)",
    "xmlattr",
    "pprint",
)
_OPERATORS = ("+", "~", "*", "//", "%", "**", "==", "in", "and", "[")
_PIECES = ("{{", "{% for", "{% raw %}", "{#", "\0", "{% include 'x' %}", "{% break %}")
_HELLO = (Message("system", "be brief"), Message("user", "Hello \x1b[31m {{ 7 * 7 }} <|im_end|>"))


def _expression(rng: random.Random) -> str:
    text = rng.choice(_VALUES)
    if rng.random() < 0.4:
        text = f"({text}) {rng.choice(_OPERATORS)} {rng.choice(_VALUES)}"
    for _ in range(rng.choice((0, 0, 1, 2))):
        text = f"({text})|{rng.choice(_FILTERS)}"
    return text


def drawn(rng: random.Random, depth: int = 0) -> str:
    """Return a template, which may have no sense."""
    parts = []
    for _ in range(rng.randrange(1, 4)):
        inner = drawn(rng, depth + 1) if depth < 4 else "x"
        match rng.randrange(9):
            case 0:
                parts.append(
                    "{% for m in "
                    + rng.choice(("messages", _expression(rng)))
                    + " %}"
                    + inner
                    + "{% endfor %}"
                )
            case 1:
                parts.append("{% if " + _expression(rng) + " %}" + inner + "{% else %}y{% endif %}")
            case 2:
                parts.append("{% set ns = namespace(s='ab') %}{% set x = " + _expression(rng) + " %}")
            case 3:
                parts.append(
                    "{% macro f(a) %}" + inner + rng.choice(("", "{{ f(a) }}")) + "{% endmacro %}{{ f(1) }}"
                )
            case 4:
                parts.append("{% set ns.s = ns.s ~ ns.s %}")
            case 5:
                parts.append(rng.choice(_PIECES))
            case 6:
                parts.append("{{ raise_exception(" + _expression(rng) + ") }}")
            case _:
                parts.append("{{ " + _expression(rng) + " }}")
    return "".join(parts)


def templates(log: Log, _folder: Path) -> None:
    """Render templates; each is text or a refusal in a line, soon, and the next is none the worse."""
    renderer = Renderer()
    renderer.render("x", {}, _HELLO)
    memory = peak_bytes()
    for number in log.numbers():
        source = drawn(log.random(number))
        with log.case(number, PROMPT_S + _ENDING_S, source[:300]):
            try:
                text = renderer.render(source, {"bos_token": "<s>", "enable_thinking": True}, _HELLO)
                require(isinstance(text, str), "it renders no text")
            except UserError as error:
                require(
                    "\n" not in str(error) and len(str(error)) < 800, f"refused at length: {str(error)[:900]}"
                )
                require("Traceback" not in str(error), str(error))
            require(peak_bytes() - memory < MAX_BYTES, "this process has grown")
            require(renderer.render("{{ messages[1].role }}", {}, _HELLO) == "user", "the next one suffers")
