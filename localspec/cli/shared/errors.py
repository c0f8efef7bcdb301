"""Turn whatever a verb raises into one clear line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from errno import ENOSPC

from localspec.cli.shared.console import forget, say
from localspec.errors import Cancelled, LocalSpecError, UserError

SUCCESS, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130
_ONE_LINE = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")  # files and servers say anything


def tell(error: LocalSpecError) -> None:
    """Print an error, and below it what to do about it."""
    message, hint = (error.message, error.hint) if isinstance(error, UserError) else (str(error), "")
    say(f"error: {message.translate(_ONE_LINE)}")
    if hint:
        say(f"  hint: {hint.translate(_ONE_LINE)}")


def exit_code(action: Callable[[], int], argv: Sequence[str]) -> int:
    """Run a verb and return its exit code; nothing but SystemExit gets through."""
    try:
        return _flushed(action)
    except (Cancelled, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        _forget_broken()
        return SUCCESS  # who reads no further has what they wanted, as with `head`
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line, not a traceback
        try:
            _explain(error, verbose="-v" in argv or "--verbose" in argv)
        except OSError:  # nobody can read that
            _forget_broken()
        return USAGE if isinstance(error, UserError) else FAILURE


def _flushed(action: Callable[[], int]) -> int:
    """Run a verb; a reader that has gone shows itself here, not at the interpreter's end."""
    try:
        code = action()
    except SystemExit:  # argparse leaves this way after `--help`
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _explain(error: Exception, *, verbose: bool) -> None:
    if isinstance(error, LocalSpecError):
        tell(error)
    elif isinstance(error, OSError) and error.errno == ENOSPC:
        forget(sys.stdout)
        say(f"error: cannot write: {error.strerror}")
    else:
        _tell_unexpected(error, verbose=verbose)


def _tell_unexpected(error: Exception, *, verbose: bool) -> None:
    if verbose:
        import traceback  # 10 ms that only a crash should cost

        traceback.print_exception(error, file=sys.stderr)
    say(f"error: unexpected {type(error).__name__}: {str(error).translate(_ONE_LINE)}")
    if not verbose:
        say("  hint: this is a mistake in LocalSpec; run it again with -v for the traceback, and report it")


def _forget_broken() -> None:
    """Forget the streams that nobody reads: the interpreter's last flush would fail, too."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            forget(stream)
