"""JSON of an answer beside its schema: what was not enforced, whether it is met, and whether it was cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from localspec.llama.schemas.check import flaw
from localspec.llama.schemas.references import SchemaError
from localspec.llama.schemas.split import split
from localspec.types.request import Grammar

_SHOWN = 8  # places
_LONGEST_KEY = 100  # characters of a key in a remark
_KEPT = 256  # tools: agents send the same ones with each request


@dataclass(frozen=True, slots=True)
class Remark:
    """A warning for the client, and one for a log, which repeats nothing of a request or an answer."""

    text: str
    logged: str


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """A schema, `whose` JSON has to meet it, and the places where a grammar does not enforce it."""

    whose: str
    schema: object
    unenforced: tuple[str, ...] = ()

    def remarks(self, text: str, *, is_cut: bool) -> Iterator[Remark]:
        """Yield a remark about a finished text, if there is one to make."""
        verdict, detail = self._verdict(text, is_cut=is_cut)
        if self.unenforced:
            count = len(self.unenforced)
            more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
            places = f"{', '.join(self.unenforced[:_SHOWN])}{more}"
            ending = f"{verdict or 'it is met'}"
            yield Remark(
                f"the JSON schema of {self.whose} is not enforced at {places}; {ending}{detail}",
                f"a JSON schema is not enforced at {count} of its places; {ending}",
            )
        elif verdict:
            yield Remark(f"the JSON of {self.whose}: {verdict}{detail}", f"the JSON of an answer: {verdict}")

    def _verdict(self, text: str, *, is_cut: bool) -> tuple[str, str]:
        """Return the result of a check, empty for a schema that is met, and its details."""
        try:
            value, repeated = _read(text)
            if is_cut and type(value) in (int, float):  # of which more digits may have been to come
                raise ValueError(text)
            problem = flaw(self.schema, value)
        except SchemaError as error:
            return "its schema cannot be checked", f": {error.reason}"
        except (ValueError, RecursionError):
            return ("it was cut before its end" if is_cut else "it is not JSON"), ""
        if problem:
            return "its schema is not met", f" {problem}"
        # No grammar can forbid it, and programs differ in which value they take.
        return ("", "") if repeated is None else ("an object repeats a key", f": {json.dumps(repeated)}")


def _read(text: str) -> tuple[object, str | None]:
    """Return the value of JSON, and a key that one of its objects repeats, if any; raises ValueError."""
    repeated = list[str]()

    def read(members: list[tuple[str, object]]) -> dict[str, object]:
        found = dict[str, object]()
        for key, value in members:
            if key in found:
                repeated.append(key[:_LONGEST_KEY])
            found[key] = value
        return found

    return json.loads(text, object_pairs_hook=read), next(iter(repeated), None)


def checked_answer(grammar: Grammar | None) -> CheckedSchema | None:
    """Return the check of an answer to a JSON schema, None for any other grammar.

    Raises SchemaError for a schema that cannot be used.
    """
    if grammar is None or grammar.kind != "json_schema":
        return None
    try:
        schema = json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise SchemaError("#", str(error)) from None
    return CheckedSchema("the answer", schema, split(schema).unenforced)


def enforced_answer(grammar: Grammar) -> Grammar:
    """Return a JSON schema without what a grammar cannot enforce; raises SchemaError."""
    return Grammar("json_schema", json.dumps(split(json.loads(grammar.text)).grammar, ensure_ascii=False))


def checked_arguments(tool: str) -> CheckedSchema:
    """Return the check of the arguments of a tool, which no grammar enforces."""
    return _checked(json.loads(tool)["function"])


@lru_cache(_KEPT)
def enforced(tool: str) -> tuple[str, CheckedSchema]:
    """Return a tool with parameters that a grammar can enforce, and the check of its arguments.

    A tool whose schema cannot be used takes any object: its user could not change it.
    """
    described = json.loads(tool)
    checked = _checked(described["function"])
    try:
        found = split(checked.schema)
        parameters = found.grammar
        unenforced = found.unenforced
    except SchemaError as error:
        parameters = {"type": "object"}
        unenforced = (f"{error.path} ({error.reason})",)
    function = {**described["function"], "parameters": parameters}
    text = json.dumps({**described, "function": function}, ensure_ascii=False)
    return text, CheckedSchema(checked.whose, checked.schema, unenforced)


def _checked(function: dict[str, object]) -> CheckedSchema:
    parameters = function.get("parameters")
    given = parameters if isinstance(parameters, dict) else {}
    return CheckedSchema(f"the arguments of {function['name']}", {"type": "object", **given})
