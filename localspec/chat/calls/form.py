"""The form that a chat template gives calls of tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from localspec.errors import UserError
from localspec.llama.tool_words import PROBE, PROBE_TOOL
from localspec.thinking_tags import opened_at_end
from localspec.types.request import Request, TemplateVariables

_NAME = "look_up"
_ARGUMENTS = re.compile(r'\{\s*"word":\s*"probed"\s*\}')
TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_THOUGHT = re.compile(r"<think>\s*</think>|</think>")
_LABEL = re.compile(r"\b(\w+:)\s*```\w*\s*\[?\s*\{[^{}]*\Z")  # before a block of code with the call
_OF_A_VALUE = re.compile(r'</[^<>]*(?:param(?:eter)?|arg_value)[^<>]*>|<\|"\|>')


_ADDRESSED = ">>>"
"""Stands before the addressee of each part of an answer; the first one ends the prompt."""
_NAMED_TAG = re.compile(r"probed(\S+)</word>")  # named after the parameter, behind a mark
_SPELLED_TAG = re.compile(r"(<\|\w+\|>)(\w+) [^<>]*(<\|\w+\|>)probed(<\|\w+\|>)\2\3")


@dataclass(frozen=True, slots=True)
class TagMarks:
    """What begins an opening tag and a closing one, and what ends both."""

    opens: str
    closes: str
    ends: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The form of a model's calls: text `before` the name, `between` it and the arguments, and `after` them.

    A call begins with the tag `opening`, or is the whole answer; `leading` are texts that begin with a tag
    before it and end with it, and `closing` tags that may follow the call. `marks` are those of its tags.
    Text for the user follows the `addressee`, in forms where each part of an answer names its addressee.
    Kinds: a JSON object with the name, a name before a JSON object, gpt-oss's channels with such, parameters
    in tags, also in tags with marks, Gemma's notation, and calls as in Python.
    """

    kind: Literal["json", "named", "harmony", "parameters", "marked", "gemma", "python"]
    opening: str = ""
    closing: tuple[str, ...] = ()
    before: str = ""
    between: str = ""
    after: str = ""
    is_padded: bool = True  # values in tags stand on lines of their own
    leading: tuple[str, ...] = ()
    marks: TagMarks | None = None
    addressee: str = ""

    @property
    def head(self) -> str:
        """The beginning of the tag that names the tool, if there is one behind the opening."""
        head = self.before.removeprefix(self.opening).strip()
        return head if re.match(r"<[^<>]+\Z", head) else ""

    @property
    def is_block(self) -> bool:
        """Whether one opening may be followed by several calls, each with a tag that names its tool."""
        return "invoke" in self.head

    @property
    def own_end(self) -> str:
        """The tag that closes the opening, if that is one with a name."""
        if self.marks:
            return self.opening.replace(self.marks.opens, self.marks.closes, 1)
        return self.opening.replace("<", "</", 1) if re.match(r"<\w.*>", self.opening) else ""


def tool_format(render: Callable[[Request], str], variables: TemplateVariables = ()) -> ToolFormat:
    """Find the form of a model's calls from a call that its template writes with `render`.

    Raises `UserError` for a template that refuses to.
    """
    text = render(Request(PROBE, template_variables=variables, tools=(PROBE_TOOL,)))
    if text.rfind(PROBE[2].content) < text.find(PROBE[0].content):
        raise UserError("the model's chat template leaves out what is said", "choose another model")
    start = text.rindex(PROBE[0].content) + len(PROBE[0].content)
    prompt = render(Request(PROBE[:1], template_variables=variables))
    asked = prompt.rpartition(PROBE[0].content)[2].removesuffix(opened_at_end(prompt)).rstrip()
    found = _written_format(text[start : text.index(PROBE[2].content, start)].removeprefix(asked))
    if found.kind == "named" and not found.before and asked.endswith(_ADDRESSED):  # Functionary 3.2
        return replace(found, opening=_ADDRESSED, before=_ADDRESSED, addressee="all\n")
    return found


def _written_format(written: str) -> ToolFormat:
    """Return the form of a call from the text between the question and the result."""
    if "<|channel|>" in written:
        before = "<|channel|>commentary to=functions."
        between = " <|constrain|>json<|message|>"
        return ToolFormat("harmony", "", (), before, between)
    whole, rest = _around_name(_THOUGHT.sub("", written))
    arguments = _ARGUMENTS.search(rest)
    between, after = (rest[: arguments.start()], rest[arguments.end() :]) if arguments else (rest, "")
    tag = _opening(whole)
    before = whole[whole.rindex(tag) :] if tag else whole.lstrip()
    start = len(whole) - len(before)
    leading = tuple(whole[each.start() : start] + tag for each in TAG.finditer(whole[:start]) if tag)
    found = TAG.findall(after or rest.partition("probed")[2].removeprefix('<|"|>'))
    closing = tuple(tag for tag in found if not _OF_A_VALUE.fullmatch(tag))
    if re.search(r'"(tool_)?name":\s*"$', before) and between:
        end = "}]" if "[" in before.removeprefix(tag) else "}"
        closed = next((f"\n{each}" for each in closing if each == tag.replace("<", "</")), "")
        return ToolFormat("json", tag, closing, before, between, end + closed, leading=leading)
    if between and arguments:
        return ToolFormat("named", tag or before.strip(), closing, before, between, leading=leading)
    if marked := _marked_format(whole, rest):
        return marked
    kind: Literal["parameters", "gemma", "python"] = "gemma" if before.endswith("call:") else "parameters"
    if re.match(r"\(\w+\s*=", rest):
        kind = "python"
    return ToolFormat(kind, tag, closing, before, is_padded="\nprobed\n" in rest, leading=leading)


def _tag_marks(rest: str) -> TagMarks | None:
    """Return the marks of tags around a value, if they have some."""
    if named := _NAMED_TAG.search(rest):
        return TagMarks(f"{named[1]}<", f"{named[1]}</", ">")
    spelled = _SPELLED_TAG.search(rest)
    return TagMarks(spelled[1], spelled[4], spelled[3]) if spelled else None


def _marked_format(whole: str, rest: str) -> ToolFormat | None:
    """Return the form of calls with parameters in tags with marks, if a tag opens them."""
    if (marks := _tag_marks(rest)) is None:
        return None
    inside = rf".*?{re.escape(marks.ends)}"
    opened = re.findall(re.escape(marks.opens) + inside, whole, re.DOTALL)
    if not opened:
        return None
    closed = re.findall(re.escape(marks.closes) + inside, rest, re.DOTALL)
    return ToolFormat("marked", opened[-1], tuple(closed), whole[whole.rindex(opened[-1]) :], marks=marks)


def _around_name(written: str) -> tuple[str, str]:
    """Split the text at the name that the arguments follow."""
    until_arguments = written.partition("probed")[0]
    at = until_arguments.rfind(_NAME) if _NAME in until_arguments else written.find(_NAME)
    return (written, "") if at < 0 else (written[:at], written[at + len(_NAME) :])


def _opening(before: str) -> str:
    """Return the last tag before the name of a tool that can only mean a call."""
    tags: list[str] = TAG.findall(before)
    if about_calls := [tag for tag in tags if re.search("tool|call|action", tag, re.IGNORECASE)]:
        return about_calls[-1]
    opened = re.search(r"<\w[^<>]*$", before)
    if opened:
        return str(opened[0])
    if labelled := _LABEL.search(before):
        return str(labelled[1])
    label, _, after = before.rpartition(tags[-1]) if tags else ("", "", "")
    is_call = after.lstrip()[:1] in ("{", "[") and re.search("function|tool|call", label, re.IGNORECASE)
    return tags[-1] if is_call else ""
