"""Who takes part in a benchmark: our modes, the tuned settings, llama.cpp's own server."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast, get_args

from localspec.app.options import DRAFT_MODES, PairOptions
from localspec.app.tuned_pair import KnownPair
from localspec.benchmark.contender import Contender, Prompt
from localspec.chat.answer_settings import PairKnowledge
from localspec.cli.bench.request import COMBINED, SERVER, TUNED, BenchRequest
from localspec.cli.shared.console import leaving_in_order
from localspec.cli.shared.opening import note, placed
from localspec.errors import UserError
from localspec.types import EngineSettings, Message, Mode, Summary, TaskType

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime

_SHOWN = 40  # characters that tell a prompt from others
TunedSettings = Mapping[str, EngineSettings]
"""Settings by task."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A contender that answers each task in the way that was tuned for it."""

    name: str
    by_task: Mapping[str, Contender]

    def answer(self, prompt: Prompt, max_tokens: int, seed: int) -> Summary:
        """Answer from empty caches and return what it took."""
        return self.by_task[prompt.task].answer(prompt, max_tokens, seed)

    def memory_peak(self) -> int | None:
        """Return the most bytes that its process has held in memory so far."""
        return next(iter(self.by_task.values())).memory_peak()


def seated(
    args: argparse.Namespace, wish: BenchRequest, pair: PairOptions
) -> tuple[PairOptions, TunedSettings]:
    """Return the pair where it sits for all that is compared, and what was tuned for it if that is wanted.

    Raises UserError where it fits nowhere, or was not tuned.
    """
    if not wish.drafts:
        pair = replace(pair, draft=None)  # nobody would ask it
    used = {COMBINED.get(mode, mode) for mode in wish.modes}
    needs_most = [mode for mode in DRAFT_MODES if mode in used][-1:]
    args = argparse.Namespace(**{**vars(args), "mode": needs_most[0] if needs_most else wish.modes[-1]})
    if TUNED not in wish.modes:
        return placed(args, pair), {}
    args.mode = "auto"  # the settings hold for these seats alone
    known = KnownPair(args, here=True)
    pair = known.seat(pair, placed, keeps_costs=False)
    return pair, tuned_settings(known.experience, wish.prompts)


def tuned_settings(experience: PairKnowledge, prompts: Sequence[Prompt]) -> TunedSettings:
    """Return what was tuned for every task of the prompts; raises UserError for what was not, or is stale."""
    found: dict[str, EngineSettings] = {}
    for task in dict.fromkeys(prompt.task for prompt in prompts):
        if task not in get_args(TaskType):
            raise UserError(
                f"`{task}` is no task that can be tuned, so mode {TUNED} cannot answer its prompts",
                f"leave {TUNED} out of --modes, or choose other --tasks: {', '.join(get_args(TaskType))}",
            )
        known = experience.recall(cast("TaskType", task))
        if known is None:
            raise UserError(
                f"there are no tuned settings for {task} with these models on this machine",
                f"run `localspec tune --task {task}` first, or leave {TUNED} out of --modes",
            )
        if known.settings is None:
            raise UserError(known.notice, f"or leave {TUNED} out of --modes")
        if known.notice:
            note(known.notice)
        found[task] = known.settings
    return found


def possible(wish: BenchRequest, runtime: Runtime) -> BenchRequest:
    """Return the wish without usual modes that these models cannot decode in; raises UserError for others."""
    unable = [mode for mode in wish.modes if COMBINED.get(mode, mode) not in (*runtime.modes, TUNED)]
    if unable and wish.asked_modes:
        reason = "; ".join(runtime.notes) or "these models cannot take tokens back"
        raise UserError(f"mode {unable[0]} is not possible: {reason}", f"leave {unable[0]} out of --modes")
    return replace(wish, modes=tuple(mode for mode in wish.modes if mode not in unable))


def check_fit(prompts: Sequence[Prompt], runtime: Runtime) -> None:
    """Raise UserError for a prompt that leaves no room for an answer, before hours are spent on others."""
    room = runtime.target.context
    for prompt in prompts:
        system = (Message("system", prompt.system),) if prompt.system else ()
        tokens = runtime.count_tokens((*system, Message("user", prompt.text)))
        if tokens >= room:
            begins = " ".join(prompt.text[:_SHOWN].split())
            raise UserError(
                f"a prompt of the task `{prompt.task}` is {tokens:,} tokens, and the context holds {room:,} "
                f"with the answer: {begins}...",
                f"leave it out, or give a larger -c (the model was trained on "
                f"{runtime.target.training_context:,})",
            )


def ways(wish: BenchRequest) -> Iterator[tuple[str, EngineSettings]]:
    """Yield the names and settings of our modes: first as they decide themselves, then of fixed lengths."""
    for mode in wish.modes:
        if mode == TUNED:
            continue
        settings = wish.speculation.apply(EngineSettings(mode=cast("Mode", COMBINED.get(mode, mode))))
        if mode in COMBINED:
            settings = replace(settings, fallback="ngram")
        yield mode, settings
        for length in wish.lengths if settings.mode in DRAFT_MODES else ():
            yield f"{mode} K={length}", replace(settings, draft_length=length, min_confidence=0.0)


def own(runtime: Runtime, wish: BenchRequest, tuned: TunedSettings) -> Iterator[Contender]:
    """Yield our contenders; they share the open models."""
    from localspec.benchmark.own_modes import Own, peak_of

    peak = peak_of(os.getpid())

    def contender(name: str, settings: EngineSettings) -> Contender:
        return Own(name, runtime, settings, wish.sampling, peak)

    yield from (contender(name, settings) for name, settings in ways(wish))
    if TUNED in wish.modes:
        yield Tuned(TUNED, {task: contender(TUNED, settings) for task, settings in tuned.items()})


def servers(
    wish: BenchRequest, pair: PairOptions, runtime: Runtime, open_until: ExitStack
) -> Iterator[Contender]:
    """Start llama.cpp's servers, as wide as our contexts, and yield them; raises UserError if one fails."""
    if wish.server is None:
        return
    from localspec.benchmark.llama_server.contender import LlamaServer

    open_until.enter_context(leaving_in_order())  # a server hears of nothing but its own end
    target = replace(pair.target, context=runtime.target.context)
    plain = open_until.enter_context(LlamaServer.start(wish.server, target))
    yield plain.contender(SERVER, wish.sampling)
    if pair.draft is None or runtime.draft is None:
        return
    threads = pair.draft_threads or pair.draft.threads
    draft = replace(pair.draft, context=runtime.draft.context, threads=threads)
    for length in (None, *wish.lengths):
        server = open_until.enter_context(LlamaServer.start(wish.server, target, draft, draft_length=length))
        name = f"{SERVER} draft" if length is None else f"{SERVER} draft K={length}"
        yield server.contender(name, wish.sampling)
