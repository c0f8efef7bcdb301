"""Measure a target and draft pair of GGUF models on held-out text.

    python -m training.measure DATA OUT --target demo-target.gguf --draft demo-draft.gguf

DATA may hold a corpus-heldout.txt[.xz] of its own; OUT receives measure.json and measure.md:

  * perplexity of both models for every kind of document;
  * greedy decoding: how many consecutive draft tokens equal the target's choice, for draft lengths 1 to 8;
  * sampling: the expected acceptance sum(min(p, q)) on text that the target sampled;
  * the fan-out curve: when a draft token is rejected, how often the target's token is among the draft's
    F next best ones, and the power law miss ~ c * F ** -r.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.errors import PairingError, UserError
from training.documents import ASSISTANT, Corpus, Document
from training.measure_report import DRAFT_LENGTHS, Perplexity, Report, TaskResult, write_report
from training.progress import log, show_progress
from training.scorer import Scorer
from training.speculation import (
    FanOut,
    Floats,
    GreedyRuns,
    greedy_fan_out,
    greedy_runs,
    sampled_fan_out,
    sampled_tokens_per_pass,
    softmax,
)

TASKS = {
    "coding (templates)": ("made-coding",),
    "coding (library code)": ("algorithms-chat", "stdlib-chat"),
    "dialogue (tasks)": ("sgd",),
    "dialogue (open)": ("topical-chat",),
    "small talk": ("smalltalk", "identity"),
    "story (templates)": ("made-stories",),
    "story (books, folk tales)": ("african-stories", "books-chat"),
    "maths": ("gsm8k",),
    "trivia": ("trivia",),
}
DOCUMENT_TOKENS = 1000  # more of one document would not fit the context
PROMPT_TOKENS = 700  # leaves room for an answer


@dataclass(frozen=True, slots=True)
class Pair:
    """The two models, and how their answers are drawn."""

    target: Scorer
    draft: Scorer
    tokens: int  # of an answer
    temperature: float
    rng: np.random.Generator


@dataclass(frozen=True, slots=True)
class Answer:
    """What both models make of one prompt."""

    match: list[bool]  # greedy: does the draft agree with the target?
    acceptance: Floats  # sampled: chance that the draft's token is accepted
    entropy: Floats  # of the target, in bits
    fan_out: FanOut


def negative_log_likelihood(scorer: Scorer, ids: Sequence[int]) -> float:
    """Return the nats of all tokens but the first."""
    logits = scorer.logits(ids)[:-1].astype(np.float64)
    top = logits.max(-1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(-1))
    return float((log_sum - logits[np.arange(len(ids) - 1), ids[1:]]).sum())


def perplexity(target: Scorer, draft: Scorer, texts: Sequence[str], limit: int) -> Perplexity | None:
    """Measure both models on the first `limit` tokens or a little more."""
    tokens, target_nats, draft_nats = 0, 0.0, 0.0
    for text in texts:
        if tokens >= limit:
            break
        ids = target.tokenize(text)[:DOCUMENT_TOKENS]
        if len(ids) < 8:
            continue
        target_nats += negative_log_likelihood(target, ids)
        draft_nats += negative_log_likelihood(draft, ids)
        tokens += len(ids) - 1
    if not tokens:
        return None
    return Perplexity(tokens, math.exp(target_nats / tokens), math.exp(draft_nats / tokens))


def perplexities(
    target: Scorer, draft: Scorer, documents: Sequence[Document], limit: int
) -> dict[str, Perplexity]:
    """Measure both models on every kind of document."""
    found: dict[str, Perplexity] = {}
    for kind in sorted({document.kind for document in documents}):
        # with the line break that ends a document in the packed text
        texts = [f"{document.text}\n" for document in documents if document.kind == kind]
        if measured := perplexity(target, draft, texts, limit):
            found[kind] = measured
    return found


def choose_prompts(
    kinds: Sequence[str], documents: Sequence[Document], count: int, rng: random.Random, scorer: Scorer
) -> list[list[int]]:
    """Cut held-out chats where an assistant's turn begins, a random one in a dialogue."""
    chats = [text for kind, text in documents if kind in kinds and ASSISTANT in text]
    rng.shuffle(chats)
    prompts: list[list[int]] = []
    for text in chats:
        starts = [i + len(ASSISTANT) for i in range(len(text)) if text.startswith(ASSISTANT, i)]
        ids = scorer.tokenize(text[: rng.choice(starts)])
        if len(ids) < PROMPT_TOKENS:
            prompts.append(ids)
        if len(prompts) == count:
            break
    return prompts


def measure_prompt(pair: Pair, prompt: list[int]) -> Answer:
    """Let the target answer twice, greedily and sampled, and look at both answers with the draft's eyes."""
    rows = slice(len(prompt) - 1, -1)
    text = pair.target.generate(prompt, pair.tokens, 0.0, pair.rng)
    guesses = pair.draft.logits(prompt + text)[rows]
    match = (guesses.argmax(-1) == np.array(text)).tolist()
    fan_out = greedy_fan_out(guesses, text)

    ids = prompt + pair.target.generate(prompt, pair.tokens, pair.temperature, pair.rng)
    p = softmax(pair.target.logits(ids)[rows], pair.temperature)
    q = softmax(pair.draft.logits(ids)[rows], pair.temperature)
    entropy = -(p * np.log2(np.maximum(p, 1e-12))).sum(-1)
    return Answer(match, np.minimum(p, q).sum(-1), entropy, fan_out + sampled_fan_out(p, q))


def measure_task(pair: Pair, prompts: Sequence[list[int]]) -> TaskResult:
    """Measure one kind of work."""
    answers = [measure_prompt(pair, prompt) for prompt in prompts]
    greedy, sampled = {}, {}
    for length in DRAFT_LENGTHS:
        greedy[length] = sum((greedy_runs(each.match, length) for each in answers), GreedyRuns(0, 0, 0))
        sampled[length] = float(
            np.mean([sampled_tokens_per_pass(each.acceptance, length) for each in answers])
        )
    acceptance = np.concatenate([each.acceptance for each in answers])
    matches = [match for each in answers for match in each.match]
    return TaskResult(
        prompts=len(answers),
        greedy_tokens=len(matches),
        sampled_tokens=len(acceptance),
        entropy_bits=float(np.mean(np.concatenate([each.entropy for each in answers]))),
        greedy_match=float(np.mean(matches)),
        greedy=greedy,
        sampled_acceptance=float(acceptance.mean()),
        sampled=sampled,
        fan_out=sum((each.fan_out for each in answers), FanOut()),
    )


def measure(arguments: argparse.Namespace, target: Scorer, draft: Scorer) -> Report:
    """Measure the pair on everything that is held out."""
    documents = Corpus(arguments.data).held_out()
    if target.tokenize(documents[0].text) != draft.tokenize(documents[0].text):
        raise PairingError("the two models have different vocabularies", "they must be trained together")
    report = Report(
        arguments.target.name,
        arguments.draft.name,
        arguments.temperature,
        perplexities(target, draft, documents, arguments.ppl_tokens),
    )
    rng = random.Random(arguments.seed)
    numbers = np.random.default_rng(arguments.seed)
    pair = Pair(target, draft, arguments.tokens, arguments.temperature, numbers)
    for task, kinds in TASKS.items():
        prompts = choose_prompts(kinds, documents, arguments.prompts, rng, target)
        if prompts:
            result = report.tasks[task] = measure_task(pair, prompts)
            log.info("%s: match %.4f, sampled %.4f", task, result.greedy_match, result.sampled_acceptance)
    return report


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one pair."""
    show_progress()
    parser = argparse.ArgumentParser(
        prog="measure", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", required=True, type=Path)
    parser.add_argument("--draft", required=True, type=Path)
    parser.add_argument("--prompts", type=int, default=12, help="prompts per task")
    parser.add_argument("--tokens", type=int, default=160, help="tokens generated per prompt")
    parser.add_argument("--ppl-tokens", type=int, default=8000, help="tokens per kind for perplexity")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    try:
        with ExitStack() as stack:
            scorers = [
                stack.enter_context(Scorer(path, arguments.threads))
                for path in (arguments.target, arguments.draft)
            ]
            report = measure(arguments, *scorers)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
    write_report(report, arguments.out, "measure")


if __name__ == "__main__":
    main()
