"""From the arguments of the command line to a running screen, and back to an exit code."""

from __future__ import annotations

import argparse
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app import placing
from localspec.app.answer_options import sampling_given, system_given
from localspec.app.options import PairOptions, decoding, pair_options
from localspec.app.tuned_pair import KnownPair, settled
from localspec.chat.auto import with_auto
from localspec.cli.shared.arguments import Parser, add_answer_flags, verb_parser
from localspec.errors import UserError
from localspec.llama import check_model_file
from localspec.models.default_pair import default_pair
from localspec.storage import paths
from localspec.storage.config import read_config
from localspec.storage.profiles import Profiles, profiles

if TYPE_CHECKING:
    from localspec.app.tuning import Stop
    from localspec.chat.session import SessionRequest
    from localspec.inference.interface import OpenModels
    from localspec.inference.worker import LogLine
    from localspec.tuning.events import TuneEvent
    from localspec_tui.screens.tune import TuneChoice, Tuner

LOG_LINES = 2000


def parser() -> Parser:
    """Return the parser of the bare command."""
    result = verb_parser("", "Open the chat screen. `localspec chat` talks line by line instead.")
    add_answer_flags(result)
    placing.add_placing_flags(result)
    return result


def main(argv: Sequence[str]) -> int:
    """Open the screen and return the exit code; raises `UserError` and `StoreError` before it opens."""
    args = parser().parse_args(argv)
    config = read_config(paths.config_dir() / "config.toml")
    pair = pair_options(args)
    for model in (pair.target, pair.draft):
        if model is not None:
            check_model_file(model.path)
    found = profiles(paths.config_dir() / "profiles")
    try:
        usual = Profiles(with_auto(found)).named(args.profile or config.profile)
    except UserError as error:
        raise UserError(f"{'' if args.profile else 'config.toml: '}{error.message}", error.hint) from None
    from localspec.chat.loading import ModelLoader
    from localspec.chat.session import ChatSession  # what follows takes 0.3 s, which a mistake does without
    from localspec.chat.store.store import Store
    from localspec.inference.worker import LogLine
    from localspec_tui.app import LocalSpecApp
    from localspec_tui.keys import binding_ids, key_names

    if config.keys:
        import localspec_tui.screens.tune  # noqa: F401  its keys have names too

        config = read_config(paths.config_dir() / "config.toml", binding_ids(), key_names())

    log: deque[LogLine] = deque(maxlen=LOG_LINES)
    with Store(paths.chats_file()) as store:
        first_start = store.last_chat() is None and pair.target.path == default_pair()[0]
        known = KnownPair(args, here=False)
        desk = ChatSession(
            store,
            found.good,
            _wishes(args),
            usual.name,
            resumes=args.profile is None,
            experience=known.experience,
        )
        loader = ModelLoader(_opener(args, known, log))
        try:
            app = LocalSpecApp(desk, loader, config, Path.cwd(), log, first_start=first_start)
            app.chat_screen.tuner = _tuner(args, found, log)
            for problem in found.problems:
                log.append(LogLine(logging.WARNING, "profiles", str(problem)))
            return app.run() or 0
        finally:
            loader.close()


def _opener(
    args: argparse.Namespace, known: KnownPair, log: deque[LogLine]
) -> Callable[[Callable[[float], bool]], OpenModels]:
    """Return what opens the models that the arguments name, or config.toml does at that moment."""
    from localspec.inference.worker import LogLine, Worker

    def place(args: argparse.Namespace, pair: PairOptions) -> PairOptions:
        if args.no_fit:
            return pair
        plan = placing.plan(args, pair)
        for line in placing.lines(plan, explain=args.explain):
            log.append(LogLine(logging.INFO, "plan", line))
        return placing.apply(plan, pair)

    def open_models(on_progress: Callable[[float], bool]) -> OpenModels:
        seated = known.seat(pair_options(args), place)
        return Worker.open(
            seated.target,
            seated.draft,
            max_fan_out=seated.max_fan_out,
            draft_threads=seated.draft_threads,
            on_progress=on_progress,
            on_log=log.append,
        )

    return open_models


def _tuner(args: argparse.Namespace, found: Profiles, log: deque[LogLine]) -> Tuner:
    """Return what tunes the models that the arguments name, or config.toml does at that moment."""

    def tune(choice: TuneChoice, stop: Stop) -> Iterator[TuneEvent]:
        from localspec.app.tuning import TuneRequest, plan_of, profiles_of, run, seated_pair

        pair = seated_pair(args)
        chosen = profiles_of(found, choice.tasks)
        wish = TuneRequest(chosen, quick=choice.quick, resume=choice.resume, fixed=settled(args))
        yield from run(plan_of(pair, wish), pair, stop, log.append)

    return tune


def _wishes(args: argparse.Namespace) -> SessionRequest:
    """Return what the flags ask for, over what the profiles say."""
    from localspec.chat.session import SessionRequest

    how = decoding(args)
    return SessionRequest(
        mode=how.mode,
        speculation=how.asked,
        sampling=sampling_given(args).apply,
        system=system_given(args),
        max_tokens=args.predict,
        stop=tuple(args.stop),
        seed=args.seed,
        template_variables=args.chat_template_kwargs,
    )
