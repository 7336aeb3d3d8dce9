"""Types of the model's fields: how each reads a scalar, and what an editor may accept for it.

Numbers of resources may also be a token, `$(NAME)`, that is only known at run time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from merlin.base.document.scalars import (
    Plain,
    Problem,
    to_amount,
    to_bool,
    to_failure_limit,
    to_float,
    to_int,
    to_seconds,
    typed,
)

TOKEN_PATTERN = r"^\$\(.+\)$"
_LONE_TOKEN = re.compile(r"\$\([^()\s]+\)")


class Block(BaseModel):
    """A mapping of a document whose keys are all known."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    document_name: ClassVar[str] = (
        "the configuration"  # what messages call a document of which this is the top
    )

    @classmethod
    def home_of_key(cls, key: str, block: tuple[str | int, ...]) -> str:
        """A hint where a key belongs that `block` does not know; "" if there is no better place."""
        return ""


class OpenBlock(BaseModel):
    """A mapping that accepts keys of its own."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)


def optional(description: str, default: Any = None, **more: Any) -> Any:
    """A key that may be left out; `more` are further arguments of pydantic's `Field`."""
    return Field(default, description=description, **more)


def _as_text(value: Any) -> Any:
    if isinstance(value, Plain):
        return str.__str__(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise Problem("must be text, not a list or a mapping")
    return value


def as_list(value: Any) -> Any:
    """A single entry may be written without brackets."""
    return [value] if isinstance(value, str) else value


def _as_nonempty_text(value: Any) -> Any:
    text = _as_text(value)
    if not text.strip():
        raise Problem("must not be empty")
    return text


def _reader(read: Callable[[Any], Any], *, tokens: bool) -> PlainValidator:
    def validate(value: Any) -> Any:
        if tokens and isinstance(value, str) and _LONE_TOKEN.fullmatch(value.strip()):
            return str(value).strip()
        return read(value)

    return PlainValidator(validate)


def _schema(**kind: Any) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [kind, {"type": "string", "pattern": TOKEN_PATTERN}]})


Text = Annotated[str, BeforeValidator(_as_text), WithJsonSchema({"type": ["string", "number", "boolean"]})]
Name = Annotated[
    str, BeforeValidator(_as_nonempty_text), WithJsonSchema({"type": ["string", "number"], "minLength": 1})
]
Count = Annotated[int, _reader(lambda v: to_int(v, 0), tokens=False), _schema(type="integer", minimum=0)]
Positive = Annotated[int, _reader(lambda v: to_int(v, 1), tokens=False), _schema(type="integer", minimum=1)]
Base = Annotated[int, _reader(lambda v: to_int(v, 2), tokens=False), _schema(type="integer", minimum=2)]
Number = Annotated[float, _reader(to_float, tokens=False), _schema(type="number")]
Flag = Annotated[bool, _reader(to_bool, tokens=False), _schema(type="boolean")]
Seconds = Annotated[
    float,
    _reader(to_seconds, tokens=False),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": r"^[\d.:-]+\s*(ms|s|m|min|h|d)?$|\$\("},
            ]
        }
    ),
]
FailureLimit = Annotated[
    float | None,
    _reader(to_failure_limit, tokens=False),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^[\d.]+\s*%?$|\$\("}]}
    ),
]
# Resources may use parameters, whose values differ between the instances of a step.
ResourceCount = Annotated[
    int | str, _reader(lambda v: to_int(v, 0), tokens=True), _schema(type="integer", minimum=0)
]
ResourceAmount = Annotated[
    int | float | str, _reader(to_amount, tokens=True), _schema(type="number", minimum=0)
]
ResourcePositive = Annotated[
    int | str, _reader(lambda v: to_int(v, 1), tokens=True), _schema(type="integer", minimum=1)
]
TextList = Annotated[tuple[Text, ...], BeforeValidator(as_list)]
ResourceFlag = Annotated[bool | str, _reader(to_bool, tokens=True), _schema(type="boolean")]
Typed = Annotated[Any, BeforeValidator(typed)]


def _as_shape(value: Any) -> tuple[int | None, ...]:
    """Sizes of a sample's axes; "*" or null as the first one: any number of items."""
    if not isinstance(value, list | tuple):
        raise Problem("must be a list of sizes", 'e.g. [64, 64, 4], or ["*", 3] for any number of items')
    sizes = tuple(None if item is None or str(item) == "*" else to_int(item, 1) for item in value)
    if None in sizes[1:]:
        raise Problem("only the first axis may have any length", 'e.g. ["*", 3]')
    return sizes


Shape = Annotated[
    tuple[int | None, ...],
    PlainValidator(_as_shape),
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "anyOf": [
                    {"type": "integer", "minimum": 1},
                    {"enum": ["*", None]},
                    {"type": "string", "pattern": TOKEN_PATTERN},
                ]
            },
        }
    ),
]
