"""Groups whose members come and go (paper 004, 2.3.2): Group, and its two kinds, UGroup and RGroup.

    group = await RGroup.create(space, Counter)
    await group.join(here)
    await group.proxy.add(1)                     # typed as a Counter: the group behaves like one of its members

Callers get `proxy`: a value that travels, and that a name can mean. Its holder can make the group from it (`RGroup.of`,
`UGroup.of`) to ask for its members or to change them. Atomic delivery is an attribute of the group, initially off; a
single call may ask for it, too.

RGroup is kept by all machines of the sub-network that made it and survives the crash of any of them. A call has its
members at its place in the order; an object that joins takes over the state of a member (Remote.get_state, set_state)
exactly there, and handles no later call before it has it. Members whose machine ends, or is given up, are members no
more; one that is alive learns it (`expelled`) and may join again. An object of this space whose class lacks get_state
or set_state is refused at once, also as the first member (LocalError): with it in the group no other could join.

UGroup is kept by one object, in the space that made it, and is gone with it, and so is its name (`UGroup.named`). A
call first asks that object for the members; so calls of one group keep their order, but a later call of its caller to
others may come before. No state is handed over. A destroyed member stays a member until a call that waits for its
answer learns of it. Atomic calls learn of no destroyed member, they are aborted: make a member of an atomic group leave
before it is destroyed.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import MAX_ADDRESSED, GroupId, News, Operation, Reference
from node.objects.api.errors import CallError, EmptyGroup, NoSuchGroup, Overrun
from node.objects.api.export import (
    Options,
    Proxy,
    Remote,
    Request,
    export,
    kind_name,
    kind_named,
    proxy_class,
    require_kind,
)
from node.objects.api.replies import Call, Replies
from node.objects.api.space import SHAPE_GROUP, SHAPE_UGROUP, Ref, Space
from node.objects.api.values import MAX_POINTER_WORDS, Pointer

ASK_EVERY_S = 1.0
"""Period in which a member asks whether it still is one."""

K = TypeVar("K", bound=Remote)


class Group(ABC, Generic[K]):
    """The paper's class Group (figure 3). `proxy`: the group as one callee, typed as its members are."""

    proxy: K

    @abstractmethod
    async def join(self, member: K) -> None:
        """Make `member` a member; joining again changes nothing. LocalError when its class is neither the group's nor
        derived from it, as far as is known here."""

    @abstractmethod
    async def leave(self, member: K) -> None:
        """Make `member` leave the group."""

    @abstractmethod
    async def members(self) -> list[K]:
        """Proxies of all members, the oldest first."""

    @abstractmethod
    async def set_atomic(self, is_atomic: bool) -> None:
        """Whether every call of the group is delivered to all members or to none."""

    @abstractmethod
    async def is_atomic(self) -> bool:
        """The setting of `set_atomic`; initially False."""

    async def size(self) -> int:
        """Number of members."""
        return len(await self.members())

    def __getattr__(self, name: str) -> Any:
        """An exported method of the members: the group behaves like one of them. `proxy` has the same methods,
        typed."""
        if name == "proxy":
            raise AttributeError(name)
        return getattr(self.proxy, name)


# Replicated groups.


class GroupRef(Proxy):
    """The proxy of a replicated group."""

    __slots__ = ("id", "space")
    _callee = "id"

    def __init__(self, space: Space, name: GroupId) -> None:
        self.space = space
        self.id = name

    def begin(self, request: Request, replies: Replies[Any]) -> None:
        self.space.begin(request, replies, group=self.id)

    @property
    def pointer(self) -> Pointer:
        return Pointer(SHAPE_GROUP, (self.id.word,), kind_name(self.kind))

    def __repr__(self) -> str:
        return f"<replicated group {self.id.number} of {self.kind.__name__}, made by member {self.id.member}>"


class RGroup(Group[K]):
    """A replicated group. All its methods raise NoSuchGroup, Refused or Unreachable when they fail."""

    def __init__(self, space: Space, name: GroupId, kind: type[K]) -> None:
        self._space = space
        self._kind = kind
        self.id = name
        kinds: type[Remote] = kind
        self.proxy = cast("K", proxy_class(GroupRef, kinds)(space, name))

    @classmethod
    async def create(cls, space: Space, kind: type[K]) -> RGroup[K]:
        """A new group without members, kept in the sub-network of this machine. LocalError when `kind` is no class of
        objects."""
        require_kind(kind)
        news = await space.operate(Operation.CREATE)
        assert news.group is not None
        return cls(space, news.group, kind)

    @classmethod
    def of(cls, proxy: K) -> RGroup[K]:
        """The group that `proxy` stands for. LocalError when it stands for something else."""
        found: object = proxy
        if not isinstance(found, GroupRef):
            raise LocalError(f"a {type(found).__name__} stands for no replicated group")
        return cls(found.space, found.id, cast("type[K]", found.kind))

    async def join(self, member: K) -> None:
        """Returns when the object is a member; if it lives in this space, also when it has taken the state over.
        Raises Unreachable when the donor has ended meanwhile, RemoteException when it could not hand the state over:
        then the object is no member. Try again."""
        reference = _reference_of(member, self._kind)
        joined = self._space.joined(member, self.id) if self._space.is_home_of(reference) else None
        await self._operate(Operation.JOIN, reference)
        if joined is None:
            return
        try:
            await asyncio.shield(joined)
        except CallError:
            self._space.forget_join(reference, self.id)
            await self._operate(Operation.LEAVE, reference)
            raise

    async def leave(self, member: K) -> None:
        """Make `member` leave the group. Raises Refused when it is no member."""
        reference = Space.reference_of(member)
        await self._operate(Operation.LEAVE, reference)
        if self._space.is_home_of(reference):
            self._space.forget_join(reference, self.id)

    async def expelled(self, member: K) -> None:
        """Returns when an object of this space learns that the group goes on without it: the managers say so, or it is
        not among the members when it asks, every ASK_EVERY_S (calls that never came leave no trace here). While no
        manager can be asked, it waits. Raises NoSuchGroup."""
        reference = Space.reference_of(member)
        expelled = self._space.expelled(member, self.id)
        while not expelled.done():
            await asyncio.wait([expelled], timeout=ASK_EVERY_S)
            if not expelled.done() and await self._is_without(reference):
                self._space.forget_join(reference, self.id)
                return

    async def _is_without(self, reference: Reference) -> bool:
        try:
            news = await self._operate(Operation.MEMBERS)
        except NoSuchGroup:
            raise
        except CallError:
            return False
        return reference not in news.objects

    async def members(self) -> list[K]:
        news = await self._operate(Operation.MEMBERS)
        return [self._space.proxy(reference, self._kind) for reference in news.objects]

    async def set_atomic(self, is_atomic: bool) -> None:
        await self._operate(Operation.ATOMIC if is_atomic else Operation.NONATOMIC)

    async def is_atomic(self) -> bool:
        return (await self._operate(Operation.MEMBERS)).is_atomic

    async def _operate(self, operation: Operation, *objects: Reference) -> News:
        return await self._space.operate(operation, objects=objects, group=self.id)


# Groups kept by one object.


class MemberList(Remote):
    """The object that holds the list of the members of a UGroup."""

    def __init__(self) -> None:
        self._members: list[Remote] = []
        self._is_atomic = False

    @export
    def join(self, member: Remote) -> None:
        """Add `member` at the end, unless it is a member."""
        if member not in self._members:
            self._members.append(member)

    @export
    def leave(self, member: Remote) -> None:
        """Remove `member`. ValueError when it is no member."""
        self._members.remove(member)

    @export
    def drop(self, member: Remote) -> None:
        """Remove a dead member. Several callers may report it."""
        if member in self._members:
            self._members.remove(member)

    @export
    def members(self) -> tuple[list[Remote], bool]:
        """The members in the order in which they joined; and whether calls are atomic."""
        return self._members, self._is_atomic

    @export
    def set_atomic(self, is_atomic: bool) -> None:
        """Set the attribute for all later calls."""
        self._is_atomic = is_atomic


class UGroupRef(Proxy):
    """The proxy of a UGroup."""

    __slots__ = ("member_list", "space")
    _callee = "member_list"

    def __init__(self, space: Space, member_list: MemberList) -> None:
        self.space = space
        self.member_list = member_list

    def begin(self, request: Request, replies: Replies[Any]) -> None:
        members = self.member_list.members.options(timeout=request.options.timeout).send()
        # The call goes on in the caller's context: the object at work, or the program.
        members.add_done_callback(partial(self._go_on, request, replies), context=copy_context())

    def _go_on(self, request: Request, replies: Replies[Any], found: Call[tuple[list[Remote], bool]]) -> None:
        if replies.has_ended or found.cancelled():
            return
        error = found.exception()
        if error is not None:
            replies.fail(error if isinstance(error, CallError) else NoSuchGroup(str(error)))
            return
        members, is_atomic = found.result()
        if not members:
            replies.fail(EmptyGroup("the group has no member"))
            return
        replies.resolve(tuple(map(Space.reference_of, members)))
        replies.on_dead = self._lose
        options = replace(request.options, is_atomic=is_atomic or request.options.is_atomic)
        self.space.begin(request._replace(options=options), replies)

    def _lose(self, member: Reference) -> None:
        # This may run outside of the loop, in the middle of an arrival.
        self.space.loop.call_soon(self._drop, member, context=self.space.context)

    def _drop(self, member: Reference) -> None:
        with suppress(Overrun):  # then a later call will find it out again
            told = self.member_list.drop.send(self.space.proxy(member, self.kind))
            # An error is ignored: the member list may be gone, too.
            told.add_done_callback(lambda call: call.cancelled() or call.exception())

    @property
    def pointer(self) -> Pointer:
        return Pointer(SHAPE_UGROUP, (Space.reference_of(self.member_list).word,), kind_name(self.kind))

    def __repr__(self) -> str:
        return f"<group of {self.kind.__name__} with {self.member_list!r}>"


class UGroup(Group[K]):
    """A group kept by one object. Its methods raise the exceptions of a call of that object: DeadObject or Unreachable
    when it is gone."""

    def __init__(self, space: Space, member_list: MemberList, kind: type[K]) -> None:
        self._member_list = member_list
        self._kind = kind
        kinds: type[Remote] = kind
        self.proxy = cast("K", proxy_class(UGroupRef, kinds)(space, member_list))

    @classmethod
    def create(cls, space: Space, kind: type[K]) -> UGroup[K]:
        """A new group without members, whose member list lives in this space. LocalError when `kind` is no class of
        objects."""
        require_kind(kind)
        return cls(space, space.create(MemberList()), kind)

    @classmethod
    def of(cls, proxy: K) -> UGroup[K]:
        """The group that `proxy` stands for. LocalError when it stands for something else."""
        found: object = proxy
        if not isinstance(found, UGroupRef):
            raise LocalError(f"a {type(found).__name__} stands for no group kept by one object")
        return cls(found.space, found.member_list, cast("type[K]", found.kind))

    @classmethod
    async def named(cls, space: Space, name: str, kind: type[K]) -> UGroup[K]:
        """The group whose proxy was bound to `name`: the name means its member list, so `space.names.lookup` gives no
        group. Raises as `space.names.lookup`."""
        require_kind(kind)
        return cls(space, await space.names.lookup(name, MemberList), kind)

    async def join(self, member: K) -> None:
        _reference_of(member, self._kind)
        await self._member_list.join(member)

    async def leave(self, member: K) -> None:
        """Make `member` leave the group. RemoteException (ValueError) when it is no member."""
        await self._member_list.leave(member)

    async def members(self) -> list[K]:
        members, _ = await self._member_list.members()
        return cast("list[K]", members)

    async def set_atomic(self, is_atomic: bool) -> None:
        await self._member_list.set_atomic(is_atomic)

    async def is_atomic(self) -> bool:
        _, is_atomic = await self._member_list.members()
        return is_atomic


def _reference_of(member: object, kind: type[Remote]) -> Reference:
    """The reference of an object that may join a group of `kind`; LocalError for any other, which would answer its
    calls with NoSuchMethod. Classes are compared by their names in messages, which stay when a module is loaded
    anew."""
    reference = Space.reference_of(member)
    found = member.kind if isinstance(member, Proxy) else type(member)
    if kind_name(kind) not in map(kind_name, found.__mro__):
        name = kind.__name__
        raise LocalError(f"a {found.__name__} cannot join a group of {name}: its class is not derived from {name}")
    return reference


def _group_proxy(space: Space, pointer: Pointer) -> object:
    return proxy_class(GroupRef, kind_named(pointer.kind))(space, GroupId.of_word(_only(pointer)))


def _ugroup_proxy(space: Space, pointer: Pointer) -> object:
    member_list = space.proxy(Reference.of_word(_only(pointer)), MemberList)
    return proxy_class(UGroupRef, kind_named(pointer.kind))(space, member_list)


def _only(pointer: Pointer) -> int:
    if len(pointer.words) != 1:
        raise RemoteError(DropReason.MALFORMED, f"a proxy of a group with {len(pointer.words)} words")
    return pointer.words[0]


Space.shapes[SHAPE_GROUP] = _group_proxy
Space.shapes[SHAPE_UGROUP] = _ugroup_proxy


SHAPE_LIST = 1
_ATOMIC, _UNORDERED = 1, 2


def ObjectList(  # noqa: N802 (to its callers it is a class)
    members: Iterable[K], *, atomic: bool = False, ordered: bool = True, timeout: float | None = None
) -> K:
    """A callee that stands for all of `members`: proxies of objects, or objects that live here.

    `atomic`: a call is for all or none; `ordered` False: its order does not matter; `timeout` in seconds; each can be
    set for a single call, too (`method.options`). LocalError for no members, too many, one twice, or members of classes
    of which none is the base of all others.
    """
    proxies = [_proxy_of(member) for member in members]
    if not 1 <= len(proxies) <= MAX_ADDRESSED:
        raise LocalError(f"an object list has 1 to {MAX_ADDRESSED} members, not {len(proxies)}")
    references = tuple(proxy.reference for proxy in proxies)
    if len(set(references)) != len(references):
        raise LocalError("an object list names an object twice")
    kind = _common_kind([proxy.kind for proxy in proxies])
    options = Options(is_atomic=atomic, is_ordered=ordered, timeout=timeout)
    return cast("K", proxy_class(ListRef, kind)(proxies[0].space, references, options))


class ListRef(Proxy):
    """The proxy behind an object list."""

    __slots__ = ("_space", "default_options", "references")
    _callee = "references"

    def __init__(self, space: Space, references: tuple[Reference, ...], options: Options) -> None:
        self._space = space
        self.references = references
        self.default_options = options

    def begin(self, request: Request, replies: Replies[Any]) -> None:
        replies.members = self.references
        self._space.begin(request, replies)

    @property
    def pointer(self) -> Pointer:
        """The list as data, with the options atomic and unordered; a time-out does not travel."""
        options = self.default_options
        head = _ATOMIC * options.is_atomic | _UNORDERED * (not options.is_ordered)
        words = (head, *(reference.word for reference in self.references))
        if len(words) > MAX_POINTER_WORDS:
            raise LocalError(f"a list of {len(self.references)} objects is too long to be passed")
        return Pointer(SHAPE_LIST, words, kind_name(self.kind))

    def __repr__(self) -> str:
        return f"<list of {len(self.references)} {self.kind.__name__}>"


def _proxy_of(member: object) -> Ref:
    found = member.home if isinstance(member, Remote) else member
    if not isinstance(found, Ref):
        raise LocalError(f"a {type(member).__name__} is no object, and no proxy of one: a list cannot name it")
    return found


def _common_kind(kinds: list[type[Remote]]) -> type[Remote]:
    for kind in kinds:
        if all(issubclass(one, kind) for one in kinds):
            return kind
    raise LocalError(f"{', '.join(sorted({kind.__name__ for kind in kinds}))} have no base among them")


def _list_proxy(space: Space, pointer: Pointer) -> object:
    head, *words = pointer.words or (0,)
    if not words or len(set(words)) != len(words) or head > (_ATOMIC | _UNORDERED):
        raise RemoteError(DropReason.MALFORMED, "a list that names nobody, or somebody twice")
    options = Options(is_atomic=bool(head & _ATOMIC), is_ordered=not head & _UNORDERED)
    made = proxy_class(ListRef, kind_named(pointer.kind))
    return made(space, tuple(map(Reference.of_word, words)), options)


Space.shapes[SHAPE_LIST] = _list_proxy
