"""What a model's chat template does, and which tokens end an answer, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec.child_process import values_of
from localspec.llama.model import Model
from localspec.llama.template.traits import TemplateTraits
from localspec.types.models import ModelOptions

_TIME_S = 60.0


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """A report on a model's chat template; `end_texts` are the tokens that end an answer.

    `file` is the user's own template file, in place of the model's.
    """

    file: str | None
    traits: TemplateTraits
    end_texts: tuple[str, ...]
    note: str = ""

    def lines(self) -> Iterator[str]:
        """Yield what the user may want to know of it."""
        if self.file is not None:
            yield f"from {self.file}, as config.toml says"
        if self.note:
            yield self.note
        yield from (self.traits.mistake,) if self.traits.mistake else _habits(self.traits)
        yield f"an answer ends at {' '.join(self.end_texts)}" if self.end_texts else "no token ends an answer"


def _habits(traits: TemplateTraits) -> Iterator[str]:
    """Yield a sentence for each thing that the template does its own way."""
    tools = traits.takes_tools
    habits = (
        (not traits.takes_system, "system prompts become part of the question"),
        (
            traits.takes_system and not traits.takes_later_system,
            "later system messages become part of the question",
        ),
        (not traits.takes_users_in_a_row, "questions in a row are joined"),
        (not traits.takes_assistants_in_a_row, "answers in a row are joined"),
        (not traits.takes_assistant_first, "an answer that comes first follows an empty question"),
        (not tools, "tools are described in words"),
        (not traits.takes_empty, "questions and answers without text get a blank"),
        (tools and not traits.takes_any_id, "ids of calls become nine letters and digits"),
        (tools and not traits.takes_calls_at_once, "several calls at once become single ones"),
        (tools and not traits.takes_text_with_call, "text next to a call becomes a separate message"),
        (traits.opens_thinking, f"the model thinks first: prompts end with {traits.opens_thinking}"),
        (not traits.keeps_thinking, "thinking of earlier answers is left out"),
        (traits.lost, f"it leaves out {' and '.join(traits.lost)}"),
        (traits.variables, f"variables: {', '.join(traits.variables)}"),
    )
    yield from (sentence for holds, sentence in habits if holds)


def template_report(path: Path, given: Path | None = None) -> TemplateReport:
    """Report on a model's chat template, or on one `given` for it; the model opens in a child process.

    Raises `LocalSpecError` for a file that llama.cpp cannot open.
    """
    return next(values_of(_reports, _TIME_S, path, given))


def _reports(path: Path, given: Path | None) -> Iterator[TemplateReport]:
    options = ModelOptions(path=path, gpu_layers=0, chat_template=given)
    model = Model.open(options, allocate=False)
    texts = sorted(model.vocabulary.decode([token], special=True) for token in model.end_tokens)
    file = None if given is None else str(given)
    yield TemplateReport(file, model.template.traits, tuple(texts), model.template.note)
    model.close()
