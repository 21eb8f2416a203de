"""The methods of a class that others can call: those marked with `@export`, and no others.

    class Counter(Remote):
        @export
        async def add(self, amount: int) -> int: ...      # plain `def` is fine, too

A proxy of a Counter is typed as a Counter: `await proxy.add(2)` is an int to a type checker, and `proxy.add("2")` a
mistake. This works because `@export` makes a descriptor: the name is a BoundMethod with the method's own parameters and
result, on the object itself and on every proxy alike. So a caller cannot tell an object from a group of them (paper
004, 2.3).

On the object itself (`await self.add(2)` inside the class) a call is a plain call of the function: no message, no
turn; `self.add.send(2)` is a message, which takes its turn. Only exported methods can be reached through a proxy; any
other name is an AttributeError there, and NoSuchMethod for a caller that sends the call nevertheless.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import Any, ClassVar, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

from node.errors import LocalError
from node.objects.api.errors import BadArguments, NotAValue
from node.objects.api.replies import (
    Answer,
    Awaited,
    Call,
    Judge,
    Replies,
    ReplyHandler,
    every_answer,
    every_value,
    first,
    first_of,
)
from node.objects.api.values import Pointed, Pointer
from node.parameters import require
from node.parameters import shown as value_shown

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a call. `timeout` in seconds, as everywhere in asyncio; None: wait for ever."""

    is_atomic: bool = False
    """All or none of the members take it. Not needed for a group that is atomic itself."""
    is_ordered: bool = True
    """Its members take it in one order with other calls (indivisibility)."""
    timeout: float | None = None

    def __post_init__(self) -> None:
        given: object = self.timeout
        if given is None:
            return
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
            raise LocalError(f"a time-out is a finite number of seconds, more than 0, not {given!r}")


DEFAULT = Options()


class Request(NamedTuple):
    """A request to a callee: a method by its name, with arguments and options."""

    name: str
    arguments: tuple[object, ...]
    keywords: dict[str, object]
    options: Options


class Callee(Protocol):
    """The callee of a proxy: an object, a list of objects, or a group."""

    @property
    def pointer(self) -> Pointer:
        """The proxy as data."""

    def begin(self, request: Request, replies: Replies[Any]) -> None:
        """Send the request; the answers go to `replies`, whose members are set as soon as they are known.

        NotAValue when an argument is no data, Overrun when too many calls are under way.
        """


class BoundMethod(Generic[P, R]):
    """One method of one callee. Each of these methods sends the call at once, so calls are made in program order; they
    differ in their results. Before anything has been sent they raise NotAValue or Overrun; a call itself fails with a
    CallError (node.objects.api.errors).
    """

    __slots__ = ("_callee", "_name", "_options")

    def __init__(self, callee: Callee, name: str, options: Options = DEFAULT) -> None:
        self._callee = callee
        self._name = name
        self._options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """The synchronous call, to be awaited: the (first) reply."""
        return self.send(*args, **kwargs)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The asynchronous call: go on, and await the (first) reply later, or never."""
        return self._awaited(first, args, kwargs)

    def all(self, *args: P.args, **kwargs: P.kwargs) -> Call[list[R]]:
        """The replies of all members, in their order; raises the error of the first of them that has one."""
        return self._awaited(every_value, args, kwargs)

    def answers(self, *args: P.args, **kwargs: P.kwargs) -> Call[list[Answer[R]]]:
        """The answers of all members, in their order, values and errors alike."""
        return self._awaited(every_answer, args, kwargs)

    def first(self, count: int, /, *args: P.args, **kwargs: P.kwargs) -> Call[list[R]]:
        """The first `count` replies in order of arrival; the others are ignored. The call raises TooFewMembers when
        there are fewer members, and is sent nevertheless."""
        if count < 1:
            raise LocalError(f"the first {count} replies are none: ask for 1 or more")
        return self._awaited(first_of(count), args, kwargs)

    def handler(self, *args: P.args, **kwargs: P.kwargs) -> ReplyHandler[R]:
        """A reply handler, for groups whose size is not known."""
        replies: ReplyHandler[R] = ReplyHandler()
        self._callee.begin(Request(self._name, args, kwargs, self._options), replies)
        return replies

    def arrival(self, *args: P.args, **kwargs: P.kwargs) -> ReplyHandler[R]:
        """The answers in order of arrival: `async for answer in proxy.method.arrival(...)`."""
        return self.handler(*args, **kwargs)

    def options(
        self, *, atomic: bool | None = None, ordered: bool | None = None, timeout: float | None = None
    ) -> BoundMethod[P, R]:
        """This method with these options; the others stay. `timeout` in seconds."""
        now = self._options
        options = replace(
            now,
            is_atomic=now.is_atomic if atomic is None else atomic,
            is_ordered=now.is_ordered if ordered is None else ordered,
            timeout=now.timeout if timeout is None else timeout,
        )
        return BoundMethod(self._callee, self._name, options)

    def _awaited(self, judge: Judge[R, V], args: tuple[object, ...], kwargs: dict[str, object]) -> Call[V]:
        replies: Awaited[R, V] = Awaited(judge, asyncio.get_running_loop())
        self._callee.begin(Request(self._name, args, kwargs, self._options), replies)
        return replies.call


class Method(Generic[P, R]):
    """An exported method: the descriptor that `@export` makes of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function) or isinstance(function, staticmethod | classmethod):
            raise LocalError("only methods of objects are exported")
        self.function = function
        self.name: str = function.__name__
        self.is_async = iscoroutinefunction(function)
        self.checks = Checks(function)
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Method[P, R]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> BoundMethod[P, R]: ...

    def __get__(self, instance: object | None, owner: type) -> Method[P, R] | BoundMethod[P, R]:
        if instance is None:
            return self
        return _OwnMethod(cast("Remote", instance), self)


@overload
def export(function: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Method[P, R]: ...


@overload
def export(function: Callable[Concatenate[S, P], R]) -> Method[P, R]: ...


def export(function: Callable[..., Any]) -> Method[Any, Any]:
    """Let others call this method. Its arguments and its result are values (node.objects.api.values)."""
    if function.__name__.startswith("_"):
        raise LocalError(f"{function.__qualname__} is private: give what others may call a public name")
    return Method(function)


class Remote(Pointed):
    """The base of classes whose objects others can call: create them with Space.create."""

    exported: ClassVar[Mapping[str, Method[Any, Any]]] = MappingProxyType({})
    """By name: all methods that a caller can reach."""
    home: Callee | None = None
    """The object's own proxy, while it lives in a space."""

    @property
    def pointer(self) -> Pointer:
        return _at_home(self).pointer

    @property
    def shared(self) -> object:
        return _at_home(self)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: method for name, method in vars(cls).items() if isinstance(method, Method)}
        inherited = {name: method for name, method in cls.exported.items() if name not in vars(cls)}
        cls.exported = MappingProxyType({**inherited, **own})
        _KINDS[kind_name(cls)] = cls

    def get_state(self) -> object:
        """The object's state as a value, for an object that joins its group. Defined by classes of replicated
        objects."""
        raise LocalError(f"{type(self).__name__} has no get_state: objects of a replicated group hand their state over")

    def set_state(self, state: Any) -> None:  # noqa: ARG002 (the subclasses' signature)
        """Take over a state that `get_state` of another object returned."""
        raise LocalError(f"{type(self).__name__} has no set_state: objects of a replicated group take a state over")


def require_kind(kind: object) -> None:
    """LocalError unless `kind` is a class of objects that others can call."""
    if not isinstance(kind, type) or not issubclass(kind, Remote):
        what = kind.__name__ if isinstance(kind, type) else f"a {type(kind).__name__}"
        raise LocalError(f"{what} is no class of objects that others can call: such a class is derived from Remote")


def require_state(kind: type[Remote]) -> None:
    """LocalError unless objects of this class can hand their state over and take one over."""
    missing = [name for name in ("get_state", "set_state") if getattr(kind, name) is getattr(Remote, name)]
    require(not missing, f"a {kind.__name__} cannot join a replicated group: it needs {' and '.join(missing)}")


class _OwnMethod(BoundMethod[P, R]):
    """A method of a local object: a plain call of the function, for `self.method()` in its own class."""

    __slots__ = ("_method", "_object")

    def __init__(self, own: Remote, method: Method[P, R]) -> None:
        self._object = own
        self._method = method
        # An object may use its own methods before it lives in a space: LocalError only when something is sent.
        super().__init__(_SpacelessCallee(own) if own.home is None else own.home, method.name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return self._run(args, kwargs)

    async def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        result = self._method.function(self._object, *args, **kwargs)
        return cast("R", await result if self._method.is_async else result)


def _at_home(own: Remote) -> Callee:
    if own.home is None:
        raise NotAValue(f"a {type(own).__name__} that was not created in a space cannot be sent, nor a reference to it")
    return own.home


class _SpacelessCallee:
    """The stand-in for the proxy of an object that lives in no space."""

    def __init__(self, own: Remote) -> None:
        self._own = own

    @property
    def pointer(self) -> Pointer:
        return _at_home(self._own).pointer

    def begin(self, *_: object) -> None:
        raise LocalError(f"{type(self._own).__name__}: create the object in a space before anything is sent to it")


class Proxied(Generic[P, R]):
    """The descriptor of one exported method on a class of proxies."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else BoundMethod(instance, self.name, instance.default_options)


class Proxy(Pointed):
    """The base of all proxies, which stand for a callee at its callers. Subclasses are Callees (`begin`)."""

    __slots__ = ()
    kind: ClassVar[type[Remote]] = Remote
    """The class whose methods this proxy has."""
    default_options: Options = DEFAULT
    _callee: ClassVar[str]
    """The attribute that names the callee: proxies of the same callee are equal."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Proxy):
            return False
        return bool(getattr(self, self._callee) == getattr(other, other._callee))

    def __hash__(self) -> int:
        return hash(getattr(self, self._callee))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.kind.__name__} exports no {name!r}; others reach only what it exports")


B = TypeVar("B", bound=Proxy)


def proxy_class(base: type[B], kind: type[Remote]) -> type[B]:
    """`base` with the exported methods of `kind`. LocalError when `base` uses one of these names already."""
    made = _CLASSES.get((base, kind))
    if made is None:
        made = _CLASSES[base, kind] = _proxy_class(base, kind)
    return cast("type[B]", made)


def _proxy_class(base: type[Proxy], kind: type[Remote]) -> type[Proxy]:
    taken = sorted(name for name in kind.exported if hasattr(base, name))
    require(not taken, f"{kind.__name__} cannot export {', '.join(taken)}: {base.__name__} has that name already")
    methods: dict[str, Any] = {name: Proxied(name) for name in kind.exported}
    return type(f"{base.__name__}[{kind.__name__}]", (base,), {"__slots__": (), "kind": kind, **methods})


_CLASSES: dict[tuple[type[Proxy], type[Remote]], type[Proxy]] = {}
_KINDS: dict[str, type[Remote]] = {}


def kind_name(kind: type[Remote]) -> str:
    """The name of a class in messages."""
    return f"{kind.__module__}.{kind.__qualname__}"


def kind_named(name: str) -> type[Remote]:
    """The class of that name; Remote itself, which exports nothing, if the name is unknown."""
    return _KINDS.get(name, Remote)


Check = Callable[[object], bool]


class Checks:
    """The checks of one function's arguments, made at the first call, since annotations may name later definitions."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature: inspect.Signature | None = None
        self._checks: dict[str, Check] = {}
        self._simple: list[Check | None] = []
        self._required = 0

    def check(self, arguments: tuple[object, ...], keywords: Mapping[str, object]) -> None:
        """BadArguments, with one sentence, when the function cannot be called with these."""
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
                    raise BadArguments(f"{self._function.__name__}: {name} must be {shown}, not {value_shown(value)}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations; none if they cannot be evaluated at run time (names imported for a type checker only)."""
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def check_of(hint: Any) -> Check | None:
    """A check that a value is of the type `hint`; None when that cannot be checked or need not be."""
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
    """The check of a part whose type is not checked."""
    return isinstance(value, object)
