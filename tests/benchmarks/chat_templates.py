"""Whether every word of a conversation reaches the model, for the chat templates of a folder.

    python -m tests.benchmarks.chat_templates FOLDER

llama.cpp's own lie in the source of llama-cpp-python, vendor/llama.cpp/models/templates. For each template it
prints what does not come out of conversations of every shape, with thinking on and off, what its traits are,
and how long probing it takes (milliseconds, the median of five).
"""

from __future__ import annotations

import sys
import time
from dataclasses import fields
from pathlib import Path
from statistics import median

from localspec.errors import UserError
from localspec.llama.model import Model
from localspec.llama.template.chat_template import ChatTemplate
from localspec.llama.vocabulary import Vocabulary
from localspec.models.default_pair import default_pair
from localspec.types.models import ModelOptions
from tests.llama.conversations import SHAPES, missing

PROBES = 5


def main() -> int:
    """Print a line for each template, and how many lose nothing."""
    sources = sorted(Path(sys.argv[1]).rglob("*.jinja"))
    model = Model.open(ModelOptions(path=default_pair()[0], gpu_layers=0), allocate=False)
    whole, times = 0, list[float]()
    for path in sources:
        source = path.read_text(encoding="utf-8")
        times += (took := [_probe_s(model.vocabulary, source) for _ in range(PROBES)])
        template = ChatTemplate(model.vocabulary, source)
        losses = list(_losses(template))
        whole += not losses
        print(f"{path.stem}: {median(took) * 1e3:.1f} ms; {_changed(template) or 'takes everything'}")
        print(*(f"    {loss}\n" for loss in losses), sep="", end="")
    print(f"{whole} of {len(sources)} lose nothing; probing takes {median(times) * 1e3:.1f} ms (median)")
    model.close()
    return 0 if whole == len(sources) else 1


def _probe_s(vocabulary: Vocabulary, source: str) -> float:
    begin = time.perf_counter()
    assert ChatTemplate(vocabulary, source).traits is not None
    return time.perf_counter() - begin


def _losses(template: ChatTemplate) -> list[str]:
    losses = []
    for shape in SHAPES:
        for thinks in (None, False, True):
            try:
                if lost := missing(template, shape, thinks=thinks):
                    losses.append(f"{shape.name} (thinking {thinks}): {', '.join(lost)}")
            except UserError as error:
                losses.append(f"{shape.name} (thinking {thinks}): {error}")
    return losses


def _changed(template: ChatTemplate) -> str:
    traits = template.traits
    changed = (each for each in fields(traits) if getattr(traits, each.name) != each.default)
    return ", ".join(
        f"{each.name} {getattr(traits, each.name)}" for each in changed if each.name != "variables"
    )


if __name__ == "__main__":
    sys.exit(main())
