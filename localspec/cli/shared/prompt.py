"""The question of `localspec run`: the words of its arguments, and what is piped in below them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from localspec import units
from localspec.chat.messages import Attachment
from localspec.chat.resources import Resources
from localspec.cli.shared import opening
from localspec.cli.shared.answer_request import reads_standard_input
from localspec.cli.shared.piped import is_piped, read_aloud
from localspec.cli.shared.question import named, tell_unread, with_files
from localspec.errors import UserError
from localspec.storage.text_file import STANDARD_INPUT, decode_text

_GRACE_S = 0.2  # in which piped text is usually complete, so mistakes are reported before models open
_SKIP = "--no-stdin or </dev/null does without"
_HOW = 'write `localspec run "question"`, or pipe a text into it'


class GivenPrompt:
    """The words of the arguments with the text of standard input, if any, below them, and their files.

    A text that is piped in names no files: it may be anything.
    """

    def __init__(self, args: argparse.Namespace, resources: Callable[[str], Resources]) -> None:
        """Check the words, and begin to read what is piped in; raises UserError.

        `resources` returns those that a text may name.
        """
        self._resources = resources
        words = args.prompt if args.flag_prompt is None else [args.flag_prompt]
        self._given = bool(words)
        self._must_read = words[-1:] == [STANDARD_INPUT]  # one amid words is a minus
        self._attaches = not args.no_chat
        said = words[:-1] if self._must_read else words
        self._argument = " ".join(map(named, said) if self._attaches else said)
        argument = self._argument
        if (
            argument.encode("utf-8", "ignore").decode() != argument
        ):  # the terminal's encoding made no sense of it
            raise UserError(
                "the prompt is not valid text", "write it in the terminal's encoding, or pipe it as UTF-8"
            )
        is_taken = reads_standard_input(args)
        if self._must_read and (args.no_stdin or is_taken):
            raise UserError(
                "- reads the question from standard input, but a flag reads it as well", "leave one out"
            )
        may_read = not args.no_stdin and not is_taken and is_piped()
        otherwise = _SKIP if argument.strip() and not self._must_read else ""
        self._input = read_aloud(otherwise=otherwise) if may_read or self._must_read else None

    def is_there(self) -> bool:
        """Return whether all of it has come, or comes at once."""
        return self._input is None or self._input.ends_within(_GRACE_S)

    def read(self) -> tuple[str, tuple[Attachment, ...]]:
        """Return the prompt and its files, once standard input has ended; raises UserError."""
        argument = self._argument
        piped = self._piped()
        if argument.strip():
            if piped.strip():
                lines = units.counted(len(piped.splitlines()), "line")
                opening.note(f"read {lines} from standard input, below the question; {_SKIP}")
            if not self._attaches:
                tell_unread(argument, "--no-chat continues the text alone")
            files: tuple[Attachment, ...] = ()
            if self._attaches:
                argument, files = with_files(argument, self._resources(argument))
            return f"{argument}\n\n{piped}" if piped.strip() else argument, files
        if piped.strip():
            tell_unread(piped, "the text is piped in; `localspec run` attaches what its arguments name")
            return piped, ()
        if self._given and not self._must_read:
            raise UserError("the prompt is empty", _HOW)
        if self._input is not None:
            raise UserError("standard input is empty, and there is no prompt", _HOW)
        raise UserError("there is no prompt", f"{_HOW}; `localspec chat` is for several questions")

    def _piped(self) -> str:
        """Return the text of standard input; with a question, an unreadable one counts as none (`nohup`)."""
        if self._input is None:
            return ""
        if obstacle := self._input.obstacle():
            if self._argument.strip() and not self._must_read:
                return ""
            raise UserError(f"standard input cannot be read: {obstacle}", _HOW)
        return decode_text(self._input.wait(), "standard input").rstrip("\r\n")
