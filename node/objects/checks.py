"""Whether arguments fit a method's signature, asked before its first line runs.

Checked are number and names of the arguments, and the types that the annotations name as far as they can be told from
a value: None, bool, int, float, str, bytes, list, tuple, dict, unions of these, classes of proxies. Everything else
passes. The elements of a list, tuple or dict are checked, too.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node.objects.errors import BadArguments

Check = Callable[[object], bool]


class Checks:
    """Of one function; looked up when the first call comes, since annotations may name what is defined later."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature: inspect.Signature | None = None
        self._checks: dict[str, Check] = {}
        self._simple: list[Check | None] = []
        self._required = 0

    def check(self, arguments: tuple[object, ...], keywords: Mapping[str, object]) -> None:
        """BadArguments with one sentence when the function cannot be called so."""
        if self._signature is None:
            self._look()
        if not keywords and self._required <= len(arguments) <= len(self._simple):
            for check, argument in zip(self._simple, arguments, strict=False):
                if check is not None and not check(argument):
                    self._check_all(arguments, keywords)
            return
        self._check_all(arguments, keywords)

    def _look(self) -> None:
        signature = inspect.signature(self._function)
        parameters = list(signature.parameters.values())[1:]
        hints = _hints(self._function)
        self._checks = {
            parameter.name: check
            for parameter in parameters
            if (check := check_of(hints.get(parameter.name, Any))) is not None
        }
        positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        is_simple = not any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters)
        self._simple = [self._checks.get(one.name) for one in positional] if is_simple else []
        self._required = sum(one.default is one.empty for one in positional) if is_simple else 1
        self._signature = signature.replace(parameters=parameters)

    def _check_all(self, arguments: tuple[object, ...], keywords: Mapping[str, object]) -> None:
        assert self._signature is not None
        try:
            bound = self._signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise BadArguments(f"{self._function.__name__}: {error}") from None
        for name, given in bound.arguments.items():
            check = self._checks.get(name)
            if check is None:
                continue
            parameter = self._signature.parameters[name]
            values: Sequence[object] = [given]
            if parameter.kind is parameter.VAR_POSITIONAL:
                values = given
            elif parameter.kind is parameter.VAR_KEYWORD:
                values = list(given.values())
            for value in values:
                if not check(value):
                    wanted = parameter.annotation
                    shown = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", wanted)
                    raise BadArguments(f"{self._function.__name__}: {name} must be {shown}, not {_shown(value)}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations that mean nothing at run time (imported for a type checker only) are not checked."""
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def check_of(hint: Any) -> Check | None:
    """Whether a value is of the type `hint`; None when that cannot be told or need not be asked."""
    if hint is None or hint is type(None):
        return lambda value: value is None
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(parts)
    if origin in (list, tuple, dict):
        return _container(origin, parts)
    if hint in (bool, str, bytes, list, tuple, dict):
        return lambda value: isinstance(value, hint)
    if hint is int:
        return lambda value: isinstance(value, int)
    if hint is float:
        return lambda value: isinstance(value, int | float)
    if isinstance(hint, type) and hasattr(hint, "exported"):
        return lambda value: issubclass(getattr(value, "kind", type(None)), hint)
    return None


def _union(parts: tuple[Any, ...]) -> Check | None:
    checks = [check_of(part) for part in parts]
    if any(check is None for check in checks):
        return None
    return lambda value: any(check is not None and check(value) for check in checks)


def _container(origin: type, parts: tuple[Any, ...]) -> Check | None:
    if origin is dict:
        keys, values = (check_of(part) or _anything for part in parts)
        return lambda value: isinstance(value, dict) and all(keys(key) and values(value[key]) for key in value)
    if origin is list or parts[-1:] == (...,):
        element = check_of(parts[0]) or _anything
        return lambda value: isinstance(value, list | tuple) and isinstance(value, origin) and all(map(element, value))
    elements = [check_of(part) or _anything for part in parts]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(elements)
        and all(check(one) for check, one in zip(elements, value, strict=True))
    )


def _anything(value: object) -> bool:
    """No annotation says anything about it."""
    return isinstance(value, object)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
