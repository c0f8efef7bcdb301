"""Open models and the engine around them: owner of native memory, and what everything above sees."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from localspec.contexts import Contexts
from localspec.engines.costs import CostCurve, Experience
from localspec.engines.engine import Engine
from localspec.engines.loop import Round, Task
from localspec.engines.measure import measure
from localspec.engines.modes import predict
from localspec.engines.tally import Stopwatch, Tally
from localspec.engines.text import AnswerText
from localspec.errors import Cancelled, ContextFullError, UserError
from localspec.llama import Detokenizer, Model, compare_vocabularies
from localspec.types import (
    DraftOrigin,
    EngineSettings,
    Finished,
    FinishReason,
    GenerationEvent,
    Message,
    ModelInfo,
    ModelOptions,
    PromptProgress,
    Provenance,
    Request,
    RoundDone,
    TextDelta,
)

MEASURE_S = 0.8
SCORE_CHUNK = 64


class Runtime:
    """A target and at most one draft model, open; a context manager."""

    def __init__(self, target: Model, draft: Model | None, contexts: Contexts) -> None:
        self._target_model = target
        self._draft_model = draft
        self._contexts = contexts
        self._engine = Engine(contexts.target, contexts.draft)
        self._running = False
        self._experience: dict[bool, Experience] = {}
        self.notes = contexts.notes
        self.target = target.info(contexts.target.context_size)
        self.draft: ModelInfo | None = None
        if draft is not None and contexts.draft is not None:
            self.draft = draft.info(contexts.draft.context_size)

    @classmethod
    def open(
        cls,
        target: ModelOptions,
        draft: ModelOptions | None = None,
        *,
        max_fan_out: int = 16,
        draft_threads: int | None = None,
        on_progress: Callable[[float], bool] | None = None,
    ) -> Runtime:
        """Open the models; `on_progress(fraction)` returns False to stop with `Cancelled`.

        Raises `ModelFileError`, `PairingError` and other `UserError`s for what cannot work.
        """
        opened: list[Model] = []
        try:
            opened.append(
                target_model := Model.open(target, _part(on_progress, 0, 1 if draft is None else 2))
            )
            draft_model = None
            if draft is not None:
                opened.append(draft_model := Model.open(draft, _part(on_progress, 1, 2)))
                compare_vocabularies(target_model.vocabulary, draft_model.vocabulary)
            contexts = Contexts(target_model, draft_model, max_fan_out, draft_threads)
            return cls(target_model, draft_model, contexts)
        except BaseException:
            for model in opened:
                model.close()
            raise

    def close(self) -> None:
        """Free the models; a second call does nothing."""
        for model in (self._target_model, self._draft_model):
            if model is not None:
                model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Return the settings whose mode should be fastest here, and the reason in a plain sentence."""
        settings = settings or EngineSettings()
        if not self._contexts.can_rewind:
            return replace(settings, mode="off"), "this model cannot take tokens back"
        if self.draft is None:
            return replace(
                settings, mode="ngram"
            ), "there is no draft model; repetitions in the text serve as drafts"
        alone = self._costs(together=False)
        together = self._costs(together=True) if self._contexts.can_branch else None
        best, *others = predict(alone, together)
        names = {"off": "plain decoding", "sd": "speculative decoding", "ssd": "drafting ahead", "ngram": ""}
        losers = ", ".join(f"{names[other.mode]} {other.tokens_per_s:.0f}" for other in others)
        reason = (
            f"expected tokens/s from measured costs: {names[best.mode]} {best.tokens_per_s:.0f}, {losers}"
        )
        return replace(settings, mode=best.mode), reason

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a conversation takes, the start of the next answer included."""
        return len(self.encode(tuple(messages)))

    def encode(
        self,
        prompt: tuple[Message, ...] | str,
        variables: Sequence[tuple[str, bool | int | float | str]] = (),
    ) -> list[int]:
        """Return the tokens that the target reads for a prompt."""
        model = self._target_model
        if isinstance(prompt, str):
            return model.vocabulary.tokenize(prompt, add_special=True)
        return model.template.encode_chat(prompt, dict(variables))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""
        return self._target_model.vocabulary.decode(tokens)

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Yield the answer as it is written, and at last why it ended and what it cost.

        Raises `ContextFullError` before the first event if the prompt does not fit.
        """
        stopwatch = Stopwatch()
        prompt = self._prompt(request)
        tally = Tally(len(prompt), self._checked(request.settings).mode)
        text = AnswerText(Detokenizer(self._target_model.vocabulary), request.stop)
        reason: FinishReason = "context"
        try:
            with closing(self._rounds(prompt, request)) as rounds:
                for event in rounds:
                    if isinstance(event, Round):
                        stopped = self._take(event, text)
                        tally.add(event.stats, len(event.tokens), stopwatch.seconds())
                    with stopwatch.paused():
                        yield from _events_of(event, text)
                    if isinstance(event, Round) and stopped:
                        reason = "stop"
                        break
            if reason != "stop" and tally.tokens == request.max_tokens:
                reason = "length"
        except Cancelled:
            reason = "cancelled"
        if pieces := text.finish():
            yield TextDelta(pieces)
        yield Finished(reason, tally.summary(self._engine.reused))

    def _take(self, round_: Round, text: AnswerText) -> bool:
        """Add a round's tokens to the text; tell whether the answer ends with them."""
        ends = self._target_model.end_tokens
        tokens = zip(round_.tokens, round_.provenance, strict=True)
        return any(token in ends or text.add(token, provenance) for token, provenance in tokens)

    def generate_tokens(self, request: Request) -> Iterator[tuple[int, Provenance, bool]]:
        """Yield every token of an answer with its provenance, and whether its round's draft was prepared."""
        with closing(self._rounds(self._prompt(request), request)) as rounds:
            for event in rounds:
                if isinstance(event, Round):
                    hit = event.stats.origin is DraftOrigin.AHEAD
                    for token, provenance in zip(event.tokens, event.provenance, strict=True):
                        yield token, provenance, hit

    def score(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yield the target's logits after each token, float32 (vocabulary,), valid until the next."""
        self._engine.forget()
        context = self._contexts.target
        try:
            for start in range(0, len(tokens), SCORE_CHUNK):
                chunk = tokens[start : start + SCORE_CHUNK]
                yield from context.evaluate(chunk, len(chunk))
        finally:
            self._engine.forget()

    def cancel(self) -> None:
        """End the running answer within a moment; callable from any thread."""
        if self._running:
            self._contexts.cancel()

    def _prompt(self, request: Request) -> list[int]:
        """Return the prompt's tokens; raise `UserError` if they are none or too many."""
        prompt = self.encode(request.prompt, request.template_variables)
        room = self.target.context
        if not prompt:
            raise UserError("the prompt is empty", "write something for the model to answer")
        if len(prompt) >= room:
            raise ContextFullError(
                f"the prompt is {len(prompt):,} tokens, and the context holds {room:,} with the answer",
                f"shorten it by {len(prompt) - room + 1:,} tokens or more, or open the model with a larger "
                f"-c (it was trained on {self.target.training_context:,})",
            )
        return prompt

    def _rounds(
        self, prompt: Sequence[int], request: Request
    ) -> Generator[PromptProgress | Round, None, None]:
        settings = self._checked(request.settings)
        together = settings.mode == "ssd"
        limit = request.max_tokens if request.max_tokens is not None else self.target.context
        ends = self._target_model.end_tokens
        contexts = self._contexts
        longest = min(settings.draft_length, contexts.target.max_rows - 1)  # and the bonus token
        task = Task(request.sampling, settings.acceptance, longest, limit, ends)
        contexts.resume()
        self._running = True
        try:
            experience = _no_costs() if settings.mode == "off" else self._costs(together=together)
            contexts.share_threads(together=together)
            contexts.give_target(together=False)  # the prompt is read with all threads
            with closing(self._engine.rounds(prompt, settings, task, experience, request.seed)) as rounds:
                for event in rounds:
                    yield event
                    if isinstance(event, Round):
                        break
                contexts.give_target(together=together)
                yield from rounds
        finally:
            self._running = False
            contexts.resume()

    def _checked(self, settings: EngineSettings) -> EngineSettings:
        """Return the settings, or plain decoding where the models allow nothing else."""
        if settings.mode in {"sd", "ssd"} and self._draft_model is None:
            raise UserError(
                f"mode {settings.mode} needs a draft model", "give one with -md FILE, or use --mode ngram"
            )
        if settings.mode != "off" and not self._contexts.can_rewind:
            return replace(settings, mode="off")
        if settings.mode == "ssd" and not self._contexts.can_branch:
            return replace(settings, mode="sd")
        return settings

    def _costs(self, *, together: bool) -> Experience:
        """Return what calls cost, measured once per way of working."""
        known = self._experience.get(together)
        if known is None:
            self._engine.forget()  # measuring needs a few cells
            self._contexts.share_threads(together=together)
            known = measure(self._contexts.target, self._contexts.draft, MEASURE_S, together=together)
            self._experience[together] = known
        return known


def _events_of(event: PromptProgress | Round, text: AnswerText) -> Iterator[GenerationEvent]:
    """Translate what the token layer reports."""
    if isinstance(event, PromptProgress):
        yield event
        return
    if pieces := text.take():
        yield TextDelta(pieces)
    yield RoundDone(event.stats, len(event.tokens))


def _part(
    on_progress: Callable[[float], bool] | None, number: int, count: int
) -> Callable[[float], bool] | None:
    """Return the progress of one of several loads as a part of the whole."""
    if on_progress is None:
        return None
    return lambda fraction: on_progress((number + fraction) / count)


def _no_costs() -> Experience:
    """Return costs for plain decoding, which asks for none."""
    return Experience(CostCurve({1: 1.0}), CostCurve({1: 1.0}))
