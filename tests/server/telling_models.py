"""Open models that write given texts, three letters at a time, and take calls as Hermes does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from localspec.errors import EngineError
from localspec.llama.tool_words import without_tool_roles
from localspec.types.drafts import Provenance
from localspec.types.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    PromptProgress,
    Summary,
    TextDelta,
    TextPiece,
    ThinkingOpened,
)
from localspec.types.request import Request
from tests.server.turning_models import TurningModels


@dataclass
class TellingModels(TurningModels):
    """Each request is answered by the next text; the last one is said again and again."""

    texts: list[str] = field(default_factory=lambda: ["Hello."])
    stop_string: str | None = None
    reason: FinishReason = "stop"
    fails: bool = False  # in the middle
    opens: str = ""  # what the template begins of an answer, where it is to think

    def render(self, request: Request) -> str:
        assert not isinstance(request.prompt, str)
        said = without_tool_roles(request.prompt, request.tools)
        turns = "".join(f"<|im_start|>{each.role}\n{each.content}<|im_end|>\n" for each in said)
        return f"{turns}<|im_start|>assistant\n{self.opens if self._thinks(request) else ''}"

    def _thinks(self, request: Request) -> bool:
        return bool(self.opens) and bool(dict(request.template_variables).get("enable_thinking", True))

    def _rounds(self, request: Request) -> Iterator[GenerationEvent]:
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        yield PromptProgress(1, 1)
        if self._thinks(request):
            yield ThinkingOpened(self.opens)
        for start in range(0, len(text), 3):
            yield TextDelta((TextPiece(text[start : start + 3], Provenance.TARGET),))
            if self.fails:
                raise EngineError("it is broken")
        thought = text.find("</think>") + 1
        summary = Summary(prompt_tokens=10, cached_tokens=4, tokens=len(text), thinking_tokens=thought)
        yield Finished(self.reason, summary, self.stop_string)
