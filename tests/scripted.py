"""Open models that follow a script, round by round and as fast as they are read."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from re import findall

from localspec.decoding.tally import Tally
from localspec.errors import ContextFullError, EngineDied
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    ModeChanged,
    Paused,
    PromptProgress,
    RoundDone,
    RoundStats,
    TextDelta,
    TextPiece,
    ThinkingOpened,
)
from localspec.types.models import DeviceMemory, ModelInfo, PlainRate
from localspec.types.request import EngineSettings, Message, Mode, Request

PLAIN_S = 0.030  # a verification with no draft takes,
PER_DRAFTED_S = 0.001  # and so much more with each token of one
DRAFTING_S = 0.002  # a drafted token takes
HANDING_OVER_S = 0.0004
PYTHON_S = 0.0002
READING_S = 0.0005  # a token of the prompt takes
PLAIN_TOKENS_PER_S = 1 / (PLAIN_S + PYTHON_S)

_ROUNDS = ((4, 4), (5, 3), (3, 0), (6, 6), (4, 2))  # (drafted, accepted), over and over
_PREPARED = (False, True, True, True)  # N rounds of ssd, over and over


class MadeUpAnswer:
    """Cuts words into rounds as the engine of a mode would, and adds up what they did."""

    def __init__(self, prompt_tokens: int, request: Request, context: int) -> None:
        self._mode: Mode = request.settings.mode
        self._prompt_tokens = prompt_tokens
        self._tally = Tally(prompt_tokens, self._mode)
        self._work_s = 0.0
        self._sizes, self._prepared = cycle(_ROUNDS), cycle(_PREPARED)
        self._room: dict[FinishReason, int] = {"context": context - prompt_tokens}
        if request.max_tokens is not None:
            self._room["length"] = request.max_tokens

    @property
    def tokens(self) -> int:
        """Return how many words were written."""
        return self._tally.tokens

    @property
    def limit(self) -> FinishReason | None:
        """Return the limit that was reached, if any."""
        return next((reason for reason, room in self._room.items() if self.tokens >= room), None)

    def change(self, mode: Mode) -> None:
        """Go on in another mode."""
        self._mode = mode
        self._tally.change(mode)

    def finished(self, reason: FinishReason) -> Finished:
        """Return the end of the answer with its sums."""
        return Finished(reason, self._tally.summary())

    def write(self, text: str) -> Iterator[TextDelta | RoundDone]:
        """Yield the rounds that write a text, as far as the limits let them."""
        words = words_of(text)[: min(self._room.values()) - self.tokens]
        while words:
            stats = self._round(len(words))
            emitted, words = words[: stats.accepted + 1], words[stats.accepted + 1 :]
            self._work_s += stats.seconds
            self._tally.add(stats, len(emitted), self._work_s)
            yield TextDelta(_pieces(emitted, stats))
            yield RoundDone(stats, len(emitted))

    def _round(self, words_left: int) -> RoundStats:
        if not self.tokens:
            reading_s = PLAIN_S + READING_S * self._prompt_tokens
            return RoundStats(0, 0, DraftOrigin.NONE, reading_s, 0.0, 0.0, PYTHON_S)
        if self._mode == "off":
            return RoundStats(0, 0, DraftOrigin.NONE, PLAIN_S, 0.0, 0.0, PYTHON_S)
        drafted, accepted = next(self._sizes)
        origin = DraftOrigin.NGRAM if self._mode == "ngram" else DraftOrigin.FRESH
        if self._mode == "ssd" and next(self._prepared):
            origin = DraftOrigin.AHEAD
        return RoundStats(
            drafted,
            min(accepted, words_left - 1),
            origin,
            PLAIN_S + PER_DRAFTED_S * drafted,
            DRAFTING_S * drafted if origin is DraftOrigin.FRESH else 0.0,
            HANDING_OVER_S if origin is DraftOrigin.AHEAD else 0.0,
            PYTHON_S,
            DRAFTING_S * drafted if origin is DraftOrigin.AHEAD else 0.0,
        )


def words_of(text: str) -> list[str]:
    """Return a text in pieces that each hold a word, or the blank space at the end."""
    return findall(r"\s*\S+|\s+", text)


def _pieces(words: Sequence[str], stats: RoundStats) -> tuple[TextPiece, ...]:
    *accepted, last = words
    whole = stats.drafted and stats.accepted == stats.drafted
    own = TextPiece(last, Provenance.BONUS if whole else Provenance.TARGET)
    drafted = Provenance.PREPARED if stats.origin is DraftOrigin.AHEAD else Provenance.ACCEPTED
    return (TextPiece("".join(accepted), drafted), own) if accepted else (own,)


TIMEOUT_S = 60.0  # a gate that no one opens fails the test; before that, a screen may have much to do

MARKDOWN = """\
## Sorting a list

Python sorts in place with `list.sort`, or returns a new list:

```python
numbers = [3, 1, 2]
print(sorted(numbers, key=lambda n: -n))
```

- **stable**: equal items keep their order
- fast: `n log n` in the worst case

| call | changes the list |
|---|---|
| `sort()` | yes |
| `sorted()` | no |
"""


class Gate:
    """A place in a script where the answer waits until the test opens it.

    `reached` is set when the answer has come to it. A cancel gets past a closed gate; an answer that is
    paused there waits there again.
    """

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = False
        self._changed = threading.Condition()

    def open(self) -> None:
        """Let the answer continue."""
        self._open = True
        self.nudge()

    def nudge(self) -> None:
        """Let a waiting answer look whether it was cancelled or paused."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, cancelled: threading.Event, pausing: threading.Event) -> bool:
        """Wait until the gate is open or the answer cancelled; return False where it is paused before."""
        self.reached.set()

        def is_over() -> bool:
            return self._open or cancelled.is_set() or pausing.is_set()

        with self._changed:
            assert self._changed.wait_for(is_over, TIMEOUT_S), "nobody opened the gate"
        return self._open or cancelled.is_set()


Step = str | Gate | BaseException | PromptProgress | ThinkingOpened | ModeChanged
"""What a script consists of: text to write, a gate to wait at, an error to raise, an event to report."""


@dataclass(frozen=True, slots=True)
class Script:
    """One answer; `steps` are read only as far as the answer comes, so that they may be endless."""

    steps: Iterable[Step]
    reason: FinishReason = "stop"


def says(*steps: Step, reason: FinishReason = "stop") -> Script:
    """Return an answer made of texts and what happens between them; after an error nothing follows."""
    return Script(steps, reason)


def talks_on(text: str = "on and on ") -> Script:
    """Return an answer that continues until it is cancelled."""
    return Script(cycle([text]))


def model_info(name: str, context: int = 4096) -> ModelInfo:
    """Return what an open model of that name may be."""
    return ModelInfo(Path(f"{name}.gguf"), name, "llama", 10**9, 10**9, context, 8192, 32000, ("CPU",))


@dataclass(frozen=True, slots=True)
class _Running:
    events: Iterator[GenerationEvent | None]
    answer: MadeUpAnswer
    prompt_tokens: int


class ScriptedModels:
    """Fulfils `PausableModels` from scripts: one answer each, the last again and again.

    Tokens are words. What rounds cost is made up and does not pass. `requests` keeps what was asked;
    `preferred` is what `choose_settings` chooses, `plain` what plain decoding measures in tokens per second.
    An `EngineDied` in a script ends these models for good, as it would end real ones.
    """

    def __init__(self, *scripts: Script, has_draft: bool = True, context: int = 4096) -> None:
        self.target = model_info("large", context)
        self.draft: ModelInfo | None = model_info("small", context) if has_draft else None
        self.notes: tuple[str, ...] = ()
        self.preferred: Mode = "ssd" if has_draft else "ngram"
        self.plain: float | None = PLAIN_TOKENS_PER_S
        self.devices: tuple[DeviceMemory, ...] = (DeviceMemory("CPU", 6 * 2**30, 16 * 2**30),)
        self.makes_programs_s: float | None = None  # for which a GPU has compiled
        self.requests: list[Request] = []
        self.closed = False
        self._scripts = list(scripts or (says("An answer from the script."),))
        self._died: EngineDied | None = None
        self._cancelled, self._pausing = threading.Event(), threading.Event()
        self._paused: dict[int, _Running] = {}
        self._numbers = count()  # of paused answers
        self._gate: Gate | None = None
        self._in_use = threading.Lock()
        self._depth = 0  # tokens of the last prompt and its answer

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Yield what the next script says."""
        with self._busy():
            self._cancelled.clear()
            self.requests.append(request)
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
            prompt_tokens = self._fitting(request)
            answer = MadeUpAnswer(prompt_tokens, request, self.target.context)
            yield from self._turn(_Running(self._told(script, answer), answer, prompt_tokens))

    def resume(self, number: int) -> Iterator[GenerationEvent]:
        """Yield the rest of a paused answer."""
        with self._busy():
            self._cancelled.clear()
            yield from self._turn(self._paused.pop(number))

    def _turn(self, running: _Running) -> Iterator[GenerationEvent]:
        self._pausing.clear()
        try:
            for event in running.events:
                if event is not None:
                    yield event
                if self._pausing.is_set() and not isinstance(event, TextDelta | Finished):
                    number = next(self._numbers)
                    self._paused[number] = running
                    yield Paused(number, running.answer.finished("cancelled").summary)
                    return
        finally:
            self._depth = running.prompt_tokens + running.answer.tokens

    def _told(self, script: Script, answer: MadeUpAnswer) -> Iterator[GenerationEvent | None]:
        """Yield what a script says, and None where it is paused at a gate."""
        for step in script.steps:
            match step:
                case Gate():
                    self._gate = step
                    while not step.wait(self._cancelled, self._pausing):
                        yield None
                        self._gate = step
                case BaseException():
                    self._died = step if isinstance(step, EngineDied) else None
                    raise step
                case str():
                    for event in answer.write(step):
                        if self._cancelled.is_set():
                            break
                        yield event
                case ModeChanged():
                    answer.change(step.mode)
                    yield step
                case PromptProgress() | ThinkingOpened():
                    yield step
            if self._cancelled.is_set():
                yield answer.finished("cancelled")
                return
            if answer.limit is not None:
                yield answer.finished(answer.limit)
                return
        yield answer.finished(script.reason)

    def _fitting(self, request: Request) -> int:
        prompt = request.prompt
        tokens = len(words_of(prompt)) if isinstance(prompt, str) else self.count_tokens(prompt)
        if tokens >= self.target.context:
            raise ContextFullError(
                f"the prompt is {tokens:,} tokens, but the context has {self.target.context:,}",
                "shorten it",
            )
        return tokens

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self._check_alive()
        assert self._in_use.acquire(blocking=False), "two threads use the models at once"
        try:
            yield
        finally:
            self._in_use.release()

    def _check_alive(self) -> None:
        assert not self.closed, "the models are closed"
        if self._died is not None:
            raise type(self._died)(*self._died.args)

    def cancel(self) -> None:
        """End the running answer, also one that waits at a gate."""
        self._cancelled.set()
        if self._gate is not None:
            self._gate.nudge()

    def pause(self) -> None:
        """Pause the running answer, also one that waits at a gate."""
        self._pausing.set()
        if self._gate is not None:
            self._gate.nudge()

    def drop(self, number: int) -> None:
        """Drop a paused answer."""
        self._paused.pop(number, None)

    @property
    def paused(self) -> int:
        """Return the number of paused answers."""
        return len(self._paused)

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Return the settings in the preferred mode."""
        self._check_alive()
        return replace(settings or EngineSettings(), mode=self.preferred), "the script prefers it"

    def first_call_s(self) -> float | None:
        """Return `makes_programs_s`."""
        return self.makes_programs_s

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return the number of words, and one more for each turn and the start of the answer."""
        self._check_alive()
        return 1 + sum(1 + len(words_of(message.content)) for message in messages)

    def measure_plain(self) -> PlainRate | None:
        """Return the rate of `plain` after the last answer."""
        with self._busy():
            return PlainRate(self._depth, self.plain) if self._depth and self.plain else None

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Return `devices`."""
        self._check_alive()
        return self.devices

    def close(self) -> None:
        """Refuse everything from now on."""
        self.closed = True
