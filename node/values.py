"""Frozen values that are made for every datagram: their constructors are compiled to do no more than they must.

The constructor that `dataclass` writes for a frozen class looks each field up by its name before it sets it; for eight
fields that is most of what decoding a datagram costs. `quick` writes the same constructor with the slots at hand. A
value is as frozen, comparable and printable as before.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

Value = TypeVar("Value")


def quick(cls: type[Value]) -> type[Value]:
    """For a frozen dataclass with slots whose fields are all keyword-only and have plain defaults, if any."""
    parts = fields(cls)  # type: ignore[arg-type]  # dataclass has made it one
    assert not hasattr(cls, "__post_init__"), f"{cls.__name__} checks itself: its constructor does more than set fields"
    assert all(part.kw_only and part.init and part.default_factory is MISSING for part in parts), cls.__name__
    body = "".join(f"\n    _set_{part.name}(self, {part.name})" for part in parts)
    source = f"def __init__(self, *, {', '.join(map(_parameter, parts))}):{body}"
    names: dict[str, Any] = {f"_set_{part.name}": getattr(cls, part.name).__set__ for part in parts}
    names |= {f"_default_{part.name}": part.default for part in parts}
    exec(source, names)  # noqa: S102  # of field names only; `dataclass` itself does the same
    names["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = names["__init__"]  # type: ignore[method-assign]  # takes what the one before took
    return cls


def _parameter(part: Field[Any]) -> str:
    return part.name if part.default is MISSING else f"{part.name}=_default_{part.name}"
