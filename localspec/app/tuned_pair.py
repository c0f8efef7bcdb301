"""What is known of a pair of models on this machine: tuned settings, and how it is best opened.

A pair that was tuned is placed as it was for that: the settings hold for no other placement.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from localspec.app import placing
from localspec.app.options import MODES, PairOptions
from localspec.chat.answer_settings import TunedChoice
from localspec.errors import ModelFileError, UserError
from localspec.storage.pair_identity import Identity, MachineFacts, changes, identify
from localspec.storage.tuned_settings import (
    Kept,
    LoadOptions,
    TunedTask,
    everything,
    recall,
    recall_workplace,
    same_pair,
)
from localspec.types import TaskType
from localspec.units import ago

if TYPE_CHECKING:
    from localspec.hardware.devices import Ask

_WITHOUT_DRAFT = ("off", "ngram")


class KnownPair:
    """What is known of the pair that was placed last; `via` as in `placing.placed`."""

    def __init__(self, args: argparse.Namespace, *, via: Ask | None) -> None:
        """Remember the arguments, which go before what was tuned."""
        self._args = args
        self._via = via
        self._pair: PairOptions | None = None
        self._identity: Identity | None = None  # where anything is tuned
        self._trouble = ""  # with the file of tuned settings

    def place(
        self, pair: PairOptions, tell: Callable[[str], None], *, keeps_costs: bool = True
    ) -> PairOptions:
        """Return the pair where it sits, opened as was found best where it was tuned; `tell` of the plan.

        `keeps_costs` if what its calls cost need not be measured every time. Raises UserError.
        """
        pair = replace(pair, target=replace(pair.target, keeps_costs=keeps_costs))
        self._pair, self._identity, self._trouble = pair, None, ""
        if self._args.mode == "off":  # no settings would be looked up
            return self._placed(pair, self._args.mode, tell)
        kept, self._trouble = everything()
        if self._args.mode in _WITHOUT_DRAFT or not kept or not _is_tuned(pair, kept):
            return self._placed(pair, self._args.mode, tell)
        from localspec.app.tuning import MAX_FAN_OUT, identity_of

        pair = replace(pair, max_fan_out=max(pair.max_fan_out, MAX_FAN_OUT))
        placed = self._placed(pair, MODES[0], tell)
        if pair.draft is not None and placed.draft is None:
            with suppress(UserError):  # there is no room for both
                placed = self._placed(pair, "sd", tell)
        self._identity = identity_of(placed, via=self._via)
        return as_tuned(placed, self._identity, self._args)

    def _placed(self, pair: PairOptions, mode: str, tell: Callable[[str], None]) -> PairOptions:
        args = argparse.Namespace(**vars(self._args) | {"mode": mode})
        return placing.placed(args, pair, tell, via=self._via)

    def experience(self, task: TaskType) -> TunedChoice | None:
        """Return what was tuned for a task; what holds for other files, places or devices is not used."""
        if self._trouble:
            return TunedChoice(None, "", self._trouble)
        if self._identity is None:
            return None
        recalled = recall(self._identity, task)
        tuned, notice = recalled.tuned, ""
        if tuned is None:
            return None
        if recalled.stale:
            notice = f"tuned settings for {task}: {recalled.stale[0]}; run `localspec tune --task {task}`"
            if not _only_programs_changed(tuned, self._identity):
                return TunedChoice(None, "", notice)
        return TunedChoice(tuned.settings, reason(tuned, datetime.now(UTC)), notice, tuned)


def _is_tuned(pair: PairOptions, kept: Sequence[Kept]) -> bool:
    """Tell whether there are settings for these models, wherever they may have sat."""
    try:
        now = identify(pair.target, pair.draft, MachineFacts("", 0))  # on whatever machine
    except ModelFileError:  # whoever opens it has more to say
        return False
    return any(same_pair(known.identity, now) for known in kept)


def as_tuned(pair: PairOptions, identity: Identity, args: argparse.Namespace) -> PairOptions:
    """Return a placed pair as it was found to be opened best, where flags say nothing else."""
    from localspec.app.tuning import loaded_with

    usual = LoadOptions()
    found = recall_workplace(identity) or usual
    return loaded_with(replace(found, **{name: getattr(usual, name) for name in settled(args)}), pair)


def settled(args: argparse.Namespace) -> tuple[str, ...]:
    """Return which fields of `LoadOptions` flags say."""
    draft_devices = (args.draft_devices, getattr(args, "draft_gpu_layers", None))
    given = {
        "threads": args.threads is not None,
        "draft_threads": args.draft_threads is not None,
        "micro_batch": (args.batch, args.micro_batch) != (None, None),
        "draft_flash_attention": hasattr(args, "flash_attention"),
        "draft_kv_type": (args.draft_kv_type_k, args.draft_kv_type_v) != (None, None),
        "draft_on_cpu": draft_devices != (None, None),
    }
    return tuple(name for name, is_given in given.items() if is_given)


def _only_programs_changed(tuned: TunedTask, now: Identity) -> bool:
    """Tell whether a driver or llama.cpp is all that is new since the tuning."""
    driver, version = now.machine.driver, now.machine.llama_cpp
    then = [kept.identity for kept in everything()[0] if kept.tuned == tuned]
    as_now = (replace(each, machine=replace(each.machine, driver=driver, llama_cpp=version)) for each in then)
    return any(not changes(each, now) for each in as_now)


def reason(tuned: TunedTask, now: datetime) -> str:
    """Return when settings were tuned and what they gain, in a line."""
    if tuned.settings.mode == "off":
        return f"tuned {ago(tuned.measured_at, now)}: {tuned.reason}"
    interval = f"{tuned.gain_low:.1f}-{tuned.gain_high:.1f}"
    return f"tuned {ago(tuned.measured_at, now)}: {tuned.gain:.1f}x plain ({interval})"
