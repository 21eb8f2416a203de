"""Replicated groups and names in the Book of one sub-network.

A group has its members, oldest first, and a queue. What is asked of a group goes through its queue in the order of the
log; most of the time the queue is empty and it goes through at once. It stands still

- before a JOIN, until all calls to the group are final; and behind one, until that is final (the barrier);
- before a call whose caller still waits for the timestamp of an earlier one that covers more sub-networks. Members
  leave, or are left out, so a later call may cover less than an earlier one; it would not be sure to come after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from node.errors import DropReason, RemoteError
from node.objects.addresses import GroupId, Reference
from node.objects.entries import Call, CallId
from node.objects.records import Reader, Writer

MAX_GROUPS = 4096
MAX_NAMES = 4096
MAX_NAME_BYTES = 255


@dataclass(slots=True)
class Group:
    """`open`: calls to it whose timestamps are not final. `joining`: the JOIN among them."""

    members: tuple[Reference, ...] = ()
    is_atomic: bool = False
    joining: CallId | None = None
    open: dict[CallId, None] = field(default_factory=dict)
    queue: deque[Call] = field(default_factory=deque)

    def leave(self, gone: Callable[[Reference], bool]) -> None:
        self.members = tuple(member for member in self.members if not gone(member))


class Registry:
    """The groups that were made here, and the names that were bound here."""

    def __init__(self) -> None:
        self.groups: dict[GroupId, Group] = {}
        self.names: dict[str, GroupId | Reference] = {}

    def create(self, name: GroupId) -> bool:
        """False: there is such a group, or there are too many."""
        if name in self.groups or len(self.groups) >= MAX_GROUPS:
            return False
        self.groups[name] = Group()
        return True

    def bind(self, name: bytes, target: GroupId | Reference) -> bool:
        """It means `target` from now on. False: it is no name, or there are too many."""
        text = _text_of(name)
        if text is None or (text not in self.names and len(self.names) >= MAX_NAMES):
            return False
        self.names[text] = target
        return True

    def unbind(self, name: bytes) -> bool:
        """False: it is not bound."""
        text = _text_of(name)
        return text is not None and self.names.pop(text, None) is not None

    def gone(self, is_gone: Callable[[Reference], bool]) -> None:
        """These objects are nobody's members and have no names any more."""
        for group in self.groups.values():
            group.leave(is_gone)
        for text in [text for text, one in self.names.items() if isinstance(one, Reference) and is_gone(one)]:
            del self.names[text]

    def write(self, writer: Writer) -> None:
        writer.words(len(self.groups))
        for name, group in sorted(self.groups.items()):
            writer.words(name.word, group.is_atomic)
            writer.list(one.word for one in group.members)
            writer.list(group.joining.words if group.joining else ())
            writer.list(word for one in group.open for word in one.words)
            writer.words(len(group.queue))
            for call in group.queue:
                writer.list(call.words)
                writer.text(call.payload)
        writer.words(len(self.names))
        for text, target in sorted(self.names.items()):
            writer.text(text.encode())
            writer.words(isinstance(target, GroupId), target.word)

    @classmethod
    def read(cls, reader: Reader) -> Registry:
        """RemoteError MALFORMED for what `write` never gives."""
        found = cls()
        found.groups = dict(reader.many(lambda: (GroupId.of_word(reader.word()), _group(reader))))
        found.names = dict(reader.many(lambda: (_name(reader), _target(reader))))
        return found


def _group(reader: Reader) -> Group:
    is_atomic = bool(reader.word())
    members = tuple(map(Reference.of_word, reader.list()))
    joining = _ids(reader.list())
    return Group(
        members=members,
        is_atomic=is_atomic,
        joining=joining[0] if joining else None,
        open=dict.fromkeys(_ids(reader.list())),
        queue=deque(reader.many(lambda: Call.of_words(reader.list(), reader.text()))),
    )


def _ids(words: Iterable[int]) -> tuple[CallId, ...]:
    found = tuple(words)
    if len(found) % 2:
        raise RemoteError(DropReason.MALFORMED, "half the name of a call")
    return tuple(CallId.of_words(*found[at : at + 2]) for at in range(0, len(found), 2))


def _name(reader: Reader) -> str:
    text = _text_of(reader.text())
    if text is None:
        raise RemoteError(DropReason.MALFORMED, "bytes that are no name")
    return text


def _target(reader: Reader) -> GroupId | Reference:
    return GroupId.of_word(reader.word()) if reader.word() else Reference.of_word(reader.word())


def _text_of(name: bytes) -> str | None:
    if not 1 <= len(name) <= MAX_NAME_BYTES:
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
