"""Object lists (paper 004, 2.3.1): a group that its caller names, for as long as he likes.

    both = ObjectList([one, other])
    first = await both.add(1)                     # the first reply
    values = await both.add.all(1)                # matched to the members
    await ObjectList([one, other], atomic=True).add(1)

A list is typed as its members are, so whoever calls it need not know that it is no single object. It is a value like
every proxy: it can be an argument, and means the same members elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import MAX_ADDRESSED, Reference
from node.objects.export import Asked, Options, Proxy, Remote, kind_name, kind_named, proxy_class
from node.objects.replies import Replies
from node.objects.space import Ref, Space
from node.objects.values import MAX_POINTER_WORDS, Pointer

SHAPE_LIST = 1
_ATOMIC, _UNORDERED = 1, 2

K = TypeVar("K", bound=Remote)


def ObjectList(  # noqa: N802 (to whoever calls it, it is a class)
    members: Iterable[K], *, atomic: bool = False, ordered: bool = True, timeout: float | None = None
) -> K:
    """A callee that stands for all of `members`: objects, by their proxies or, where they live here, themselves.

    `atomic`: a call is for all or none; `ordered` False: its order is of no matter; `timeout` in seconds; each can be
    said for a single call, too (`method.options`). LocalError for nobody, too many, one twice, or members of classes of
    which none is the base of all others.
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

    def __init__(self, space: Space, references: tuple[Reference, ...], options: Options) -> None:
        self._space = space
        self.references = references
        self.default_options = options

    def begin(self, asked: Asked, replies: Replies[Any]) -> None:
        replies.members = self.references
        self._space.begin(asked, replies)

    @property
    def pointer(self) -> Pointer:
        """What is atomic or unordered stays so elsewhere; a time-out is its caller's own."""
        options = self.default_options
        head = _ATOMIC * options.is_atomic | _UNORDERED * (not options.is_ordered)
        words = (head, *(reference.word for reference in self.references))
        if len(words) > MAX_POINTER_WORDS:
            raise LocalError(f"a list of {len(self.references)} objects is too long to be passed")
        return Pointer(SHAPE_LIST, words, kind_name(self.kind))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ListRef) and other.references == self.references

    def __hash__(self) -> int:
        return hash(self.references)

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
