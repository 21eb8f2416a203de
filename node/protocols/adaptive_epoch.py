"""One epoch of the adaptive core at one member: an instance of a protocol's core, and what surrounds it.

The instance believes that it sits alone over `reliable` in a group that has just begun. For that:

Messages. What it says travels as CARRIED with the epoch's number; what it hears is what others' instances of the same
epoch say. Its timers have a layer of their own.

Lives. Its founders are the epoch's *bases*, one life of each member. Inside, a base is the first life of its member,
the next life the second; what came before the base does not exist. A base that has ended, or has never lived in this
epoch, is told as ended. So `joining.py` works inside as it does in a fresh group.

Payloads. Behind each stands a tail (adaptive_words.py), which is taken off again.

Deliveries wait here until the epoch is *open*: all older epochs are complete at this member. `close` says that nothing
more is submitted here. An optimistic epoch is otherwise: its instance gives commands to the processor, through a gate
(adaptive_gate.py), and the processor delivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer, Undo
from node.errors import DropReason, RemoteError
from node.protocols.adaptive_gate import Gate
from node.protocols.adaptive_words import Arrival, Ruling, Tail, split_tail, tail_of, with_tail
from node.protocols.allack import AllAckCore
from node.protocols.execution import Outcome
from node.protocols.joining import Life
from node.protocols.sequencer import SequencerCore
from node.protocols.timewarp import TimeWarpCore
from node.protocols.virtual_time import ENDLESS
from node.trace import Level
from node.wire import Kind, Message, decode_message, encode_message

LAYERS = 2
"""Of timers: no member has more than two epochs at a time, and they follow each other."""
SUBMISSIONS = (Kind.SEQUENCER_DATA, Kind.ALLACK_DATA, Kind.ATOP_DATA, Kind.ABCAST_DATA)
"""What carries one, of a pessimistic protocol; other payloads do not arrive anywhere."""
MOST_LEFT = 65536
"""Of one life, what no sequencer has placed: no `outstanding` exceeds that."""
NEWS = (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED)


class Handed(NamedTuple):
    """A message that the epoch's protocol has put in its place for good; `cost_ns`: since its receipt."""

    delivery: Deliver
    tail: Tail
    cost_ns: int


def inner_membership(us: Membership, ruling: Ruling) -> Membership:
    """Ours, as the instance of that epoch sees it. A life of ours before the base is none: assert."""
    return replace(us, incarnation=us.incarnation - ruling.bases[us.member] + 1)


class Epoch:
    """See the module's text. `core`: made with `inner_membership`."""

    __slots__ = (
        "_arrivals",
        "_core",
        "_gone",
        "_has_begun",
        "_is_closed",
        "_is_open",
        "_left",
        "_left_of",
        "_ours",
        "_received",
        "_ruling",
        "_timers",
        "_us",
        "_waiting",
    )

    def __init__(self, *, us: Membership, ruling: Ruling, core: Core, is_open: bool) -> None:
        self._us = us
        self._ruling = ruling
        self._core = core
        self._is_open = is_open
        self._is_closed = False
        self._has_begun = False
        self._gone: set[int] = set()
        """Members whose base has been told as ended."""
        self._ours = 0
        """Submissions of ours that have not come back delivered."""
        self._timers: set[Timer] = set()
        self._waiting: list[tuple[Deliver, int | None]] = []
        """Delivered inside, with tails, and when they came (None: nobody knows)."""
        self._left: list[tuple[Life, int, Message]] = []
        """By life and order: what comes at the very end ..."""
        self._left_of: Counter[Life] = Counter()
        """... and how much of it is others'."""
        self._arrivals: list[Arrival] = []
        self._received: dict[tuple[Life, bytes], int] = {}
        """Per undelivered message, by its sender and payload: when it came."""

    @property
    def ruling(self) -> Ruling:
        return self._ruling

    @property
    def number(self) -> int:
        return self._ruling.epoch

    @property
    def code(self) -> int:
        return self._ruling.code

    @property
    def core(self) -> Core:
        return self._core

    @property
    def phase(self) -> str:
        return self._core.phase

    @property
    def is_founder(self) -> bool:
        """Whether this life of ours is a base."""
        return self._us.incarnation == self._ruling.bases[self._us.member]

    @property
    def has_begun(self) -> bool:
        """Whether this member has ever been running in this epoch: it then delivers all that is to come."""
        return self._has_begun

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def can_submit(self) -> bool:
        return not self._is_closed and self._core.can_submit

    @property
    def is_idle(self) -> bool:
        return self._core.is_idle and not self._waiting and not self._left

    @property
    def held(self) -> int:
        """Undelivered messages inside, and delivered ones that wait for earlier epochs."""
        return self._core.held + len(self._waiting) + len(self._left)

    @property
    def waiting(self) -> int:
        """Deliveries that wait until it is this epoch's turn."""
        return len(self._waiting)

    @property
    def losers(self) -> frozenset[Life]:
        """Of whose messages the instance has erased some, because a cause of theirs is lost: they have ended, or will
        soon. Lives, not members: the next life of a member has lost nothing.
        """
        if not isinstance(self._core, AllAckCore):
            return frozenset()
        return frozenset(map(self._outer, self._core.erased))

    @property
    def ours(self) -> int:
        """Submissions of ours that are not delivered here."""
        return self._ours

    @property
    def is_spent(self) -> bool:
        """Closed, and nothing is left in here of all that has come."""
        return self._is_closed and self._core.held == 0

    def local(self, life: Life) -> int:
        """Its number inside, from 1; less: it is before the base."""
        member, incarnation = life
        return incarnation - self._ruling.bases[member] + 1

    def _outer(self, inside: Life) -> Life:
        """The other way round."""
        member, number = inside
        return member, number + self._ruling.bases[member] - 1

    # Inputs. Each returns what the instance wants done, for the core that owns us to carry out, and puts what has been
    # delivered into the list of `take`.

    def start(self, present: Iterable[Life], over: Mapping[int, int], now_ns: int) -> list[Effect]:
        """Begin. `present`: the others that take part; `over`: per member the last life that has ended, if one has.

        A founder's instance knows the first lives of all, and hears who of them is missing and which later ones there
        are. A later life's instance hears of everybody, of itself last, as the reliable layer tells it.
        """
        out = self._translated(self._core.on_start(now_ns))
        lives = sorted(life for life in present if self.local(life) >= 1)
        for member in self._us.peers:
            inside = max((self.local(life) for life in lives if life[0] == member), default=0)
            if self.is_founder and (member, self._ruling.bases[member]) not in lives:
                self._tell(Kind.RELIABLE_ENDED, member, 1, now_ns, out)
            elif inside == 0:
                last = self.local((member, over.get(member, 0)))
                self._tell(Kind.RELIABLE_ENDED, member, max(1, last), now_ns, out)
            if inside > self.is_founder:
                self._tell(Kind.RELIABLE_JOINED, member, inside, now_ns, out)
        if not self.is_founder:
            inside = self.local((self._us.member, self._us.incarnation))
            self._tell(Kind.RELIABLE_JOINED, self._us.member, inside, now_ns, out)
        self._see_begun()
        return out

    def submit(self, submission: Submission, tail: Tail, now_ns: int) -> list[Effect]:
        """LocalError when `can_submit` is false."""
        inside = replace(submission, payload=with_tail(submission.payload, tail))
        effects = self._core.on_submit(inside, now_ns)
        self._ours += 1
        self._arrived((self._us.member, self._us.incarnation), inside.payload, now_ns)
        return self._translated(effects)

    def receive(self, carried: Message, now_ns: int) -> list[Effect]:
        """A message of this epoch. RemoteError before anything has changed."""
        if carried.inner is Kind.APPLICATION:
            self._leave(carried, now_ns)
            return []
        message = self._inside(carried)
        effects = self._core.on_message(message, carried.origin, now_ns)
        is_refused = any(isinstance(effect, Report) and isinstance(effect.code, DropReason) for effect in effects)
        is_submission = message.kind in SUBMISSIONS and bool(message.payload)
        if is_submission and carried.origin != self._us.member and not is_refused:
            self._arrived((carried.origin, carried.incarnation), message.payload, now_ns)
        return self._translated(effects)

    def news(self, kind: Kind, life: Life, now_ns: int) -> list[Effect]:
        """Of the layer below, if it concerns anybody in here: of a base only its end counts, once."""
        inside = self.local(life)
        out: list[Effect] = []
        if inside > 1 or (inside == 1 and kind is Kind.RELIABLE_ENDED and life[0] not in self._gone):
            self._tell(kind, life[0], inside, now_ns, out)
        return out

    def fired(self, timer: Timer, now_ns: int) -> list[Effect]:
        """A timer of our layer."""
        inside = timer._replace(layer=0)
        if inside not in self._timers:
            return []
        self._timers.discard(inside)
        return self._translated(self._core.on_timer(inside, now_ns))

    def open(self, erased: frozenset[Life], now_ns: int) -> list[Effect]:
        """All older epochs are complete here. The lives `erased` have ended, and what they sent in this one counts for
        nothing: see adaptive.py. Who takes our deliveries sees to that; who delivers otherwise does it himself.
        """
        self._is_open = True
        return []

    def close(self, now_ns: int) -> list[Effect]:
        """We submit nothing more here."""
        self._is_closed = True
        return []

    def take_back(self) -> list[Effect]:
        """Of a closed epoch whose protocol cannot place them any more: submissions of ours, for its very end."""
        out: list[Effect] = []
        for submission in self._core.take_back() if isinstance(self._core, SequencerCore) else ():
            message = self._us.message(
                Kind.ADAPTIVE_CARRIED, seq=self.number, flags=submission.flags, payload=submission.payload
            )
            self._ours -= 1
            # Not when it comes back from the layer below: that may be late.
            self._left.append(((message.origin, message.incarnation), len(self._left), message))
            out.append(Multicast(message=message))
        return out

    def take_left(self, now_ns: int) -> Iterator[Handed]:
        """The very end: what its protocol could not place, by life and in the order of its submission."""
        left, self._left = sorted(self._left, key=itemgetter(0, 1)), []
        for life, _, message in left:
            tail, payload = split_tail(message.payload)
            since_ns = self._received.pop((life, message.payload), now_ns)
            yield Handed(replace(Deliver.of(message), payload=payload, level=Level.FINAL), tail, now_ns - since_ns)

    def end(self) -> list[Effect]:
        """Complete: nothing of it is needed any more."""
        assert self.is_spent and self._is_open and not self._waiting, "an epoch that is not complete was ended"
        timers = sorted(self._timers)
        self._timers.clear()
        return [CancelTimer(timer=self._raised(timer)) for timer in timers]

    def take(self, now_ns: int) -> Iterator[Handed]:
        """What has been delivered, if this epoch's turn has come."""
        while self._is_open and self._waiting:
            waiting, self._waiting = self._waiting, []
            for delivery, since_ns in waiting:
                tail, payload = tail_of(delivery.payload)
                cost_ns = 0 if since_ns is None else now_ns - since_ns
                yield Handed(replace(delivery, payload=payload), tail, cost_ns)

    def take_arrivals(self) -> list[Arrival]:
        """What has come, or was submitted, since the last call."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    @staticmethod
    def layer_of(number: int) -> int:
        """Of the timers of that epoch, above those of the owner."""
        return 1 + number % LAYERS

    def _tell(self, kind: Kind, member: int, inside: int, now_ns: int, out: list[Effect]) -> None:
        if inside == 1 and kind is Kind.RELIABLE_ENDED:
            self._gone.add(member)
        message = Message(kind=kind, origin=member, incarnation=inside)
        out += self._translated(self._core.on_message(message, member, now_ns))

    def _leave(self, carried: Message, now_ns: int) -> None:
        life = (carried.origin, carried.incarnation)
        if life == (self._us.member, self._us.incarnation):
            return
        if self.local(life) < 1 or not isinstance(self._core, SequencerCore):
            raise RemoteError(DropReason.UNEXPECTED, "a message without a place, where its protocol has one")
        if self._left_of[life] >= MOST_LEFT:
            raise RemoteError(DropReason.UNEXPECTED, f"more than {MOST_LEFT} messages without a place")
        split_tail(carried.payload)
        self._arrived(life, carried.payload, now_ns)
        self._left_of[life] += 1
        self._left.append((life, len(self._left), carried))

    def _inside(self, carried: Message) -> Message:
        message = decode_message(carried.payload)
        inside = self.local((carried.origin, carried.incarnation))
        if inside < 1:
            raise RemoteError(DropReason.UNEXPECTED, "a life from before this epoch speaks in it")
        if (message.kind, message.origin, message.incarnation) != (carried.inner, carried.origin, inside):
            raise RemoteError(DropReason.MALFORMED, "the inner message does not agree with the outer one")
        if message.payload and message.kind is not Kind.TIMEWARP_FOLLOW_UP:
            split_tail(message.payload)
        return message

    def _translated(self, effects: list[Effect]) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            self._translate(effect, out)
        self._see_begun()
        return out

    def _translate(self, effect: Effect, out: list[Effect]) -> None:
        match effect:
            case Multicast(message=message, is_near=is_near):
                out.append(Multicast(message=self._carried(message), is_near=is_near))
            case Send(target=target, message=message):
                out.append(Send(target=target, message=self._carried(message)))
            case SetTimer(timer=timer, at_ns=at_ns):
                self._timers.add(timer)
                out.append(SetTimer(timer=self._raised(timer), at_ns=at_ns))
            case CancelTimer(timer=timer):
                self._timers.discard(timer)
                out.append(CancelTimer(timer=self._raised(timer)))
            case Deliver():
                self._deliver(effect)
            case Report() | Undo():
                out.append(effect)

    def _carried(self, message: Message) -> Message:
        return self._us.message(
            Kind.ADAPTIVE_CARRIED,
            seq=self.number,
            flags=message.flags,
            inner=message.kind,
            payload=encode_message(message),
        )

    def _raised(self, timer: Timer) -> Timer:
        return timer._replace(layer=self.layer_of(self.number))

    def _arrived(self, life: Life, payload: bytes, now_ns: int) -> None:
        self._received[life, payload] = now_ns
        self._arrivals.append(Arrival(life, tail_of(payload)[0].timestamp))

    def _deliver(self, delivery: Deliver) -> None:
        life = self._outer((delivery.origin, delivery.incarnation))
        self._ours -= life == (self._us.member, self._us.incarnation)
        since_ns = self._received.pop((life, delivery.payload), None)
        self._waiting.append((replace(delivery, incarnation=life[1], level=Level.FINAL), since_ns))

    def _see_begun(self) -> None:
        self._has_begun = self._has_begun or self._core.phase == "running"


class OptimisticEpoch(Epoch):
    """One with Time Warp: what it delivers comes from the processor, as final, optimistic, or taken back."""

    __slots__ = ("_gate", "_time_warp")

    def __init__(self, *, us: Membership, ruling: Ruling, core: TimeWarpCore, gate: Gate, is_open: bool) -> None:
        super().__init__(us=us, ruling=ruling, core=core, is_open=is_open)
        self._time_warp = core
        self._gate = gate

    @property
    def is_spent(self) -> bool:
        """Closed by all, and nothing is left anywhere."""
        return self._is_closed and self._time_warp.gvt == ENDLESS and self._time_warp.is_idle

    def take_outcomes(self, outcomes: Sequence[Outcome], now_ns: int) -> list[Effect]:
        """The processor has been advanced, with this result."""
        effects: list[Effect] = []
        self._time_warp.take_outcomes(outcomes, now_ns, effects)
        return self._translated(effects)

    def open(self, erased: frozenset[Life], now_ns: int) -> list[Effect]:
        out = super().open(erased, now_ns)
        self._gate.open(erased, now_ns, out)
        for life in sorted(erased):
            out += self._translated(self._time_warp.erase((life[0], self.local(life)), now_ns))
        return out

    def close(self, now_ns: int) -> list[Effect]:
        return super().close(now_ns) + self._translated(self._time_warp.close(now_ns))

    def take_arrivals(self) -> list[Arrival]:
        return self._gate.take_arrivals()

    def _arrived(self, life: Life, payload: bytes, now_ns: int) -> None:
        """The gate knows better."""

    def _translate(self, effect: Effect, out: list[Effect]) -> None:
        if isinstance(effect, Deliver):
            out.append(effect)
        else:
            super()._translate(effect, out)
