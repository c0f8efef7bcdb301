"""The bare command: read the flags, and open the chat screen."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from localspec.app.opening import checked_files
from localspec.chat.answer_settings import with_auto
from localspec.cli.shared.answer_request import session_request
from localspec.cli.shared.arguments import (
    KEY_VARIABLE,
    SERVER_PORT,
    Parser,
    add_answer_flags,
    pair_request,
    verb_parser,
)
from localspec.cli.shared.opening import TERMINAL
from localspec.errors import UserError
from localspec.models.default_pair import default_pair
from localspec.storage import paths
from localspec.storage.config import read_config
from localspec.storage.profiles import Profiles, profiles

if TYPE_CHECKING:
    from localspec.app.screen import ScreenRequest


def parser() -> Parser:
    """Return the parser of the bare command."""
    result = verb_parser("", "Open the chat screen. `localspec chat` is the line-by-line alternative.")
    add_answer_flags(result)
    about = f"chat with the models of a running `localspec serve`; its key is read from {KEY_VARIABLE}"
    add = result.add_argument_group("server").add_argument
    add("--host", metavar="USER@MACHINE", help="open the models on another machine, through ssh")
    add("--rpc", metavar="HOST:PORT", help="use devices that `localspec share` offers on other machines")
    add("--attach", nargs="?", const=f"127.0.0.1:{SERVER_PORT}", metavar="ADDRESS", help=about)
    return result


def main(argv: Sequence[str], open_screen: Callable[[ScreenRequest], int]) -> int:
    """Open the screen and return the exit code; raises `UserError` and `StoreError` before it opens."""
    args = parser().parse_args(argv)
    config = read_config(paths.config_dir() / "config.toml")
    host = config.host if args.host is None else args.host
    found = profiles(paths.config_dir() / "profiles")
    request = pair_request(args)
    is_elsewhere = args.attach is not None or host not in ("", "none")
    if args.attach is not None and request.is_named:
        raise UserError(
            "--attach uses the models of a server, but other models are given", "leave one of them out"
        )
    opens_default_pair = False
    if not is_elsewhere:
        files = checked_files(request, TERMINAL)
        opens_default_pair = not request.target.name and files.target == default_pair()[0]
    try:
        usual = Profiles(with_auto(found)).named(args.profile or config.profile)
    except UserError as error:
        raise UserError(f"{'' if args.profile else 'config.toml: '}{error.message}", error.hint) from None
    from localspec.app.opener import AttachedOpener, LocalOpener, ModelsOpener, SshOpener
    from localspec.app.screen import ScreenRequest  # 0.2 s, which a mistake does without

    opener: ModelsOpener = LocalOpener(request)
    if args.attach is not None:
        opener = AttachedOpener(args.attach, os.environ.get(KEY_VARIABLE))
    elif is_elsewhere:
        words = argv[: argv.index("--host")] if "--host" in argv else argv
        opener = SshOpener(host, words, config.remote_program, request)
    screen = ScreenRequest(
        config,
        found,
        usual.name,
        resumes=args.profile is None,
        session=session_request(args),
        opener=opener,
        opens_default_pair=opens_default_pair,
    )
    return open_screen(screen)
