"""JSON schemas in the shapes that pydantic, zod and servers of the Model Context Protocol emit.

pydantic emits its own here; those of the others are made up, in `emitted_schemas.jsonl`.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import re
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Interval, Le, Len, Lt, MultipleOf
from pydantic import (
    AnyUrl,
    AwareDatetime,
    Base64Bytes,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    FilePath,
    HttpUrl,
    Json,
    NegativeInt,
    PositiveFloat,
    RootModel,
    Secret,
    SecretStr,
    StrictBool,
    StringConstraints,
    TypeAdapter,
    create_model,
)
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict  # pydantic wants it before Python 3.12


class Color(enum.Enum):
    """Words."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """Numbers."""

    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    """A tuple with names."""

    x: int
    y: int = 0


class Movie(TypedDict, total=False):
    """A dictionary with keys that may be missing."""

    title: str
    year: int


@dataclass
class Size:
    """A dataclass."""

    width: int
    height: int | None = None


class Item(BaseModel):
    """A part of others."""

    name: str = Field(description="Its name", examples=["a"], max_length=80)
    price: Annotated[float, Gt(0)] = 1.5
    tags: set[str] = set()


class Node(BaseModel):
    """A tree."""

    value: int
    children: list[Node] = []
    parent: Node | None = None


class Closed(BaseModel):
    """An object without other properties."""

    model_config = ConfigDict(extra="forbid", title="closed", json_schema_extra={"examples": [{"a": 1}]})
    a: int


class Opened(BaseModel):
    """An object with any other properties."""

    model_config = ConfigDict(extra="allow")
    a: int


class Cat(BaseModel):
    """One of two kinds."""

    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    """The other kind."""

    kind: Literal["dog", "wolf"]
    good: bool


class Derived(Item):
    """More than what it comes from."""

    extra: dict[str, Item]
    deprecated: Annotated[int, Field(deprecated=True)] = 0


_OTHERS = Path(__file__).with_suffix(".jsonl")
Pet = Annotated[Cat | Dog, Field(discriminator="kind")]

_TYPES: tuple[Any, ...] = (
    str, int, float, bool, None, bytes, Any, object, dict, list, set, frozenset, tuple,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, AwareDatetime,
    decimal.Decimal, uuid.UUID, uuid.UUID, Path, FilePath, re.Pattern[str], ByteSize,
    ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Interface,
    AnyUrl, HttpUrl, SecretStr, Secret[int], Base64Bytes, Json[int], StrictBool, NegativeInt, PositiveFloat,
    Color, Level, Point, Movie, Size, Item, Node, Closed, Opened, Pet, Derived, Cat | Dog,
    list[int], list[Item], set[int], frozenset[Color], deque[int], Sequence[str], tuple[int, str],
    tuple[int, ...], tuple[()], dict[str, int], dict[str, Any], dict[Color, int], dict[int, str],
    dict[uuid.UUID, Item], Mapping[str, list[Item]], str | None, int | str | None, Item | list[Item],
    Literal["a", "b"], Literal[1, "a", None, True], Color | None, list[Literal["x"]],
    Annotated[str, StringConstraints(pattern=r"^\d{3}-[A-Z]+$")],
    Annotated[str, Field(json_schema_extra={"pattern": r"^(?=.*\d).{8,}$"})],
    Annotated[str, Len(2, 5)], Annotated[list[int], Len(1, 3)],
    Annotated[set[str], Len(1, 10)], Annotated[dict[str, int], Len(1, 4)], Annotated[int, Ge(0), Le(255)],
    Annotated[float, Interval(gt=0, lt=1)], Annotated[int, MultipleOf(5)],
    Annotated[float, MultipleOf(0.01)], Annotated[decimal.Decimal, Lt(100)],
    dict[Annotated[str, StringConstraints(pattern="^x-")], int],
    dict[Annotated[str, StringConstraints(max_length=5)], int],
    Annotated[str, Field(json_schema_extra={"format": "cuid"})], list[Pet],
    dict[str, Pet], list[tuple[Point, Size]],
)  # fmt: skip


def of_pydantic() -> Iterator[dict[str, Any]]:
    """Yield schemas of types, and of models with such fields."""
    for number, kind in enumerate(_TYPES):
        if number % 3 == 0 and kind is not re.Pattern[str]:
            yield TypeAdapter(kind).json_schema(mode="serialization")
        fields = {"needed": (kind, ...), "other": (kind | None if kind else kind, None)}
        model: type[BaseModel] = create_model(f"Model{number}", **fields)  # type: ignore[call-overload]
        yield model.model_json_schema()
    yield RootModel[list[Item]].model_json_schema()
    yield {"$ref": "#/components/Item", "components": {"Item": Item.model_json_schema()}}


EMITTED = (*of_pydantic(), *map(json.loads, _OTHERS.read_text("utf-8").splitlines()))
