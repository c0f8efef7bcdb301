"""Open models and the engine around them: owner of native memory, and what everything above sees."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from math import isfinite
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.constraint import Constraint, ForcedTokens, TokenRules
from localspec.decoding.drafters.prompt_lookup import longest_draft
from localspec.decoding.engine import Rounds, decode_in_segments
from localspec.decoding.fallback import ModeFallback, PlainCost
from localspec.decoding.measure import MIN_PLAIN_TOKENS, PLAIN_TOKENS, plain_rate
from localspec.decoding.model import LanguageModel
from localspec.decoding.passes import Participant
from localspec.decoding.prefixes import common_prefix
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.seating import ConversationPlace, Seating
from localspec.decoding.speed_model import PredictedSpeed, explain, pays_ahead, predict, rank
from localspec.decoding.tally import Stopwatch, Tally
from localspec.decoding.text import AnswerEvents, AnswerText, Circles, DecodeEvents
from localspec.errors import Cancelled, DraftError, LocalSpecError, ModelFileError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.contexts import Contexts, CostedEngine
from localspec.inference.disk_copies import REST_S, DiskHome
from localspec.inference.interface import check_room
from localspec.inference.slots import restore_slot, save_slot
from localspec.llama.backends import memory_of
from localspec.llama.grammar import Grammars
from localspec.llama.lazy_grammar import Heads, LazyConstraint
from localspec.llama.model import Model
from localspec.llama.rendering import renderer
from localspec.llama.template.begun_answer import trailing_spaces
from localspec.llama.vocabulary import LlamaDetokenizer
from localspec.models.heads import head_for, head_part
from localspec.models.pairing import compare_vocabularies
from localspec.models.recommended import recommended
from localspec.storage.pair_identity import fingerprint
from localspec.thinking_tags import LeadingThinking, opened_at_end, tags_of
from localspec.types.drafts import DraftOrigin, Provenance, Token
from localspec.types.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    ModeChanged,
    Paused,
    PromptProgress,
    ReadAhead,
    Summary,
    ThinkingOpened,
)
from localspec.types.models import (
    DeviceMemory,
    ModelInfo,
    ModelOptions,
    PlainRate,
    SavedConversations,
    SlotFile,
)
from localspec.types.request import (
    NO_LIMIT,
    EngineSettings,
    Message,
    Mode,
    Request,
    Sampling,
    TemplateVariables,
)
from localspec.units import UNMEASURED
from localspec.values import InvalidValueError, check

logger = logging.getLogger(__name__)
SCORE_CHUNK = 64
_CONTINUATIONS = (" a", "\n\nZ")  # of a question: no token of both is the same
_WITHOUT_ADAPTERS = "the draft model drafts without LoRA adapters: answers are those of the target with them"
_REPEATED = "repetitions in the text serve as drafts"
_LONGEST_OPENING = 24  # tokens of an opening thinking tag and the blanks after it
Progress = Callable[[float], bool]
_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Answer:
    """An answer that is being written, or paused between two segments."""

    request: Request
    settings: EngineSettings
    written: AnswerText
    events: AnswerEvents
    opening: str  # of the thinking that the prompt ends in
    prompt_tokens: int
    text: list[int]  # the prompt and what was decoded
    mode: Mode  # of the last segment
    segment: int = 0  # the next one
    engine: CostedEngine | None = None  # of its place among others, since its last pause
    cached: int | None = None  # tokens of the prompt that were not read
    forced: ForcedTokens | None = None  # which closed the thinking
    slot: int = 0  # of its last place


class Runtime(AbstractContextManager["Runtime"]):
    """A target and at most one draft model, open; a context manager."""

    def __init__(self, target: Model, draft: Model | None, contexts: Contexts) -> None:
        self._target_model = target
        self._draft_model = draft
        self._contexts = contexts
        self._seating = _seating(contexts)
        contexts.whole = partial(self._seating.closed, waits=False)
        self._engine = self._last = self._seating.places[0].engine
        self.seats = len(self._seating.places)
        self._chosen: dict[tuple[bool, bool], tuple[Mode, str]] = {}  # by which costs are measured
        self._asked_for_fastest = False
        self._fallbacks: dict[EngineSettings, ModeFallback] = {}
        self._text: list[int] = []  # of the last prompt and its answer
        self._running: list[Participant] = []
        self._latest = Participant()
        self._disk: DiskHome | None = None
        self._used_at_s = 0.0  # when the last answer ended, of the monotonic clock
        self._paused: dict[int, _Answer] = {}
        self._numbers = count(1)  # of paused answers
        self._sampling = Sampling()
        self._grammars = Grammars(target.vocabulary, target.end_tokens)
        self.modes = contexts.modes
        self.first_call_s = contexts.first_call_s
        self.uses_cards = contexts.on_card
        self.call_s = contexts.call_s
        self.longest_call_s = contexts.longest_call_s
        recommendation = recommended(target.header)
        ends = tuple(sorted(target.end_tokens))
        info = target.info(contexts.target.context_size)
        self.target = replace(info, recommended=recommendation, end_tokens=ends)
        note = target.template.note
        of_models = chain.from_iterable(model.notes for model in (target, draft) if model is not None)
        loading = tuple(dict.fromkeys(of_models))
        self.notes = (*loading, *contexts.notes, *recommendation.wrong, *([note] if note else []))
        self.draft: ModelInfo | None = None
        if draft is not None and contexts.draft is not None:
            self.draft = draft.info(contexts.draft.context_size)
            if draft.pointer == target.pointer:
                self.draft = replace(self.draft, name=f"{draft.name}, its MTP head")
        if self.target.adapters and self.draft is not None:
            self.notes += (_WITHOUT_ADAPTERS,)
        sides = (self.target, self.draft)
        self.uses_processor = any("CPU" in side.devices for side in sides if side is not None)

    @classmethod
    def open(
        cls,
        plan: OpenPlan,
        *,
        on_progress: Progress | None = None,
        contexts: Callable[[Model, Model | None, OpenPlan], Contexts] = Contexts,
    ) -> Runtime:
        """Open the models of a plan; `on_progress(fraction)` returns False to stop with `Cancelled`.

        Raises `ModelFileError`, `PairingError` and other `UserError`s for what cannot work.
        """
        renderer.start()  # while the models load
        target = plan.target
        draft = plan.draft
        if plan.remembers_costs:
            threading.Thread(target=_look_up, args=(target, draft), name="look-up", daemon=True).start()
        with ExitStack() as opened:

            def load(options: ModelOptions, number: int, *, head: bool) -> Model:
                share = _share(on_progress, number, 1 if draft is None or is_own else 2)
                return opened.enter_context(closing(Model.open(options, share, head=head)))

            head = head_for(target, draft)
            is_own = draft is not None and head is not None and draft.path == target.path
            target_model = load(target, 0, head=is_own)
            draft_model = None
            if draft is not None and is_own:
                draft_model = target_model.sharing(draft, head_part(target_model.header))
            elif draft is not None:
                draft_model = load(draft, 1, head=head is not None)
                compare_vocabularies(target_model.vocabulary, draft_model.vocabulary)
            opened_contexts = contexts(target_model, draft_model, plan)
            runtime = cls(target_model, draft_model, opened_contexts)
            opened.pop_all()  # open they stay
        return runtime

    def close(self) -> None:
        """Free the models; a second call does nothing."""
        for model in (self._target_model, self._draft_model):
            if model is not None:
                model.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Return the settings of the fastest mode here, and the reason in a sentence."""
        settings = settings or EngineSettings()
        if self._draft_model is None:
            return replace(settings, mode="ngram"), f"there is no draft model; {_REPEATED}"
        ranked = () if self._engine.drafters.failure else self._ranked(self._draft_model)
        if failure := self._engine.drafters.failure:  # perhaps of measuring
            return replace(settings, mode="ngram"), f"{failure}; {_REPEATED}"
        reason = explain(ranked) + (", measured earlier" if self._engine.has_earlier_costs else "")
        return replace(settings, mode=ranked[0].mode), reason

    def _ranked(self, draft: Model) -> Sequence[PredictedSpeed]:
        with self._undisturbed():
            alone = self._engine.costs(together=False)
            together = partial(self._engine.costs, together=True) if self._contexts.can_branch else None
            return rank(alone, together, draft.header.acceptance)

    def known_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Choose as `choose_settings` does, from measured or saved costs; takes no time.

        Without any, it is plain decoding: assumed costs are not evidence of a gain.
        """
        settings = settings or EngineSettings()
        engine = self._engine
        self._asked_for_fastest = True
        if self._draft_model is None or engine.drafters.failure:
            return self.choose_settings(settings)
        alone = engine.known_costs(together=False)
        together = None
        if alone is not None and self._contexts.can_branch:
            together = engine.known_costs(together=True)
        level = (alone is not None, together is not None)
        if alone is None:
            engine.lack_costs(together=False)
            return replace(settings, mode="off"), UNMEASURED
        if level not in self._chosen:
            acceptance = self._draft_model.header.acceptance
            ranked = predict(alone, together, acceptance)
            self._chosen[level] = ranked[0].mode, explain(ranked)
            if together is None and self._contexts.can_branch and pays_ahead(alone, acceptance):
                engine.lack_costs(together=True)
        mode, reason = self._chosen[level]
        return replace(settings, mode=mode), reason

    @property
    def lacks_costs(self) -> bool:
        """Return whether answers had to do with assumed costs."""
        return self._engine.lacks_costs

    def measure_between_answers(self, wanted: Callable[[], bool]) -> None:
        """Measure the costs that answers assumed, while idle; `cancel` ends it, and so does an answer."""
        with suppress(Cancelled), self._undisturbed(waits=False):
            if not wanted():
                self._engine.measure_between_answers()
                if self._asked_for_fastest:  # by which both at once may be worth measuring
                    self.known_settings()
                    self._engine.measure_between_answers()

    def measure_before_leaving(self, limit_s: float) -> None:
        """Measure and save the missing costs, each within `limit_s` seconds."""
        if not self.lacks_costs or self._contexts.costs_file(together=False) is None:
            return
        timer = threading.Timer(limit_s, self.cancel)

        def begin() -> bool:
            timer.start()  # now that `cancel` is heard
            return False

        try:
            self.measure_between_answers(begin)
        finally:
            timer.cancel()

    def is_measuring(self) -> bool:
        """Return False: in this process nothing is measured while idle."""
        return False

    def read_now(self, request: Request, wanted: Callable[[], bool]) -> Generator[ReadAhead]:
        """Read ahead as `ReadsAhead.read_ahead` does, at once; `cancel` ends it, and so does leaving.

        It begins only if it is still wanted by then, because a `cancel` before that is not heard.
        """
        text, settled = self._common_beginning(request)
        drafts = request.settings.mode in {"sd", "ssd"}
        with suppress(Cancelled), self._seating.closed(waits=False), self._contexts.reading_ahead() as chunk:
            self._seating.use_adapters(self._scales(request))
            place = self._seating.place_of(text, wanted, request.slot)
            self._last = engine = place.engine
            self._used_at_s = time.monotonic()
            reading = engine.read_ahead(text, settled, chunk, drafts=drafts, kept_as=request.kept_as)
            try:
                for tokens in reading if wanted() else ():
                    yield ReadAhead(tokens, len(text))
            finally:
                self._seating.hold(self._seating.slot_of(place, request.slot), place)

    def read(self, request: Request) -> Iterator[GenerationEvent]:
        """Read a prompt as `read_now` does and answer nothing; the summary counts what is in the cache then.

        `cancel` ends it, with that as its reason.
        """
        stopwatch = Stopwatch()
        summary = Summary()
        total = 0
        with closing(self.read_now(request, lambda: True)) as progress:
            for so_far in progress:
                total = so_far.total
                cached = self._last.decoder.reused
                summary = Summary(so_far.tokens, cached, prompt_s=stopwatch.seconds())
                yield PromptProgress(so_far.tokens - cached, total - cached, cached)
        is_whole = summary.prompt_tokens == total > 0
        yield Finished("length" if is_whole else "cancelled", summary)

    def _common_beginning(self, request: Request) -> tuple[list[int], int]:
        """Return the tokens with which every prompt begins that continues the last question.

        The number of those before the question comes second.
        """
        if isinstance(request.prompt, str) or not request.prompt:
            text = self._prompt(request)
            return text, len(text)
        *earlier, last = request.prompt

        def prompt(content: str) -> list[int]:
            return self._prompt(replace(request, prompt=(*earlier, replace(last, content=content))))

        one, other = (prompt(last.content + more) for more in _CONTINUATIONS)
        text = one[: common_prefix(one, other)]
        if last.role != "user":
            return text, len(text)
        return text, common_prefix(text, prompt(_CONTINUATIONS[1]))

    def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[str] = (), variables: TemplateVariables = ()
    ) -> int:
        """Return the tokens of a conversation, including the start of the next answer."""
        return len(self.encode(tuple(messages), variables, tools=tools))

    def render(self, request: Request) -> str:
        """Return the text of a request's prompt as the target reads it."""
        if isinstance(request.prompt, str):
            return request.prompt
        variables = dict(request.template_variables)
        return self._target_model.template.render(request.prompt, variables, request.tools)

    def tokenize(self, text: str, *, special: bool = True, add_special: bool = False) -> list[Token]:
        """Return the tokens of a text; `special` reads control tokens in it, `add_special` puts BOS first."""
        vocabulary = self._target_model.vocabulary
        tokens = vocabulary.tokenize(text, special=special, add_special=add_special)
        return [(token, vocabulary.piece(token, special=True)) for token in tokens]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, control tokens included; raises `UserError` for what is none."""
        vocabulary = self._target_model.vocabulary
        for token in tokens:
            if not 0 <= token < vocabulary.size:
                raise UserError(
                    f"{token} is not a token of the model", f"they are 0 to {vocabulary.size - 1}"
                )
        return vocabulary.decode(tokens, special=True)

    def encode(
        self,
        prompt: tuple[Message, ...] | str,
        variables: Sequence[tuple[str, bool | int | float | str]] = (),
        room: int | None = None,
        tools: Sequence[str] = (),
    ) -> list[int]:
        """Return the tokens of a prompt for the target.

        Raises `ContextFullError` for one that plainly takes more than `room` tokens, without counting them.
        """
        model = self._target_model
        if not isinstance(prompt, str):
            return model.template.encode_chat(prompt, dict(variables), room, tools)
        if room is not None:
            model.vocabulary.check_room((prompt,), room)
        return model.vocabulary.tokenize(prompt, add_special=True)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""
        return self._target_model.vocabulary.decode(tokens)

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Yield the answer as it is written, and at last why it ended and what it cost."""
        return self._one().generate(request)

    def for_one_of_several(self) -> SeatedAnswer:
        """Return these models for one of several answers, each in a thread of its own."""
        return SeatedAnswer(self)

    def events(self, begin: Callable[[], _Answer], participant: Participant) -> Iterator[GenerationEvent]:
        """Yield the events of an answer up to its end, or to where it is paused."""
        self._running.append(participant)
        try:
            with nullcontext() if self._seating.are_several else self._contexts.at_work():
                answer = begin()
                participant.adapters = self._scales(answer.request)
                if answer.opening and not answer.segment and not isinstance(answer.request.prompt, str):
                    yield ThinkingOpened(answer.opening)
                reason: FinishReason = "cancelled"
                reuses = answer.request.reuses_cache or answer.segment > 0
                with (
                    suppress(Cancelled),
                    self._seating.taken(
                        participant, answer.text, reuses=reuses, slot=answer.request.slot
                    ) as place,
                ):
                    answer.engine = place.engine
                    answer.slot = self._seating.slot_of(place, answer.request.slot)
                    yield from self._decoded(answer, participant, place)
                    reason = answer.events.ending
        finally:
            self._running.remove(participant)
            self._used_at_s = time.monotonic()
        events = answer.events
        engine = answer.engine or self._engine
        if participant.is_crowded_out and not participant.is_cancelled:
            events.interrupt()
            reason = events.ending
        if answer.cached is None and answer.engine is not None:
            answer.cached = engine.reused
        cached = answer.cached or 0
        answer.engine = None
        if events.paused and reason != "cancelled":
            number = next(self._numbers)
            self._paused[number] = answer
            yield Paused(number, events.summary(cached))
        else:
            yield from events.finish(reason, cached, answer.slot)

    def _decoded(
        self, answer: _Answer, participant: Participant, place: ConversationPlace[CostedEngine]
    ) -> Iterator[GenerationEvent]:
        """Yield the events of one segment after another, until the answer ends or is to be paused."""
        events = answer.events
        goes_on = True
        while goes_on:
            if events.thinking_is_to_be_closed:
                self._close_thinking(answer)
            with self._seating.segment(participant, place) as is_alone:
                works_alone = is_alone and self._seating.are_several
                at_work = self._contexts.at_work() if works_alone else nullcontext()
                rules = self._rules(answer)
                with at_work, closing(self._rounds(answer, rules, is_alone=is_alone)) as rounds:
                    told = events.events(rounds, lambda: participant.wants_pause or participant.wants_change)
                    yield from told if is_alone else self._seating.written(participant, told)
            changes = events.paused and not participant.wants_pause
            if changes:
                events.tally.change(answer.mode)
            goes_on = events.thinking_is_to_be_closed or changes

    @contextmanager
    def _undisturbed(self, *, waits: bool = True) -> Iterator[None]:
        """Keep answers out of the block, and make it cancellable; see `closed` in `decoding/seating.py`."""
        with self._seating.closed(waits=waits), self._contexts.at_work():
            yield

    def pause(self) -> None:
        """End the running answers' events with `Paused` after their round; callable from any thread."""
        for participant in (*self._running, self._latest):
            participant.wants_pause = True

    def resume(self, number: int) -> Iterator[GenerationEvent]:
        """Yield the rest of a paused answer; raises `UserError` if there is none of this number."""
        return self._one().resume(number)

    def _one(self) -> SeatedAnswer:
        one = SeatedAnswer(self)
        self._latest = one.participant  # which may be paused before it begins
        return one

    def taken_up(self, number: int) -> _Answer:
        """Return a paused answer, which is not paused any more; raises `UserError` if there is none."""
        answer = self._paused.pop(number, None)
        if answer is None:
            raise UserError(f"there is no paused answer {number}", "it has continued, or was dropped")
        answer.events.tally.change(answer.mode)
        return answer

    def drop(self, number: int) -> None:
        """Drop a paused answer, if there is one of this number; callable from any thread."""
        self._paused.pop(number, None)

    def keep_conversations(self, limit: int, on_disk: int = 0) -> None:
        """Save KV caches of conversations, in at most `limit` bytes of memory, and in others `on_disk`."""
        if self._disk is not None:
            self._disk.finish(0.0)
        self._disk = self._home_on_disk(on_disk) if on_disk else None
        self._engine.conversations.keep(limit, self._disk)

    def _home_on_disk(self, limit: int) -> DiskHome | None:
        try:
            self._contexts.cache_identities()
        except LocalSpecError as error:  # a file of the models is gone
            logger.warning("conversations are not kept on disk: %s", error)
            return None
        return DiskHome(limit, self._contexts.cache_identities, self.target.context)

    def save_slot(self, slot: int, path: Path) -> SlotFile:
        """Write the conversation of a slot to a file; raises UserError."""
        with self._undisturbed():
            return save_slot(self._seating, self._contexts.cache_identities, slot, path)

    def restore_slot(self, slot: int, path: Path, adapters: tuple[float, ...] | None = None) -> SlotFile:
        """Put the conversation of a file, read with scales of adapters, into a slot; raises UserError."""
        with self._undisturbed():
            self._seating.use_adapters(adapters)
            identities = self._contexts.cache_identities(self._contexts.target.adapters)
            return restore_slot(self._seating, identities, slot, path, self.target.context)

    def erase_slot(self, slot: int) -> int:
        """Forget the conversation of a slot, with all copies of it but saved files; return its tokens."""
        with self._undisturbed():
            return self._seating.empty_slot(slot)

    def forget_conversation(self, name: str) -> None:
        """Delete the files of a name from disk; callable from any thread."""
        if self._disk is not None:
            self._disk.forget(name)

    @property
    def keeps_on_disk(self) -> bool:
        """Return whether conversations are kept on disk as well."""
        return self._disk is not None

    def writes_in_s(self) -> float | None:
        """Return in how many seconds `write_resting` has something to do; None if it has not."""
        if not any(place.engine.conversations.is_unwritten for place in self._seating.places):
            return None
        return max(0.0, REST_S - (time.monotonic() - self._used_at_s))

    def write_resting(self) -> None:
        """Have conversations that rest in the caches written to disk, unless an answer is there."""
        with suppress(Cancelled), self._undisturbed(waits=False):
            for place in self._seating.places:
                if place.engine.conversations.is_unwritten:
                    place.engine.conversations.write_present()

    def write_before_leaving(self, limit_s: float) -> None:
        """Write to disk what is still to be written, within `limit_s` seconds."""
        if self._disk is not None:
            self.write_resting()
            self._disk.finish(limit_s)

    def saved(self) -> SavedConversations:
        """Return the saved caches of conversations; callable from any thread."""
        return self._engine.conversations.figures()

    def generate_tokens(self, request: Request) -> Iterator[tuple[int, Provenance, bool]]:
        """Yield every token of an answer with its provenance, and whether its round's draft was prepared.

        Costs are measured first. Raises `DraftError` where the draft model fails.
        """
        request = replace(request, measures_first=True)
        answer = self.begin(request)
        participant = Participant()
        with (
            self._seating.taken(participant, answer.text) as place,
            self._seating.segment(participant, place),
            self._contexts.at_work(),
            closing(self._rounds(answer, self._rules(answer))) as rounds,
        ):
            for event in rounds:
                if isinstance(event, ModeChanged) and event.draft_failed:
                    raise DraftError(event.reason)
                if isinstance(event, Round):
                    hit = event.stats.origin is DraftOrigin.AHEAD
                    for token, provenance in zip(event.tokens, event.provenance, strict=True):
                        yield token, provenance, hit

    def score(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yield the target's logits after each token, float32 (vocabulary,), valid until the next."""
        self._engine.forget()
        context = self._contexts.target
        context.choose(None)
        try:
            for start in range(0, len(tokens), SCORE_CHUNK):
                chunk = tokens[start : start + SCORE_CHUNK]
                yield from context.evaluate(chunk, len(chunk)).logits
        finally:
            self._engine.forget()

    def cancel(self) -> None:
        """End the running answers or measurement within a moment; callable from any thread."""
        for participant in self._running.copy():
            self._seating.cancel(participant)
        self._contexts.cancel()

    def cancel_other_work(self) -> None:
        """End what keeps answers waiting, within a moment; callable from any thread."""
        if self._seating.is_closed or not self._seating.are_several:
            self._contexts.cancel()

    def cancel_one(self, participant: Participant) -> None:
        """End one answer within a moment; callable from any thread."""
        self._seating.cancel(participant)
        if participant.is_alone or not self._seating.are_several:
            self._contexts.cancel()

    def measure_plain(self) -> PlainRate | None:
        """Measure plain decoding after the text of the last answer, in a fraction of a second.

        None also where that text is not in the cache, the target takes seconds for a few tokens, or an answer
        is being written.
        """
        end = len(self._text)
        room = min(PLAIN_TOKENS + 1, self.target.context - end)  # the first warms up
        engine = self._last
        is_cached = end > 0 and engine.decoder.cached(self._text) == end - 1
        if room <= MIN_PLAIN_TOKENS or not is_cached:
            return None
        self._contexts.target.checkpoint()
        written = AnswerText(LlamaDetokenizer(self._target_model.vocabulary))
        text = list(self._text)
        answer = AnswerEvents(written, Tally(end, "off"), frozenset(), Stopwatch())
        params = DecodeParams(self._sampling, "rejection", 0, room, frozenset())

        def decode(mode: Mode, segment: int) -> Rounds:
            return engine.segment(text, EngineSettings(mode=mode), params, None, segment)

        try:
            with self._undisturbed(waits=False):
                return plain_rate(answer, decode_in_segments(decode, "off", text, engine.plain), end)
        except Cancelled:
            return None
        finally:
            engine.decoder.forget(end)

    def perform(self, task: Callable[..., _Value], *arguments: object) -> _Value:
        """Run a function on these models, as `Worker.perform` does in another process."""
        return task(self, *arguments)

    @contextmanager
    def models_alone(self, *, together: bool) -> Iterator[tuple[LanguageModel, LanguageModel | None]]:
        """Lend both models with empty caches, for something else than an answer; `cancel` ends it.

        They have the threads that they need one after the other, or `together`.
        """
        with self._undisturbed():
            try:
                yield self._engine.alone(together=together)
            finally:
                self._engine.forget()

    @property
    def can_branch(self) -> bool:
        """Return whether the draft model can continue from several places in one pass."""
        return self._contexts.can_branch

    def plain_params(self, request: Request) -> tuple[DecodeParams, list[int]]:
        """Return the parameters of plain decoding a request, and its prompt; raises `ContextFullError`."""
        prompt = self._prompt(request)
        end_tokens = self._target_model.end_tokens
        limit = self._limit(request)
        start = len(prompt)
        return DecodeParams(request.sampling, "rejection", 0, limit, end_tokens, answer_start=start), prompt

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Return the memory of every device that holds a part of these models; the CPU is the last."""
        models = (self._target_model, self._draft_model)
        return memory_of({name for model in models if model is not None for name in model.cards})

    def _prompt(self, request: Request) -> list[int]:
        """Return the prompt's tokens; raise `UserError` for none, too many, or figures out of range."""
        _check(request)
        room = self.target.context
        if isinstance(request.prompt, str) and request.infill is not None:
            prompt = self._target_model.vocabulary.infill(request.prompt, request.infill, room)
        else:
            prompt = self.encode(request.prompt, request.template_variables, room, request.tools)
        if not prompt:
            raise UserError("the prompt is empty", "write something for the model to answer")
        check_room(len(prompt), self.target)
        return prompt

    def begin(self, request: Request) -> _Answer:
        """Return a new answer."""
        stopwatch = Stopwatch()
        prompt = self._prompt(request)
        settings = self._checked(request.settings)
        is_chat = not isinstance(request.prompt, str)
        vocabulary = self._target_model.vocabulary
        spaces = 0 if isinstance(request.prompt, str) else trailing_spaces(request.prompt)
        thinking, opening, thought = self._thinking_before(request, prompt)
        detokenizer = LlamaDetokenizer(vocabulary, special=request.shows_control, thinking=is_chat)
        budget = request.thinking_budget if is_chat and request.thinking_budget != NO_LIMIT else None
        text = AnswerText(
            detokenizer,
            request.stop,
            spaces,
            thinking if is_chat else None,
            needs_answer=request.grammar is not None,
            thinking_budget=None if budget is None else max(0, budget - thought),
        )
        tally = Tally(len(prompt), settings.mode)
        end_tokens = self._target_model.end_tokens
        events = AnswerEvents(
            text,
            tally,
            end_tokens,
            stopwatch,
            request.max_tokens,
            circles=_circles(request),
        )
        return _Answer(request, settings, text, events, opening, len(prompt), prompt, settings.mode)

    def _thinking_before(self, request: Request, prompt: Sequence[int]) -> tuple[LeadingThinking, str, int]:
        """Return whether an answer begins before, in or after thinking, and its opening tag.

        The continued message decides; else the end of the prompt. Its tokens so far come last.
        """
        messages = () if isinstance(request.prompt, str) else request.prompt
        last = messages[-1] if messages else Message("user", "")
        if last.role == "assistant" and last.content.strip() and not last.tool_calls:
            thinking = LeadingThinking()
            stretches = thinking.feed(last.content, more=False)
            thought = "".join(stretch for kind, stretch in stretches if kind == "thinking")
            tokens = len(self._target_model.vocabulary.tokenize(thought))
            return thinking, "" if thinking.tags is None else thinking.tags.opening, tokens
        end = self._target_model.vocabulary.decode(prompt[-_LONGEST_OPENING:], special=True)
        opening = opened_at_end(end)
        return LeadingThinking(tags_of(opening) if opening else None), opening, 0

    def _rounds(self, answer: _Answer, rules: TokenRules | None, *, is_alone: bool = True) -> DecodeEvents:
        engine = answer.engine or self._engine
        change = engine.allow_drafts(answer.settings)
        if change is not None:
            answer.settings = replace(answer.settings, mode=change.mode)
            answer.mode = change.mode
            yield change
        request = answer.request
        settings = answer.settings
        text = answer.text
        self._sampling = request.sampling
        self._text = text
        self._last = engine
        limit = self._limit(request)
        fallback = None
        if is_alone and request.steps_down and settings.mode != "off" and not self._left_out(settings.mode):
            fallback = self._fallbacks.setdefault(settings, ModeFallback(settings.mode, engine.plain))
            engine.known_costs(together=False)  # of plain decoding
        if is_alone and request.measures_first and settings.mode != "off":
            engine.costs(together=settings.mode == "ssd")  # before the prompt is in the cache
        if not self._seating.are_several:
            if request.reuses_cache or answer.segment:
                engine.turn_to(text)
            else:
                engine.forget()
        engine.conversations.kept_as = request.kept_as
        if self._disk is not None:
            self._disk.remember(request.kept_as)
        longest = min(longest_draft(settings), self._contexts.target.max_rows - 1)  # and the bonus token

        def decode(mode: Mode, segment: int) -> Rounds:
            answer.segment = segment + 1
            left = limit - (len(text) - answer.prompt_tokens)
            params = DecodeParams(
                request.sampling,
                settings.acceptance,
                longest,
                left,
                self._target_model.end_tokens,
                rules,
                request.top_logprobs,
                answer.prompt_tokens,
                tells_reading=request.tells_reading and len(text) == answer.prompt_tokens,
            )
            if is_alone:
                answer.mode = mode
                return engine.segment(text, replace(settings, mode=mode), params, request.seed, segment)
            answers = self._seating.answers
            shared = replace(settings, mode=mode)
            return engine.segment_in_company(text, shared, params, request.seed, segment, answers)

        if is_alone:
            mode = answer.mode
            plain = engine.plain
        else:  # where speeds say nothing of those of an answer alone
            mode = "sd" if answer.mode == "ssd" else answer.mode
            plain = PlainCost()
        yield from decode_in_segments(decode, mode, text, plain, fallback, answer.segment)

    def _left_out(self, mode: Mode) -> bool:
        """Return whether a mode needs the draft model, which has failed."""
        return bool(self._engine.drafters.failure) and mode in {"sd", "ssd"}

    def _close_thinking(self, answer: _Answer) -> None:
        """Force the end of the thinking into the answer, as if the model had written it.

        Tokens of the last round that its events lack are dropped. Where the model may call a tool after that,
        it chooses what follows, unless it has gone on to think.
        """
        tags = answer.written.open_tags
        assert tags is not None  # it thinks
        may_call = bool(answer.request.tools) and answer.forced is None
        tokens = self._target_model.vocabulary.tokenize(tags.forced(may_call=may_call), special=True)
        del answer.text[answer.prompt_tokens + answer.events.tally.tokens :]
        answer.forced = ForcedTokens(len(answer.text), tuple(tokens))
        answer.events.tally.change(answer.mode)

    def _rules(self, answer: _Answer) -> TokenRules | None:
        """Return the logit bias of a request; raises `UserError` for impossible values."""
        request = answer.request
        prompt = answer.text[: answer.prompt_tokens]
        forced = answer.forced
        size = self.target.vocabulary
        bias = request.logit_bias
        grammar = request.grammar
        for token, value in bias:
            if not 0 <= token < size:
                raise UserError(
                    f"logit bias: the model has no token {token}", f"its tokens are 0 to {size - 1}"
                )
            if not isfinite(value):
                raise UserError(f"logit bias: {value} for token {token} is not a number", "-100 bans a token")
        constraint: Constraint | None = None
        opened = tags_of(answer.opening) if answer.opening else None
        if grammar is not None:
            constraint = self._grammars.constraint(grammar, prompt, opened)
        elif request.triggers:
            heads = list(map(Heads.of, request.triggers))
            constraint = LazyConstraint(self._grammars, heads, len(prompt), opened, _begun_answer(request))
        if forced is not None:
            constraint = replace(forced, elsewhere=constraint)
        return TokenRules(bias, constraint) if bias or constraint is not None else None

    def _scales(self, request: Request) -> tuple[float, ...]:
        """Return the scales of LoRA adapters for a request; raises UserError for another number of them."""
        usual = tuple(adapter.scale for adapter in self.target.adapters)
        scales = usual if request.adapters is None else request.adapters
        if len(scales) != len(usual):
            raise UserError(f"there are {len(usual)} LoRA adapters, and {len(scales)} scales for them")
        return scales

    def _limit(self, request: Request) -> int:
        return self.target.context if request.max_tokens is None else request.max_tokens

    def _checked(self, settings: EngineSettings) -> EngineSettings:
        """Return the settings, or in mode sd those for drafts that cannot branch."""
        if settings.mode in {"sd", "ssd"} and self._draft_model is None:
            raise UserError(
                f"mode {settings.mode} needs a draft model", "give one with -md FILE, or use --mode ngram"
            )
        if settings.mode == "ssd" and not self._contexts.can_branch:
            return replace(settings, mode="sd")
        return settings


class SeatedAnswer:
    """The models for one of several answers that they write at once.

    Alone it is written in the thread that takes its events, in company ahead of it, by the passes' thread.
    """

    def __init__(self, models: Runtime) -> None:
        self._models = models
        self.participant = Participant()

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Yield the answer as it is written, and at last why it ended and what it cost."""
        return self._events(partial(self._models.begin, request))

    def resume(self, number: int) -> Iterator[GenerationEvent]:
        """Yield the rest of a paused answer; raises `UserError` if there is none of this number."""
        return self._events(partial(self._models.taken_up, number))

    def pause(self) -> None:
        """End its events with `Paused` after its round; callable from any thread."""
        self.participant.wants_pause = True

    def cancel(self) -> None:
        """End it within a moment; callable from any thread."""
        self._models.cancel_one(self.participant)

    def _events(self, begin: Callable[[], _Answer]) -> Iterator[GenerationEvent]:
        return self._models.events(begin, self.participant)


def _seating(contexts: Contexts) -> Seating[CostedEngine]:
    """Return the places for conversations: one for each pair of seats, or one on the contexts themselves."""
    passes = contexts.passes
    target = contexts.target
    if passes is None:
        return Seating([ConversationPlace(CostedEngine(contexts))], None, target.adapt, target.adapters)
    first, *others = passes.seats
    engine = CostedEngine(contexts, first)
    engines = [engine, *(CostedEngine(contexts, seats, engine) for seats in others)]
    places = list(map(ConversationPlace, engines, passes.seats))
    return Seating(places, passes, target.adapt, target.adapters)


def _begun_answer(request: Request) -> str:
    """Return the answer that a prompt has begun and the model continues; empty if there is none."""
    last = None if isinstance(request.prompt, str) else request.prompt[-1]
    is_begun = last is not None and last.role == "assistant" and not last.tool_calls
    return last.content.rstrip() if last is not None and is_begun else ""


def _circles(request: Request) -> Circles:
    if request.ignores_circles:
        return "go_on"
    return "end" if request.ends_circles else "end_unlimited"


def _look_up(*models: ModelOptions | None) -> None:
    """Compute the identity of the models, needed at the first answer, while they load."""
    with suppress(ModelFileError):  # opening it reports the error
        for each in models:
            if each is not None:
                fingerprint(each.path)


def _check(request: Request) -> None:
    """Raise `UserError` for a value of another type, or out of range."""
    try:
        check(request)
    except InvalidValueError as error:
        raise UserError(f"Request: `{error.place}` {error.demand}") from None


def _share(on_progress: Progress | None, number: int, count: int) -> Progress | None:
    """Return the progress of one of several loads as part of the whole."""
    if on_progress is None:
        return None
    return lambda fraction: on_progress((number + fraction) / count)
