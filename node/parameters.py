"""Frozen dataclasses of parameters, read from the mapping of a configuration file.

The fields of a dataclass define the keys, their types and their defaults; it checks ranges itself in `__post_init__`
and raises LocalError. Fields may be int, float, bool, str, or such a dataclass again.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from node.errors import LocalError

T = TypeVar("T")


def from_mapping(kind: type[T], mapping: object, where: str) -> T:
    """An instance of the dataclass `kind`. `where` names the place in a LocalError: unknown key, missing key, wrong
    type, or an error of the dataclass itself.
    """
    if not isinstance(mapping, Mapping):
        raise LocalError(f"{where} must be a mapping of names to values, not {shown(mapping)}")
    types = types_of(typing.cast("Any", kind))
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    for key in mapping:
        if key not in fields:
            raise LocalError(f"{where} has no {key!r}; it takes {', '.join(fields) or 'nothing'}")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = _value(types[name], mapping[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise LocalError(f"{where} needs {name!r}")
    try:
        return kind(**values)
    except LocalError as error:
        raise LocalError(f"{where}: {error}") from error


@functools.cache
def types_of(kind: Any) -> dict[str, Any]:
    """Types of the fields of a dataclass, by name."""
    return typing.get_type_hints(kind)


def require(condition: bool, sentence: str) -> None:
    """LocalError with `sentence` unless `condition` holds."""
    if not condition:
        raise LocalError(sentence)


def require_range(name: str, value: int, least: int, most: int) -> None:
    """LocalError unless the parameter `name` lies between `least` and `most`."""
    require(least <= value <= most, f"{name} must lie between {least} and {most}, not {value}")


def require_one_of(name: str, value: str, known: Iterable[str]) -> None:
    """LocalError unless the parameter `name` has one of the `known` values."""
    require(value in tuple(known), f"{name} must be one of {', '.join(known)}, not {value!r}")


def _value(expected: Any, value: object, where: str) -> object:
    if dataclasses.is_dataclass(expected):
        return from_mapping(typing.cast("type[object]", expected), value, where)
    # A bool is an int in Python; in a configuration it is a mistake.
    if expected is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if expected is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if expected in (bool, str) and isinstance(value, expected):
        return value
    raise LocalError(f"{where} must be {_NAMES.get(expected, expected)}, not {shown(value)}")


def shown(value: object) -> str:
    """A given value in an error, cut off where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
