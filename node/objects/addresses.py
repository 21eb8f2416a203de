"""Who is who among objects, and whom a message is for: the words that travel with every call.

A machine is a member of the run; its address spaces are numbered from 0; objects are numbered machine-wide, so that one
number says both: `number = space * OBJECTS_IN_SPACE + index`, index from 1. A reference names the incarnation of the
machine in which its object was made: an object dies with it.

Whoever decodes assumes that an enemy wrote the words: RemoteError MALFORMED, before anything else.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from node.core import MAX_INCARNATION, MAX_MEMBER
from node.errors import DropReason, LocalError, RemoteError

OBJECTS_IN_SPACE = 4096
MAX_SPACES = 15
MAX_ADDRESSED = 1024
"""Objects that one list may name."""


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
    """What is asked. CREATE to LOOKUP concern a group or the names, and are answered with news to the asking object."""

    CALL = 0
    CREATE = 1
    """`group` exists from now on, of nobody: in the sub-network of whoever asks, who has not used its name before."""
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
    """These objects of the caller's own space exist from now on: told to its local manager alone, which votes for them;
    no news answer it, and the payload is not looked at."""
    VANISH = 11
    """They exist no longer: their manager votes against what must reach all of its objects from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressing:
    """Whom a submission is for. Either `objects` (an object list; one object: point to point) or `group`.

    `is_atomic`: all or none (a group's own setting counts, too). `is_ordered` False: indivisibility is off, each member
    gets it as it comes. `is_direct`: to the one object in `objects` without any order but that of its sender's
    messages: calls of one object and replies.
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
        """head (operation 8 bits, then atomic, unordered, direct, group), caller, [group,] objects."""
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
