"""Ask everybody everything in turn, so that drift of the machine hits all alike and can be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from localspec.benchmark.contender import Anchor, Contender, Prompt, Run

WARM_UP_TOKENS = 24  # of each contender before the clock runs: files read, caches made, calls timed


def interleave(
    contenders: Sequence[Contender],
    prompts: Sequence[Prompt],
    max_tokens: int,
    repetitions: int,
    anchor: Callable[[], float],
) -> Iterator[Run | Anchor]:
    """Yield every contender's answers to every prompt, one contender after another, and anchors between.

    The order of the contenders moves on by one each time. All answer with the same seed; it differs
    from prompt to prompt and from repetition to repetition. Answers of one token have no speed: they are
    left out.
    """
    for contender in contenders:
        contender.answer(prompts[0], min(max_tokens, WARM_UP_TOKENS), 0)
    yield Anchor(0, anchor())
    for number, prompt in enumerate(prompts):
        for repetition in range(repetitions):
            seed = number * repetitions + repetition
            for contender in _in_turn(contenders, seed):
                summary = contender.answer(prompt, max_tokens, seed)
                if summary.tokens > 1 and summary.decode_s > 0:
                    yield Run(contender.name, prompt.task, number, repetition, summary)
        yield Anchor(number + 1, anchor())


def _in_turn(contenders: Sequence[Contender], time: int) -> Sequence[Contender]:
    """Return the contenders in their order for the time that they are asked."""
    shift = time % len(contenders)
    return [*contenders[shift:], *contenders[:shift]]
