"""The page of an exported chat: whole, readable, and harmless whatever is written in the chat."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest

from localspec.chat.messages import Attachment, ChatInfo, StoredMessage, ToolRun
from localspec.chat.page import MAX_COLOURED, MAX_MARKDOWN, to_page
from localspec.types.request import ToolCall
from tests.chat.sample_record import RECORD

VOID = {"meta", "br", "hr"}


class Page(HTMLParser):
    """A page as a browser reads it: its elements, their attributes, and the text in some of them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    @property
    def text(self) -> str:
        return "".join(data for tag, data in self.texts if tag != "style")

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


def page(*messages: StoredMessage, title: str = "Llamas", system: str | None = None) -> Page:
    return Page(to_page(ChatInfo(1, title, 0.0, 0.0, system=system), messages, {2: RECORD}))


def answer(text: str) -> StoredMessage:
    return StoredMessage(2, 1, None, "assistant", text, 0.0)


def call(name: str = "read") -> ToolCall:
    return ToolCall("1", name, '{"path": "a.py"}')


def test_everything_of_a_chat_is_on_the_page() -> None:
    question = StoredMessage(
        1, 1, None, "user", "What *is* it?", 0.0, attachments=(Attachment("a.py:1-2", "x = 1"),)
    )
    calling = StoredMessage(3, 1, 2, "assistant", "I look.", 0.0, "stopped", dropped=True, calls=(call(),))
    result = StoredMessage(4, 1, 3, "tool", "found", 0.0, run=ToolRun(call(), "done", "", "allowed", 2.0))
    shown = page(question, answer("<think>\nhm\n</think>\nA llama."), calling, result, system="Be brief.")
    assert re.sub(r"\s+", " ", shown.text).split("Llamas ", 2)[2].split(" ", 2)[2] == (
        "System prompt Be brief. You What is it? Attached: a.py:1-2 x = 1 Assistant · Large "
        "Thinking hm A llama. "
        'Assistant · stopped · left out I look. Calls read {"path": "a.py"} '
        "Result · read, done in 2.0 s, allowed 1 line found "
    )
    assert ("em", "is") in shown.texts
    assert [attributes.get("open", "no") for attributes in shown.of("details")] == ["no", "no", "no", None]


def test_markdown_is_rendered_and_code_is_coloured() -> None:
    table, code = "|a|\n|-|\n|1|", "```python\nif True:\n\n    pass\n```"
    shown = page(answer(f"# Head\n\n- [ ] a\n- [x] **b**\n\n{table}\n\n{code}\n\n~~no~~"))
    assert {"h1", "ul", "strong", "table", "span", "s"} <= {tag for tag, _ in shown.elements}
    assert "☐ a" in shown.text
    assert "☑ b" in shown.text
    assert "if True:\n\n    pass\n" in shown.text
    assert page(answer("```nolanguage\n<x>\n```")).text.count("<x>") == 1


def test_a_page_is_white_on_paper_and_blocks_of_code_stay_whole_there() -> None:
    html = to_page(ChatInfo(1, "", 0.0, 0.0), [answer("```\n" + "x\n" * 60 + "```\n\n```\ny\n```")], {})
    assert len(re.findall(r"@media screen and \(prefers-color-scheme: dark\)", html)) == 2
    assert "prefers-color-scheme" not in html.replace("screen and (prefers-color-scheme", "")
    printed = html[html.index("@media print") :]
    assert "break-inside: avoid" in printed
    assert "background: none" in printed
    assert html.count('class="code long"') == 1  # which no page holds
    assert html.count('class="code"') == 1


HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</style></pre></article><iframe src='https://x.test'></iframe>",
    "[a](javascript:alert(1)) [b](JaVa\tScript:x) [c](data:text/html,x) [d](vbscript:x) [e](file:///etc/passwd)",
    "<javascript:alert(1)> [f]: javascript:x\n\n[f]",
    '[g](https://x.test/"onmouseover="alert(1)) ![h](https://x.test/p.png "t\\" onload=x") ![](javascript:x)',
    "![i](data:image/svg+xml;base64,PHN2Zz4=) [j](//x.test) [k](&#106;avascript:x)",
    "```html\n<script>alert(1)</script>\n```\n`<script>`\n\n    <script>",
    '```"><script>alert(1)</script>\nx\n```',
    "<think>\n<script>alert(1)</script>",
    "safe\u202etxt.exe\u202c \u2066x\u2069 \x1b[2J\x00\x9b",
    "&lt;script&gt; &amp;",
)


def messages_with(text: str) -> Sequence[StoredMessage]:
    run = ToolRun(call(text), "failed", text, text)
    return (
        StoredMessage(1, 1, None, "user", text, 0.0, attachments=(Attachment(text, text),), summary=text),
        StoredMessage(2, 1, 1, "assistant", text, 0.0, calls=(ToolCall("1", text, text),)),
        StoredMessage(3, 1, 2, "tool", text, 0.0, run=run),
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text_wherever_it_stands(text: str) -> None:
    shown = page(*messages_with(text), title=text, system=text)
    assert not {"script", "img", "iframe", "svg", "object", "base", "form"} & {
        tag for tag, _ in shown.elements
    }
    for tag, attributes in shown.elements:
        assert set(attributes) <= {
            "a": {"href", "rel", "title"},
            "meta": {"charset", "http-equiv", "content", "name"},
            "details": {"open"},
            "ol": {"start"},
            "td": {"style"},
            "th": {"style"},
        }.get(tag, {"class"})
    for link in shown.of("a"):
        assert re.match(r"https?://|mailto:", link["href"] or "")
        assert link["rel"] == "noreferrer"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown.text)
    assert "default-src 'none'" in str(shown.of("meta"))


def test_pictures_are_links_and_nothing_is_loaded() -> None:
    html = to_page(ChatInfo(1, "", 0.0, 0.0), [answer("![a cat](https://x.test/cat.png)")], {})
    assert "https://x.test/cat.png" in [link["href"] for link in Page(html).of("a")]
    assert not re.search(r"\b(src|srcset|background)=|url\(|@import|<link", html)


def test_bare_addresses_are_links_and_names_of_files_are_none() -> None:
    text = "README.md, main.py, www.example.de, https://a.md/x, ann@example.org"
    html = to_page(ChatInfo(1, "", 0.0, 0.0), [answer(text)], {})
    links = [link["href"] for link in Page(html).of("a")]
    assert links == ["http://www.example.de", "https://a.md/x", "mailto:ann@example.org"]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "x" * 2 * 2**20,
        "[" * (2 * 2**20),
        "> " * 5_000 + "deep",
        "```cpp\n" + "\n" * (MAX_COLOURED - 100) + "```",
        "~~~yaml\n" + "`" * (MAX_COLOURED // 4) + "\n~~~",
        "word *a* [b] " * (MAX_MARKDOWN // 14),
    ],
    ids=lambda text: text[:8],
)
def test_long_and_deep_texts_are_written_soon_and_in_full(text: str) -> None:
    html = to_page(ChatInfo(1, "", 0.0, 0.0), [answer(text)], {})
    assert len(html) > len(text) - text.count("*") - 200
