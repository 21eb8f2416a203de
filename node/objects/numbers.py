"""Numbers of calls where address spaces are processes: each space counts its own calls, the machine numbers them all.

Calls of one life of a machine carry one sequence of numbers, which its managers and the analysis rely on. A space in a
process of its own cannot know how many calls the others have made. So it counts alone, from 1, and the machine gives
each call its next number when it hears of it. Whatever passes between the two is renumbered here, both ways:

    number in the machine   of a call of this space     its count there
                            of a call of another space  with OTHER set, so that none is taken for the other
                            of another life's call      as it is

The number stands in messages (node/objects/local.py) as `seq`, in the stamp of a payload, and in the words of an
OBJECTS_CALL that goes up; in records as `number`, or as `value` of reports about an own call.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from node.errors import DropReason, LocalError, RemoteError
from node.host.host import TraceRow
from node.objects.addresses import MAX_SPACES
from node.trace import APPLICATION_STAMP, STAMP_SIZE, CallReport, Event, Notice
from node.wire import Kind, Message, table_struct

OTHER = 1 << 31
"""Of 32 bits that a stamp has for a number."""
MAX_NUMBER = OTHER - 1

_STAMP = table_struct(APPLICATION_STAMP)
_ABOUT_OWN_CALLS = frozenset({Notice.CALLED, CallReport.ABORTED, CallReport.UNREACHABLE, CallReport.REFUSED})
_SPACE_BITS = 4


class Numbers:
    """Of one life of one machine. Each call takes 12 bytes here, for good: news of it may come at any time.

    LocalError for what no space of ours can say: then the space is broken.
    """

    def __init__(self, member: int, incarnation: int) -> None:
        self._life = (member, incarnation)
        self._of_spaces = tuple(array("I") for _ in range(MAX_SPACES))
        """Per space: the machine's number of each of its calls."""
        self._earlier = [0] * MAX_SPACES
        """How many of these are of processes that have ended."""
        self._counts = array("Q", [0])
        """For each number of the machine: whose, and its count there."""

    def __len__(self) -> int:
        """Calls so far, which is the last number."""
        return len(self._counts) - 1

    def allot(self, space: int, count: int) -> int:
        """The number of the next call of a space, its `count`th."""
        ours = self._of_spaces[space]
        before = len(ours) - self._earlier[space]
        if count != before + 1 or len(self) == MAX_NUMBER:
            raise LocalError(f"space {space} submits its call {count} after {before}")
        ours.append(len(self) + 1)
        self._counts.append(len(ours) << _SPACE_BITS | space)
        return len(self)

    def begin_anew(self, space: int) -> None:
        """Its process has ended; the next one counts from 1 again. Calls of the old one are as if of another space."""
        self._earlier[space] = len(self._of_spaces[space])

    def up(self, space: int, count: int) -> int:
        """The machine's number of what a space calls `count`."""
        if count & OTHER:
            number = count & ~OTHER
            if not 1 <= number <= len(self):
                raise LocalError(f"space {space} has heard of a call {number} that nobody has made")
            return number
        ours, earlier = self._of_spaces[space], self._earlier[space]
        if not 1 <= count <= len(ours) - earlier:
            raise LocalError(f"space {space} names its call {count} of {len(ours) - earlier}")
        return ours[earlier + count - 1]

    def down(self, space: int, number: int) -> int:
        """What a space calls the machine's `number`. RemoteError for one that was never given: somebody elsewhere has
        made it up."""
        if not 1 <= number <= len(self):
            raise RemoteError(DropReason.UNEXPECTED, f"call {number} of {len(self)}")
        count, owner = divmod(self._counts[number], 1 << _SPACE_BITS)
        count -= self._earlier[space]
        return count if owner == space and count > 0 else number | OTHER

    # Messages.

    def message_up(self, space: int, message: Message) -> Message:
        """From the manager of a space to that of the machine."""
        if (message.origin, message.incarnation) != self._life or not message.seq:
            return message
        number = self.up(space, message.seq)
        if message.kind is not Kind.OBJECTS_CALL:
            return replace(message, seq=number)
        if len(message.words) < 2:
            raise LocalError(f"space {space} passes a call on that has no number")
        words = (message.words[0], number, *message.words[2:])
        return replace(message, seq=number, words=words, payload=self._stamped(message.payload, number))

    def message_down(self, space: int, message: Message) -> Message:
        """From the manager of the machine to that of a space. News are about its own calls, whoever sends them.
        RemoteError as `down`."""
        is_ours = (message.origin, message.incarnation) == self._life or message.kind is Kind.OBJECTS_NEWS
        if not is_ours or not message.seq:
            return message
        count = self.down(space, message.seq)
        payload = self._stamped(message.payload, count) if message.kind is Kind.OBJECTS_CALL else message.payload
        return replace(message, seq=count, payload=payload)

    def _stamped(self, payload: bytes, number: int) -> bytes:
        return _STAMP.pack(*self._life, number) + payload[STAMP_SIZE:]

    # Records.

    def record_up(self, space: int, row: TraceRow) -> TraceRow:
        """What a space has written down, as the machine writes it. A submission gets its number here."""
        event, detail, origin, incarnation, extra, number, at_ns, clock_ns, value = row
        if event == Event.REPORT:
            if detail not in _ABOUT_OWN_CALLS:
                return row
            value = self.up(space, value)
        elif (origin, incarnation) != self._life or not number:
            return row
        else:
            number = self.allot(space, number) if event == Event.SUBMIT else self.up(space, number)
        return (event, detail, origin, incarnation, extra, number, at_ns, clock_ns, value)
