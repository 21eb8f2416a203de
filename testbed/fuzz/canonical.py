"""A digest of an object's whole state that does not hang on identities, addresses or the order in which sets and
dictionaries were filled: two cores with the same digest do the same from then on.

What has no state of its own (functions, methods, classes) counts by name; a bound method's object is looked at where it
is held as such. A function that has closed over something is refused: neither can a copy of it be made.
"""

from __future__ import annotations

import enum
import hashlib
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Any

_PLAIN = (int, float, str, bytes, bool, type(None))
_NAMED = (enum.Enum, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def digest(*values: object) -> bytes:
    """16 bytes. Objects may refer to those that hold them. TypeError: what cannot be told apart."""
    return hashlib.blake2b(repr(_canonical(values, {})).encode(), digest_size=16).digest()


def _canonical(value: Any, above: dict[int, int]) -> Any:
    if isinstance(value, enum.Enum) or not isinstance(value, _PLAIN):
        return _compound(value, above)
    return value


def _compound(value: Any, above: dict[int, int]) -> Any:
    if isinstance(value, types.FunctionType) and value.__closure__:
        raise TypeError(f"{value.__qualname__} has closed over something: a core that holds it cannot be explored")
    if isinstance(value, _NAMED):
        return str(getattr(value, "__qualname__", value))
    if isinstance(value, list | tuple | deque):
        return [_canonical(one, above) for one in value]
    if isinstance(value, set | frozenset):
        return ("set", _sorted(_canonical(one, above) for one in value))
    if isinstance(value, Mapping):
        return ("map", _sorted((_canonical(key, above), _canonical(one, above)) for key, one in value.items()))
    if isinstance(value, Random):
        return hash(value.getstate())
    if id(value) in above:
        return ("above", above[id(value)])
    above[id(value)] = len(above)
    found = (type(value).__qualname__, [(name, _canonical(one, above)) for name, one in _attributes(value)])
    del above[id(value)]
    return found


def _sorted(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=repr)


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Of the instance: its dictionary and its slots, by name."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                found[name] = getattr(value, name)
    yield from sorted(found.items())
