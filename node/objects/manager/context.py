"""The shared state of the parts of a machine's manager: identity, time, work of this turn, spaces, log queue.

A turn is the processing of one input of the host. Tasks of one part for another become work, done in order; outputs of
the machine become effects, in order (`out`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import TypeVar

from node.core import Core, Membership, Submission
from node.effects import Effect, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.group.view import Incarnation
from node.objects.addresses import OBJECTS_IN_SPACE, News, Operation, Reference
from node.objects.log.entries import Call, Called, ClockAdvance, Entry, Outcome, Settled, message_of
from node.objects.manager.direct import Direct, DirectChannels
from node.objects.manager.local import (
    MACHINE,
    SPACE_BASE,
    LocalCore,
    call_message,
    drop_message,
    news_message,
)
from node.objects.parameters import ObjectsParameters
from node.transport import Timers
from node.wire import Message, encode_message

T = TypeVar("T")

RESILIENT = (1,)
"""Resilience, as words of a submission; without words: the log's parameter."""

Take = Callable[[int, Message], None]
"""Takes (address space, message that its manager passes on)."""


def is_for_list(call: Call) -> bool:
    return call.addressing.operation is Operation.CALL and call.addressing.group is None


class Context:
    """The context of one machine. `membership` names the sub-networks. `layer`: of the parts' timers. `take` receives
    messages that the local managers pass on, in the machine's turn. `has_space_processes`: address spaces are processes
    of their own."""

    def __init__(
        self,
        *,
        membership: Membership,
        parameters: ObjectsParameters,
        layer: int = 0,
        take: Take = lambda *_: None,
        has_space_processes: bool = False,
    ) -> None:
        self.us = membership
        self.parameters = parameters
        self.incarnation = Incarnation(membership.member, membership.incarnation)
        self.place = membership.partition
        self.place_of = {member: at for at, members in enumerate(membership.partitions) for member in members}
        self.now_ns = 0
        self.heard = 0
        """The highest timestamp known here."""
        self.timers = Timers(layer)
        self.channels = DirectChannels(
            membership=membership,
            parameters=parameters.reliable,
            patience_ns=parameters.patience_ns,
            timers=self.timers,
        )
        """Channels to the managers of other machines."""
        self.managers = LocalManagers(self, parameters.spaces, take, has_space_processes=has_space_processes)
        self.log_queue: deque[Submission] = deque()
        """Entries that wait until the log takes them."""
        self.out: list[Effect] = []
        """Effects for the host, in order."""
        self._work: deque[Callable[[], None]] = deque()

    def mine(self, objects: Iterable[Reference]) -> tuple[Reference, ...]:
        """The objects that live in this incarnation of this machine."""
        return tuple(one for one in objects if one[:2] == self.incarnation)

    def append(self, entry: Entry) -> None:
        """Queue an entry for the log of the sub-network. Votes, and entries on which other sub-networks act, are
        resilient. A call to a list is not: what is decided by several follows from resilient proposals and votes behind
        it. Nor is an outcome: machines that lose it ask for it again."""
        message = message_of(entry, self.us)
        is_brittle = isinstance(entry, Settled | ClockAdvance)
        is_brittle |= isinstance(entry, Called) and is_for_list(entry.call)
        is_brittle |= isinstance(entry, Outcome) and entry.timestamp > 0
        words = () if is_brittle else RESILIENT
        self.log_queue.append(
            Submission(payload=encode_message(message), inner=message.kind, flags=message.flags, words=words)
        )

    def send(self, target: Incarnation, message: Message, *, after: int = 0) -> int:
        """Send to the manager of another machine, behind earlier messages; the target handles it when it has dispatched
        everything up to the timestamp `after`. Returns the channels' number of the message."""
        direct = Direct(
            payload=encode_message(message), inner=message.kind, after=after, heard=self.heard, flags=message.flags
        )
        return self.channels.send(target, direct, self.now_ns, self.out)

    # The turn.

    @property
    def is_worked_off(self) -> bool:
        return not self._work

    def later(self, items: Iterable[T], act: Callable[[T], None]) -> None:
        """Add work behind all present work."""
        self._work.extend(partial(act, item) for item in items)

    def work(self) -> None:
        """Do the next piece of work."""
        self._work.popleft()()

    def drop_work(self) -> None:
        self._work.clear()

    def take_out(self) -> list[Effect]:
        """Take all effects for the host."""
        out, self.out = self.out, []
        return out


class LocalManagers:
    """The local managers (LMM) below a machine's manager: in this process, or each in one of its own
    (`has_space_processes`) with a RemoteSpaceCore that stands for it here. The machine sends to them in the order of
    its decisions."""

    def __init__(self, context: Context, count: int, take: Take, *, has_space_processes: bool) -> None:
        self._context = context
        self._take = take
        self._spaces: tuple[Core, ...] = tuple(
            RemoteSpaceCore(space=space) if has_space_processes else LocalCore(membership=context.us, space=space)
            for space in range(count)
        )
        self._buffered = [0] * count
        self._full: set[int] = set()
        """Spaces that take no calls now; kept, because a space changes only with an input, and the host asks far more
        often."""

    def __len__(self) -> int:
        return len(self._spaces)

    @property
    def buffered(self) -> int:
        return sum(self._buffered)

    @property
    def can_submit(self) -> bool:
        return not self._full

    @property
    def is_idle(self) -> bool:
        return all(space.is_idle for space in self._spaces)

    def submit(self, submission: Submission) -> None:
        """Submit a request of one of our objects. LocalError: no address space here has the object."""
        space = submission.place // OBJECTS_IN_SPACE
        if not 0 <= space < len(self._spaces):
            raise LocalError(f"object {submission.place} lies in no address space of this machine")
        self._said_by(space, self._spaces[space].on_submit(submission, self._context.now_ns))

    def said(self, space: int, message: Message) -> None:
        """The manager of this space passes a message on; the machine handles it in its turn."""
        self._context.later((message,), partial(self._take, space))

    def tell(self, place: int, message: Message) -> None:
        """Send to the manager of the object at `place`. RemoteError if there is none."""
        space = place // OBJECTS_IN_SPACE
        if not 0 <= space < len(self._spaces):
            raise RemoteError(DropReason.MALFORMED, f"object {place} lies in no address space of this machine")
        self._said_by(space, self._spaces[space].on_message(message, MACHINE, self._context.now_ns))

    def tell_caller(self, call: Call, *news: News) -> None:
        """Tell news to our object that made `call`."""
        for one in news:
            self.tell_object(call.caller.number, call.id.number, one)

    def tell_object(self, place: int, number: int, news: News) -> None:
        """Tell news to an object. `number`: its call that the news are about; 0: none."""
        self.tell(place, news_message(self._context.us, number, place, news))

    def dispatch(self, call: Call, objects: Iterable[Reference]) -> None:
        """Give the call to these objects of ours now."""
        for places in self.by_space(objects):
            self.tell(places[0], call_message(call.id, places, call.payload))

    def drop(self, call: Call, objects: Iterable[Reference]) -> None:
        """Tell that these objects will not get the call that they were asked to vote on."""
        for places in self.by_space(objects):
            self.tell(places[0], drop_message(call.id))

    def by_space(self, objects: Iterable[Reference]) -> list[tuple[int, ...]]:
        """The places of objects of ours, one tuple for each space, ascending by space."""
        places = sorted((one.number for one in objects), key=_space_of)
        known = [place for place in places if _space_of(place) < len(self._spaces)]
        return [tuple(some) for _, some in groupby(known, key=_space_of)]

    def _said_by(self, space: int, effects: Iterable[Effect]) -> None:
        core = self._spaces[space]
        self._buffered[space] = core.buffered
        if core.can_submit:
            self._full.discard(space)
        else:
            self._full.add(space)
        for effect in effects:
            if isinstance(effect, Send) and effect.target == MACHINE:
                self.said(space, effect.message)
            else:
                self._context.out.append(effect)


def _space_of(place: int) -> int:
    return place // OBJECTS_IN_SPACE


class RemoteSpaceCore(Core):
    """The stand-in for the manager of an address space in another process. Always idle: the owner of the processes
    knows whether they are."""

    can_submit = True
    is_idle = True

    def __init__(self, *, space: int) -> None:
        self._space = space

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        raise LocalError(f"objects of space {self._space} ask their manager in their own process")

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return [Send(target=SPACE_BASE + self._space, message=message)]

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise LocalError(f"{timer} is no timer of a manager that is elsewhere")
