"""What a grammar costs and what masking the draft model saves, by mode; and whether all answers fit it.

python -m tests.benchmarks.grammar [-m TARGET -md DRAFT] [--answers 8] [--modes off,sd,ssd] [--temp 1]

The arms take turns answer by answer: without a grammar, with it, and with a draft model that is not told.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from localspec.decoding import engine
from localspec.decoding.drafters.proposer import RowProposer
from localspec.decoding.tally import total
from localspec.demo import bundled_pair
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.events import Finished, Summary, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Grammar, Message, Mode, Request, Sampling

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "job": {"enum": ["teacher", "farmer", "programmer", "physician"]},
        "languages": {"type": "array", "items": {"enum": ["English", "French", "Hindi"]}, "maxItems": 3},
        "description": {"type": "string", "maxLength": 120},
    },
    "required": ["name", "age", "job", "languages", "description"],
    "additionalProperties": False,
}
PEOPLE = ("an old farmer", "a young teacher", "somebody who writes programs", "a physician", "a child")
FREE, MASKED, UNMASKED = "no grammar", "grammar", "draft not told"


def fits(text: str) -> bool:
    """Return whether a text is what the schema says."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return False
    properties = SCHEMA["properties"]
    return (
        isinstance(value, dict)
        and list(value) == SCHEMA["required"]
        and 0 < len(value["name"]) <= 40
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and value["job"] in properties["job"]["enum"]
        and len(value["languages"]) <= 3
        and all(each in properties["languages"]["items"]["enum"] for each in value["languages"])
        and len(value["description"]) <= 120
    )


class Untold(RowProposer):
    """Keeps the grammar from the draft model."""

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401  whatever the engine gives
        super().__init__(*arguments[:4])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", type=Path, default=bundled_pair()[0])
    parser.add_argument("-md", type=Path, default=bundled_pair()[1])
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--modes", default="off,sd,ssd")
    parser.add_argument("--arms", default=f"{FREE},{MASKED},{UNMASKED}")
    parser.add_argument("--temp", type=float, default=1.0)
    args = parser.parse_args()
    modes = [mode for mode in get_args(Mode) if mode in args.modes.split(",")]
    found: dict[tuple[str, str], list[Summary]] = defaultdict(list)
    fitting, cut = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    options = [ModelOptions(path, context=2048, gpu_layers=0) for path in (args.m, args.md)]
    with Runtime.open(OpenPlan(options[0], options[1])) as models:
        for number in range(-1, args.answers):  # the first warms up
            for mode in modes:
                for name in args.arms.split(","):
                    question = f"Describe {PEOPLE[number % len(PEOPLE)]} as JSON."
                    request = Request(
                        (Message("user", question),),
                        Sampling(temperature=args.temp),
                        EngineSettings(mode=mode),
                        max_tokens=400 if name != FREE else 80,
                        seed=1000 + number,
                        grammar=None if name == FREE else Grammar("json_schema", json.dumps(SCHEMA)),
                    )
                    with patch.object(engine, "RowProposer", Untold if name == UNMASKED else RowProposer):
                        *events, end = models.generate(request)
                    assert isinstance(end, Finished)
                    if number >= 0:
                        text = "".join(event.text for event in events if isinstance(event, TextDelta))
                        found[mode, name].append(end.summary)
                        fitting[mode, name] += fits(text)
                        cut[mode, name] += end.reason != "stop"
    print("mode  arm             tokens/s  accepted       tokens/round  Python/round  fit the schema")
    for (mode, name), summaries in found.items():
        s = total(summaries)
        rounds = max(s.rounds, 1)
        share = f"{s.accepted}/{s.drafted}" + (f" {s.accepted / s.drafted:.0%}" if s.drafted else "")
        print(
            f"{mode:5} {name:15} {s.tokens / s.decode_s:8.1f}  {share:13}  {s.tokens / rounds:12.2f}  "
            f"{s.python_s / rounds * 1e3:9.2f} ms  {fitting[mode, name]}/{len(summaries)}"
            f", cut off {cut[mode, name]}"
        )


if __name__ == "__main__":
    main()
