"""Turn whatever a verb raises into one clear line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from errno import ENOSPC

from localspec.cli.console import say
from localspec.errors import Cancelled, EngineError, LocalSpecError, StoreError, UserError

SUCCESS, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130
_ONE_LINE = str.maketrans({"\n": " ", "\r": " "})


def tell(error: LocalSpecError) -> None:
    """Print an error, and below it what to do about it."""
    message, hint = (error.message, error.hint) if isinstance(error, UserError) else (str(error), "")
    say(f"error: {message.translate(_ONE_LINE)}")
    if hint:
        say(f"  hint: {hint.translate(_ONE_LINE)}")


def exit_code(action: Callable[[], int], argv: Sequence[str]) -> int:
    """Run a verb and return its exit code; nothing but SystemExit gets through."""
    try:
        code = action()
        sys.stdout.flush()  # a reader that has gone shows itself here, not at the interpreter's end
    except UserError as error:
        tell(error)
        return USAGE
    except (Cancelled, KeyboardInterrupt):
        return INTERRUPTED
    except (EngineError, StoreError) as error:
        tell(error)
        return FAILURE
    except BrokenPipeError:
        _forget_output()
        return SUCCESS  # who reads no further has what they wanted, as with `head`
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line, not a traceback
        if isinstance(error, OSError) and error.errno == ENOSPC:
            _forget_output()
            say(f"error: cannot write: {error.strerror}")
        else:
            _tell_unexpected(error, verbose="-v" in argv or "--verbose" in argv)
        return FAILURE
    return code


def _tell_unexpected(error: Exception, *, verbose: bool) -> None:
    if verbose:
        import traceback  # 10 ms that only a crash should cost

        traceback.print_exception(error, file=sys.stderr)
    say(f"error: unexpected {type(error).__name__}: {str(error).translate(_ONE_LINE)}")
    if not verbose:
        say("  hint: this is a mistake in LocalSpec; run it again with -v for the traceback, and report it")


def _forget_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush does not fail too."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        return  # standard output is no file
