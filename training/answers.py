r"""Let a GGUF target answer thousands of requests, and keep what it thought at every token.

    python -m training.answers DATA --target target.gguf --minutes 60

DATA/answers receives one .npz for every few dozen conversations; a run that is started again goes on behind
them. Every process with a --seed of its own adds to the same folder.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.llama.model import Model
from localspec.types.candidates import top_candidates
from localspec.types.models import ModelOptions
from training.documents import Corpus
from training.made.requests import Request, Requests
from training.many import ManySequences
from training.progress import log, show_progress
from training.teacher_text import CANDIDATES

DRAWN = 40  # candidates that an answer is drawn from
TEMPERATURES = (0.0, 0.0, 0.0, 0.2, 0.2, 0.5, 0.7, 0.8, 0.8, 1.0)
SHORTEST, LONGEST = 120, 360  # tokens of an answer at most
FOLLOWED = 0.25  # of the answers are asked about once more
CONTEXT = 768
SHARD = 10_000  # tokens


@dataclass(slots=True)
class Conversation:
    """One conversation while it is being written, and its candidates for every written token."""

    request: Request
    ids: list[int]
    prompt: int
    temperature: float
    limit: int
    candidates: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = field(default_factory=list)

    @property
    def written(self) -> list[int]:
        """Return the answer's tokens."""
        return self.ids[self.prompt :]

    def repeats(self) -> bool:
        """Tell whether the answer has been going round in circles for long."""
        tail = self.written[-96:]
        return len(tail) == 96 and any(tail[period:] == tail[:-period] for period in range(1, 33))


class Writer:
    """Conversations side by side in one context; each step every one of them grows by a token."""

    def __init__(
        self, model: Model, context: ManySequences, requests: Requests, seed: int, count: int
    ) -> None:
        self._model, self._context, self._requests = model, context, requests
        self._rng, self._random = random.Random(seed), np.random.default_rng(seed)
        self._open: list[Conversation] = []
        for slot in range(count):
            self._open.append(self._begin(slot, requests.take()))

    def step(self) -> list[Conversation]:
        """Write one token of every conversation; return those that ended with it."""
        rows = self._context.step([each.ids[-1] for each in self._open])
        ids, logits = top_candidates(rows, DRAWN)
        totals = np.log(np.exp(rows - logits[:, :1]).sum(axis=1)) + logits[:, 0]
        ended: list[Conversation] = []
        for slot, conversation in enumerate(self._open):
            conversation.candidates.append((ids[slot, :CANDIDATES], logits[slot, :CANDIDATES] - totals[slot]))
            conversation.ids.append(self._draw(ids[slot], logits[slot], conversation.temperature))
            if self._ends(conversation):
                ended.append(conversation)
                self._open[slot] = self._begin(slot, self._next(conversation))
        return ended

    def _begin(self, slot: int, request: Request) -> Conversation:
        while True:
            ids = self._model.template.encode_chat(request.messages)
            if len(ids) + LONGEST < CONTEXT:
                break
            request = self._requests.take()
        self._context.begin(slot, ids[:-1])
        limit = self._rng.randint(SHORTEST, LONGEST)
        return Conversation(request, ids, len(ids), self._rng.choice(TEMPERATURES), limit)

    def _draw(self, ids: NDArray[np.int64], logits: NDArray[np.float32], temperature: float) -> int:
        if temperature == 0:
            return int(ids[0])
        noise = self._random.gumbel(size=len(ids))
        return int(ids[(logits / temperature + noise).argmax()])

    def _ends(self, conversation: Conversation) -> bool:
        written = len(conversation.ids) - conversation.prompt
        if conversation.ids[-1] in self._model.end_tokens or written >= conversation.limit:
            return True
        return written % 16 == 0 and conversation.repeats()

    def _next(self, ended: Conversation) -> Request:
        is_first = len(ended.request.messages) < 3
        is_whole = ended.ids[-1] in self._model.end_tokens
        if is_first and is_whole and self._rng.random() < FOLLOWED:
            answer = self._model.vocabulary.decode(ended.ids[ended.prompt : -1])
            return ended.request.followed(answer, self._rng)
        return self._requests.take()


def save(path: Path, conversations: Sequence[Conversation]) -> int:
    """Write conversations: all their ids, which of them were written, and the candidates of those."""
    ids = np.concatenate([np.array(each.ids, np.uint16) for each in conversations])
    written = np.concatenate([np.arange(len(each.ids)) >= each.prompt for each in conversations])
    pairs = [pair for each in conversations for pair in each.candidates]
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(
            file,
            ids=ids,
            starts=np.cumsum([0, *(len(each.ids) for each in conversations)]),
            written=written,
            temperatures=np.array([each.temperature for each in conversations], np.float32),
            top=np.stack([top for top, _ in pairs]).astype(np.uint16),
            log_chances=np.stack([chances for _, chances in pairs]).astype(np.float16),
        )
    part.rename(path)
    return len(pairs)


def write_answers(data: Path, target: Path, seed: int, minutes: float, sequences: int, threads: int) -> None:
    """Add shards to DATA/answers until the time is up."""
    folder = data / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    shard = len(list(folder.glob(f"{seed:03}-*.npz")))
    options = ModelOptions(target, context=CONTEXT, threads=threads, devices=())
    model = Model.open(options)
    requests = Requests(Corpus(data).training(), random.Random(seed * 1000 + shard))
    started, total, waiting = time.time(), 0, list[Conversation]()
    with ManySequences(model, sequences, CONTEXT, threads) as context:
        writer = Writer(model, context, requests, seed * 1000 + shard, sequences)
        while time.time() - started < 60 * minutes:
            waiting += writer.step()
            if sum(len(each.candidates) for each in waiting) >= SHARD:
                total += save(folder / f"{seed:03}-{shard:05}.npz", waiting)
                shard, waiting = shard + 1, []
                seconds = time.time() - started
                left = minutes - seconds / 60
                log.info(
                    "%d shards, %d tokens, %.0f tokens/s, %.0f min left", shard, total, total / seconds, left
                )
    if waiting:
        save(folder / f"{seed:03}-{shard:05}.npz", waiting)
    model.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Write answers from the command line."""
    show_progress()
    parser = argparse.ArgumentParser(
        prog="answers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--sequences", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(argv)
    write_answers(given.data, given.target, given.seed, given.minutes, given.sequences, given.threads)


if __name__ == "__main__":
    main()
