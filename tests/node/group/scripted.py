"""Group cores over a scripted network: single datagrams are held back, dropped and released, members end and return.

A `tests.node.cluster.Cluster` with hosts of the group layer: an incarnation that has ended is followed by the next one,
unless it has left; and views, minorities and states are kept. `check` checks them against the properties of the group
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import TypeAlias

from node.core import Closing, Core, MakeCore, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Installed, Minority, Multicast, StateTaken, Timer
from node.group.core import GroupCore
from node.group.member import ViewMember
from node.registry import PROTOCOLS
from node.reliable import ReliableParameters
from node.trace import ViewReason
from node.wire import Kind, Message, decode_datagram
from tests.node.cluster import MILLISECOND, Cluster, Host, Identity, Network

Incarnation: TypeAlias = tuple[int, int]
"""(member, incarnation)."""
Choice: TypeAlias = Callable[[int, int, Message], bool]
"""(source, target, message) -> whether it is selected."""

SUSPECT_AFTER_NS = 400 * MILLISECOND
TIMES = {
    "suspect_after_ns": SUSPECT_AFTER_NS,
    "heartbeat_ns": 25 * MILLISECOND,
    "retry_first_ns": 40 * MILLISECOND,
    "retry_most_ns": 200 * MILLISECOND,
}


def of_kind(*kinds: Kind, source: int | None = None, to: Iterable[int] = ()) -> Choice:
    """Messages of these kinds (also inside a message of the streams), of this transmitter, to these members (empty: to
    all)."""
    targets = set(to)

    def is_meant(transmitter: int, target: int, message: Message) -> bool:
        is_from = source is None or transmitter == source
        return is_from and (not targets or target in targets) and (message.kind in kinds or message.inner in kinds)

    return is_meant


def everything(*, source: int | None = None, to: Iterable[int] = ()) -> Choice:
    return of_kind(*Kind, source=source, to=to)


@dataclass(slots=True)
class IncarnationHistory:
    """History of one incarnation."""

    views: dict[int, Installed] = field(default_factory=dict)
    delivered: dict[int, list[Identity]] = field(default_factory=dict)
    """Deliveries by view."""
    state: StateTaken | None = None
    minorities: list[Minority] = field(default_factory=list)
    view: int = 0

    @property
    def all_delivered(self) -> list[Identity]:
        return [one for number in sorted(self.delivered) for one in self.delivered[number]]

    def is_stateful_in(self, number: int) -> bool:
        """Whether it had the group's state at the end of this view."""
        first = next(iter(self.views.values()), None)
        return (first is not None and first.reason is ViewReason.FIRST) or (
            self.state is not None and self.state.view <= number
        )


class Ledger(ViewCore):
    """Delivers in the order of each stream; its memory is every payload, and `padding` bytes."""

    def __init__(self, membership: Membership, memory: bytes, padding: int) -> None:
        self._us = membership
        self._padding = padding
        self._known = set(memory.rstrip(b"-").split(b"|")) - {b""}

    @property
    def can_submit(self) -> bool:
        return True

    @property
    def is_idle(self) -> bool:
        return True

    @property
    def known(self) -> int:
        return len(self._known)

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        return [Multicast(message=self._us.message(Kind.TRIAL_1, payload=submission.payload))]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self._known.add(message.payload.hex().encode())
        return [Deliver.of(message)]

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise AssertionError(timer)

    def close(self, rest: object, survivors: frozenset[int], now_ns: int) -> Closing:
        assert isinstance(rest, dict)
        effects = [effect for some in rest.values() for one in some for effect in self.on_message(one, 0, now_ns)]
        memory = b"|".join(sorted(self._known))
        return Closing(effects=tuple(effects), memory=memory + b"-" * self._padding)


def ledger(padding: int) -> MakeCore:
    def make(membership: Membership, rng: Random, memory: bytes) -> ViewCore:
        del rng
        return Ledger(membership, memory, padding)

    return make


class Scripted(Cluster):
    """Cluster of group cores. `order`: name of a protocol; `make`: builder of another core instead. `founders` None:
    all. Other members are down until `begin`. `parameters`: those of the reliable streams in addition to TIMES."""

    def __init__(
        self,
        count: int,
        *,
        order: str = "reliable",
        make: MakeCore | None = None,
        founders: Iterable[int] | None = None,
        seed: int = 1,
        delay_ns: int = MILLISECOND,
        parameters: dict[str, int | bool] | None = None,
        heals: bool = False,
    ) -> None:
        self.histories: dict[Incarnation, IncarnationHistory] = {}
        self._started: set[Incarnation] = set()
        self.kept: list[tuple[int, int, Message, Callable[[], None]]] = []
        """Datagrams that are held back: source, target, message, and a function that lets it arrive."""
        self.holds: Choice = lambda source, target, message: False
        self.on_effect: Callable[[Host, Effect], None] = lambda host, effect: None
        streams = {**TIMES, **(parameters or {})}
        first = tuple(sorted(founders)) if founders is not None else tuple(range(count))

        def build(membership: Membership, seed: int) -> Core:
            membership = replace(membership, founders=first)
            if make is not None:
                return GroupCore(
                    membership=membership,
                    founders=first,
                    parameters=ReliableParameters(**streams),  # type: ignore[arg-type]
                    rng=Random(f"{seed}/{membership.member}/{membership.incarnation}"),
                    make=make,
                    heals=heals,
                )
            nested = streams if order == "reliable" else {"reliable": streams}
            return PROTOCOLS[order].build(membership=membership, parameters=nested, seed=seed)

        super().__init__(count, build, seed=seed, network=Network(delay_ns=delay_ns))
        self.is_total = order not in ("reliable", "cbcast") and make is None
        for member in self.members:
            if member not in first:
                self.crash(member)

    # Actions.

    def begin(self, member: int) -> None:
        """Start a member that is no founder."""
        self._start(member, 1)

    def leave(self, member: int) -> None:
        host = self.hosts[member]
        self._call(host, "leave", lambda: host.core.leave(self.now_ns))

    def release(self, choice: Choice = lambda source, target, message: True) -> int:
        """Release datagrams that are held back, in the order in which they were sent. Returns their number."""
        meant = [one for one in self.kept if choice(*one[:3])]
        self.kept = [one for one in self.kept if one not in meant]
        for *_, arrive in meant:
            arrive()
        return len(meant)

    def release_all(self) -> None:
        """Release all datagrams and hold back no more."""
        self.holds = lambda source, target, message: False
        self.release()

    def inject(self, member: int, message: Message, source: int) -> None:
        """Let a datagram that no member has sent arrive now."""
        host = self.hosts[member]
        self._call(host, f"injected {message}", lambda: host.core.on_message(message, source, self.now_ns))

    def until(self, condition: Callable[[], bool], within_ns: int = 20 * SUSPECT_AFTER_NS, step_ns: int = 0) -> None:
        """Let time pass until a condition holds, checked after each event; AssertionError after `within_ns`."""
        end_ns = self.now_ns + within_ns
        while not condition():
            assert self._events, "nothing is left to happen"
            assert self._events[0][0] <= end_ns, f"not within {within_ns} ns (seed {self.seed}): {self.where()}"
            self.run(max(step_ns, self._events[0][0] - self.now_ns))

    def settle(self, view: int | None = None, *, within_ns: int = 50 * SUSPECT_AFTER_NS) -> None:
        """Run until all that are up are idle in one view (of this number), without cuts; then check."""
        assert not self._blocked
        self.until(lambda: self.is_settled(view), within_ns, MILLISECOND)
        self.check()
        for host in self.up():
            incarnations = self.group(host.membership.member)
            own = [one for one in self.submissions if one[:2] == self.incarnation(host)]
            missing = set(own) - set(self.histories[self.incarnation(host)].all_delivered)
            assert incarnations.view is not None
            assert not missing, f"{self.incarnation(host)} has not delivered {sorted(missing)[:5]} of its own"

    def is_settled(self, view: int | None = None) -> bool:
        hosts = self.up()
        views = {self.number(host.membership.member) for host in hosts}
        members = set(self.group(hosts[0].membership.member).view.members if 0 not in views else ())  # type: ignore[union-attr]
        is_whole = members == {host.membership.member for host in hosts}
        return is_whole and len(views) == 1 and view in (None, *views) and all(host.is_idle for host in hosts)

    # Results.

    def group(self, member: int) -> GroupCore:
        core = self.hosts[member].core
        assert isinstance(core, GroupCore)
        return core

    def here(self, member: int) -> ViewMember:
        here = self.group(member).here
        assert here is not None
        return here

    def number(self, member: int) -> int:
        """Number of its view; 0: it is joining."""
        view = self.group(member).view
        return view.number if view is not None else 0

    def incarnations_of(self, member: int) -> tuple[Incarnation, ...]:
        """The view of this member, by rank."""
        view = self.group(member).view
        return tuple((one.member, one.incarnation) for one in view.incarnations) if view is not None else ()

    def incarnation(self, host: Host) -> Incarnation:
        return host.membership.member, host.membership.incarnation

    def history(self, member: int, incarnation: int = 1) -> IncarnationHistory:
        return self.histories.setdefault((member, incarnation), IncarnationHistory())

    def where(self) -> str:
        """Phase and view of each member, as text."""
        return ", ".join(
            f"{self.incarnation(host)} {host.core.phase} in view {self.number(member)}"
            for member, host in self.hosts.items()
            if host.is_up
        )

    def is_minority(self, member: int) -> bool:
        return self.group(member).standing == "minority"

    # Properties.

    def check(self) -> None:
        """Check all properties; valid at any time."""
        self._check_views()
        self._check_deliveries()
        self._check_synchrony()
        self._check_order()

    def _check_views(self) -> None:
        agreed: dict[int, tuple[Incarnation, ...]] = {}
        for incarnation, history in self.histories.items():
            for earlier, later in pairwise(history.views.values()):
                is_next = later.number == earlier.number + 1
                is_restored = later.number > earlier.number and later.reason is ViewReason.RESTORED
                assert is_next or is_restored, (incarnation, list(history.views))
            for number, view in history.views.items():
                members = tuple((member, start) for member, start in view.incarnations)
                known = agreed.setdefault(number, members)
                assert known == members, f"view_agreement: view {number} is {known}, and {members} at {incarnation}"
                assert incarnation in members, f"view_agreement: {incarnation} is not in its view {members}"
        gone: dict[int, set[Incarnation]] = {0: set()}
        for number, incarnations in sorted(agreed.items()):
            before = self._before(number)
            left: set[Incarnation] = set(agreed[before]) if before else set()
            gone[number] = gone[before] | left.difference(incarnations)
            back = gone[number].intersection(incarnations)
            assert not back, f"{sorted(back)} came back in view {number}"

    def _before(self, number: int) -> int:
        """Number of the view before this one; 0: it is the first one."""
        ways = (pairwise(history.views) for history in self.histories.values())
        return next((before for way in ways for before, after in way if after == number), 0)

    def _check_deliveries(self) -> None:
        view_of: dict[Identity, int] = {}
        submitted = set(self.submissions)
        for incarnation, history in self.histories.items():
            told = history.all_delivered
            assert len(set(told)) == len(told), f"integrity: {incarnation} delivered twice"
            assert set(told) <= submitted, f"integrity: {incarnation} delivered what nobody submitted"
            for number, some in history.delivered.items():
                for one in some:
                    known = view_of.setdefault(one, number)
                    assert known == number, f"same_view: {one} in view {known}, and in {number} at {incarnation}"
                    assert tuple(one[:2]) in history.views[number].incarnations, f"no_ghost: {one} in view {number}"
                    assert history.is_stateful_in(number), (
                        f"state_transfer: {incarnation} delivered {one} without the state"
                    )

    def _check_synchrony(self) -> None:
        """Incarnations that go from a view to the next one have delivered the same messages in it."""
        ways = {way for history in self.histories.values() for way in pairwise(history.views)}
        for number, following in ways:
            told = {
                incarnation: frozenset(history.delivered.get(number, ()))
                for incarnation, history in self.histories.items()
                if (number, following) in pairwise(history.views) and history.is_stateful_in(number)
            }
            assert len(set(told.values())) <= 1, f"virtual_synchrony: in view {number} {told}"

    def _check_order(self) -> None:
        for incarnation, history in self.histories.items():
            last: dict[Incarnation, int] = {}
            for origin, start, number in history.all_delivered:
                before = last.get((origin, start), number - 1)
                assert number == before + 1, f"fifo: {incarnation} delivered {(origin, start, number)} after {before}"
                last[origin, start] = number
        if not self.is_total:
            return
        for number in {number for history in self.histories.values() for number in history.delivered}:
            told = [history.delivered.get(number, []) for history in self.histories.values() if number in history.views]
            survivors = [
                history.delivered.get(number, [])
                for history in self.histories.values()
                if number in history.views and number + 1 in history.views and history.is_stateful_in(number)
            ]
            longest = max(survivors or told, key=len)
            for one in survivors or told:
                assert one == longest[: len(one)], f"total_order: in view {number} {one} and {longest}"

    # Host loop.

    def _arrive(self, host: Host, data: bytes) -> None:
        """Let a datagram arrive; one at the very instant of a start is lost, because the host is not listening yet."""
        if self.incarnation(host) in self._started:
            super()._arrive(host, data)

    def _call(self, host: Host, what: str, handler: Callable[[], list[Effect]]) -> None:
        self._started.add(self.incarnation(host))
        super()._call(host, what, handler)
        if host.is_up and host.core.has_ended:
            if host.core.has_left:
                self.crash(host.membership.member)
            else:
                self.restart(host.membership.member)

    def restart(self, member: int) -> None:
        """As in a cluster; requests that were not submitted are dropped."""
        self.hosts[member].queue.clear()
        super().restart(member)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        self.on_effect(host, effect)
        history = self.history(*self.incarnation(host))
        match effect:
            case Installed(number=number):
                history.views[number] = effect
                history.view = number
            case Minority():
                history.minorities.append(effect)
            case StateTaken():
                history.state = effect
            case _:
                super()._carry_out(host, effect)

    def _deliver(self, host: Host, delivery: Deliver) -> None:
        before = len(host.delivered)
        super()._deliver(host, delivery)
        history = self.history(*self.incarnation(host))
        history.delivered.setdefault(history.view, []).extend(host.delivered[before:])

    def _carry(self, data: bytes, target: int, *, is_heartbeat: bool = False) -> None:
        envelope, message = decode_datagram(data)
        if self.holds(envelope.sender, target, message):

            def carry() -> None:
                super(Scripted, self)._carry(data, target, is_heartbeat=is_heartbeat)

            self.kept.append((envelope.sender, target, message, carry))
        else:
            super()._carry(data, target, is_heartbeat=is_heartbeat)
