"""Conversations with hybrid models, compared with plain decoding that processes every prompt again.

`python -m tests.inference.hybrid_turns [CONVERSATIONS [TURNS [PAIR ...]]]` holds long ones in every mode, and
prints what came of them.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.decoding import loop
from localspec.decoding.engine import Engine
from localspec.decoding.rounds import DecodeParams, Round
from localspec.demo import bundled_pair
from localspec.errors import Cancelled
from localspec.llama.context import Context
from localspec.llama.heads import HeadContext
from localspec.llama.model import Model
from localspec.llama.recurrent import open_context
from localspec.models.heads import kind_of_draft
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings
from tests.contract import GREEDY, NO_END, OFF, latency_model

LONGEST = 40  # tokens of a prompt that are new: from 64 tokens in a call on, the CPU rounds differently
BEGINNING = 300  # tokens of a conversation: more than the windowed models of these tests keep
TOKENS = range(10, 8000)
AGAIN = 0.4  # of what is said was said before
MODES = {
    "off": OFF,
    "ngram": EngineSettings(mode="ngram", draft_length=6, min_confidence=0.0),
    "sd": EngineSettings(mode="sd", draft_length=5, min_confidence=0.0),
    "sd + ngram": EngineSettings(mode="sd", draft_length=8, min_confidence=0.1, fallback="ngram"),
    "ssd": EngineSettings(mode="ssd", draft_length=5, fan_out_budget=6, min_confidence=0.0),
    "ssd + ngram": EngineSettings(mode="ssd", draft_length=4, fan_out_budget=4, fallback="ngram"),
}
ALTERNATING = [MODES[mode] for mode in ("off", "ngram", "sd", "sd + ngram")]


@dataclass
class Outcome:
    """What came of a conversation."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    prompts: int = 0  # tokens
    reused: int = 0


@contextmanager
def opened(target: Path, draft: Path, branches: int = 6) -> Iterator[tuple[Engine, Engine]]:
    """Open a pair, of which the draft may be a head, and its target once more for plain decoding."""
    kind = kind_of_draft(target, draft)
    options = ModelOptions(target, 2048, 0, micro_batch=32, threads=1)
    # otherwise the order of cells, which branches and windows change, would round in another way
    options = replace(options, kv_type_k="f32", kv_type_v="f32", flash_attention=False)
    of_draft = replace(options, path=draft)
    with ExitStack() as stack:

        def model(options: ModelOptions, *, head: bool = False) -> Model:
            return stack.enter_context(closing(Model.open(options, head=head)))

        weights = model(options, head=draft == target)
        first, plain = (open_context(weights, each) for each in (options, replace(options, swa_full=True)))
        other: Context
        if kind is not None:
            of_head = weights if draft == target else model(of_draft, head=True)
            other = HeadContext(of_head, of_draft, first)
        else:
            other = open_context(model(of_draft), of_draft, sequences=1 + branches)
        yield Engine(first, other), Engine(plain)


def talk(
    engine: Engine,
    plain: Engine,
    choices: Sequence[EngineSettings],
    seed: int,
    turns: int,
    conversations: int = 1,
) -> Outcome:
    """Go on, edit, have answers written again, cancel, and cut answers short; compare every answer.

    Chance picks the settings of each answer among `choices`, and one of several conversations.
    """
    drawn, found = random.Random(seed), Outcome()
    said = [drawn.choices(TOKENS, k=BEGINNING) for _ in range(conversations)]
    talks = [([*each], list[int]()) for each in said]
    for turn in range(turns):
        number = drawn.randrange(conversations) if conversations > 1 else 0
        settings = drawn.choice(choices) if len(choices) > 1 else choices[0]
        text, ends = talks[number]
        if len(text) > 1500:
            text, ends = text[:50], []
        kind = drawn.choice(["next", "next", "edit", "again", "cancel", "cut"])
        if ends and kind in {"edit", "again"}:
            text = text[: drawn.choice(ends)] + (_said(drawn, said) if kind == "edit" else [])
        length = drawn.randrange(8, 40)
        cancelled_after = drawn.randrange(length) if kind == "cancel" else None
        answer = _answer(engine, text, settings, length, cancelled_after, found)
        plain.forget()
        expected = _answer(plain, text, OFF, length, None, Outcome())
        found.answers, found.prompts = found.answers + 1, found.prompts + len(text)
        found.reused += engine.reused
        if answer != expected[: len(answer)] or (cancelled_after is None and len(answer) < length):
            found.wrong.append(f"{settings.mode}, seed {seed}, turn {turn} ({kind})")
        ends = [end for end in ends if end < len(text)] + [len(text)]
        kept = answer[: len(answer) // 2] if kind == "cut" else answer  # as where thinking is left out
        talks[number] = text + kept + _said(drawn, said), ends
    return found


def _said(drawn: random.Random, said: list[list[int]]) -> list[int]:
    """Return new words or some that were said before, whose answer may be as it was, too."""
    said.append(drawn.choice(said) if drawn.random() < AGAIN else _words(drawn, LONGEST))
    return said[-1]


def _words(drawn: random.Random, most: int) -> list[int]:
    return drawn.choices(TOKENS, k=drawn.randint(1, most))


def _answer(
    engine: Engine,
    prompt: list[int],
    settings: EngineSettings,
    length: int,
    cancelled_after: int | None,
    found: Outcome,
) -> list[int]:
    params = DecodeParams(GREEDY, settings.acceptance, max(settings.draft_length, 8), length, NO_END)
    answer, target = list[int](), engine.decoder.model
    engine.turn_to(prompt)
    try:
        for event in engine.rounds(prompt, settings, params, latency_model(), 1):
            if isinstance(event, Round):
                answer += event.tokens
                found.drafted += event.stats.drafted
                found.accepted += event.stats.accepted
                if cancelled_after is not None and len(answer) > cancelled_after:
                    target.cancel()
    except Cancelled:
        pass
    target.resume()
    return answer


def main(seeds: str = "50", turns: str = "30", *wanted: str) -> None:
    """Hold long conversations with every pair in every mode."""
    from tests import made_models
    from tests.conftest import QUANTIZE

    folder = Path(tempfile.mkdtemp())
    hybrid, bundled, in_q8 = made_models.hybrid(folder / "target.gguf"), bundled_pair()[0], folder / "q8.gguf"
    subprocess.run([sys.executable, "-c", QUANTIZE, bundled, in_q8], check=True, capture_output=True)
    windowed_mtp = made_models.windowed_mtp(folder / "windowed-mtp.gguf")
    gpt_oss = made_models.gpt_oss(folder / "gpt-oss.gguf")
    pairs = {
        "attention": (hybrid, made_models.attention(folder / "attention.gguf")),
        "hybrid": (hybrid, made_models.hybrid(folder / "hybrid.gguf", kind="q4_0", head=False)),
        "windows": (
            made_models.windowed(folder / "w.gguf"),
            made_models.attention(folder / "attention.gguf"),
        ),
        "mtp": (hybrid, hybrid),
        "windows, mtp": (windowed_mtp, windowed_mtp),
        "eagle3": (in_q8, made_models.eagle3(folder / "eagle3.gguf")),
        "windows, eagle3": (gpt_oss, made_models.eagle3(folder / "head.gguf", target=gpt_oss)),
    }
    loop.READ_CHUNK = LONGEST
    for name in wanted or pairs:
        with opened(*pairs[name]) as (engine, plain):
            for mode, settings in MODES.items():
                all_found = [talk(engine, plain, [settings], seed, int(turns)) for seed in range(int(seeds))]
                sums = {
                    each: sum(getattr(one, each) for one in all_found)
                    for each in ("answers", "drafted", "accepted", "prompts", "reused")
                }
                wrong = [text for one in all_found for text in one.wrong]
                sys.stdout.write(f"{name}, {mode}: {sums}, wrong {len(wrong)} {wrong[:3]}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
