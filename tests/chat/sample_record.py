"""A record of an answer with everything that a record can hold."""

from __future__ import annotations

from localspec.chat.messages import AnswerRecord, Span
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import ModeChanged, RoundDone, RoundStats, Summary
from localspec.types.models import PlainRate
from localspec.types.request import EngineSettings, Sampling

RECORD = AnswerRecord(
    mode="ssd",
    reason="the draft model has a device of its own",
    settings=EngineSettings(draft_length=4, min_confidence=0.25),
    sampling=Sampling(temperature=0.7),
    seed=2**32 - 1,
    profile="coding",
    target="Large",
    draft="Small",
    summary=Summary(12, tokens=9, rounds=2, accepted_at=(2, 1), drafted_at=(2, 2), decode_s=0.1 / 3),
    rounds=(
        RoundDone(RoundStats(4, 2, DraftOrigin.AHEAD, 0.025, 0.0, 0.000001, 0.0004, 0.02), 3),
        RoundDone(RoundStats(0, 0, DraftOrigin.NONE, 0.025, 0.01, 0.0, 0.0004), 1),
    ),
    spans=tuple(Span(length, provenance) for length, provenance in enumerate(Provenance, 1)),
    changes=(ModeChanged("sd", "preparing did not pay"),),
    plain=PlainRate(120, 41.5),
    thinking_budget=1024,
)  # fmt: skip
