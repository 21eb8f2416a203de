"""Group cores over a scripted network: single datagrams are held back, dropped and released, members end and return.

`check` judges the views and deliveries of all incarnations as those of a run are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

from analysis.checks.properties import Incarnation as MemberIncarnation
from analysis.checks.properties import Property, Verdict
from node.core import Closing, Core, MakeCore, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Installed, Minority, Multicast
from node.group.core import GroupCore
from node.group.member import ViewMember
from node.registry import PROTOCOLS
from node.reliable import ReliableParameters
from node.trace import ViewReason
from node.wire import Kind, Message, decode_datagram
from tests.analysis.histories import check_linear
from tests.mutants.recorded import Recorded
from tests.node.cluster import MILLISECOND, Host, Identity, Network
from tests.node.near import NearCore

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


nothing, anything = of_kind(), everything()


class Ledger(NearCore, ViewCore):
    """Delivers in the order of each stream; its memory is every payload, and `padding` bytes."""

    def __init__(self, membership: Membership, memory: bytes, padding: int) -> None:
        super().__init__(membership)
        self._padding = padding
        self._known = set(memory.rstrip(b"-").split(b"|")) - {b""}

    @property
    def known(self) -> int:
        return len(self._known)

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        return [Multicast(message=self._us.message(Kind.TRIAL_1, payload=submission.payload))]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self._known.add(message.payload.hex().encode())
        return [Deliver.of(message)]

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        effects = [effect for some in rest.values() for one in some for effect in self.on_message(one, 0, now_ns)]
        memory = b"|".join(sorted(self._known))
        return Closing(effects=tuple(effects), memory=memory + b"-" * self._padding)


def ledger(padding: int) -> MakeCore:
    return lambda us, _, memory: Ledger(us, memory, padding)


class Scripted(Recorded):
    """Cluster of group cores. `order`: name of a protocol; `make`: builder of another core instead. `founders` None:
    all. Other members are down, and join as their second incarnation after `restart`. `parameters`: those of the
    reliable streams in addition to TIMES."""

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
        self._started: set[Incarnation] = set()
        self.kept: list[tuple[int, int, Message, Callable[[], None]]] = []
        """Datagrams that are held back: source, target, message, and a function that lets it arrive."""
        self.holds: Choice = nothing
        self.minorities: list[tuple[int, bool]] = []
        """Member, and whether it came to a minority or is back from it."""
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
        promises = (Property(name) for name in PROTOCOLS[order].promises)
        self.promises = [one for one in promises if not one.is_liveness]
        for member in self.members:
            if member not in first:
                self.crash(member)
                del self._records[MemberIncarnation(member, 1)]

    # Actions.

    def submit_all(self, count: int = 1) -> None:
        """Submit `count` messages of each member that is up."""
        for host in self.up():
            self.submit(host.membership.member, count)

    def release(self, choice: Choice = anything) -> None:
        """Release datagrams that are held back, in the order in which they were sent."""
        meant = [one for one in self.kept if choice(*one[:3])]
        self.kept = [one for one in self.kept if one not in meant]
        for *_, arrive in meant:
            arrive()

    def release_all(self) -> None:
        """Release all datagrams and hold back no more."""
        self.holds = nothing
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
            own = {one for one in self.submissions if one[:2] == self.incarnation(host)}
            missing = own - set(host.delivered)
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

    def incarnations(self) -> dict[Incarnation, Host]:
        """All of them so far."""
        return {self.incarnation(host): host for host in (*self.past, *self.hosts.values())}

    def host(self, member: int, incarnation: int = 1) -> Host:
        return self.incarnations()[member, incarnation]

    def delivered(self, member: int, incarnation: int = 1) -> list[Identity]:
        return self.host(member, incarnation).delivered

    def view(self, member: int, number: int) -> tuple[Incarnation, ...]:
        """A view that the first incarnation of a member has installed, by rank; empty: it has not."""
        views = (view for view, _ in self.host(member).views)
        return next((view.incarnations for view in views if view.number == number), ())

    def has_state(self, member: int) -> bool:
        """Whether it has the group's state."""
        return self.hosts[member].stateful_from is not None

    def known(self, member: int) -> int:
        """Number of messages in its state."""
        core = self.here(member).stack.core
        assert isinstance(core, Ledger)
        return core.known

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
        """Check the promises of the views and of the order; valid at any time."""
        findings = check_linear(self.history(), members=self.members, kinds=self.promises)
        broken = [str(finding) for finding in findings.values() if finding.verdict is Verdict.FAIL]
        assert not broken, f"seed {self.seed}: {broken}"

    # Host loop.

    def _arrive(self, host: Host, data: bytes) -> None:
        """Let a datagram arrive; one at the very instant of a start is lost, because the host is not listening yet."""
        if self.incarnation(host) in self._started:
            super()._arrive(host, data)

    def _call(self, host: Host, what: str, handler: Callable[[], list[Effect]]) -> None:
        self._started.add(self.incarnation(host))
        super()._call(host, what, handler)
        if host.core.has_left:
            self.crash(host.membership.member)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        super()._carry_out(host, effect)
        if isinstance(effect, Installed) and len(host.views) == 1:
            host.stateful_from = 0 if effect.reason is ViewReason.FIRST else None
        elif isinstance(effect, Minority):
            self.minorities.append((host.membership.member, effect.begins))

    def _carry(self, data: bytes, target: int, *, is_heartbeat: bool = False) -> None:
        envelope, message = decode_datagram(data)
        if self.holds(envelope.sender, target, message):

            def carry() -> None:
                super(Scripted, self)._carry(data, target, is_heartbeat=is_heartbeat)

            self.kept.append((envelope.sender, target, message, carry))
        else:
            super()._carry(data, target, is_heartbeat=is_heartbeat)
