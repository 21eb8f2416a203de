"""Two encodings of 64-bit words that several messages share.

An entry: member (16 bits), incarnation (16), number (32). A range of numbers: first (32), last (32).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from typing import Any, NamedTuple, TypeVar

from node.errors import DropReason, RemoteError

MAX_NUMBER = 0xFFFF_FFFE
MAX_RANGES = 128


class Entry(NamedTuple):
    """One word: a number about one incarnation of one member."""

    member: int
    incarnation: int
    number: int


def pack(member: int, incarnation: int, number: int) -> int:
    return member << 48 | incarnation << 32 | number


def unpack(word: int) -> Entry:
    return Entry(word >> 48, word >> 32 & 0xFFFF, word & 0xFFFF_FFFF)


def ranges_of(numbers: Iterable[int]) -> tuple[int, ...]:
    """Ascending numbers as at most MAX_RANGES words (first, last); numbers beyond that are left out."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        elif len(runs) == MAX_RANGES:
            break
        else:
            runs.append([number, number])
    return tuple(first << 32 | last for first, last in runs)


def numbers_of(ranges: tuple[int, ...], limit: int) -> list[int]:
    """The first `limit` numbers in the words of `ranges_of`. RemoteError MALFORMED when they do not ascend."""
    numbers: list[int] = []
    previous = 0
    for word in ranges:
        first, last = word >> 32, word & 0xFFFF_FFFF
        if not previous < first <= last:
            raise RemoteError(DropReason.MALFORMED, f"range {first} to {last} after {previous}")
        previous = last
        numbers.extend(range(first, min(last, first + limit - len(numbers) - 1) + 1))
    return numbers


# Frozen values that are made for every datagram.

Value = TypeVar("Value")


def fast_init(cls: type[Value]) -> type[Value]:
    """Give `cls` a faster constructor: a frozen dataclass with slots whose fields are keyword-only and have plain
    defaults, if any."""
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
