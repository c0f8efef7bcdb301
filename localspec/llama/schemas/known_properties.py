"""Which properties a JSON schema, with all that it applies to the same value, says something about."""

from __future__ import annotations

from collections.abc import Iterable

from localspec.llama.schemas.keywords import IN_PLACE, OPENING, dict_of, list_of, modern
from localspec.llama.schemas.references import JsonObject, Place, References, is_object


class KnownProperties:
    """The properties that a schema knows of a value; it `is_open` if it speaks of others, too."""

    def __init__(self, references: References, schema: JsonObject, place: Place) -> None:
        """Look through a schema; raises SchemaError for a reference that leads out of it."""
        self.names: dict[str, None] = {}
        self.has_properties = False
        self.is_open = False
        self._references = references
        self._followed: set[tuple[str, str]] = set()
        self._look(schema, place)

    def _look(self, schema: object, place: Place) -> None:
        if not is_object(schema):
            return
        place = place.within(schema)
        schema = modern(schema, place)
        values = [*list_of(schema.get("enum")), schema.get("const")]
        properties = dict_of(schema.get("properties"))
        least = schema.get("minProperties")
        self.is_open |= bool(schema.keys() & OPENING) or any(map(is_object, values))
        self.is_open |= isinstance(least, int) and least > len(properties)
        self.has_properties |= "properties" in schema
        self._add(properties)
        self._add(list_of(schema.get("required")))
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for value in dict_of(schema.get(keyword)).values():
                self._add(list_of(value))
                self._look(value, place)
        for keyword in IN_PLACE:
            for child in list_of(schema.get(keyword)):
                self._look(child, place)
        for keyword in ("if", "then", "else"):
            self._look(schema.get(keyword), place)
        reference = (place.base, str(schema.get("$ref")))
        if "$ref" in schema and reference not in self._followed:
            self._followed.add(reference)
            self._look(*self._references.follow(schema["$ref"], place))

    def _add(self, names: Iterable[object]) -> None:
        self.names.update({name: None for name in names if isinstance(name, str)})
