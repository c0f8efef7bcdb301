"""The two contexts of a pair and the engine on them: sizes, CPU threads, costs, what models allow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from localspec.decoding.company import SharedLatency
from localspec.decoding.engine import Engine, Rounds
from localspec.decoding.fallback import PlainCost
from localspec.decoding.measure import PREFIX, make_programs, measure
from localspec.decoding.model import LanguageModel
from localspec.decoding.passes import Seat, SharedPasses
from localspec.decoding.policy import CostCurve, LatencyModel, assumed_costs, is_plausible
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.speed_model import shared_cores
from localspec.errors import Cancelled, DraftError, UserError
from localspec.gguf import STATE_DRAFT
from localspec.hardware.memory.needs import (
    cache_bytes,
    context_size,
    draft_options,
    request_of,
    uses_processor,
)
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.disk_copies import identity_of
from localspec.llama.backends import devices, version
from localspec.llama.context import Context
from localspec.llama.cores import physical_cores
from localspec.llama.heads import HeadContext
from localspec.llama.memory import free_memory
from localspec.llama.model import Model
from localspec.llama.recurrent import RecurrentContext, open_context, slides
from localspec.models.heads import head_kind, own_head
from localspec.models.shape import read_shape
from localspec.storage.call_costs import costs_file, keep_costs, opening_key, recall_costs
from localspec.storage.config import MIN_CONTEXT
from localspec.storage.pair_identity import MachineFacts, identify
from localspec.types.events import ModeChanged
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Mode
from localspec.units import counted

AHEAD_CHUNK = 64  # tokens read ahead in one call
AHEAD_STOPPABLE_S = 0.01  # of a GPU's call that reads ahead: by so much a question may come later
MEASURE_S = 1.0  # of calls, to learn their costs
LONGEST_MEASURED = 64  # tokens that measuring adds to a text, at most
COMPARED = 8  # rounds that compare the speed of calls with earlier measured costs
BUSY_THEN = 0.6  # of the time that calls took then: the machine had other work to do, and costs are dropped
MOST_SEATS = 64  # conversations that share calls
THREAD_BYTES = 64 * 2**20  # of weights for each thread of a draft step: for less, waking it takes longer
# The same for a target and passes of few tokens. On two cores 8 MB take one thread .21 ms where two take .17,
# eight rows .72 and .50. But two wait for each other at every barrier where another program has a core.
TARGET_THREAD_BYTES = 8 * 2**20
FEW_TOKENS = 16


class Contexts:
    """An open context for the target, and one with branches for the draft model."""

    def __init__(self, target: Model, draft: Model | None, plan: OpenPlan) -> None:
        """Open the contexts; raises `UserError` for sizes that cannot work or do not fit in memory."""
        size = context_size(target.options.context, target.training_context)
        if size < MIN_CONTEXT:
            raise UserError(
                f"a context of {size} tokens is too small for a chat", f"give -c {MIN_CONTEXT} or more"
            )
        is_head = draft is not None and (
            draft.pointer == target.pointer or head_kind(draft.header) is not None
        )
        self.seats = min(
            plan.seats, *(1 if is_head else _most_seats(each) for each in (target, draft) if each)
        )
        if not target.options.kv_unified and size // self.seats < MIN_CONTEXT:
            raise UserError(
                f"{size} tokens of context are {size // self.seats} for each of {self.seats} conversations",
                f"give -c {MIN_CONTEXT * self.seats} or more, or a smaller number with --parallel",
            )
        self.target = self._open(target, replace(target.options, context=size))
        self.can_branch = False
        self.draft: Context | None = None
        if draft is not None:
            if is_head:
                self.draft = HeadContext(draft, replace(draft.options, context=size), self.target)
            else:
                options = draft_options(draft.options, size, on_processor=uses_processor(draft))
                most = plan.max_fan_out
                branches = read_shape(options.path).branches(most) if draft.recurrent else most
                self.draft = self._open(draft, options, branches + 1)
                # Two threads would use one connection, and ggml_backend_rpc_graph_compute mixes up their
                # graphs: it looks which was the last, and only then asks for that one again.
                shared = {*draft.cards} & {*target.cards}
                self.can_branch = not any(card.startswith("RPC") for card in shared)
        self.notes: tuple[str, ...] = (_rereads(target),) if self.target.rereads else ()
        if draft is None and (problem := own_head(target.header)[1]):
            self.notes += (problem,)
        self.passes: SharedPasses | None = SharedPasses(self.target, self.draft) if self.seats > 1 else None
        self.whole: Callable[[], AbstractContextManager[None]] = nullcontext
        """Keeps answers that share the contexts out of a block; raises `Cancelled` where there are some."""
        self._at_work = False
        self._longest_asked = 0  # draft for which the target was to get more states
        self._plan = plan
        self._plan_threads(target, draft)

    def _open(self, model: Model, options: ModelOptions, sequences: int = 1) -> Context:
        _check_memory(model, options, sequences + self.seats - 1)
        return open_context(model, options, sequences=sequences, seats=self.seats)

    def _plan_threads(self, target: Model, draft: Model | None) -> None:
        wanted = target.options.threads or physical_cores()
        self._for_few = wanted  # of the target, where a call has few tokens
        if not target.options.threads and uses_processor(target):
            worth_waking = round(target.header.weight_bytes / TARGET_THREAD_BYTES)
            self._for_few = min(wanted, max(1, worth_waking))
        draft_threads = None if draft is None else draft.options.threads or None
        for_steps = draft_threads or (1 if draft is None else _threads_of_steps(draft, wanted))
        alone = (wanted, for_steps, draft_threads or wanted)
        # of the target, a draft step, and several of the draft's tokens; by whether both models work at once
        self._threads = {False: alone, True: alone}
        if draft is not None and uses_processor(self.target.model) and uses_processor(draft):
            evenly = target.options.output_at_home
            for_target, for_draft = shared_cores(wanted, draft_threads, evenly=evenly)
            self._threads[True] = (for_target, for_draft, for_draft)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Return the modes that these models can decode in."""
        has_draft = self.draft is not None
        can: dict[Mode, bool] = {"off": True, "ngram": True, "sd": has_draft, "ssd": self.can_branch}
        return tuple(mode for mode, possible in can.items() if possible)

    def allow_drafts(self, longest: int) -> str:
        """Let the target take back drafts of `longest` tokens; return why it cannot, "" if it can.

        Only recurrent states are limited. Their memory is not given back, because modes change often. Too
        little of it is tried and reported once; none for any draft is reported every time.
        """
        target = self.target
        longest = min(longest, STATE_DRAFT)
        if not isinstance(target, RecurrentContext) or longest <= target.max_draft:
            return ""
        is_new = longest > self._longest_asked
        if is_new:
            self._longest_asked = longest
            target.allow_drafts(self._affordable(longest))
        if not target.max_draft:
            return "there is not enough memory for drafts"
        if is_new and target.max_draft < longest:
            return f"there is only enough memory for drafts of up to {counted(target.max_draft, 'token')}"
        return ""

    def _affordable(self, longest: int) -> int:
        """Return the longest draft whose states fit in the CPU's memory: Linux grants more, then kills."""
        model = self.target.model
        if model.cards:  # a GPU refuses by itself
            return longest
        states = free_memory() // max(1, read_shape(model.options.path).state_bytes)
        return min(longest, self.target.max_draft + states)

    @property
    def share_processor(self) -> bool:
        """Return whether both models compute on the CPU."""
        return self._threads[True] is not self._threads[False]

    @property
    def on_card(self) -> bool:
        """Return whether a part of these models is on a GPU, which compiles kernels at first calls."""
        return any(each is not None and bool(each.model.cards) for each in (self.target, self.draft))

    def costs_file(self, *, together: bool) -> Path | None:
        """Return the file of call costs, for one model at work at a time or both; None without one."""
        target = self._plan.target
        draft = self._plan.draft
        with suppress(UserError):
            if self._plan.remembers_costs:
                identity = identify(target, draft, facts_here())
                key = opening_key(target, draft, self._plan.max_fan_out, together=together)
                return costs_file(identity, key)
        return None

    def cache_identities(self, adapters: tuple[float, ...] = ()) -> tuple[str, ...]:
        """Return the `identity_of` the target with scales of its adapters, and of the draft model if any."""
        facts = facts_here()
        target = identity_of(self.target, facts, adapters)
        return (target,) if self.draft is None else (target, identity_of(self.draft, facts))

    def share_threads(self, *, together: bool) -> None:
        """Give each model all threads, or divide them for both to work at once."""
        self.give_target(together=together)
        if self.draft is not None:
            _, step, reading = self._threads[together]
            self.draft.set_threads(step, several=reading)

    def give_target(self, *, together: bool) -> None:
        """Give the target its threads; the draft model, which may be at work, is left alone."""
        threads = self._threads[together][0]
        self.target.set_threads(min(threads, self._for_few), several=threads, few=FEW_TOKENS)

    @contextmanager
    def reading_ahead(self) -> Iterator[int]:
        """Make the block cancellable at once, and yield the tokens to read at a time.

        On the CPU what a cancelled call has computed is lost; a GPU ends its calls first.
        """
        contexts = [each for each in (self.target, self.draft) if each is not None]
        with self.at_work():
            self.share_threads(together=False)
            for context in contexts:
                context.stop_within(AHEAD_STOPPABLE_S)
            try:
                yield AHEAD_CHUNK
            finally:
                for context in contexts:
                    context.stop_within()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Make the block cancellable by `cancel`."""
        self._resume()
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False
            self._resume()

    def cancel(self) -> None:
        """Stop the calls of both models, if any; callable from any thread."""
        for context in (self.target, self.draft) if self._at_work else ():
            if context is not None:
                context.cancel()

    def first_call_s(self) -> float | None:
        """Return for how long a GPU has been at a call that it may compile programs for."""
        taken = [context.first_call_s() for context in (self.target, self.draft) if context is not None]
        return max((seconds for seconds in taken if seconds is not None), default=None)

    def call_s(self) -> float:
        """Return for how long the longest native call in progress has lasted."""
        return max(context.call_s() for context in (self.target, self.draft) if context is not None)

    def longest_call_s(self) -> float:
        """Return the expected duration of a native call, from earlier ones."""
        return max(context.longest_call_s() for context in (self.target, self.draft) if context is not None)

    def _resume(self) -> None:
        """Clear a cancel that was not noticed."""
        for context in (self.target, self.draft):
            if context is not None:
                context.resume()


@dataclass(slots=True)
class KnownCosts:
    """What is known of the costs of calls, by whether both models work at once."""

    plain: PlainCost = field(default_factory=PlainCost)
    latency: dict[bool, LatencyModel] = field(default_factory=dict)
    assumed: dict[bool, LatencyModel] = field(default_factory=dict)  # until they are measured
    looked_up: set[bool] = field(default_factory=set)  # in the costs of an earlier program
    earlier: dict[bool, CostCurve] = field(default_factory=dict)  # of verification, as measured by it
    speeds: list[float] = field(default_factory=list)  # of calls, against what they took then


class CostedEngine(Engine):
    """The engine on a pair of contexts: it knows what its calls cost, and shares the CPU out."""

    def __init__(
        self, contexts: Contexts, seats: Sequence[Seat] = (), beside: CostedEngine | None = None
    ) -> None:
        """Take both contexts, or a conversation's seats of them; engines `beside` others share the costs."""
        self.seats = seats
        target, *drafts = seats or (contexts.target, contexts.draft)
        assert target is not None
        super().__init__(target, drafts[0] if drafts else None, beside)
        self._contexts = contexts
        self.drafters.reads_late = contexts.share_processor
        self.known: KnownCosts = KnownCosts() if beside is None else beside.known
        self.plain = self.known.plain

    def allow_drafts(self, settings: EngineSettings) -> ModeChanged | None:
        """Let the target take back drafts of these settings; return the change if memory is short.

        The cached text stays, unless it could not be saved while memory was allocated.
        """
        if settings.mode == "off":
            return None
        shortage = self._contexts.allow_drafts(settings.draft_length)
        self.decoder.set_cached(self.decoder.cached_tokens())
        if not shortage:
            return None
        return ModeChanged(settings.mode if self._contexts.target.max_draft else "off", shortage)

    def costs(self, *, together: bool) -> LatencyModel:
        """Return the call costs of a way of working, measured once, perhaps by an earlier program."""
        if together not in self.known.latency:
            self.known.latency[together] = self.known_costs(together=together) or self._measured(together)
        return self.known.latency[together]

    def known_costs(self, *, together: bool) -> LatencyModel | None:
        """Return the call costs if they were measured, perhaps by an earlier program; takes no time."""
        if together not in self.known.latency and together not in self.known.looked_up:
            self.known.looked_up.add(together)
            if (kept := self._recalled(together)) is not None:
                self.known.latency[together] = kept
        return self.known.latency.get(together)

    def ready_costs(self, *, together: bool) -> LatencyModel:
        """Return the call costs, measured or assumed, without waiting."""
        known = self.known_costs(together=together)
        if known is not None:
            return known
        if together not in self.known.assumed:
            target = self._contexts.target.model.header
            draft = self._contexts.draft
            share = 1.0 if draft is None else draft.model.header.weight_bytes / target.weight_bytes
            on_card = self._contexts.on_card
            self.known.assumed[together] = assumed_costs(min(1.0, share), on_card=on_card)
        return self.known.assumed[together]

    def lack_costs(self, *, together: bool) -> None:
        """Have costs measured between answers, or before the program ends."""
        self.ready_costs(together=together)

    @property
    def has_earlier_costs(self) -> bool:
        """Return whether an earlier program measured them."""
        return bool(self.known.earlier)

    @property
    def lacks_costs(self) -> bool:
        """Return whether answers had to do with assumed costs."""
        return any(together not in self.known.latency for together in self.known.assumed)

    def measure_between_answers(self) -> None:
        """Measure the assumed costs, after the cached text; raises `Cancelled`."""
        room = min(each.context_size - each.length() for each in self._both() if each is not None)
        for together in (False, True):
            if (
                together in self.known.assumed
                and together not in self.known.latency
                and room > LONGEST_MEASURED
            ):
                self._contexts.share_threads(together=together)
                self.known.latency[together] = self._measured(together, self._both())

    def _both(self) -> tuple[Context, Context | None]:
        return self._contexts.target, None if self.drafters.failure else self._contexts.draft

    def _recalled(self, together: bool) -> LatencyModel | None:
        file = self._contexts.costs_file(together=together)
        kept = None if file is None else recall_costs(file, time.time())
        if kept is None:
            return None
        verify, step = kept
        if self._contexts.on_card:  # else the first rounds would count what making them takes
            with suppress(Cancelled), self._contexts.whole():
                make_programs(*self.alone(together=together))
        self.known.earlier[together] = CostCurve(verify)
        return LatencyModel(CostCurve(verify), CostCurve(step))

    def _measured(
        self, together: bool, models: tuple[LanguageModel, LanguageModel | None] | None = None
    ) -> LatencyModel:
        """Measure and save call costs, in empty caches or after the text in some."""
        models = models or self.alone(together=together)
        on_card = self._contexts.on_card
        try:
            found = measure(*models, MEASURE_S, together=together, on_card=on_card)
        except DraftError as error:
            self.leave_out_draft(error)
            return measure(models[0], None, MEASURE_S, together=together, on_card=on_card)
        verify = found.verify.points()
        step = found.step.points()
        if not together:
            self.plain.observe(PREFIX, found.verify(1))
        file = self._contexts.costs_file(together=together)
        if file is not None and is_plausible(verify) and is_plausible(step):
            keep_costs(file, time.time(), verify, step)
        return found

    def _compare(self, event: Round, *, together: bool) -> None:
        """Learn the current cost of plain decoding from the first rounds, if it was measured earlier.

        Slower calls are ignored: they may only have a longer text.
        """
        if False in self.known.earlier and len(self.known.speeds) < COMPARED:
            verify = self.known.earlier.get(together, self.known.latency[together].verify)
            self.known.speeds.append(event.stats.verify_s / verify(event.stats.drafted + 1))
            if len(self.known.speeds) == COMPARED:
                speed = sorted(self.known.speeds)[COMPARED // 2]
                self.plain.observe(PREFIX, self.known.earlier[False](1) * min(1.0, speed))
                file = self._contexts.costs_file(together=together) if speed < BUSY_THEN else None
                if file is not None:
                    with suppress(OSError):
                        file.unlink(missing_ok=True)

    def costs_in(self, mode: Mode) -> LatencyModel:
        """Return the call costs that a mode needs; plain decoding needs none."""
        if mode == "off":
            return LatencyModel(CostCurve({1: 1.0}), CostCurve({1: 1.0}))
        return self.ready_costs(together=mode == "ssd")

    def alone(self, *, together: bool) -> tuple[LanguageModel, LanguageModel | None]:
        """Return both models with empty caches and their threads, for something else than an answer."""
        self.forget()
        self._contexts.share_threads(together=together)
        return self._both()

    def segment_in_company(
        self,
        text: Sequence[int],
        settings: EngineSettings,
        params: DecodeParams,
        seed: int | None,
        segment: int,
        answers: Callable[[], int],
    ) -> Rounds:
        """Decode one segment of an answer whose calls serve others as well, without branches."""
        target, *draft = self.seats
        with ExitStack() as locked:
            for seat in self.seats:
                locked.enter_context(seat.lock)
            self._contexts.share_threads(together=False)
        costs = self.costs_in(settings.mode)
        latency = SharedLatency(costs, target, draft[0] if draft else None, answers)
        yield from self.rounds(text, settings, params, latency, seed, segment)

    def segment(
        self,
        text: Sequence[int],
        settings: EngineSettings,
        params: DecodeParams,
        seed: int | None,
        segment: int,
    ) -> Rounds:
        """Decode one segment of an answer, with the CPU's threads where they are needed."""
        together = settings.mode == "ssd"
        contexts = self._contexts
        latency = self.costs_in(settings.mode)
        contexts.share_threads(together=together)
        contexts.give_target(together=False)  # the prompt is read with all threads
        with closing(self.rounds(text, settings, params, latency, seed, segment)) as rounds:
            for event in rounds:
                yield event
                if isinstance(event, Round):
                    break
            contexts.give_target(together=together)
            for event in rounds:
                if isinstance(event, Round) and self.known.assumed.get(together) is latency:
                    if not together and not event.stats.drafted:
                        self.plain.observe(len(text), event.stats.seconds)
                elif isinstance(event, Round):
                    self._compare(event, together=together)
                yield event


def _most_seats(model: Model) -> int:
    """Return the number of conversations that can share a model's calls.

    A running state or a window forgets what others need. A call that several parts of a machine, or several
    machines, compute has its own limits on sequences, which nothing here has measured.
    """
    is_here = not any(card.startswith("RPC") for card in model.cards)
    shares = not model.recurrent and not slides(model) and is_here and model.options.split_mode != "tensor"
    return MOST_SEATS if shares else 1


def _rereads(model: Model) -> str:
    return (
        f"{model.name} ({model.header.architecture}) has a recurrent state without snapshots: "
        "after a rejection it processes text again, so speculation only helps where most drafts are accepted"
    )


def _threads_of_steps(draft: Model, most: int) -> int:
    """Return the number of threads that are worth waking for one token of a draft model."""
    worth_waking = max(1, ceil(draft.header.weight_bytes / THREAD_BYTES))
    return min(most, worth_waking) if uses_processor(draft) else most


def facts_here() -> MachineFacts:
    """Return the machine's facts from the open llama.cpp: all but the driver of GPUs."""
    every = devices()
    return MachineFacts(
        processor=next((device.description for device in every if device.kind == "cpu"), ""),
        cores=physical_cores(),
        devices=tuple(f"{device.name}: {device.description}" for device in every if device.kind != "cpu"),
        llama_cpp=version(),
    )


def _check_memory(model: Model, options: ModelOptions, sequences: int) -> None:
    """Refuse a KV cache that plainly does not fit into memory: Linux would kill the process instead."""
    if not model.allocated or model.cards:
        return  # nothing is taken, or a GPU says no by itself
    shape = read_shape(options.path)
    request = request_of(options, sequences=sequences)
    needed = sum(cache_bytes(shape, request, layer) for layer in shape.layers)
    free = free_memory()
    if needed > free:
        raise UserError(
            f"{options.context:,} tokens of context need {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free",
            "choose a smaller context or a smaller type for the KV cache",
        )
