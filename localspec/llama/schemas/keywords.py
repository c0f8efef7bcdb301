"""The keywords of JSON schemas, and schemas in the words of the newest draft."""

from __future__ import annotations

from localspec.llama.schemas.references import JsonObject, Place, is_object

NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
STRINGS = ("minLength", "maxLength", "pattern")
COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")
PLAIN = ("type", "enum", "const", "required")
IN_PLACE = ("allOf", "anyOf", "oneOf")  # lists of schemas for the same value
LISTS = ("prefixItems", *IN_PLACE)  # of schemas
MAPS = ("properties", "patternProperties")  # of schemas
CHECKED = ("not", "if", "uniqueItems", "contains", "propertyNames", "dependentRequired", "dependentSchemas",
           "dependencies", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
SINGLE = ("items", "additionalProperties")  # schemas
DYNAMIC = ("$dynamicRef", "$recursiveRef")
APPLIED = frozenset({*IN_PLACE, *DYNAMIC, "$ref", "if", "dependentSchemas", "dependencies"})
CONSTRAINTS = frozenset({*NUMBERS, *STRINGS, *COUNTS, *PLAIN, *MAPS, *CHECKED, *APPLIED, *LISTS,
                         *SINGLE})  # fmt: skip
# They speak of properties that `properties` does not name, so objects with them stay open.
OPENING = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames",
                     *DYNAMIC})  # fmt: skip


def modern(schema: JsonObject, place: Place) -> JsonObject:
    """Return a schema in the words of draft 2020-12, without what says the same as a simpler keyword."""
    if place.is_old and "$ref" in schema:
        return {"$ref": schema["$ref"]}  # it hides what stands beside it
    schema = dict(schema)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema["additionalItems"]
    for name, of in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(name), bool):  # draft 4
            is_exclusive = schema.pop(name)
            if is_exclusive and of in schema:
                schema[name] = schema.pop(of)
    if not schema.keys() & APPLIED:  # nothing else evaluates items or properties
        if "additionalProperties" not in schema and "unevaluatedProperties" in schema:
            schema["additionalProperties"] = schema.pop("unevaluatedProperties")
        if not schema.keys() & {"items", "contains"} and "unevaluatedItems" in schema:
            schema["items"] = schema.pop("unevaluatedItems")
    if not schema.get("minContains", 1) and "maxContains" not in schema:
        schema.pop("contains", None)
    return schema


def is_one_application(schema: JsonObject) -> bool:
    """Return whether a schema only applies others, one of which alone describes the value."""
    constraints = schema.keys() & CONSTRAINTS - {"type"}
    if len(constraints) != 1:
        return False
    return bool(constraints & {"$ref", "anyOf", "oneOf"}) or len(list_of(schema.get("allOf"))) == 1


def is_idle(keyword: str, value: object) -> bool:
    """Return whether a keyword restricts nothing."""
    if keyword == "propertyNames":
        return value in (True, {}, {"type": "string"})
    if keyword in ("not", "uniqueItems"):
        return value is False
    return keyword not in ("if", "contains") and value in (True, {})


def whole(value: object) -> object:
    """Return a number without a fraction as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def dict_of(value: object) -> JsonObject:
    """Return an object, an empty one for anything else."""
    return value if is_object(value) else {}


def list_of(value: object) -> list[object]:
    """Return a list, an empty one for anything else."""
    return value if isinstance(value, list) else []
