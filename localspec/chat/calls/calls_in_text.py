"""Finds the calls of tools in an answer that is being written, and tells them from text that mentions some.

A call begins with the form's opening, or with its own tag, and names one of the tools. Without an opening an
object is a call only if there is nothing else. In code and in later thinking nothing is a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from localspec.chat.calls.form import ToolFormat
from localspec.chat.calls.json_call import JsonCalls
from localspec.chat.calls.marked_call import MarkedCalls
from localspec.chat.calls.names import may_begin_name
from localspec.chat.calls.pieces import CallCounter, Piece, Reading
from localspec.chat.calls.python_call import PythonCalls
from localspec.chat.calls.source import IncomingText, Waiting
from localspec.chat.calls.tagged_call import HEAD, CallFrame, TaggedCalls
from localspec.chat.calls.typed import Parameters
from localspec.chat.thinking import LaterThinking, TrimmedThinking
from localspec.thinking_tags import Stretch

_BARE_HEADS = ("<function=", "<invoke name=")
_NAME = re.compile(r"[\w.-]+")
_NAMESPACE_ENDS = re.compile(r":[^\W\d]")
_NAME_AT_END = re.compile(r"[\w.:/-]+\Z")
_BETWEEN = re.compile(r"(?:\s|:\d+|\[[A-Z_]+\][\w-]*|<[^<>{}]*>|```\w*)*")  # a name and its arguments
_LONGEST_BETWEEN = 100
_FENCE = re.compile(r"```[\w-]*[ \t]*\n?")
_LABEL = re.compile(r"<\|?[\w ]{1,20}\|?>")
_AFTER = re.compile(r"</[^<>]{1,40}>|<\|[^<>]{1,40}\|>")
_MARKS = ('<|"|>', "<escape>")
_LONGEST_END = 100  # characters of the tag at the end of a call, with blanks
_LONGEST_HEAD = 400  # characters at the end of a cut answer that may be the beginning of a call


class CallsInText:
    """Text, later thinking and calls apart, in the order in which they come."""

    def __init__(
        self, form: ToolFormat, tools: Mapping[str, Parameters], *, takes_unknown: bool = False
    ) -> None:
        """Read nothing yet."""
        self._form = form
        self._tools = tools
        self._source = IncomingText()
        self._counter = CallCounter()
        self._openings = tuple(
            dict.fromkeys(filter(None, (*form.leading, form.opening, form.head, *_BARE_HEADS)))
        )
        self._own_end = form.own_end
        addressed = form.addressee and form.opening + form.addressee
        self._ends = tuple(dict.fromkeys(filter(None, (form.own_end, *form.closing, addressed))))
        self._json = JsonCalls(self._source, tools, self._counter, self._ends, takes_unknown=takes_unknown)
        self._python = PythonCalls(self._source, tools, self._counter)
        self._marked = form.marks and MarkedCalls(self._source, tools, self._counter, form.marks)
        self._own_openings = tuple(filter(self._is_opening, self._openings)) or self._openings
        around = CallFrame(self._ends, self._own_openings, self._call_follows, form.is_padded)
        self._tagged = TaggedCalls(self._source, tools, self._counter, around)
        self._later = LaterThinking()
        self._trimmed = TrimmedThinking()
        self._blank = ""  # at the end of the text so far
        self._has_said = self._has_called = self._called_last = False
        self._latest = ""  # text that came
        self._is_in_call = False
        self._run = self._all()

    def is_in_call(self) -> bool:
        """Return whether a call is incomplete, of whose arguments anything may be a part."""
        has_ended = self._own_end and self._latest.rstrip().endswith(self._own_end)
        return self._is_in_call and not has_ended

    @property
    def answers_directly(self) -> bool:
        """Whether a call of no tool said that the model answers without calls."""
        return self._json.answers_directly

    def feed(self, text: str, *, more: bool, is_cut: bool = False) -> Iterator[Piece]:
        """Yield the parts that are certain now; without `more` the answer is complete, or was cut."""
        self._source.add(text, more=more, is_cut=is_cut)
        self._latest = (self._latest + text)[-_LONGEST_END:]
        joined: Piece | None = None
        for piece in self._run:
            if piece is None:
                break
            if joined and _is_one(joined, piece):
                joined = replace(joined, text=joined.text + piece.text)
                continue
            if joined:
                yield joined
            joined = piece
        if joined:
            yield joined

    def _all(self) -> Reading[None]:
        if self._form.addressee:
            yield from self._first_part()
        while (yield from self._bare()) or (yield from self._text()):
            yield from self._closings()
        if self._later.opening is not None:  # thinking that nothing closes is none, and may hold calls
            self._source.add(self._later.give_back(), more=False, is_cut=self._source.is_cut)
            self._later = LaterThinking(looks=False)
            while (yield from self._text()):
                yield from self._closings()
        yield from self._flushed()
        if self._blank and not self._called_last:
            yield Piece("text", self._blank)

    def _first_part(self) -> Reading[None]:
        """Read the addressee of the first part of an answer, whose mark ends the prompt."""
        addressee = self._form.addressee
        if (yield from self._source.starts(addressee)):
            self._source.take(len(addressee))
        elif (yield from self._attempt(self._named_call())):
            yield from self._closings()
        elif self._source.is_cut and not self._source.more:
            self._source.take_cut((addressee, *self._tools))

    def _text(self) -> Reading[bool]:
        """Pass on text up to a call, which is read; return whether there was one."""
        source = self._source
        while True:
            text, opening = source.take_safely(self._openings)
            yield from self._told(self._later.feed(text))
            if opening:
                later = self._later
                may_call = later.opening is None and not later.is_in_code
                self._is_in_call = may_call
                made = may_call and (yield from self._attempt(self._call(opening)))
                self._is_in_call = False
                if made:
                    return True
                yield from self._told(later.feed(source.take(len(opening))))
            elif source.more:
                yield None
            else:
                return False

    def _told(self, stretches: Iterable[Stretch], *, more: bool = True) -> Iterator[Piece]:
        """Yield text and thinking; blanks before a call come out only if text follows it."""
        for kind, stretch in self._trimmed.feed(stretches, more=more):
            if kind == "thinking":
                yield Piece("thinking", stretch)
            elif kind == "answer":
                whole = self._blank + stretch
                text = whole.rstrip()
                self._blank = whole[len(text) :]
                if text:
                    yield Piece("text", text if self._has_said or not self._has_called else text.lstrip())
                    self._has_said = True
                    self._called_last = False

    def _flushed(self) -> Iterator[Piece]:
        yield from self._told(self._later.feed("", more=False), more=False)
        self._later = LaterThinking()

    def _attempt(self, reading: Reading[bool], *, is_held: bool = False) -> Reading[bool]:
        """Read a call if one begins here, else nothing; pieces that are held come out if it is one."""
        source = self._source
        mark = self._source.mark()
        count = self._counter.count
        held = list[Piece]()
        has_begun = False
        while True:
            try:
                piece = next(reading)
            except StopIteration as end:
                made = bool(end.value)
                break
            if piece is None:
                yield None
            elif is_held:
                held.append(piece)
            else:
                if not has_begun:
                    yield from self._flushed()
                has_begun = True
                yield piece
        if made:
            source.keep(mark)
            if held:
                yield from self._flushed()
            yield from held
            self._has_called = self._called_last = True
            return True
        self._counter.count = count
        if source.is_over and source.is_cut and not is_held and source.since(mark) <= _LONGEST_HEAD:
            source.keep(mark)  # its name was cut
            self._called_last = True
        elif source.is_cut and not source.more and self._is_cut_in_name(source.rest(mark), is_all=is_held):
            source.take(_LONGEST_HEAD)
            source.keep(mark)
            self._called_last = True
        else:
            source.back(mark)
        return False

    def _is_cut_in_name(self, text: str, *, is_all: bool) -> bool:
        """Return whether a text ends in what stands before a name, and the beginning of a tool's name."""
        if len(text) > _LONGEST_HEAD:
            return False
        before = _without_blanks(self._form.before)
        heads = {before, before.removesuffix("functions.")}
        name = _NAME_AT_END.search(text)
        for at in range(name.start(), len(text)) if name else ():
            head = _without_blanks(text[:at])
            is_head = head in heads if is_all else head.endswith(tuple(heads))
            if is_head and may_begin_name(text[at:], self._tools):
                return True
        return False

    def _call(self, opening: str) -> Reading[bool]:
        """Read a call, or a block of calls, from its opening on; return whether it is one."""
        source = self._source
        if not self._is_opening(opening):
            return (yield from self._tag_call())
        source.take(len(opening))
        if self._marked:
            return (yield from self._marked.all())
        yield from source.blank()
        if (yield from source.starts("```")):
            source.take(len((yield from source.match(_FENCE))))
            yield from source.blank()
        head = yield from source.ahead(1)
        if head == "<":
            return (yield from self._tag_call())
        if self._form.kind == "python":
            return (yield from self._python.all())
        if head not in ("{", "["):
            return (yield from self._named_call())
        made = yield from self._json.all()
        while made and (yield from self._another_object()):
            yield from self._json.all()
        return made

    def _is_opening(self, text: str) -> bool:
        """Return whether a text opens a call, and is not the beginning of a tag with its name."""
        form = self._form
        return bool(text) and text in (form.opening, *form.leading) and not text.endswith(("=", '"'))

    def _another_object(self) -> Waiting[bool]:
        """Return whether another object follows one in the same block; what is between them is read."""
        source = self._source
        mark = source.mark()
        yield from source.blank()
        if (yield from source.first_of((",", ";"))):
            source.take(1)
            yield from source.blank()
        if (yield from source.starts("{")):
            source.keep(mark)
            return True
        source.back(mark)
        return False

    def _tag_call(self) -> Reading[bool]:
        """Read a call whose name is in a tag, with parameters in tags or as JSON."""
        source = self._source
        tag = yield from source.tag()
        head = HEAD.fullmatch(tag)
        name = self._json.offered(head["name"]) if head else None
        if head is None or name is None:
            return False
        source.take(len(tag))
        own_end = f"</{head['tag']}>"
        if (yield from self._tagged.begins(name, own_end)):
            yield self._counter.begun(name)
            yield from self._tagged.read(name, own_end)
            yield from source.blank()
            if (yield from source.starts(own_end)):
                source.take(len(own_end))
            return True
        yield from source.blank()
        if not (yield from source.starts("{")):
            return False
        yield self._counter.begun(name)
        yield from self._json.arguments(name)
        return True

    def _named_call(self) -> Reading[bool]:
        """Read a call whose name stands before its arguments."""
        source = self._source
        is_gemma = self._form.kind == "gemma"
        if is_gemma and (yield from source.starts("call:")):
            source.take(len("call:"))
        word = yield from self._word()
        name = self._json.offered(word)
        if name is None:
            return False
        source.take(len(word))
        if (yield from self._tagged.begins(name)):
            yield self._counter.begun(name)
            yield from self._tagged.read(name)
            return True
        between = yield from self._between()
        if between is None:
            return False
        yield self._counter.begun(name)
        if not source.is_over:
            yield from self._json.arguments(name, _MARKS if is_gemma else ())
        elif not source.is_cut:
            yield self._counter.more("{}")
        return True

    def _word(self) -> Waiting[str]:
        """Return the name that comes next, which may have namespaces, without reading it."""
        source = self._source
        mark = source.mark()
        word = source.take(len((yield from source.match(_NAME))))
        while word and _NAMESPACE_ENDS.match((yield from source.ahead(2))):
            word += source.take(1)
            word += source.take(len((yield from source.match(_NAME))))
        source.back(mark)
        return word

    def _between(self) -> Waiting[str | None]:
        """Read up to the arguments after a name, or the answer's end; None: something else comes."""
        source = self._source
        for count in range(1, _LONGEST_BETWEEN):
            text = yield from source.ahead(count)
            if text.endswith("{"):
                return source.take(count - 1) if _BETWEEN.fullmatch(text[:-1]) else None
            if len(text) < count:
                is_all = bool(text.strip()) and (source.is_cut or _BETWEEN.fullmatch(text) is not None)
                return source.take(len(text)) if is_all else None
        return None

    def _bare(self) -> Reading[bool]:
        """Read calls without an opening, if nothing else is in the rest of the answer."""
        return (yield from self._attempt(self._bare_calls(), is_held=True))

    def _bare_calls(self) -> Reading[bool]:
        source = self._source
        labels = list[str]()
        made = False
        while True:
            yield from source.blank()
            if source.is_over:
                return made
            if label := (yield from self._label()):
                labels.append(label)
                source.take(len(label))
                yield from source.blank()
            opening = yield from source.first_of(self._openings)
            if (opening and (made or labels)) or (yield from self._begins_object()):
                called = self._call(opening) if opening else self._json.all(is_certain=False)
            elif self._form.kind == "named" and not self._form.opening:
                called = self._named_call()
            else:
                return False
            if not (yield from called):
                return False
            made = True
            yield from self._ends_of_bare()

    def _ends_of_bare(self) -> Waiting[None]:
        """Read what may follow a call without an opening."""
        source = self._source
        while True:
            yield from source.blank()
            end = yield from source.first_of(("```", ",", ";", *self._ends))
            if not end:
                end = yield from source.tag()
                if not _AFTER.fullmatch(end):
                    return
            source.take(len(end))

    def _label(self) -> Waiting[str]:
        """Return a fence or a tag that may stand before a whole call."""
        source = self._source
        if (yield from source.starts("```")):
            return (yield from source.match(_FENCE))
        if (yield from source.first_of(self._openings)):
            return ""
        tag = (yield from source.tag()) if (yield from source.starts("<")) else ""
        return tag if _LABEL.fullmatch(tag) else ""

    def _begins_object(self) -> Waiting[bool]:
        """Return whether an object, or a list of objects, comes next."""
        if (yield from self._source.starts("[")):
            return (yield from self._source.after_blank(1, 1)) == "{"
        return (yield from self._source.starts("{"))

    def _closings(self) -> Waiting[None]:
        """Read the tags that end calls; blanks after them stay."""
        source = self._source
        fence = ("```",) if "```" in self._form.before + self._form.between else ()
        while True:
            mark = source.mark()
            yield from source.blank()
            end = yield from source.first_of((*self._ends, *fence))
            if not end and source.take_cut((*self._ends, *fence)):
                source.keep(mark)
                return
            if not end:
                source.back(mark)
                return
            source.keep(mark)
            source.take(len(end))

    def _call_follows(self) -> Waiting[bool]:
        """Return whether a call of a tool begins here, maybe after blanks; nothing is read."""
        source = self._source
        mark = source.mark()
        yield from source.blank()
        opening = yield from source.first_of(self._own_openings)
        follows = False
        if self._is_opening(opening):
            source.take(len(opening))
            yield from source.blank()
            if start := (yield from source.first_of(("{", "["))):
                source.take(len(start))
                yield from source.blank()
                begins_object = bool((yield from source.first_of(('"', "'", "{"))))
                follows = begins_object and self._form.kind != "parameters"
            else:
                follows = self._json.offered((yield from self._word())) is not None
        if (opening or self._form.is_block) and not follows:
            head = HEAD.fullmatch((yield from source.tag()))
            follows = head is not None and self._json.offered(head["name"]) is not None
        source.back(mark)
        return follows


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def _is_one(piece: Piece, following: Piece) -> bool:
    """Return whether two pieces are some of the same text, thinking or arguments."""
    is_begun = bool(piece.id or following.id)
    return not is_begun and (piece.kind, piece.index) == (following.kind, following.index)
