"""Names of objects and groups, the addressing of a message, and the news of managers: the words that travel with calls.

A machine is a member of the run; its address spaces are numbered from 0; objects are numbered machine-wide, so that one
number gives both: `number = space * OBJECTS_IN_SPACE + index`, index from 1. A reference names the incarnation of the
machine in which its object was made: the object dies with it.

Decoders assume that an enemy wrote the words: RemoteError MALFORMED, before anything else.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import NamedTuple

from node.core import MAX_INCARNATION, MAX_MEMBER
from node.errors import DropReason, LocalError, RemoteError
from node.wire import WORD_SIZE

OBJECTS_IN_SPACE = 4096
MAX_SPACES = 15
MAX_TIMESTAMP = 2**62
"""Timestamps count events: no run comes near it; an enemy may."""
MAX_ADDRESSED = 1024
"""Most objects that one list may name."""
MAX_NAME_BYTES = 255
"""Of a name in the name service, in UTF-8."""


class Reference(NamedTuple):
    """One object of one incarnation of one machine; a value that travels in messages as one word."""

    member: int
    incarnation: int
    number: int

    @property
    def space(self) -> int:
        return self.number // OBJECTS_IN_SPACE

    @property
    def word(self) -> int:
        return self.member << 32 | self.incarnation << 16 | self.number

    @classmethod
    def of_word(cls, word: int) -> Reference:
        """RemoteError MALFORMED for a word that names no object."""
        found = cls(word >> 32, word >> 16 & 0xFFFF, word & 0xFFFF)
        if not (0 <= found.member <= MAX_MEMBER and 1 <= found.incarnation <= MAX_INCARNATION and found._is_numbered):
            raise RemoteError(DropReason.MALFORMED, f"word {word:#x} is no reference")
        return found

    @property
    def _is_numbered(self) -> bool:
        return self.space < MAX_SPACES and self.number % OBJECTS_IN_SPACE > 0


class GroupId(NamedTuple):
    """A replicated group (RGroup): the sub-network (its place in the topology, from 0) whose machines keep it, the
    incarnation that made it, and that incarnation's number for it, from 1. One word."""

    partition: int
    member: int
    incarnation: int
    number: int

    @property
    def word(self) -> int:
        return self.partition << 48 | self.member << 32 | self.incarnation << 16 | self.number

    @classmethod
    def of_word(cls, word: int) -> GroupId:
        """RemoteError MALFORMED for a word that names no group."""
        found = cls(word >> 48, word >> 32 & 0xFFFF, word >> 16 & 0xFFFF, word & 0xFFFF)
        if not (found.partition < 0x1000 and found.member <= MAX_MEMBER and found.incarnation and found.number):
            raise RemoteError(DropReason.MALFORMED, f"word {word:#x} names no group")
        return found


class Operation(enum.IntEnum):
    """The operation of a submission. CREATE to LOOKUP concern a group or the names, and are answered with news to the
    asking object."""

    CALL = 0
    CREATE = 1
    """`group` exists from now on, without members: in the caller's sub-network; its name was never used."""
    JOIN = 2
    """`objects[0]` joins; the first other member that lives hands its state over at this point of the order."""
    LEAVE = 3
    MEMBERS = 4
    ATOMIC = 5
    NONATOMIC = 6
    BIND = 7
    """The payload's name (UTF-8, behind the stamp) means `group` or `objects[0]` from now on."""
    UNBIND = 8
    LOOKUP = 9
    APPEAR = 10
    """These objects of the caller's own space exist from now on: told only to its local manager, which votes for them;
    no news answer it, and the payload is not read."""
    VANISH = 11
    """These objects exist no longer: their manager votes against atomic calls for them from now on."""
    BIND_NEW = 12
    """As BIND; refused where the name means something in the caller's sub-network."""


BINDS = frozenset({Operation.BIND, Operation.BIND_NEW})
NAMING = BINDS | {Operation.UNBIND, Operation.LOOKUP}
"""Operations on the names: `group` and `objects` are no receivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressing:
    """The receivers of a submission: either `objects` (an object list; one object: point to point) or `group`.

    `is_atomic`: all or none (a group's own setting counts, too). `is_ordered` False: indivisibility is off, each member
    gets it at its arrival. `is_direct`: to the one object in `objects`, only in the order of the sender's messages:
    calls of one object and replies.
    """

    caller: Reference
    objects: tuple[Reference, ...] = ()
    group: GroupId | None = None
    operation: Operation = Operation.CALL
    is_atomic: bool = False
    is_ordered: bool = True
    is_direct: bool = False

    def __post_init__(self) -> None:
        if len(self.objects) > MAX_ADDRESSED:
            raise LocalError(f"a message is for at most {MAX_ADDRESSED} objects, not {len(self.objects)}")
        if len(set(self.objects)) != len(self.objects):
            raise LocalError("an object is named twice")
        if self.is_direct and (len(self.objects) != 1 or self.group is not None):
            raise LocalError("a direct message is for one object")
        if self.operation is Operation.CALL and bool(self.objects) == (self.group is not None):
            raise LocalError("a call is for the objects of a list or for a group")

    @property
    def words(self) -> tuple[int, ...]:
        """The words: head (operation 8 bits, then atomic, unordered, direct, group), caller, [group,] objects."""
        head = self.operation | self.is_atomic << 8 | (not self.is_ordered) << 9 | self.is_direct << 10
        group = () if self.group is None else (self.group.word,)
        return (head | bool(group) << 11, self.caller.word, *group, *(one.word for one in self.objects))

    @classmethod
    def of_words(cls, words: tuple[int, ...]) -> Addressing:
        """The inverse. RemoteError MALFORMED for anything that `words` never gives."""
        if len(words) < 2 or words[0] >> 12 or words[0] & 0xFF > max(Operation):
            raise RemoteError(DropReason.MALFORMED, "words that address nobody")
        head, rest = words[0], words[2:]
        has_group = bool(head >> 11 & 1)
        if has_group and not rest:
            raise RemoteError(DropReason.MALFORMED, "a group without a name")
        try:
            return cls(
                caller=Reference.of_word(words[1]),
                objects=tuple(map(Reference.of_word, rest[has_group:])),
                group=GroupId.of_word(rest[0]) if has_group else None,
                operation=Operation(head & 0xFF),
                is_atomic=bool(head >> 8 & 1),
                is_ordered=not head >> 9 & 1,
                is_direct=bool(head >> 10 & 1),
            )
        except LocalError as error:
            raise RemoteError(DropReason.MALFORMED, str(error)) from None


class NewsKind(enum.IntEnum):
    """The event that news report. In brackets: the fields with details."""

    RESOLVED = 1
    """A call to a group has its place in the order: these members, in the group's order, will get it (`objects`,
    `group`, `timestamp`; `is_atomic`: all or none, by the call's or the group's own wish)."""
    ABORTED = 2
    """An atomic call: no object got it or will (`objects`: those that could not, where it is known)."""
    UNREACHABLE = 3
    """These objects have ended or their machines are silent: no answer is to be expected of them (`objects`; none: of
    all). Whether they got the call is not known."""
    NO_GROUP = 4
    """There is no such group (`group`), or for a call: it has no members."""
    DONE = 5
    """The operation (`operation`) was carried out at `timestamp`. CREATE: `group`. MEMBERS: `objects`, `is_atomic`.
    LOOKUP: `group` or one object, neither: the name means nothing."""
    REFUSED = 6
    """The operation (`operation`) or call was not carried out and will not be: this machine is cut off from the
    machines that decide, or the request is against the rules."""
    STATE_WANTED = 7
    """To the donor: hand your state, as it is before any later delivery, to the joiner (`objects`: donor, joiner;
    `group`, `timestamp`: the place of the JOIN in the order)."""
    JOINED = 8
    """To the joiner: it is a member from here on (`group`, `timestamp` of the JOIN). `objects`: joiner and donor: the
    donor's state is to come first; joiner alone: it is the first member, and its own state is the group's."""
    EXPELLED = 9
    """To a member of ours: the group goes on without it (`group`; `objects`: the member). It has missed later calls: it
    can only join again, and take over the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """News for an object. NewsKind gives the meaning of each field in each kind."""

    kind: NewsKind
    operation: Operation = Operation.CALL
    objects: tuple[Reference, ...] = ()
    group: GroupId | None = None
    is_atomic: bool = False
    timestamp: int = 0

    def __post_init__(self) -> None:
        if len(self.objects) > MAX_ADDRESSED:
            raise LocalError(f"news name at most {MAX_ADDRESSED} objects, not {len(self.objects)}")
        if not 0 <= self.timestamp <= MAX_TIMESTAMP:
            raise LocalError(f"{self.timestamp} is no timestamp")
        least, most, needs_group = _SHAPES[self.kind]
        if not least <= len(self.objects) <= most:
            raise LocalError(f"news of {self.kind.name} cannot name {len(self.objects)} objects")
        if needs_group and self.group is None:
            raise LocalError(f"news of {self.kind.name} must name a group")


def encode_news(news: News) -> bytes:
    """The words of news, as bytes, 8 each, big-endian."""
    group = () if news.group is None else (news.group.word,)
    head = news.kind | news.operation << 8 | news.is_atomic << 16 | bool(group) << 17
    words = (head, news.timestamp, *group, *(one.word for one in news.objects))
    return struct.pack(f">{len(words)}Q", *words)


def decode_news(data: bytes) -> News:
    """The inverse. RemoteError TRUNCATED or MALFORMED for anything that `encode_news` never gives."""
    count, rest = divmod(len(data), WORD_SIZE)
    if count < 2 or rest:
        raise RemoteError(DropReason.TRUNCATED, f"{len(data)} bytes are no news")
    if count > MAX_ADDRESSED + 3:
        raise RemoteError(DropReason.MALFORMED, f"news of {count} words")
    head, timestamp, *names = struct.unpack(f">{count}Q", data)
    has_group = bool(head >> 17 & 1)
    if head >> 18 or (has_group and not names):
        raise RemoteError(DropReason.MALFORMED, f"news with the head {head:#x}")
    try:
        return News(
            kind=NewsKind(head & 0xFF),
            operation=Operation(head >> 8 & 0xFF),
            objects=tuple(map(Reference.of_word, names[has_group:])),
            group=GroupId.of_word(names[0]) if has_group else None,
            is_atomic=bool(head >> 16 & 1),
            timestamp=timestamp,
        )
    except (ValueError, LocalError) as error:
        raise RemoteError(DropReason.MALFORMED, str(error)) from None


_SHAPES: dict[NewsKind, tuple[int, int, bool]] = {
    NewsKind.RESOLVED: (1, MAX_ADDRESSED, True),
    NewsKind.ABORTED: (0, MAX_ADDRESSED, False),
    NewsKind.UNREACHABLE: (0, MAX_ADDRESSED, False),
    NewsKind.NO_GROUP: (0, 0, True),
    NewsKind.DONE: (0, MAX_ADDRESSED, False),
    NewsKind.REFUSED: (0, MAX_ADDRESSED, False),
    NewsKind.STATE_WANTED: (2, 2, True),
    NewsKind.JOINED: (1, 2, True),
    NewsKind.EXPELLED: (1, 1, True),
}
"""By kind: the least and the greatest number of objects that it names, and whether it must name a group."""
