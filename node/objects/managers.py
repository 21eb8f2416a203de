"""The local managers (LMM) below a machine's manager: what they are handed, and what they pass on.

One for each address space, in this process (node/objects/local.py), or in one of its own with someone who stands for it
here (node/objects/managers.py). A machine speaks to them in the order in which it decides things; what they have to say
becomes work of its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby

from node.core import Core, Submission
from node.effects import Deliver, Effect, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import OBJECTS_IN_SPACE, Reference
from node.objects.answers import reports_of
from node.objects.context import Context
from node.objects.entries import Call
from node.objects.local import MACHINE, SPACE_BASE, LocalCore, drop_message, hand_message, news_message
from node.objects.news import News, decode_news
from node.wire import Kind, Message

Take = Callable[[int, Message], None]
"""What the manager of this space passes on."""


class LocalManagers:
    """Of one machine with `count` address spaces. `is_alone`: they are processes of their own."""

    def __init__(self, *, context: Context, count: int, is_alone: bool, take: Take) -> None:
        self._context = context
        self._take = take
        self._spaces: tuple[Core, ...] = tuple(
            DistantCore(space=space) if is_alone else LocalCore(membership=context.us, space=space)
            for space in range(count)
        )
        self._held = [0] * count
        self._full: set[int] = set()
        """Spaces that take no calls now. What a space says of itself changes when it is told something, and the host
        asks far more often."""

    def __len__(self) -> int:
        return len(self._spaces)

    @property
    def buffered(self) -> int:
        return sum(self._held)

    @property
    def can_submit(self) -> bool:
        return not self._full

    @property
    def is_idle(self) -> bool:
        return all(space.is_idle for space in self._spaces)

    def submit(self, submission: Submission) -> None:
        """What one of our objects asks. LocalError when it lies nowhere here."""
        space = submission.place // OBJECTS_IN_SPACE
        if not 0 <= space < len(self._spaces):
            raise LocalError(f"object {submission.place} lies in no address space of this machine")
        self._said_by(space, self._spaces[space].on_submit(submission, self._context.now_ns))

    def said(self, space: int, message: Message) -> None:
        """The manager of this space passes it on; the machine sees to it in its turn."""
        self._context.later((message,), partial(self._take, space))

    def tell(self, place: int, message: Message) -> None:
        """To the manager of the object at `place`. RemoteError if there is none."""
        space = place // OBJECTS_IN_SPACE
        if not 0 <= space < len(self._spaces):
            raise RemoteError(DropReason.MALFORMED, f"object {place} lies in no address space of this machine")
        self._said_by(space, self._spaces[space].on_message(message, MACHINE, self._context.now_ns))

    def tell_caller(self, call: Call, *news: News) -> None:
        """The object of ours that made `call`."""
        for one in news:
            self.tell_object(call.caller.number, call.id.number, one)

    def tell_object(self, place: int, number: int, news: News) -> None:
        """`number`: the call of it that the news are about; 0: none."""
        self.tell(place, news_message(self._context.us, number, place, news))

    def hand_out(self, call: Call, objects: Iterable[Reference]) -> None:
        """These objects of ours get the call now."""
        for places in self.by_space(objects):
            self.tell(places[0], hand_message(call.id, places, call.payload))

    def drop(self, call: Call, objects: Iterable[Reference]) -> None:
        """They will not get what they were asked to vote on."""
        for places in self.by_space(objects):
            self.tell(places[0], drop_message(call.id))

    def by_space(self, objects: Iterable[Reference]) -> list[tuple[int, ...]]:
        """Places of objects of ours, apart for each space, ascending by space."""
        places = sorted((one.number for one in objects), key=lambda place: place // OBJECTS_IN_SPACE)
        known = [place for place in places if place // OBJECTS_IN_SPACE < len(self._spaces)]
        return [tuple(some) for _, some in groupby(known, key=lambda place: place // OBJECTS_IN_SPACE)]

    def _said_by(self, space: int, effects: Iterable[Effect]) -> None:
        core = self._spaces[space]
        self._held[space] = core.buffered
        if core.can_submit:
            self._full.discard(space)
        else:
            self._full.add(space)
        self._context.flush()
        for effect in effects:
            if isinstance(effect, Send) and effect.target == MACHINE:
                self.said(space, effect.message)
            else:
                self._context.out.append(effect)
                if isinstance(effect, Deliver) and effect.inner is Kind.OBJECTS_NEWS:
                    self._context.out += reports_of(decode_news(effect.payload), effect.seq)


class DistantCore(Core):
    """Of one address space. It is idle: whoever holds the processes knows whether they are."""

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
