"""Really run the best candidates against plain decoding, on prompts that nobody has traced.

Contenders take turns, each time on another prompt than the one before: a draft model that had just read the
same prompt for another contender would begin faster than it does in everyday use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from localspec.errors import Cancelled, EngineError, StoreError, UserError
from localspec.inference.interface import OpenModels
from localspec.storage.json_file import checked
from localspec.storage.paths import PRIVATE_FILE, write_atomically
from localspec.tuning.events import ConfirmedContender, Dropped, SettingsCandidate
from localspec.tuning.verdict import (
    DRIFT,
    FEWEST_PROMPTS,
    PLAIN,
    SHORTEST,
    Entrant,
    Run,
    Verdict,
    choose,
    compare,
    paces_of,
    settled,
)
from localspec.types import EngineSettings, Finished, Request, Summary


@dataclass(frozen=True, slots=True)
class _Line:
    """What one line holds: a run, how long the answers are, or who takes part no more."""

    key: str
    run: Run | None = None
    tokens: int | None = None
    dropped: Dropped | None = None


class Notebook:
    """The runs under one key; a context manager. Without a file they are kept in memory alone."""

    def __init__(self, file: Path | None, key: str) -> None:
        """Read what is there; damaged lines, and those of another key, are gone from then on."""
        self._path, self._key = file, key
        self._open_file: TextIO | None = None
        self.runs: dict[tuple[str, int, int], Run] = {}
        self.tokens: int | None = None
        self.dropped: dict[str, Dropped] = {}
        for line in [] if file is None else _read(file):
            if line.key == key:
                self._take(line)

    def __enter__(self) -> Self:
        if self._path is not None:
            lines = [_Line(self._key, run=run) for run in self.runs.values()]
            lines += [_Line(self._key, dropped=dropped) for dropped in self.dropped.values()]
            if self.tokens is not None:
                lines.insert(0, _Line(self._key, tokens=self.tokens))
            write_atomically(self._path, "".join(map(_text, lines)), PRIVATE_FILE)
            self._open_file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open_file is not None:
            self._open_file.close()

    def all(self) -> list[Run]:
        """Return every run in its order."""
        return list(self.runs.values())

    def of(self, name: str) -> list[Run]:
        """Return the runs of one contender in their order."""
        return [run for run in self.runs.values() if run.name == name]

    def add(self, run: Run) -> None:
        """Keep a finished run."""
        self._keep(_Line(self._key, run=run))

    def set_tokens(self, tokens: int) -> None:
        """Keep how long the answers are."""
        self._keep(_Line(self._key, tokens=tokens))

    def drop(self, name: str, reason: str) -> None:
        """Keep that a contender takes part no more."""
        self._keep(_Line(self._key, dropped=Dropped(name, reason)))

    def _keep(self, line: _Line) -> None:
        if self._open_file is not None:
            try:
                self._open_file.write(_text(line))
                self._open_file.flush()
            except OSError as error:
                raise StoreError(f"cannot write `{self._path}`: {error.strerror or error}") from error
        self._take(line)

    def _take(self, line: _Line) -> None:
        if line.run is not None:
            self.runs[line.run.name, line.run.prompt, line.run.turn] = line.run
        if line.tokens is not None:
            self.tokens = line.tokens
        if line.dropped is not None:
            self.dropped[line.dropped.name] = line.dropped


def _read(path: Path) -> Iterable[_Line]:
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return
    for text in texts:
        try:
            yield checked(_Line, json.loads(text), "line")
        except (ValueError, RecursionError):
            continue


def _text(line: _Line) -> str:
    return json.dumps({name: value for name, value in asdict(line).items() if value is not None}) + "\n"


LLAMA_CPP = EngineSettings(
    mode="sd", draft_length=3, acceptance="match", min_confidence=0.0, draft_temperature=1.0
)
"""What llama.cpp does with a draft model when nobody tells it otherwise."""

NAMES = ("best", "second", "third")
ANCHOR = "anchor"  # plain decoding of one answer, again and again: does the machine stay as fast?
ANCHOR_RUNS = 2  # of which the faster counts: what disturbs only ever makes slower
LAP = 4  # prompts, after which the anchor is measured and the verdict looked at
FEWEST_LAPS = 2  # so that there are a beginning, a middle and an end
MOST_TURNS = 8  # of every prompt
WARM_UP_TOKENS = 24
FEWEST_TOKENS = 32  # of an answer: shorter ones are mostly their beginning
USUAL_TOKENS = 160
SHARE = 0.8  # of the time, for what has to be run; the rest makes the intervals narrower


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a confirmation may take, and where its runs are kept, to go on after the program has ended.

    `key` says what they belong to: models, placement, task. The time is of the models' work.
    """

    budget_s: float
    key: str = ""
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class ConfirmProgress:
    """So many of the answers are there; `steps` grows while the intervals are too wide.

    `leader` is the fastest contender so far, from the end of the first lap on.
    """

    done: int
    steps: int
    left_s: float
    leader: ConfirmedContender | None = None


def entrants(candidates: Sequence[SettingsCandidate], llama_cpp: float | None = None) -> tuple[Entrant, ...]:
    """Return who takes part: the best candidates, the first being the best, and llama.cpp's defaults.

    `llama_cpp` are the tokens per second that are predicted for the latter.
    """
    named = zip(NAMES, candidates, strict=False)
    found = [Entrant(name, each.settings, each.predicted) for name, each in named]
    found = [entrant for entrant in found if entrant.settings.mode != "off"]
    return (*found, Entrant("llama.cpp", LLAMA_CPP, llama_cpp))


def confirm(
    models: OpenModels,
    requests: Sequence[Request],
    contenders: Sequence[Entrant],
    terms: Terms,
    reopen: Callable[[], OpenModels] | None = None,
) -> Iterator[ConfirmProgress | Verdict]:
    """Time all contenders and plain decoding in turns; the last value is the verdict.

    A contender that raises `UserError` is dropped, and one that raises `EngineError` too, if models can be
    opened again by `reopen`. Everything else ends the confirmation, which another call with the same
    arguments takes up again after the last finished answer.
    """
    if len(requests) < FEWEST_PROMPTS:
        raise UserError(
            f"{len(requests)} held-out prompts are too few to compare speeds",
            f"give {FEWEST_PROMPTS} or more",
        )
    key = sha256(repr((terms.key, tuple(requests), tuple(contenders))).encode()).hexdigest()[:32]
    with Notebook(terms.file, key) as notebook:
        work = _Confirmation(models, requests, contenders, notebook, reopen)
        yield from work.laps(terms.budget_s)
        yield work.verdict()


class _Confirmation:
    """Who still takes part, and what they did so far."""

    def __init__(
        self,
        models: OpenModels,
        requests: Sequence[Request],
        contenders: Sequence[Entrant],
        notebook: Notebook,
        reopen: Callable[[], OpenModels] | None,
    ) -> None:
        self._models, self._reopen = models, reopen
        self._requests = requests
        self._plain = Entrant(PLAIN, EngineSettings(mode="off"))
        self._field = [self._plain, *(each for each in contenders if each.name not in notebook.dropped)]
        self._notebook = notebook
        self._warm: set[str] = set()

    def laps(self, budget_s: float) -> Iterator[ConfirmProgress]:
        """Go round and round until the intervals are narrow or the time is over."""
        if self._notebook.tokens is None:
            self._notebook.set_tokens(self._affordable(budget_s))
        laps, leader = _laps(len(self._requests)), None
        self._measure_anchor(0)
        for number in range(MOST_TURNS * len(laps)):
            turn, lap = divmod(number, len(laps))
            order = _order(laps[lap], self._field, number)
            expected = len(self._notebook.runs) + len(order) * max(1, FEWEST_LAPS - number)
            for entrant, prompt in order:
                if number and self._spent_s >= budget_s:
                    break
                self._take(entrant, prompt, turn)
                yield self._progress(expected, leader)
            self._measure_anchor(number + 1)
            measured, _ = compare(self._field, paces_of(self._notebook.all()), self._drift)
            leader = max(measured, key=lambda contender: contender.gain.value, default=None)
            if self._spent_s >= budget_s or (number + 1 >= FEWEST_LAPS and self._is_clear(measured)):
                return

    def verdict(self) -> Verdict:
        """Judge what was measured."""
        paces, drift = paces_of(self._notebook.all()), self._drift
        contenders, short = compare(self._field, paces, drift)
        if not contenders or contenders[0].name != PLAIN:
            raise UserError(
                "the answers to the held-out prompts are too short to be timed",
                f"give prompts that ask for {SHORTEST} tokens or more",
            )
        chosen, reason = choose(contenders, paces)
        dropped = (*self._notebook.dropped.values(), *short)
        if len(contenders) == 1 and dropped:
            reason += f": {dropped[0].reason}"
        if abs(drift - 1.0) > DRIFT:
            change = f"{abs(1.0 - drift):.0%} {'slower' if drift < 1.0 else 'faster'}"
            reason += f"; plain decoding became {change} meanwhile, which widens the intervals"
        return Verdict(chosen.settings, reason, contenders, dropped, drift, self._spent_s)

    @property
    def _spent_s(self) -> float:
        """Return what all answers took, those before a restart included."""
        return sum(run.spent_s for run in self._notebook.all())

    @property
    def _drift(self) -> float:
        """Return the speed of plain decoding now in that at the beginning."""
        anchors = [run.pace_s for run in self._notebook.of(ANCHOR) if run.tokens >= SHORTEST]
        return min(anchors[:ANCHOR_RUNS]) / min(anchors[-ANCHOR_RUNS:]) if anchors else 1.0

    def _is_clear(self, measured: Sequence[ConfirmedContender]) -> bool:
        """Tell whether more answers would hardly change the verdict."""
        calm = abs(self._drift - 1.0) <= DRIFT
        return calm and len(measured) == len(self._field) and settled(measured)

    def _progress(self, expected: int, leader: ConfirmedContender | None) -> ConfirmProgress:
        done = len(self._notebook.runs)
        steps = max(expected, done)
        return ConfirmProgress(done, steps, (steps - done) * self._spent_s / max(done, 1), leader)

    def _measure_anchor(self, number: int) -> None:
        """Decode the first prompt plainly, always with the same seed."""
        for turn in range(number * ANCHOR_RUNS, (number + 1) * ANCHOR_RUNS):
            if (ANCHOR, 0, turn) not in self._notebook.runs:
                self._notebook.add(self._timed(self._plain, ANCHOR, 0, turn))

    def _take(self, entrant: Entrant, prompt: int, turn: int) -> None:
        """Time one answer unless it is known; a contender that cannot answer is dropped."""
        known = (entrant.name, prompt, turn) in self._notebook.runs
        if known or entrant.name in self._notebook.dropped:
            return
        try:
            self._notebook.add(self._timed(entrant, entrant.name, prompt, turn))
        except UserError as error:
            self._drop(entrant, error)
        except EngineError as error:
            if self._reopen is None:
                raise
            self._drop(entrant, error)
            self._models = self._reopen()
            self._warm.clear()

    def _drop(self, entrant: Entrant, error: Exception) -> None:
        if entrant is self._plain:
            raise error
        self._field.remove(entrant)
        self._notebook.drop(entrant.name, str(error))

    def _timed(self, entrant: Entrant, name: str, prompt: int, turn: int) -> Run:
        if entrant.name not in self._warm:  # the first answer builds graphs and measures what calls cost
            self._answer(entrant, (prompt + 1) % len(self._requests), 0, WARM_UP_TOKENS)
            self._warm.add(entrant.name)
        seed = 1 + prompt + (0 if name == ANCHOR else turn * len(self._requests))
        summary = self._answer(entrant, prompt, seed, self._notebook.tokens)
        spent_s = summary.first_token_s + summary.decode_s
        return Run(name, prompt, turn, summary.tokens, summary.decode_s, spent_s)

    def _answer(self, entrant: Entrant, prompt: int, seed: int, tokens: int | None) -> Summary:
        """Decode an answer as a contender does, whether it pays or not."""
        request = replace(self._requests[prompt], settings=entrant.settings, steps_down=False)
        for event in self._models.generate(replace(request, seed=seed, max_tokens=tokens)):
            if isinstance(event, Finished) and event.reason != "cancelled":
                return event.summary
        raise Cancelled

    def _affordable(self, budget_s: float) -> int:
        """Return how long answers may be, so that the laps that must be run fit into the time."""
        self._answer(self._plain, -1, 0, WARM_UP_TOKENS)
        summary = self._answer(self._plain, -1, 1, WARM_UP_TOKENS)
        self._warm.add(PLAIN)
        answers = FEWEST_LAPS * (LAP * len(self._field) + ANCHOR_RUNS) + ANCHOR_RUNS
        left_s = SHARE * budget_s / answers - summary.first_token_s
        wanted = min(each.max_tokens or USUAL_TOKENS for each in self._requests)
        if summary.tokens < 2 or summary.decode_s <= 0:
            return wanted
        fitting = int(left_s * (summary.tokens - 1) / summary.decode_s)
        return min(wanted, max(fitting, FEWEST_TOKENS))


def _laps(prompts: int) -> list[range]:
    """Share prompts out to laps of about equal size, at least three each."""
    count = max(1, round(prompts / LAP))
    return [range(lap * prompts // count, (lap + 1) * prompts // count) for lap in range(count)]


def _order(prompts: Sequence[int], field: Sequence[Entrant], lap: int) -> list[tuple[Entrant, int]]:
    """Return who answers what, in order: everybody every prompt, no prompt twice in a row."""
    return [
        (field[(place + step + lap) % len(field)], prompt)
        for step in range(len(field))
        for place, prompt in enumerate(prompts)
    ]
