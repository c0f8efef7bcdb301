"""Answers whose tokens a target drew, with all that both models thought."""

from __future__ import annotations

import numpy as np

from localspec.decoding.drafters.proposer import Proposal, RowProposer
from localspec.decoding.measurements import CANDIDATES, Trace, TraceSegment
from localspec.decoding.sampling import distribution, draw, probability
from localspec.tuning.simulator.replay import Replay, replays
from localspec.types.candidates import FullRow, FullRows, top_candidates
from localspec.types.drafts import Distribution
from localspec.types.request import EngineSettings, Sampling

PROMPT = (3, 1, 4, 1, 5)


class Written:
    """An answer whose tokens the target drew, and all logits of both models."""

    def __init__(
        self,
        sampling: Sampling,
        tokens: int = 40,
        seed: int = 0,
        *,
        noise: float = 0.7,
        vocabulary: int = 512,
        ended: bool = False,
    ) -> None:
        random = np.random.default_rng(seed)
        self.sampling, self.ended = sampling, ended
        self.target = random.gumbel(size=(tokens, vocabulary)).astype(np.float32) * 2
        self.draft = (self.target + random.normal(size=(tokens, vocabulary)) * noise).astype(np.float32)
        text = list(PROMPT)
        self.p: list[Distribution] = []
        for row in self.target:
            self.p.append(
                distribution(FullRow(row), sampling, text[len(PROMPT) :][-sampling.penalty_window :])
            )
            text.append(draw(self.p[-1], random.random()))
        self.text = text

    def history(self, place: int) -> list[int]:
        return self.text[: len(PROMPT) + place]

    def segment(self) -> TraceSegment:
        ids, logits = top_candidates(self.draft, CANDIDATES)
        tokens = self.text[len(PROMPT) :]
        none = np.zeros((len(tokens), 1))
        return TraceSegment(
            prompt=PROMPT,
            tokens=np.array(tokens, np.int32),
            target_ids=none.astype(np.int32),
            target_probs=none.astype(np.float32),
            target_of_token=np.array(
                [probability(p, t) for p, t in zip(self.p, tokens, strict=True)], np.float32
            ),
            draft_ids=ids.astype(np.int32),
            draft_logits=logits - logits[:, :1],
            target_of_draft=np.array(
                [[probability(p, t) for t in row] for p, row in zip(self.p, ids.tolist(), strict=True)],
                np.float32,
            ),
            decode_s=1.0,
            ended=self.ended,
        )

    def replay(self) -> Replay:
        return replays(Trace(self.sampling, (self.segment(),)))[0]

    def proposals(self, settings: EngineSettings) -> list[Proposal]:
        """Return what the engine's own proposer says at each place."""
        proposer = RowProposer(
            self.sampling, settings, np.random.default_rng(0), self.draft.shape[1], None, len(PROMPT)
        )
        return [
            proposer.propose(FullRows(row[None]), [self.history(place)])[0]
            for place, row in enumerate(self.draft)
        ]
