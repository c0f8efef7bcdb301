"""The bundled pair of tiny models, and prompts for it, to show and test everything offline."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent

DemoTask = Literal["coding", "dialogue", "story", "sums"]


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A request that the bundled pair can answer, and the kind of task that it is."""

    task: DemoTask
    prompt: str


def bundled_pair() -> tuple[Path, Path]:
    """Return the target and the draft model that come with the package."""
    return FOLDER / "demo-target.gguf", FOLDER / "demo-draft.gguf"


def prompts() -> tuple[DemoPrompt, ...]:
    """Return the bundled prompts, task by task; the models were trained on none of them."""
    lines = (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(DemoPrompt(**json.loads(line)) for line in lines)
