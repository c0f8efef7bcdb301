"""Whether a finished JSON value meets a whole schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.llama.schemas.references import SchemaError, is_object, without_unknown_dialect

if TYPE_CHECKING:
    from jsonschema_rs import Validator

_LONGEST = 300  # characters of a reason, which repeats the value


def flaw(schema: object, value: object) -> str:
    """Return the first flaw of a value under a schema, with its place; empty if there is none.

    Formats are annotations. Raises SchemaError for a schema that cannot be checked.
    """
    found = next(_validator(schema).iter_errors(value), None)
    if found is None:
        return ""
    where = "".join(f"/{step}" for step in found.instance_path)
    reason = " ".join(found.message.split())
    return f"at {where or 'its top'}: {reason[:_LONGEST]}{'...' if len(reason) > _LONGEST else ''}"


def _validator(schema: object) -> Validator:
    """Return the validator of a schema; it loads nothing from elsewhere."""
    from jsonschema_rs import Draft7Validator, ValidationError, validator_for

    given = without_unknown_dialect(schema) if is_object(schema) else bool(schema)
    try:
        return validator_for(given, offline=True)
    except (ValidationError, ValueError) as newest:
        try:
            return Draft7Validator(given, offline=True)  # many schemas do not say that they are older
        except (ValidationError, ValueError):
            raise SchemaError("#", str(newest).partition("\n")[0]) from None
