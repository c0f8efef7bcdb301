"""Requests of several steps: small models do the first and stop, so each step is asked by itself.

The model writes the steps itself, so that each can be read alone. A step is saved as a message of LocalSpec,
not of the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from localspec.chat.answer_settings import thinking_variables
from localspec.chat.answering import Generate, Splitting
from localspec.chat.messages import StoredMessage, ToolRun
from localspec.chat.thinking import without_thinking
from localspec.chat.tool_use.offer import ToolOffer
from localspec.errors import Cancelled
from localspec.storage.config import StepsMode
from localspec.types.events import Finished, PromptProgress, TextDelta, ThinkingOpened
from localspec.types.models import ModelInfo
from localspec.types.request import EngineSettings, Grammar, Message, Request, Sampling, ToolCall

SMALL = 4_000_000_000  # parameters, below which requests are split unless config.toml says otherwise
MOST_STEPS = 4
_LONGEST = 400  # characters of a request; a longer one brings a text along
_TOKENS = 300
_ASKED = """\
Split my request into its steps, as a list of strings. Each step can be read alone: it keeps the names of \
files, and the words that it is about. A request for one thing is one step. For example:
Which files contain seperate, and fix the typo in guide.md.
["Which files contain seperate?", "Replace seperate by separate in guide.md."]
What is the port in app.ini? Then raise it to 9000, and list the folder logs.
["What is the port in app.ini?", "Set the port in app.ini to 9000.", "List the folder logs."]
Count the words in a.txt, and save the number in b.txt.
["Count the words in a.txt.", "Save the number of words in a.txt in b.txt."]
There is a mistake in a.txt: adress. Please correct it.
["Replace adress by address in a.txt."]
Find FIXME in lib. Then delete it in lib/a.py only.
["Find FIXME in lib.", "Delete FIXME in lib/a.py only."]
Explain what cats and dogs eat.
["Explain what cats and dogs eat."]
My request:
"""
_STEPS = Grammar(
    "json_schema",
    json.dumps(
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": MOST_STEPS}
    ),
)
_SENTENCES = re.compile(r"[.?!;]\s+\w|\n\s*\S")
_VERBS = """add append change check commit copy correct count create delete describe do edit explain find fix
insert list look make move print put read remove rename replace run save say search set show sort summarise
summarize tell translate update use write what which who where how is are""".split()
_JOINED = re.compile(
    rf", (?:and|then)\b|\b(?:and|then)[, ]+(?:\w+ ){{0,2}}?(?:{'|'.join(_VERBS)})\b", re.IGNORECASE
)


def are_wanted(mode: StepsMode, target: ModelInfo) -> bool:
    """Return whether requests to a model are split: to a small one unless config.toml says otherwise."""
    return mode == "on" or (mode == "auto" and 0 < target.parameters < SMALL)


def may_be_several(question: StoredMessage) -> bool:
    """Return whether a question may ask for several things, so that the model is to split it."""
    text = question.content.strip()
    if question.role != "user" or question.attachments or len(text) > _LONGEST:
        return False
    return bool(_SENTENCES.search(text) or _JOINED.search(text))


def write_steps(
    generate: Generate, prompt: Sequence[Message], offer: ToolOffer, request: Request
) -> Generator[Splitting | PromptProgress, None, tuple[str, ...]]:
    """Have the model split the question that a prompt ends in, and return its steps; none for one thing.

    The prompt begins as that of the answer does, so what is in the KV cache stays there.
    Raises `Cancelled`.
    """
    *before, question = prompt
    asked = Message("user", f"{_ASKED}{question.content}")
    request = replace(
        offer.put_into(replace(request, prompt=(*before, asked))),
        triggers=(),
        grammar=_STEPS,
        sampling=Sampling(temperature=0.0),
        settings=EngineSettings(mode="off"),
        steps_down=False,
        seed=0,
        max_tokens=_TOKENS,
        stop=(),
        thinking_budget=0,
        template_variables=thinking_variables(request.template_variables, 0),
    )
    text = ""
    reason = None
    yield Splitting()
    for event in generate(request):
        if isinstance(event, ThinkingOpened):
            text += event.opening
        elif isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, Finished):
            reason = event.reason
        yield event if isinstance(event, PromptProgress) else Splitting()
    if reason in (None, "cancelled"):
        raise Cancelled("stopped")
    steps = _steps_in(without_thinking(text)) if reason == "stop" else ()
    return tuple(map(_sentence, steps)) if len(steps) > 1 else ()


def _sentence(step: str) -> str:
    """Return a step with a full stop, without which small models do less; not where it may end in a text."""
    ends = step.endswith((".", "?", "!")) or any(sign in step for sign in ":\"'`")
    return step if ends else f"{step}."


def _steps_in(text: str) -> tuple[str, ...]:
    with suppress(ValueError):
        steps = (str(step).strip() for step in json.loads(text))
        return tuple(dict.fromkeys(step for step in steps if step))
    return ()


def step_run(number: int, steps: Sequence[str]) -> ToolRun:
    """Return the run to save with a step: its call, which is LocalSpec's own, has all steps."""
    call = ToolCall("", "steps", json.dumps(steps, ensure_ascii=False))
    return ToolRun(call, because=f"step {number} of {len(steps)}")


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step that follows on a branch; it cannot begin if a call of the one before it did not succeed."""

    text: str
    run: ToolRun
    can_begin: bool


def next_step(path: Sequence[StoredMessage]) -> NextStep | None:
    """Return the step that follows what a branch ends in; None if it is the last, or not answered."""
    last = path[-1]
    asked = [at for at, message in enumerate(path) if message.role == "user"]
    made = [at for at, message in enumerate(path) if message.is_step and asked and at > asked[-1]]
    if not made or last.role != "assistant" or last.state != "complete" or last.calls:
        return None
    run = path[made[-1]].run
    steps = () if run is None else _steps_in(run.call.arguments)
    number = len(made)
    if number >= len(steps):
        return None
    results = [message.run for message in path[made[-1] + 1 :] if message.run is not None]
    can_begin = not results or results[-1].outcome == "done"
    return NextStep(steps[number], step_run(number + 1, steps), can_begin)
