"""What managers tell the application about its calls and its objects: typed news and their bytes.

News go to one object. Most are about one submission of that object; the message that carries them names it (`seq`, the
stamp's number). STATE_WANTED, JOINED and EXPELLED are about nobody's submission: `seq` is 0.

On the wire: one head word (kind 8 bits, operation 8, atomic 1, group 1), the place in the order, the group if there is
one, and the objects; 8 bytes each, big-endian. Whoever decodes assumes that an enemy wrote the bytes: RemoteError.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import MAX_ADDRESSED, GroupId, Operation, Reference
from node.objects.entries import MAX_TIMESTAMP
from node.wire import WORD_SIZE


class NewsKind(enum.IntEnum):
    """What has happened. In brackets: the fields that say more."""

    RESOLVED = 1
    """A call to a group has its place in the order: these members, in the group's order, will get it (`objects`,
    `group`, `timestamp`; `is_atomic`: all or none, by the call's or the group's own wish)."""
    ABORTED = 2
    """An atomic call: nobody got it, nobody will (`objects`: those that could not, where it is known)."""
    UNREACHABLE = 3
    """These have ended or their machines are silent: no answer is to be expected of them (`objects`). Without objects:
    of anybody. Whether they got the call is not known."""
    NO_GROUP = 4
    """There is no such group (`group`), or for a call: it has no members."""
    DONE = 5
    """The operation (`operation`) was carried out at `timestamp`. CREATE: `group`. MEMBERS: `objects`, `is_atomic`.
    LOOKUP: `group` or one object, neither: the name means nothing."""
    REFUSED = 6
    """The operation (`operation`) or call was not carried out and will not be: this machine is cut off from those who
    decide, or what it asks is against the rules."""
    STATE_WANTED = 7
    """To the donor: hand your state, as it is before anything that is delivered after this, to the joiner (`objects`:
    donor, joiner; `group`, `timestamp`: the place of the JOIN in the order)."""
    JOINED = 8
    """To the joiner: it is a member from here on (`group`, `timestamp` of the JOIN). `objects`: joiner, donor, whose
    state is to come first; joiner alone: it is the first member, its own state is the group's."""
    EXPELLED = 9
    """To a member of ours: the group goes on without it (`group`; `objects`: the member). What others have done since
    is missed here: all it can do is join again, and take their state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """See NewsKind for what each field means in each kind."""

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
    """As the module's text says."""
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
"""For each kind: how many objects it names at least and at most, and whether it must name a group."""
