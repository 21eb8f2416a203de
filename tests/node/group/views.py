"""A group of view cores over ideal streams, through random view changes: tests of the promises of `ViewCore.close`.

Streams are FIFO and lose nothing; a view ends at a random moment with a random set of survivors, each of which has got
a random prefix of each stream. So a core gets everything that reliable streams and the group layer may do to it,
without either. `run` plays one seed and checks it:

- before a view ends, the deliveries of any two members in it are prefixes of one sequence (total orders);
- an excluded member has delivered a prefix of the survivors' deliveries in it, up to a message that none of them
  delivers (total);
- at its end all survivors have delivered the same in the same order (total), or the same set (causal, fifo);
- a submission of a survivor is delivered at all survivors, or handed back and delivered later: never both, never twice;
- no message is delivered before one that its sender had delivered when it submitted it (total, causal), and the
  messages of one sender come in the order of their submission;
- all survivors answer with the same memory.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from random import Random
from typing import Any, TypeAlias, TypeVar

from node.core import MakeCore, Membership, Submission, ViewCore
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer, Undo
from node.group.view import Incarnation, View, first_view
from node.trace import Level
from node.wire import Kind, Message, decode_message, encode_message
from tests.node.by_hand import delivered

Make: TypeAlias = MakeCore
P = TypeVar("P")

SLOW = 0.02
"""Probability that a slow channel moves at its turn."""


def begun(begin: Callable[[P], Make], parameters: P) -> Make:
    """Builder of the cores of all members. `begin`: called once for each incarnation, as by the registry."""
    of = cache(lambda member, incarnation: begin(parameters))
    return lambda us, rng, memory: of(us.member, us.incarnation)(us, rng, memory)


class Order(enum.Enum):
    """Promised relation between the deliveries of a view's members."""

    TOTAL = "total"
    CAUSAL = "causal"
    FIFO = "fifo"


@dataclass(slots=True)
class Place:
    """One member, through all its views."""

    member: int
    core: ViewCore | None = None
    timers: dict[Timer, int] = field(default_factory=dict)
    waiting: deque[Submission] = field(default_factory=deque)
    """Submissions handed back, or not taken yet."""
    delivered: list[bytes] = field(default_factory=list)
    """Final deliveries, in all views."""
    optimistic: list[bytes] = field(default_factory=list)
    submitted: list[bytes] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)


class Group:
    """A group; `seed` determines the run. `lags`: a member gets its own multicasts late, as when flow control holds
    them. `skewed`: the survivors of a view are drawn when it begins (`lucky`), and they receive few messages of some of
    the others. So an excluded member often has delivered a message that no survivor has received. `slow`: only messages
    of these kinds, and later ones of their streams, are late; empty: all. `holds_excluded`: excluded members deliver in
    the order of the survivors, too.
    """

    def __init__(
        self,
        make: Make,
        members: int,
        seed: int,
        *,
        order: Order = Order.TOTAL,
        lags: bool = True,
        skewed: bool = False,
        slow: Collection[Kind] = (),
        holds_excluded: bool = True,
    ) -> None:
        self.rng = Random(f"views/{seed}")
        self.make = make
        self.order = order
        self.lags = lags
        self.skewed = skewed
        self.slow_kinds = slow or tuple(Kind)
        self.holds_excluded = holds_excluded
        self.now_ns = 1_000_000_000
        self.places = {member: Place(member) for member in range(members)}
        self.causes: dict[bytes, frozenset[bytes]] = {}
        self.origin: dict[bytes, int] = {}
        self.previous: dict[bytes, bytes] = {}
        """The submission before each one, except the first of an incarnation."""
        self.view = first_view(range(members))
        self.memory = b""
        self._open()

    # One view.

    def _open(self) -> None:
        self.streams: dict[int, list[Message]] = {member: [] for member in self.view.members}
        self.handed = {(to, of): 0 for to in self.view.members for of in self.view.members}
        self.channels: dict[tuple[int, int], deque[Message]] = {pair: deque() for pair in self.handed}
        """Messages in transit by (source, target), in the order sent, unicasts and multicasts."""
        self.lucky = self.draw_survivors(self.rng) if self.skewed else frozenset(self.view.members)
        slow = {member for member in self.view.members if member not in self.lucky and self.rng.random() < 0.5}
        self.slow = {(source, target) for source, target in self.channels if source in slow and target in self.lucky}
        self.begun = {member: len(self.places[member].delivered) for member in self.view.members}
        for member in self.view.members:
            place = self.places[member]
            everybody = Membership(
                member=member,
                members=tuple(sorted(self.places)),
                incarnation=self.view.incarnation_of[member],
            )
            place.core = self.make(self.view.membership(everybody), Random(f"{self.rng.random()}"), self.memory)
            place.timers.clear()
            self.take(place, place.core.on_start(self.now_ns))
        for member in self.view.members:
            self.submit_waiting(self.places[member])

    def submit_waiting(self, place: Place) -> None:
        core = place.core
        assert core is not None
        while place.waiting and core.can_submit and self.may_submit():
            submission = place.waiting.popleft()
            if submission.payload not in self.causes:
                self.causes[submission.payload] = self.causes_of(place, submission.payload)
            self.take(place, core.on_submit(submission, self.now_ns))

    def may_submit(self) -> bool:
        """Whether the host makes its next submission now."""
        return True

    def causes_of(self, place: Place, payload: bytes) -> frozenset[bytes]:
        """The submissions that happened before one that is made now."""
        return frozenset(place.delivered)

    def submit(self, member: int) -> None:
        place = self.places[member]
        payload = b"%08d/%d" % (len(self.origin), member)
        self.origin[payload] = member
        if place.submitted:
            self.previous[payload] = place.submitted[-1]
        place.submitted.append(payload)
        place.waiting.append(Submission(payload=payload))
        self.submit_waiting(place)

    def take(self, place: Place, effects: list[Effect]) -> None:
        """Carry out the effects of a core."""
        for effect in effects:
            match effect:
                case Multicast(message=message):
                    checked = decode_message(encode_message(message))
                    self.streams[place.member].append(checked)
                    for member in self.view.members:
                        self.channels[place.member, member].append(checked)
                case Send(target=target, message=message):
                    if target in self.view.members:
                        self.channels[place.member, target].append(decode_message(encode_message(message)))
                case SetTimer(timer=timer, at_ns=at_ns):
                    place.timers[timer] = max(at_ns, self.now_ns)
                case CancelTimer(timer=timer):
                    place.timers.pop(timer, None)
                case Deliver() | Undo() | Report():
                    self.hand_over(place, effect)
        # Outside the loop: all effects of one call come before the next call.
        while not self.lags and self.step(place.member, place.member):
            pass

    def hand_over(self, place: Place, effect: Deliver | Undo | Report) -> None:
        match effect:
            case Report():
                place.reports.append(effect)
            case Undo(payload=payload):
                assert place.optimistic[-1] == payload, "what is taken back was shown last"
                place.optimistic.pop()
            case Deliver(inner=Kind.APPLICATION, payload=payload, level=Level.OPTIMISTIC):
                place.optimistic.append(payload)
            case Deliver(inner=Kind.APPLICATION, payload=payload):
                if payload in place.optimistic:
                    assert place.optimistic.pop(0) == payload, "what is final was shown first"
                place.delivered.append(payload)

    def step(self, source: int, target: int) -> bool:
        """Hand the next message of this channel over, if there is one."""
        channel = self.channels[source, target]
        if not channel:
            return False
        message = channel.popleft()
        if self.handed[target, source] < len(self.streams[source]):
            self.handed[target, source] += message is self.streams[source][self.handed[target, source]]
        place = self.places[target]
        assert place.core is not None
        self.take(place, place.core.on_message(message, source, self.now_ns))
        self.submit_waiting(place)
        return True

    def fire(self, member: int) -> bool:
        """Fire the next timer of a member, if there is one."""
        place = self.places[member]
        if not place.timers or place.core is None:
            return False
        timer = min(place.timers, key=lambda one: (place.timers[one], one))
        self.now_ns = max(self.now_ns, place.timers.pop(timer))
        self.take(place, place.core.on_timer(timer, self.now_ns))
        self.submit_waiting(place)
        return True

    def play(self, steps: int, *, load: float = 0.2) -> None:
        """Take random steps; `load`: share of submissions."""
        members = list(self.view.members)
        for _ in range(steps):
            self.now_ns += self.rng.randrange(1_000_000)
            drawn = self.rng.random()
            if drawn < load:
                self.submit(self.rng.choice(members))
            elif drawn < load + 0.08:
                self.fire(self.rng.choice(members))
            else:
                open_channels = [pair for pair, channel in self.channels.items() if channel]
                if open_channels:
                    pair = self.rng.choice(open_channels)
                    is_slow = pair in self.slow and self.channels[pair][0].kind in self.slow_kinds
                    if not is_slow or self.rng.random() < SLOW:
                        self.step(*pair)

    def settle(self, most: int = 200_000) -> None:
        """Run until all are idle: then all submissions of members are delivered."""
        for _ in range(most):
            moved = [self.step(*pair) for pair, channel in sorted(self.channels.items()) if channel]
            if any(moved):
                continue
            if all(self.is_idle(self.places[member]) for member in self.view.members):
                return
            due = [(min(self.places[m].timers.values()), m) for m in self.view.members if self.places[m].timers]
            assert due, "somebody is not idle, nothing is under way and no timer is armed"
            self.fire(min(due)[1])
        raise AssertionError("the group does not come to rest")

    def is_idle(self, place: Place) -> bool:
        return place.core is not None and place.core.is_idle and not place.waiting

    # End of a view.

    def draw_survivors(self, rng: Random) -> frozenset[int]:
        present = self.view.members
        least = 1 if len(present) < 3 else 2
        return frozenset(rng.sample(present, rng.randint(least, len(present))))

    def _received(self, to: int, of: int) -> int:
        """Number of messages of a stream that a survivor has received at the end of the view."""
        handed = self.handed[to, of]
        return handed if (of, to) in self.slow else self.rng.randint(handed, len(self.streams[of]))

    def change(self, survivors: frozenset[int]) -> None:
        """Change to a view of the survivors, at any positions; then check."""
        self.check_prefixes()
        position = {
            (to, of): len(self.streams[of]) if to == of else self._received(to, of)
            for to in survivors
            for of in self.view.members
        }
        cut = {of: max(position[to, of] for to in survivors) for of in self.view.members}
        memories: set[bytes] = set()
        for member in sorted(survivors):
            place = self.places[member]
            rest = {of: self.streams[of][self.handed[member, of] : cut[of]] for of in sorted(self.view.members)}
            assert place.core is not None
            closing = place.core.close(rest, survivors, self.now_ns)
            for effect in closing.effects:
                assert isinstance(effect, Deliver | Undo | Report), effect
                self.hand_over(place, effect)
            assert not place.optimistic, "nothing stays optimistic beyond a view"
            place.waiting.extendleft(reversed(closing.handed_back))
            memories.add(closing.memory)
        assert len(memories) == 1, "the memory is agreed"
        self.memory = memories.pop()
        for member in self.view.members:
            if member not in survivors:
                self.places[member].core = None
        self.check_survivors(survivors)
        self.check_excluded(survivors)
        kept = tuple(one for one in self.view.incarnations if one.member in survivors)
        back = [member for member in self.places if member not in survivors and self.rng.random() < 0.5]
        joiners = tuple(Incarnation(member, self.view.number + 1) for member in back[: len(kept) - 1])
        for joiner in joiners:
            donor = self.places[kept[0].member]
            self.places[joiner.member] = Place(joiner.member, delivered=list(donor.delivered))
        self.view = View(number=self.view.number + 1, incarnations=kept + joiners)
        self._open()

    # Checks.

    def delivered_here(self, member: int) -> list[bytes]:
        """Deliveries in this view."""
        return self.places[member].delivered[self.begun[member] :]

    def check_prefixes(self) -> None:
        if self.order is not Order.TOTAL:
            return
        told = [self.delivered_here(member) for member in self.view.members]
        longest = max(told, key=len)
        for one in told:
            assert one == longest[: len(one)], "deliveries of one view are prefixes of one sequence"

    def check_survivors(self, survivors: frozenset[int]) -> None:
        told = [self.delivered_here(member) for member in sorted(survivors)]
        for one in told:
            if self.order is Order.TOTAL:
                assert one == told[0], "survivors have delivered the same in the same order"
            else:
                assert sorted(one) == sorted(told[0]), "survivors have delivered the same"
        for member in survivors:
            place = self.places[member]
            self.check_own(place)
            self.check_order(place)
            handed_back = {submission.payload for submission in place.waiting}
            lost = set(place.submitted) - set(place.delivered) - handed_back
            assert not lost, f"member {member} has neither delivered nor handed back {sorted(lost)}"
            assert not handed_back & set(place.delivered), "what is handed back was not delivered"

    def check_excluded(self, survivors: frozenset[int]) -> None:
        """The deliveries of an excluded member, up to one that no survivor makes, are a prefix of the survivors'."""
        if self.order is not Order.TOTAL or not self.holds_excluded:
            return
        told = self.delivered_here(min(survivors))
        for member in set(self.view.members) - survivors:
            known = list(takewhile(set(told).__contains__, self.delivered_here(member)))
            assert known == told[: len(known)], f"excluded member {member} delivered in another order"

    def check_own(self, place: Place) -> None:
        assert len(set(place.delivered)) == len(place.delivered), "nothing is delivered twice"
        assert set(place.delivered) <= set(self.origin), "nothing is invented"

    def check_order(self, place: Place) -> None:
        seen: set[bytes] = set()
        last: dict[int, bytes] = {}
        for payload in place.delivered:
            origin = self.origin[payload]
            if self.order is not Order.FIFO:
                missing = self.causes[payload] - seen
                assert not missing, f"{payload!r} comes before its causes {sorted(missing)}"
            assert last.get(origin, b"") < payload, "the messages of one sender come in the order sent"
            assert payload not in self.previous or self.previous[payload] in seen, "and none of them is left out"
            last[origin] = payload
            seen.add(payload)


def run(make: Make, seed: int, *, members: int = 0, views: int = 4, steps: int = 120, **options: Any) -> Group:
    """One seed: some views with load, each ended at a random moment; then a last one that comes to rest. `members` 0:
    2 to 5. `options`: those of `Group`, which is returned after all checks, for further ones."""
    rng = Random(f"run/{seed}")
    group = Group(make, members or rng.randint(2, 5), seed, **options)
    for _ in range(views):
        group.play(rng.randrange(steps), load=rng.choice((0.05, 0.2, 0.4)))
        group.change(group.lucky if group.skewed else group.draw_survivors(rng))
    group.play(steps)
    check_rest(group)
    return group


def check_rest(group: Group) -> None:
    """The group comes to rest, and all its members have delivered the same."""
    group.settle()
    final = [group.places[member] for member in group.view.members]
    for place in final:
        group.check_own(place)
        group.check_order(place)
        assert set(place.submitted) <= set(place.delivered), "everything that a member submits is delivered"
        if group.order is Order.TOTAL:
            assert place.delivered == final[0].delivered
        assert sorted(place.delivered) == sorted(final[0].delivered)


Outcome: TypeAlias = tuple[tuple[tuple[int, int], ...], bytes]
"""Deliveries, as (origin, number), and memory."""


def ends(make: Callable[[], ViewCore], stream: Sequence[Message], survivors: Collection[int]) -> set[Outcome]:
    """Outcomes of the end of a view at members that have received none, one, ... of the messages of one stream before
    it, and the others in the rest of the cut."""
    found: set[Outcome] = set()
    for received in range(len(stream) + 1):
        core, source = make(), stream[0].origin
        before = [one for message in stream[:received] for one in delivered(core.on_message(message, source, 0))]
        closing = core.close({source: stream[received:]}, frozenset(survivors), 0)
        found.add(((*before, *delivered(closing.effects)), closing.memory))
    return found
