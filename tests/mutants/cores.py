"""Cores with one bug each, and thin cores for bugs in a layer without protection below it.

A mutant overrides as little as possible. Its docstring describes the bug; `table` has its scenario and its verdicts.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from node.clocks import LamportClock
from node.core import Closing, Core, MakeCore, Membership, Submission, random_for
from node.effects import Deliver, Effect, Multicast, Report, Timer
from node.errors import DropReason, LocalError
from node.group.core import GroupCore
from node.group.view import View
from node.protocols.allack import AllAckCore, AllAckParameters
from node.protocols.cbcast import CbcastCore, CbcastParameters
from node.protocols.lamport import LamportCore, LamportParameters
from node.protocols.mutex import Kept, MaekawaCore, MutexCore, MutexParameters, Request, RicartAgrawalaCore
from node.protocols.sequencer import SequencerCore, SequencerParameters
from node.registry import PROTOCOLS
from node.reliable import ReliableCore, ReliableParameters, view_of
from node.reliable.stream import IncomingStream, OutgoingStream
from node.wire import Kind, Message
from testbed.fuzz.explore import OverIdealChannels
from tests.mutants.views import Rest
from tests.node.cluster import MILLISECOND, SECOND, Build

RELIABLE = ReliableParameters(window=64, suspect_after_ns=2 * SECOND)
QUIET = ReliableParameters(window=64, suspect_after_ns=2 * SECOND, heartbeat_at_rest=False)
"""No heartbeats at rest: the checker of grants reads all records for each grant, and no crash at rest has to be
found."""


# Builders. Without an argument: the shipped core; with a mutant: the same with that mutant in its place.


def reliable(kind: type[ReliableCore] = ReliableCore) -> Build:
    """Streams of this kind in each view."""

    class Group(GroupCore):
        def _new_streams(self, view: View) -> ReliableCore:
            return kind(
                membership=view.membership(self._us),
                incarnations=view.incarnation_of,
                view=view.number,
                parameters=RELIABLE,
                rng=self._draw("streams"),
            )

    return over_group(None, Group)


def over_group(
    make: MakeCore | None,
    kind: type[GroupCore] = GroupCore,
    parameters: ReliableParameters = RELIABLE,
    *,
    reports_messages: bool = False,
) -> Build:
    """Cores of one view, each made by `make`, over the group layer."""
    return lambda us, seed: kind(
        membership=us,
        founders=us.members,
        parameters=parameters,
        rng=random_for(seed, us, "group"),
        make=make,
        reports_messages=reports_messages,
    )


def groups(kind: type[GroupCore] = GroupCore) -> Build:
    """The group layer alone."""
    return over_group(None, kind)


def sequencer(kind: type[SequencerCore] = SequencerCore, group: type[GroupCore] = GroupCore, **values: Any) -> Build:
    parameters = SequencerParameters(outstanding=8, **values)
    return over_group(lambda us, _, memory: kind(membership=us, parameters=parameters, memory=memory), group)


def sequencer_over(group: type[GroupCore] = GroupCore) -> Build:
    return sequencer(group=group)


def cbcast(kind: type[CbcastCore] = CbcastCore) -> Build:
    return over_group(lambda us, _, __: kind(membership=us, parameters=CbcastParameters()))


def bare_cbcast(kind: type[CbcastCore] = CbcastCore) -> Build:
    """CBCAST without a layer below: for networks that only duplicate."""
    return lambda us, seed: OverIdealChannels(us, kind(membership=us, parameters=CbcastParameters()))


def allack(kind: type[AllAckCore] = AllAckCore) -> Build:
    parameters = AllAckParameters(null_after_ns=40 * MILLISECOND)
    return over_group(lambda us, rng, _: kind(membership=us, parameters=parameters, rng=rng))


def lamport(kind: type[LamportCore] = LamportCore, clock: type[LamportClock] = LamportClock) -> Build:
    def build(us: Membership, seed: int) -> Core:
        parameters = LamportParameters(report_clock=True, null_after_ns=40 * MILLISECOND)
        of_all_views = clock()
        make: MakeCore = lambda us, rng, memory: kind(  # noqa: E731
            membership=us, parameters=parameters, rng=rng, memory=memory, clock=of_all_views
        )
        return over_group(make)(us, seed)

    return build


def lamport_with(clock: type[LamportClock] = LamportClock) -> Build:
    return lamport(clock=clock)


def mutex(kind: type[MutexCore] = MutexCore) -> Build:
    return over_group(
        lambda us, _, memory: kind(membership=us, parameters=MutexParameters(), memory=memory),
        parameters=QUIET,
        reports_messages=True,
    )


def ricart_agrawala(kind: type[RicartAgrawalaCore | MaekawaCore] = RicartAgrawalaCore) -> Build:
    def build(us: Membership, seed: int) -> Core:
        kept = Kept()
        make: MakeCore = lambda us, _, memory: kind(  # noqa: E731
            membership=us, parameters=MutexParameters(), kept=kept, memory=memory
        )
        return over_group(make, parameters=QUIET, reports_messages=True)(us, seed)

    return build


def maekawa(kind: type[MaekawaCore] = MaekawaCore) -> Build:
    return ricart_agrawala(kind)


def registered(name: str) -> Build:
    """A registered protocol with its default parameters."""
    return lambda us, seed: PROTOCOLS[name].build(membership=us, parameters={}, seed=seed)


class Flood(Core):
    """A thin core: each member relays a new message once if it comes from its origin, and remembers all messages."""

    memory: int | None = None
    can_submit = True
    is_idle = True

    def __init__(self, membership: Membership) -> None:
        self._us = membership
        self._last = 0
        self._had: deque[tuple[int, int]] = deque(maxlen=self.memory)

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise LocalError(f"{timer} is no timer of this core")

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        self._last += 1
        kind = Kind.RELIABLE_DATA
        message = self._us.message(kind, seq=self._last, inner=submission.inner, payload=submission.payload)
        return [Multicast(message=message), Deliver.of(message)]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        name = (message.origin, message.seq)
        if message.origin == self._us.member or name in self._had:
            return [Report(code=DropReason.DUPLICATE, member=source)]
        self._had.append(name)
        relay: list[Effect] = [Multicast(message=message)] if source == message.origin else []
        return [Deliver.of(message), *relay]


class ForgetfulFlood(Flood):
    """Remembers the last four messages."""

    memory = 4


def flood(kind: type[Flood] = Flood) -> Build:
    return lambda us, seed: kind(us)


# The streams of a view.


class HighestOnlyStream(IncomingStream):
    """Takes the highest number received for the number of messages."""

    def accept(self, message: Message, cut: int = 0) -> DropReason | None:
        if message.seq <= self.position:
            return DropReason.DUPLICATE
        self.buffered[message.seq] = message
        self.delivered = message.seq - 1
        self.position = self.known = message.seq
        return None

    def release(self) -> None:
        self.floor = max(self.floor, min(self.stable, self.delivered))
        self.buffered = {number: message for number, message in self.buffered.items() if number > self.floor}


class HighestOnly(ReliableCore):
    """A message below the highest number received is dropped as a duplicate."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self._streams = {peer: HighestOnlyStream(window=RELIABLE.window) for peer in self._streams}


class TakesTwice(ReliableCore):
    """Ignores the result of its own test for duplicates."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        effects = super().on_message(message, source, now_ns)
        is_data = message.kind is Kind.RELIABLE_DATA
        is_refused = any(isinstance(e, Report) and e.code is DropReason.DUPLICATE for e in effects)
        return [*effects, Deliver.of(message)] if is_data and is_refused else effects


class TakesTheStale(GroupCore):
    """Takes messages of an earlier view."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        is_data = message.kind is Kind.RELIABLE_DATA
        is_stale = is_data and self.view is not None and view_of(message) < self.view.number
        return [Deliver.of(message)] if is_stale else super().on_message(message, source, now_ns)


class TakesStrangers(GroupCore):
    """Does not check that the sender is a member."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        is_stranger = message.origin not in self._us.members and message.kind is Kind.RELIABLE_DATA
        return [Deliver.of(message)] if is_stranger else super().on_message(message, source, now_ns)


class NoFlush(ReliableCore):
    """Takes its own messages at the end of a view for the whole cut."""

    def has(self, cut: Mapping[int, int]) -> bool:
        return True

    def rest(self, cut: Mapping[int, int]) -> dict[int, list[Message]]:
        received = self.received()
        return super().rest({origin: min(number, received[origin]) for origin, number in cut.items()})


class HoardingStream(OutgoingStream):
    def _raise_floor(self) -> None:
        self.floor = min(self._acknowledged.values(), default=self.delivered)


class Hoarder(ReliableCore):
    """Never removes sent messages from its map."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self._own = HoardingStream(self._us.peers)


class GivesUpStream(IncomingStream):
    """Skips missing messages instead of naming them."""

    def missing(self) -> Iterator[int]:
        for number in super().missing():
            self.buffered[number] = Message(kind=Kind.RELIABLE_DATA, origin=0, incarnation=1, seq=number, words=(0,))
        self.position = self.known
        return iter(())


class GivesUp(ReliableCore):
    """Passes over what does not arrive: a gap."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self._streams = {peer: GivesUpStream(window=RELIABLE.window) for peer in self._streams}

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        effects = super().on_timer(timer, now_ns)
        for origin, stream in sorted(self._streams.items()):
            self._pump(origin, stream, effects)
        return [effect for effect in effects if not (isinstance(effect, Deliver) and not effect.payload)]


class AskingOrder(ReliableCore):
    """Answers a request for several numbers in the order of a set of names, which depends on PYTHONHASHSEED."""

    def _on_nack(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        answers: list[Effect] = []
        super()._on_nack(message, source, now_ns, answers)
        names = {f"number {index}": effect for index, effect in enumerate(answers)}
        out.extend(names[name] for name in set(names))


# The sequencer.


class TwoServers(SequencerCore):
    """The second member acts as server, too; and a number that has a message gets a second one."""

    def __init__(self, *, membership: Membership, parameters: SequencerParameters, memory: bytes = b"") -> None:
        super().__init__(membership=membership, parameters=parameters, memory=memory)
        self._is_server = membership.member in membership.members[:2]

    def _refusal(self, message: Message) -> DropReason | None:
        is_again = message.kind is Kind.SEQUENCER_DATA and message.seq < self._next
        return None if is_again else super()._refusal(message)

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if message.seq < self._next:
            out.append(Deliver.of(message))
        else:
            super()._on_data(message, now_ns, out)


class Overtakes(SequencerCore):
    """Delivers a number though a smaller one is pending."""

    def _refusal(self, message: Message) -> DropReason | None:
        return None if message.kind is Kind.SEQUENCER_DATA else super()._refusal(message)

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._next = max(self._next, message.seq + 1)
        out.append(Deliver.of(message))


# CBCAST.


class NoVector(CbcastCore):
    """Sends a vector without causes."""

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        vector = self._delivered
        self._delivered = [count if index == self._own else 0 for index, count in enumerate(vector)]
        effects = super().on_submit(submission, now_ns)
        vector[self._own] = self._delivered[self._own]
        self._delivered = vector
        return effects


class OnlyItsSender(CbcastCore):
    """Checks the entry of the sender alone."""

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._deliver(message, self._index[message.origin], out)


class NoRelease(CbcastCore):
    """Buffers waiting messages, never releases them, and reports itself idle."""

    @property
    def is_idle(self) -> bool:
        return True

    def _release(self, index: int, out: list[Effect]) -> None:
        pass


class NotLive(NoRelease):
    """The same, but it does not report itself idle."""

    @property
    def is_idle(self) -> bool:
        return self.buffered == 0


class DeliversCopies(CbcastCore):
    """Delivers duplicates, as an algorithm for networks that never duplicate."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        effects = super().on_message(message, source, now_ns)
        is_refused = any(isinstance(e, Report) and e.code is DropReason.DUPLICATE for e in effects)
        return [*effects, Deliver.of(message)] if is_refused else effects


class CountsReceipts(CbcastCore):
    """Its vector counts messages that it has received and not delivered: false causality. Others wait longer, but are
    not wrong.
    """

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        vector = self._delivered
        self._delivered = [count + len(waiting) for count, waiting in zip(vector, self._waiting, strict=True)]
        effects = super().on_submit(submission, now_ns)
        vector[self._own] = self._delivered[self._own]
        self._delivered = vector
        return effects


# All-Ack.


class OthersOnly(AllAckCore):
    """Delivers a round when all others have sent it, though its own message of that round may be missing."""

    def _deliver(self, out: list[Effect]) -> None:
        self._awaited = self._us.peers
        super()._deliver(out)


class DropsTheExcluded(AllAckCore):
    """Drops all buffered messages of an excluded member at the end of the view, though others have delivered some."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        self._buffer = [one for one in self._buffer if one.message.origin in survivors]
        heapq.heapify(self._buffer)
        return super().close({one: rest[one] for one in rest if one in survivors}, survivors, now_ns)


# Logical time.


class NeverJumps(LamportClock):
    """Ignores received timestamps."""

    def receive(self, timestamp: int, now_ns: int = 0) -> int:
        return self.value


class PostIncrement(LamportClock):
    """Stamps first and counts afterwards; a receipt takes the larger of the two and does not count."""

    def __init__(self) -> None:
        super().__init__(1)

    def tick(self, now_ns: int = 0, after: int = 0) -> int:
        stamp = max(self.value, after + 1)
        self.value = stamp + 1
        return stamp

    def receive(self, timestamp: int, now_ns: int = 0) -> int:
        self.value = max(self.value, timestamp)
        return self.value


class NoQuorum(MutexCore):
    """Enters when its request is the first in its own queue: without rule 5 (ii)."""

    def _is_past(self, request: Request, peer: int) -> bool:
        return True


class LosesRequests(MutexCore):
    """Forgets a request that is made while another waits."""

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        return [] if self._wanted else super().on_submit(submission, now_ns)


class NewestFirst(MutexCore):
    """Its two latest requests keep their places and swap their submissions."""

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        effects = super().on_submit(submission, now_ns)
        if len(self._wanted) > 1:
            (one, first), (other, second) = self._wanted.pop(), self._wanted.pop()
            self._wanted += [(other, first), (one, second)]
        return effects


class RepliesInside(RicartAgrawalaCore):
    """Replies during its critical section."""

    def _defers(self, request: Request) -> bool:
        return self._wanted is not None and self._wanted < request


class DefersInsideOnly(RicartAgrawalaCore):
    """Replies although an earlier request of its own waits."""

    def _defers(self, request: Request) -> bool:
        return self._holding is not None


class ForgetsTheDeferred(RicartAgrawalaCore):
    """Leaves without the deferred replies."""

    def _leave(self, request: Request, now_ns: int, out: list[Effect]) -> None:
        self._deferred.clear()
        super()._leave(request, now_ns, out)


class VotesTwice(MaekawaCore):
    """An arbiter votes for a request although its vote is not back."""

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._voted = None
        super()._on_request(message, now_ns, out)


class KeepsItsVotes(MaekawaCore):
    """Gives no vote back before it leaves."""

    def _on_inquire(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        pass
