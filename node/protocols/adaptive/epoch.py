"""One epoch of the adaptive core at one member: an instance of a candidate's core, and its surroundings.

The instance runs as if it were alone in the view. Its messages travel as CARRIED with the epoch's number; it receives
the messages of the other members' instances of the same epoch. Its timers have a layer of their own. Payloads of
submissions to a core without timestamps carry a tail (codec.py), which is removed before delivery.

From its member's LAST on the instance is *mute*: it gets no more inputs, its timers are cancelled, and messages for it
are kept until `close` gives them to it as the rest of a cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from node.core import Closing, Membership, Submission, ViewCore
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer, inner_message
from node.errors import DropReason, RemoteError
from node.protocols.abcast import AbcastCore
from node.protocols.adaptive.codec import Arrival, split_tail, with_tail
from node.protocols.adaptive.costs import TIMEWARP
from node.protocols.timewarp.core import TimeWarpCore
from node.protocols.timewarp.execution import Key, Outcome
from node.wire import Kind, Message, encode_message

LAYER = 1
"""The layer of the instance's timers; the owner's have 0."""
STAMPED = (Kind.TIMEWARP_DATA, Kind.TIMEWARP_FOLLOW_UP)
TAILED = (Kind.SEQUENCER_DATA, Kind.ALLACK_DATA, Kind.ATOP_DATA, Kind.ABCAST_DATA)
"""Messages with a submission in them, by the place of its timestamp."""
UNICASTS = (Kind.SEQUENCER_REQUEST, Kind.SEQUENCER_NUMBER, Kind.ABCAST_PROPOSAL)
"""Kinds of unicasts, which are part of no cut."""
MOST_KEPT = 65536
"""Most messages of one member kept for a mute instance: more than flow control lets through before its LAST."""


class TimedDelivery(NamedTuple):
    """A delivery of a core without timestamps, and the timestamp of its tail. `cost_ns`: since its receipt."""

    delivery: Deliver
    timestamp: int
    cost_ns: int


class Epoch:
    """See the module's docstring."""

    __slots__ = ("_arrivals", "_kept", "_received", "_timers", "_us", "code", "core", "is_mute", "number")

    def __init__(self, *, us: Membership, number: int, code: int, core: ViewCore) -> None:
        self._us = us
        self.core = core
        self.number = number
        self.code = code
        self.is_mute = False
        self._kept: dict[int, deque[Message]] = {member: deque() for member in us.members}
        """By member, its messages for the mute instance."""
        self._timers: set[Timer] = set()
        self._arrivals: list[Arrival] = []
        self._received: dict[tuple[int, bytes], int] = {}
        """By origin and payload: the receipt in ns of each undelivered message with a tail."""

    @property
    def warp(self) -> TimeWarpCore:
        """The instance, which is of Time Warp."""
        assert isinstance(self.core, TimeWarpCore)
        return self.core

    @property
    def abcast(self) -> AbcastCore:
        """The instance, which is of ABCAST."""
        assert isinstance(self.core, AbcastCore)
        return self.core

    @property
    def can_submit(self) -> bool:
        return not self.is_mute and self.core.can_submit

    @property
    def is_idle(self) -> bool:
        return not self.is_mute and self.core.is_idle

    @property
    def kept(self) -> int:
        """Number of messages kept for the mute instance."""
        return sum(map(len, self._kept.values()))

    # Inputs. Each returns the instance's effects, for the owner to carry out.

    def start(self, now_ns: int) -> list[Effect]:
        return self._outward(self.core.on_start(now_ns))

    def submit(self, submission: Submission, timestamp: int, now_ns: int) -> list[Effect]:
        """LocalError when `can_submit` is false. `timestamp`: for the tail."""
        if self.code != TIMEWARP:
            submission = replace(submission, payload=with_tail(submission.payload, timestamp))
            self._arrived(self._us.member, timestamp, submission.payload, now_ns)
        return self._outward(self.core.on_submit(submission, now_ns))

    def receive(self, carried: Message, now_ns: int) -> list[Effect]:
        """Receive a message of this epoch. RemoteError before anything has changed."""
        message = inner_message(carried)
        timestamp = _timestamp_of(message)
        if self.is_mute:
            self._keep(message)
            effects: list[Effect] = []
        else:
            effects = self.core.on_message(message, carried.origin, now_ns)
        is_refused = any(isinstance(effect, Report) and isinstance(effect.code, DropReason) for effect in effects)
        if timestamp is not None and carried.origin != self._us.member and not is_refused:
            self._arrived(carried.origin, timestamp, message.payload, now_ns)
        return self._outward(effects)

    def fired(self, timer: Timer, now_ns: int) -> list[Effect]:
        """A timer of the instance is due."""
        inside = timer._replace(layer=timer.layer - LAYER)
        if inside not in self._timers:
            return []
        self._timers.discard(inside)
        return self._outward(self.core.on_timer(inside, now_ns))

    def take_outcomes(self, outcomes: list[Outcome], now_ns: int) -> list[Effect]:
        """Pass the outcomes of the processor to Time Warp, unless it is mute."""
        effects: list[Effect] = []
        if isinstance(self.core, TimeWarpCore) and not self.is_mute:
            self.core.take_outcomes(outcomes, now_ns, effects)
        return self._outward(effects)

    def hold(self, is_held: bool, now_ns: int) -> list[Effect]:
        """Keep the GVT of Time Warp below T, or not (TimeWarpCore.hold)."""
        effects: list[Effect] = []
        self.warp.hold(is_held, now_ns, effects)
        return self._outward(effects)

    def undo(self, undone: list[Key], now_ns: int) -> list[Effect]:
        """These executions of Time Warp's were undone."""
        effects: list[Effect] = []
        self.warp.undo(undone, now_ns, effects)
        return self._outward(effects)

    # The end.

    def mute(self) -> list[Effect]:
        """Leave this epoch."""
        self.is_mute = True
        timers = sorted(self._timers)
        self._timers.clear()
        return [CancelTimer(timer=_raised(timer)) for timer in timers]

    def keep_rest(self, carried: Message) -> None:
        """Keep a message of the view's cut. RemoteError as `receive`."""
        message = inner_message(carried)
        _timestamp_of(message)
        self._keep(message)

    def close(self, survivors: frozenset[int], now_ns: int) -> Closing:
        """Close the instance with the kept messages, which are all of the epoch's cut. Payloads of `handed_back` have
        no tail any more."""
        closing = self.core.close(self._kept, survivors, now_ns)
        if self.code == TIMEWARP:
            return closing
        handed_back = (
            replace(submission, payload=split_tail(submission.payload)[1]) for submission in closing.handed_back
        )
        return replace(closing, handed_back=tuple(handed_back))

    # Outputs.

    def without_tail(self, delivery: Deliver, now_ns: int) -> TimedDelivery:
        """Remove the tail from a delivery of a core without timestamps."""
        since_ns = self._received.pop((delivery.origin, delivery.payload), now_ns)
        timestamp, payload = split_tail(delivery.payload)
        return TimedDelivery(replace(delivery, payload=payload), timestamp, now_ns - since_ns)

    def take_arrivals(self) -> list[Arrival]:
        """Messages received or submitted since the last call."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def _arrived(self, origin: int, timestamp: int, payload: bytes, now_ns: int) -> None:
        if self.code != TIMEWARP:
            self._received[origin, payload] = now_ns
        self._arrivals.append(Arrival(origin, timestamp))

    def _keep(self, message: Message) -> None:
        kept = self._kept[message.origin]
        if len(kept) >= MOST_KEPT:
            raise RemoteError(DropReason.UNEXPECTED, f"{MOST_KEPT} messages without LAST")
        if message.kind not in UNICASTS:
            kept.append(message)

    def _outward(self, effects: list[Effect]) -> list[Effect]:
        return list(self._translated(effects))

    def _translated(self, effects: list[Effect]) -> Iterator[Effect]:
        for effect in effects:
            match effect:
                case Multicast(message=message):
                    if message.kind in STAMPED:
                        self._arrivals.append(Arrival(message.origin, message.words[0]))
                    yield Multicast(message=self._carried(message))
                case Send(target=target, message=message):
                    yield Send(target=target, message=self._carried(message))
                case SetTimer(timer=timer, at_ns=at_ns):
                    self._timers.add(timer)
                    yield SetTimer(timer=_raised(timer), at_ns=at_ns)
                case CancelTimer(timer=timer):
                    self._timers.discard(timer)
                    yield CancelTimer(timer=_raised(timer))
                case _:
                    yield effect

    def _carried(self, message: Message) -> Message:
        return self._us.message(
            Kind.ADAPTIVE_CARRIED,
            seq=self.number,
            flags=message.flags,
            inner=message.kind,
            payload=encode_message(message),
        )


def _raised(timer: Timer) -> Timer:
    return timer._replace(layer=timer.layer + LAYER)


def _timestamp_of(message: Message) -> int | None:
    """The timestamp of the submission in a message; None: there is none."""
    if message.kind in TAILED:
        return split_tail(message.payload)[0]
    return message.words[0] if message.kind in STAMPED and message.words else None
