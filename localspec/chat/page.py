"""A chat as one HTML page: without scripts or other files, and safe to open whatever models have written.

Markdown is rendered with its HTML as text, links lead only to web pages and mail addresses, pictures become
links, and a policy in the page forbids browsers to load or run anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from localspec.chat.headings import marks, speaker, when
from localspec.chat.markdown import DEEPEST, full_parser
from localspec.chat.messages import AnswerRecord, Attachment, ChatInfo, StoredMessage
from localspec.chat.thinking import split
from localspec.code_fences import language_of, widened
from localspec.safe_text import safe_line, safe_text
from localspec.units import counted

# Both take seconds for hostile texts of this length, and four times as long for twice the length.
MAX_MARKDOWN = 60_000  # characters; a longer text is shown as it was written
MAX_COLOURED = 20_000  # characters of code
_EMPTY_LINES = "\n" * 100  # which take minutes
PAGE_LINES = 45  # a longer block of code may be parted when it is printed
FOLDED_LINES = 12  # a longer result of a tool is folded
_TASK = re.compile(r"\[([ xX])\]\s+")
_LINKED = ("http://", "https://", "mailto:")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LIGHT = "default"
_DARK = "github-dark"
_CODE = "pre.code"


def to_page(chat: ChatInfo, path: Sequence[StoredMessage], records: Mapping[int, AnswerRecord]) -> str:
    """Return one branch of a chat as a page; `records` name the models of its answers."""
    title = escape(safe_line(chat.title) or "Untitled")
    return "\n".join((
        "<!DOCTYPE html>",
        '<html>\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>\n<style>\n{_style()}</style>\n</head>\n<body>",
        f"<header>\n<h1>{title}</h1>\n<p>{escape(when(chat.created))}</p>\n</header>",
        *([_folded("System prompt", _plain(chat.system))] if chat.system else []),
        *(_article(message, records.get(message.id)) for message in path),
        "</body>\n</html>\n",
    ))  # fmt: skip


def _article(message: StoredMessage, record: AnswerRecord | None) -> str:
    classes = message.role + " dropped" * message.dropped
    said = "".join(f" · {mark}" for mark in marks(message, record))
    head = f"<h2>{speaker(message)}<span>{escape(safe_line(said))}</span></h2>"
    body = "\n".join(_parts(message))
    return f'<article class="{classes}">\n{head}\n{body}\n</article>'


def _parts(message: StoredMessage) -> Iterator[str]:
    if (message.role == "user" or message.is_step) and message.content.strip():
        yield _text(message.content)
    for part in split(message.content) if message.role == "assistant" else ():
        yield _folded("Thinking", _text(part.text)) if part.kind == "thinking" else _text(part.text)
    for call in message.calls:
        yield f"<p>Calls <code>{escape(safe_line(call.name))}</code></p>\n{_code(call.arguments, 'json')}"
    if message.run is not None and not message.is_step:
        lines = message.content.count("\n") + 1
        yield _folded(counted(lines, "line"), _plain(message.content), is_open=lines <= FOLDED_LINES)
    for file in message.attachments:
        yield _attached(file)
    if message.summary:
        yield _folded(
            "Summary of the messages above (read by the model in their place)", _text(message.summary)
        )


def _attached(file: Attachment) -> str:
    return _folded(f"Attached: {' '.join(file.name.split())}", _plain(file.text))


def _folded(title: str, body: str, *, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}>\n<summary>{escape(safe_line(title))}</summary>\n{body}\n</details>"


def _plain(text: str) -> str:
    length = " long" * (text.count("\n") > PAGE_LINES or len(text) > PAGE_LINES * 80)
    return f'<pre class="plain{length}">{escape(safe_text(text))}</pre>'


def _text(text: str) -> str:
    """Return Markdown as HTML; what is too long for the parser, or nested too deeply, as it was written."""
    clean = widened(safe_text(text))
    tokens = _parser().parse(clean) if len(clean) <= MAX_MARKDOWN else []
    if not tokens or any(token.level >= DEEPEST - 1 for token in tokens):
        return _plain(text)
    _draw_boxes(tokens)
    return f'<div class="text">\n{_parser().renderer.render(tokens, _parser().options, {})}</div>'


def _draw_boxes(tokens: Sequence[Token]) -> None:
    """Replace [ ] and [x] at the beginning of list items by boxes."""
    for before, token in zip(tokens, tokens[2:], strict=False):
        if before.type == "list_item_open" and token.children and (task := _TASK.match(token.content)):
            first = token.children[0]
            first.content = f"{'☐' if task[1] == ' ' else '☑'} {first.content[task.end() :]}"


def _code(text: str, language: str = "") -> str:
    """Return code as a block, coloured if its language is known."""
    coloured = escape(safe_text(text))
    if language and len(text) <= MAX_COLOURED and _EMPTY_LINES not in text:
        try:
            lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
        except ClassNotFound:
            pass
        else:
            coloured = highlight(safe_text(text), lexer, HtmlFormatter[str](nowrap=True))
    length = " long" * (text.count("\n") > PAGE_LINES)
    return f'<pre class="code{length}"><code>{coloured}</code></pre>'


@cache
def _parser() -> MarkdownIt:
    parser = full_parser(html=False)
    parser.validateLink = lambda url: url.lower().startswith(_LINKED)  # type: ignore[method-assign]
    for rule in (_fence, _image, _link):
        parser.add_render_rule(rule.__name__.removeprefix("_").replace("link", "link_open"), rule)
    return parser


def _fence(
    _renderer: RendererHTML, tokens: Sequence[Token], at: int, _options: OptionsDict, _env: EnvType
) -> str:
    return _code(tokens[at].content, language_of(tokens[at].info)) + "\n"


def _image(
    _renderer: RendererHTML, tokens: Sequence[Token], at: int, _options: OptionsDict, _env: EnvType
) -> str:
    """Return a picture as a link: the page loads nothing."""
    address = escape(str(tokens[at].attrs.get("src", "")))
    return f'<a href="{address}" rel="noreferrer">{escape(tokens[at].content or "picture")}</a>'


def _link(
    renderer: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
) -> str:
    tokens[at].attrSet("rel", "noreferrer")
    rendered: str = renderer.renderToken(tokens, at, options, env)
    return rendered


@cache
def _style() -> str:
    light, dark = (_colours(name) for name in (_LIGHT, _DARK))
    own = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n{own}"


def _colours(style: str) -> str:
    """Return the colours of code, without backgrounds."""
    formatter: Any = HtmlFormatter(style=style)
    rules = formatter.get_token_style_defs(_CODE)
    return "\n".join(rule.split(" /*")[0] for rule in rules if "background" not in rule)
