"""The name service: a name means an object or a replicated group, everywhere.

    await space.names.bind("counter", group.proxy)
    counter = await space.names.lookup("counter", Counter)       # typed as a Counter, whatever stands behind it

A name is kept by the sub-network of whoever bound it, on all of its machines. It is looked up there first, then in one
sub-network after the other; of two that have bound the same name the nearer one counts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from node.errors import LocalError
from node.objects.addresses import GroupId, Operation
from node.objects.errors import CallError
from node.objects.export import Remote, kind_name, require_kind
from node.objects.news import News
from node.objects.values import Pointed, Pointer

if TYPE_CHECKING:
    from node.objects.space import Space

SHAPE_GROUP = 2
"""Of pointers to replicated groups."""
MAX_NAME_BYTES = 255
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5

K = TypeVar("K", bound=Remote)


class UnknownName(CallError, LookupError):  # noqa: N818 (the outcome of a lookup, as node.objects.errors names them)
    """The name means nothing (any more)."""


class Names:
    """Of one space."""

    def __init__(self, space: Space) -> None:
        self._space = space

    async def bind(self, name: str, callee: Remote) -> None:
        """`name` means this object or replicated group (its proxy) from now on, whatever it has meant. Raises Refused
        or Unreachable; LocalError for a name that cannot be, or a callee that is neither."""
        group = _group_of(callee)
        objects = () if group is not None else (self._space.reference_of(callee),)
        await self._space.operate(Operation.BIND, name=_checked(name), group=group, objects=objects)

    async def unbind(self, name: str) -> None:
        """`name` means nothing any more. Raises Refused when it does not now, or Unreachable."""
        await self._space.operate(Operation.UNBIND, name=_checked(name))

    async def lookup(self, name: str, kind: type[K]) -> K:
        """A proxy of what `name` means, as a `kind`. Raises UnknownName when it means nothing, Unreachable; LocalError
        for a name that cannot be, or a `kind` that is no class of objects."""
        found = await self.find(name, kind)
        if found is None:
            raise UnknownName(f"no object or group is called {name!r}")
        return found

    async def find(self, name: str, kind: type[K]) -> K | None:
        """As `lookup`; None when the name means nothing."""
        require_kind(kind)
        return self._proxy(await self._space.operate(Operation.LOOKUP, name=_checked(name)), kind)

    async def wait_for(self, name: str, kind: type[K]) -> K:
        """As `lookup`, again and again until the name means something: set a time-out around it (asyncio.timeout) when
        you do not want to wait for ever. While nobody can be asked (Unreachable, Refused) it waits, too."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                found = await self.find(name, kind)
            except CallError:
                found = None
            if found is not None:
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _proxy(self, news: News, kind: type[K]) -> K | None:
        if news.group is not None:
            found = self._space.bind(Pointer(SHAPE_GROUP, (news.group.word,), kind_name(kind)))
            assert isinstance(found, Pointed)
            return found  # type: ignore[return-value]  # a proxy is typed as what it stands for
        return self._space.proxy(news.objects[0], kind) if news.objects else None


def _checked(name: str) -> str:
    given: object = name
    if not isinstance(given, str):
        raise LocalError(f"a name is a text, not {given!r}")
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
        raise LocalError(f"a name has 1 to {MAX_NAME_BYTES} bytes in UTF-8, not {len(name.encode())}")
    return name


def _group_of(callee: object) -> GroupId | None:
    pointer = callee.pointer if isinstance(callee, Pointed) else None
    is_group = pointer is not None and pointer.shape == SHAPE_GROUP
    return GroupId.of_word(pointer.words[0]) if pointer is not None and is_group else None
