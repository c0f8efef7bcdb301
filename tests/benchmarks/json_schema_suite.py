"""Run the official JSON Schema test suite: `python -m tests.benchmarks.json_schema_suite FOLDER [-v]`.

FOLDER has files like `allOf.json`: those of `tests/draft2020-12` in the suite, which the source distribution
of `jsonschema` on PyPI contains under `json/`. Counts the schemas that are refused, the valid instances that
the grammar cannot write, and the invalid ones that neither the grammar nor the check finds.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from localspec.errors import UserError
from localspec.llama.schemas.check import flaw
from localspec.llama.schemas.split import SPACING, split

_ORDERS = 24  # of an object's members: llguidance writes them in the order of the schema
_BYTES = LLTokenizer("byte")


def texts(value: object) -> Iterator[str]:
    """Yield a value as JSON, with the members of objects in different orders."""
    if isinstance(value, dict):
        for names in islice(permutations(value), _ORDERS):
            for each in islice(product(*(tuple(texts(value[name])) for name in names)), _ORDERS):
                pairs = zip(map(_text, names), each, strict=True)
                yield "{" + ",".join(f"{name}:{text}" for name, text in pairs) + "}"
    elif isinstance(value, list):
        for each in islice(product(*(tuple(texts(item)) for item in value)), _ORDERS):
            yield "[" + ",".join(each) + "]"
    else:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
            value = int(value)
        yield _text(value)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class Written:
    """What the grammar of a schema admits."""

    def __init__(self, grammar: dict[str, Any]) -> None:
        """Compile it."""
        source = LLMatcher.grammar_from_json_schema(json.dumps(grammar), overrides=SPACING)
        self.matcher = LLMatcher(_BYTES, source, log_level=0)
        assert not self.matcher.is_error(), self.matcher.get_error()

    def admits(self, value: object) -> bool:
        """Return whether a value can be written, its members in any order."""
        return any(self.admits_text(text) for text in texts(value))

    def admits_text(self, text: str) -> bool:
        """Return whether a text can be written."""
        matcher, tokens = self.matcher.deep_copy(), list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def loosened(schema: object) -> object:
    """Return a schema in which formats are annotations, and no object is closed by naming properties."""
    if isinstance(schema, list):
        return [loosened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: each if name in ("enum", "const") else loosened(each) for name, each in schema.items()}
    if isinstance(parts.get("format"), str):
        del parts["format"]
    names_some = isinstance(parts.get("properties"), dict)
    return {"unevaluatedProperties": True, **parts} if names_some else parts


def judge(case: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a verdict for a schema, and one for each of its instances."""
    schema = case["schema"]
    try:
        found = split(schema)
    except UserError as error:
        yield "refused", str(error)
        return
    yield "taken", ""
    written, loose = Written(found.grammar), None
    for test in case["tests"]:
        value, about = test["data"], test["description"]
        admitted = written.admits(value)
        if test["valid"]:
            if admitted:
                yield "valid: can be written", about
                continue
            try:
                loose = loose or Written(split(loosened(schema)).grammar)
                kind = "valid: closed or of a format" if loose.admits(value) else "VALID: CANNOT BE WRITTEN"
            except UserError:
                kind = "VALID: CANNOT BE WRITTEN"
            yield kind, about
        elif not admitted:
            yield "invalid: kept out", about
        elif found.unenforced and flaw(schema, value):
            yield "invalid: told", about
        else:
            yield "INVALID: NOT TOLD", about


def main() -> None:
    """Print the counts, and every case that is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="print every verdict")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    for file in sorted(args.folder.glob("*.json")):
        for case in json.loads(file.read_text("utf-8")):
            for verdict, about in judge(case):
                counts[verdict] += 1
                if args.verbose or verdict.isupper() or verdict.startswith(("refused", "VALID", "INVALID")):
                    print(f"{file.stem}: {case['description']}: {verdict}: {about}")
    for verdict, count in sorted(counts.items()):
        print(f"{count:5}  {verdict}")


if __name__ == "__main__":
    main()
