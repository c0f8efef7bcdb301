"""Errors that LocalSpec raises on purpose.

LocalSpecError
├── UserError          the user can put it right: one line, what, where and what to do; exit code 2
│   ├── ModelFileError     a model file is missing, broken or of the wrong kind
│   │   └── UnsupportedError   the llama.cpp of this version cannot open it; a newer one may
│   ├── UnavailableError   the Hub has no model of this name
│   ├── UnreachableError   the Hub gives no usable answer
│   ├── PairingError       this draft cannot serve this target
│   └── ContextFullError   the text does not fit the context
├── EngineError        llama.cpp or the machine failed; exit code 1
│   ├── EngineDied         the process that holds the models has ended; it can be started again
│   │   └── ServerLost         another machine, or the connection to it, is gone or silent
│   ├── LogitsError        a model returned logits that are not numbers
│   └── DraftError         the draft model failed; the target can continue alone
├── StoreError         the conversations cannot be read or written: disk full, no permission, damaged file
└── Cancelled          the user asked to stop; not a failure
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LocalSpecError(Exception):
    """Base of every error that LocalSpec raises on purpose."""


class UserError(LocalSpecError):
    """A mistake that the user at the keyboard can put right.

    `message` says in one line what is wrong and where; `hint` says what to do about it.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ModelFileError(UserError):
    """A model file is missing, broken or of a kind that cannot chat."""


class UnsupportedError(ModelFileError):
    """A model file is of a kind that the llama.cpp of this version cannot open."""


class UnavailableError(UserError):
    """The Hub has no model of this name."""


class UnreachableError(UserError):
    """The Hub gives no usable answer; another source may."""


class OutOfMemoryError(UserError):
    """Memory is too short for a model's weights."""


class PairingError(UserError):
    """The draft model cannot serve the target model."""


class ContextFullError(UserError):
    """The text does not fit the context of a model; `tokens` and `context` are their sizes, 0 if unknown."""

    def __init__(self, message: str, hint: str = "", *, tokens: int = 0, context: int = 0) -> None:
        super().__init__(message, hint)
        self.tokens = tokens
        self.context = context


class EngineError(LocalSpecError):
    """Native code or the machine failed."""


class LibraryError(EngineError):
    """llama.cpp's library cannot be loaded, or is not the one that LocalSpec needs."""


class EngineDied(EngineError):
    """The process that holds the models has ended; its text so far stays."""


class ServerLost(EngineDied):
    """Another machine that computes for these models is gone, or falls silent."""


class LogitsError(EngineError):
    """A model returned logits that are not numbers."""

    def __str__(self) -> str:
        """Return it as a sentence about the model that it was made with, if any."""
        return f"{self.args[0] if self.args else 'the model'} returned logits that are not numbers"


class DraftError(EngineError):
    """The draft model failed; the target can continue alone."""


class StoreError(LocalSpecError):
    """The conversations cannot be read or written."""


class Cancelled(LocalSpecError):
    """A running computation was stopped on request; all state is clean."""


@contextmanager
def os_errors_as(what: str, kind: type[LocalSpecError] = UserError, *hint: str) -> Iterator[None]:
    """Raise an OSError inside as an error of ours: what could not be done, and the system's reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}", *hint) from error
