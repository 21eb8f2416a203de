"""The interface of a protocol core: a pure state machine between a host and the members of a group.

A core gets its inputs by four calls and answers each with a list of effects. It has no clock, no socket, no thread, no
log and no random numbers of its own: time is the argument `now_ns`, entropy is the seeded generator it was given. The
same inputs give the same effects, so that one core runs unchanged on real wires, in the simulator and in a test.

A host that runs a core:

1. makes it, calls `on_start` once, and carries out the effects;
2. then repeatedly takes the first of these inputs: a datagram (`on_message` with the decoded message and the member
   that transmitted it), a timer that is due (`on_timer`), a request of the application (`on_submit`, only while
   `can_submit` is true; otherwise the request waits in the host's queue, which is bounded and counted);
3. carries out the effects of one call, in list order, before the next call. Send and Multicast are datagrams and may be
   lost; SetTimer and CancelTimer are exact up to the host's granularity and never early; Deliver and Undo go to the
   application; Report is counted and traced. After every call `can_submit` may have changed: the host checks its queue
   again;
4. never calls from two threads, and never from within a call;
5. drops, counts and traces messages that raise RemoteError: datagrams that do not decode, and messages that a core
   refuses that way. A core raises it only before it has changed anything;
6. lets every other exception end the node: then we are wrong.

`now_ns` never decreases between calls. It is the node's own clock, which may have an offset and a drift: cores compare
it with earlier readings of the same core only, unless clock synchronisation is their subject.

A core that has nothing left to do is silent: no timer armed, no message sent. `is_idle` says so: nothing undelivered,
nothing unacknowledged that it waits for. A host that drains waits until its queue is empty and the core is idle. An
idle core still answers, and an answer may make it busy again.

An incarnation can be excluded by the other members or leave: `has_ended`. It is idle from then on, and its host ends
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import TypeAlias

from node.effects import Effect, Timer
from node.errors import LocalError
from node.packing import fast_init
from node.wire import Kind, Message

MAX_MEMBER = 0xFFFE
MAX_INCARNATION = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """This member and the members that may send to it: fixed for one core.

    `members` are all members of the group, ourselves included, ascending. `incarnation` counts the starts of this
    member from 1. `has_multicast`: one datagram reaches all; else a multicast is a datagram for each peer.
    `partitions`: the members of each sub-network in the order of the topology, each ascending; empty: all are in one.
    `ranks`: the members in the order of their ranks in a view; empty: ascending. `founders`: the members of the first
    view, ascending; empty: all.
    """

    member: int
    members: tuple[int, ...]
    incarnation: int = 1
    has_multicast: bool = True
    partitions: tuple[tuple[int, ...], ...] = ()
    ranks: tuple[int, ...] = ()
    founders: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)):
            raise LocalError(f"members must ascend without repetition, not {self.members}")
        if self.member not in self.members:
            raise LocalError(f"member {self.member} must be one of the members {self.members}")
        if self.members[0] < 0 or self.members[-1] > MAX_MEMBER:
            raise LocalError(f"member numbers must lie between 0 and {MAX_MEMBER}")
        if not 1 <= self.incarnation <= MAX_INCARNATION:
            raise LocalError(f"incarnations count from 1 to {MAX_INCARNATION}, not {self.incarnation}")
        if self.partitions and sorted(chain.from_iterable(self.partitions)) != list(self.members):
            raise LocalError("each member must be in exactly one sub-network")
        if self.ranks and sorted(self.ranks) != list(self.members):
            raise LocalError("each member must have exactly one rank")
        if list(self.founders) != sorted(set(self.founders)) or not set(self.founders) <= set(self.members):
            raise LocalError(f"founders must be some of the members and ascend without repetition, not {self.founders}")

    @property
    def first(self) -> int:
        """The member of rank 0."""
        return self.ranks[0] if self.ranks else self.members[0]

    @property
    def partition(self) -> int:
        """The index of our own sub-network in `partitions`; 0 when there is only one."""
        return next((place for place, members in enumerate(self.partitions) if self.member in members), 0)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The peers in our own sub-network, ascending."""
        if not self.partitions:
            return self.peers
        return tuple(member for member in self.partitions[self.partition] if member != self.member)

    @property
    def peers(self) -> tuple[int, ...]:
        """All members but ourselves, ascending."""
        return tuple(member for member in self.members if member != self.member)

    def message(
        self,
        kind: Kind,
        *,
        seq: int = 0,
        flags: int = 0,
        words: tuple[int, ...] = (),
        inner: Kind = Kind.APPLICATION,
        payload: bytes = b"",
    ) -> Message:
        """A message whose origin is this member."""
        return Message(
            kind=kind,
            origin=self.member,
            incarnation=self.incarnation,
            seq=seq,
            flags=flags,
            inner=inner,
            words=words,
            payload=payload,
        )

    def carrying(self, submission: Submission, kind: Kind, *, seq: int, words: tuple[int, ...] = ()) -> Message:
        """The message of this member that carries a submission."""
        return self.message(
            kind, seq=seq, flags=submission.flags, words=words, inner=submission.inner, payload=submission.payload
        )


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request of the application, or of the core above in a stack, to send.

    `inner` names the content of `payload`; `flags` go onto the outermost message. `target` None is all members,
    ourselves included. `not_before`: a timestamp that the application learned outside the group (0: none); cores with
    timestamps give this message a later one. `words`: further numbers for the core that takes it (above all the
    receivers, where members have objects); `place`: the object of ours that asks, 0: the member itself.
    """

    payload: bytes
    inner: Kind = Kind.APPLICATION
    flags: int = 0
    target: int | None = None
    not_before: int = 0
    words: tuple[int, ...] = ()
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The result of `close`.

    `effects`: Deliver, Undo and Report, in order. `handed_back`: our own submissions that no survivor has delivered or
    will deliver, in the order in which they were made; the next view's core gets them first. `memory`: the initial
    state of the next view's core at every member; equal at all survivors, because it is computed from the cut alone.
    """

    effects: tuple[Effect, ...] = ()
    handed_back: tuple[Submission, ...] = ()
    memory: bytes = b""


class Core(ABC):
    """The interface of a core; the module's docstring is its contract."""

    @property
    def depth(self) -> int:
        """Number of cores in this one: 1, or more for a stack."""
        return 1

    @property
    def buffered(self) -> int:
        """Buffered messages; 0 at the latest when the core is idle."""
        return 0

    @property
    def phase(self) -> str:
        """The core's phase, by its own name."""
        return ""

    @property
    def timestamp(self) -> int:
        """That of the last event here, for an application that hands it along outside the group; 0: there is none."""
        return 0

    @property
    @abstractmethod
    def can_submit(self) -> bool:
        """Whether a submission to all members would be taken now."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether nothing is undelivered, and nothing unacknowledged that we wait for."""

    @property
    def has_ended(self) -> bool:
        """Whether this incarnation is excluded or has left. It becomes true only in a call that has effects, and stays
        true; `is_idle` is then true and `can_submit` false."""
        return False

    @property
    def is_excluded(self) -> bool:
        """Whether this incarnation knows that it is a member no more. It may still answer other members before it has
        ended."""
        return self.has_ended

    @property
    def has_left(self) -> bool:
        """With `has_ended`: whether this incarnation has left at its own request."""
        return False

    def leave(self, now_ns: int) -> list[Effect]:  # noqa: ARG002 (cores with members that come and go need it)
        """Leave the group for good. LocalError: this protocol has no membership, or no other member would be left."""
        raise LocalError("this protocol has no members that come and go")

    @abstractmethod
    def on_start(self, now_ns: int) -> list[Effect]:
        """Called once, before anything else."""

    @abstractmethod
    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        """Send `submission`. LocalError when `can_submit` is false: the caller keeps it and tries again."""

    @abstractmethod
    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        """`message` came, transmitted by `source` (a peer; not always its origin). May raise RemoteError, see above."""

    @abstractmethod
    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        """`timer` is due; it is disarmed now."""


class ViewCore(Core):
    """A core that is made for one view and is closed at its end.

    Its members are fixed, and all alive as far as it knows. The layer below delivers its multicasts at all members,
    itself included, in the order of each stream; its unicasts arrive in the same order, or never if the view ends
    before.
    """

    @abstractmethod
    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        """The view has ended; this is the last call. Only a survivor closes its core.

        `rest`: by origin (ascending, ourselves included), the multicasts of the view's agreed cut that this core has
        not been handed, in the order of each stream. `survivors`: the members of this view that are in the next one.

        The earlier deliveries, followed by `effects`, are the same sequence at all survivors (total orders; others: the
        same set). It depends on the multicasts up to the cut and on the survivors alone: unicasts, local clocks and the
        order of receipt have no part in it. A message of `rest` may have come from an enemy: a message that
        `on_message` would refuse is skipped.
        """


MakeCore: TypeAlias = Callable[[Membership, Random, bytes], ViewCore]
"""Makes the core of one view: from its membership, a generator of its own, and the memory of the view before."""


class ViewStreams(Core):
    """The transport of one view: reliable streams, or a core that brings its own (`co`).

    A *position* in a member's stream is the number up to which it has been received; in our own stream: its last
    number. A *cut* is one number for each stream, up to which it belongs to a view that ends.
    """

    @abstractmethod
    def awaited(self) -> dict[int, int]:
        """In an open view: by member whose answer is missing, a number that changes with its progress; else empty."""

    @abstractmethod
    def positions(self) -> dict[int, int]:
        """By member, ascending, our position in its stream, in a new dictionary; `freeze` fixes the positions."""

    @abstractmethod
    def acknowledged(self) -> dict[int, int]:
        """By member, ascending, the number up to which all members are known to have received its stream."""

    @abstractmethod
    def acknowledge_soon(self, now_ns: int) -> list[Effect]:
        """Uniform delivery waits for stability: acknowledgements and watermarks go out soon."""

    @abstractmethod
    def hold(self, is_held: bool, now_ns: int) -> list[Effect]:
        """While the streams are held, nothing is delivered and no submission is taken; everything else goes on."""

    @abstractmethod
    def freeze(self, waiting: Iterable[Submission], now_ns: int) -> list[Effect]:
        """The view is ending: nothing is delivered or acknowledged any more. `waiting`: submissions that flow control
        held back, in order; they belong to our stream."""

    @abstractmethod
    def has(self, cut: Mapping[int, int]) -> bool:
        """Whether everything up to the cut is here."""

    @abstractmethod
    def fetch(self, cut: Mapping[int, int], holders: Mapping[int, Sequence[int]], now_ns: int) -> list[Effect]:
        """Ask the holders of each stream for missing messages up to the cut, until all are here. Another call replaces
        cut and holders."""

    @abstractmethod
    def rest(self, cut: Mapping[int, int]) -> dict[int, list[Message]]:
        """By origin, ascending, ourselves included: the multicasts up to the cut that were not delivered to the core
        above, in the order of the stream. Only after `has(cut)`."""

    @abstractmethod
    def close(self, cut: Mapping[int, int], now_ns: int) -> Closing:
        """The end of a view without a core above: deliver `rest`. Only after `has(cut)`."""

    @abstractmethod
    def stop(self, now_ns: int) -> list[Effect]:
        """The view is over: from now on only requests of slower members for missing messages are answered."""


def random_for(seed: int, membership: Membership, purpose: str) -> Random:
    """A separate generator for each purpose, the same on every platform and under every PYTHONHASHSEED."""
    return Random(f"{seed}/{membership.member}/{membership.incarnation}/{purpose}")  # noqa: S311 (repeatable, not secret)
