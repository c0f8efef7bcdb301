"""The bundled pair, opened for exact comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from localspec.decoding.engine import Engine
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.sampling import distribution
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.contexts import Contexts
from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Sampling

GREEDY = Sampling(temperature=0.0)
OFF = EngineSettings(mode="off")
MAX_FAN_OUT = 24
READ_WIDTH = 32  # llama.cpp reads 64 tokens and more in another way, with other bits in the cache


def costs() -> LatencyModel:
    """Return costs under which drafting pays, to be unlearned by the first rounds."""
    return LatencyModel(CostCurve({1: 0.02, 9: 0.021}), CostCurve({1: 0.0005, 16: 0.001}))


class Pair:
    """The open models with a plain engine."""

    def __init__(self, target: Path, draft: Path, context: int = 1024) -> None:
        """Open them; each computes with one thread, so that neither waits for the other's."""
        options = ModelOptions(target, context=context, micro_batch=READ_WIDTH)
        self.models = [Model.open(options), Model.open(replace(options, path=draft, threads=1))]
        self.contexts = Contexts(self.models[0], self.models[1], OpenPlan(options, max_fan_out=MAX_FAN_OUT))
        for part in (self.contexts.target, self.contexts.draft):
            assert part is not None
            part.set_threads(1)
        self.engine = Engine(self.contexts.target, self.contexts.draft)
        self._answers: dict[tuple[tuple[int, ...], Sampling], list[int]] = {}

    def close(self) -> None:
        """Free the models."""
        for model in self.models:
            model.close()

    def encode(self, prompt: str) -> list[int]:
        """Return the tokens of a conversation that begins with a prompt."""
        return self.models[0].template.encode_chat((Message("user", prompt),), {})

    def text(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""
        return self.models[0].vocabulary.decode(tokens)

    def params(self, settings: EngineSettings, tokens: int, sampling: Sampling = GREEDY) -> DecodeParams:
        """Return an answer to decode."""
        ends = self.models[0].end_tokens
        return DecodeParams(sampling, settings.acceptance, settings.draft_length, tokens, ends)

    def rounds(self, prompt: Sequence[int], settings: EngineSettings, tokens: int) -> list[Round]:
        """Decode a greedy answer."""
        events = self.engine.rounds(prompt, settings, self.params(settings, tokens), costs(), 0)
        return [event for event in events if isinstance(event, Round)]

    def plain(self, prompt: Sequence[int], tokens: int, sampling: Sampling = GREEDY) -> list[int]:
        """Return what plain decoding answers; the longest answer so far is remembered."""
        key = (tuple(prompt), sampling)
        known = self._answers.get(key, [])
        ended = known and known[-1] in self.models[0].end_tokens
        if len(known) < tokens and not ended:
            events = self.engine.rounds(prompt, OFF, self.params(OFF, tokens, sampling), costs(), 0)
            known = self._answers[key] = tokens_of([event for event in events if isinstance(event, Round)])
        return known[:tokens]

    def gap(self, text: Sequence[int], first: int, second: int, sampling: Sampling = GREEDY) -> float:
        """Return how many logits lie between two tokens after a text that is read in one go."""
        self.engine.forget()
        self.contexts.target.choose(None)
        row = self.contexts.target.evaluate(text, 1)[0]
        p = distribution(row, replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0), text)
        self.engine.forget()
        return float(np.log(p.probs[first] / p.probs[second]))


def tokens_of(rounds: Sequence[Round]) -> list[int]:
    """Return the tokens of an answer."""
    return [token for round_ in rounds for token in round_.tokens]
