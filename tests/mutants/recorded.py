"""A cluster whose hosts write the records that the oracle judges, as the real hosts do.

Statements of a protocol about itself are not read: identities are the stamps of the hosts, causality is the order of
the records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from analysis.checks import oracle
from analysis.checks.oracle_views import Record
from analysis.checks.properties import Finding, Incarnation, MessageId, Property, Verdict
from collector.records import Event, Level
from node.effects import Deliver, Effect, Installed, Minority, Report, StateTaken, Undo
from node.trace import decode_stamp
from node.wire import Kind
from tests.analysis.histories import check_linear
from tests.node.cluster import Build, Cluster, Host, Network

NO_MESSAGE = MessageId(0, 0, 0)
History = dict[Incarnation, list[Record]]


Scenario: TypeAlias = Callable[[Build], "Recorded"]


def scenario(count: int, *, network: Network | None = None) -> Callable[[Callable[[Recorded], None]], Scenario]:
    """The decorated function begins the run of a cluster of `count` members, which it is given."""

    def of(begin: Callable[[Recorded], None]) -> Scenario:
        def begun(build: Build) -> Recorded:
            cluster = Recorded(count, build, network=network)
            begin(cluster)
            return cluster

        return begun

    return of


class Recorded(Cluster):
    """A cluster that keeps a history of records."""

    def __init__(self, count: int, build: Build, *, seed: int = 1, network: Network | None = None) -> None:
        self._records: History = {}
        super().__init__(count, build, seed=seed, network=network)

    def submit(self, member: int, count: int = 1, size: int = 24, target: int | None = None) -> None:
        """Submissions one by one, each recorded before its core is called."""
        for _ in range(count):
            host = self.hosts[member]
            incarnation = _incarnation(host)
            self.note(incarnation, Event.SUBMIT, message=MessageId(*incarnation, host.submitted + 1))
            super().submit(member, size=size, target=target)

    def history(self) -> History:
        """All records; a host that is up and not excluded stops now, drained if it is idle."""
        stopped = {_incarnation(host): host for host in self.survivors()}
        history = {incarnation: list(records) for incarnation, records in sorted(self._records.items())}
        for incarnation, host in stopped.items():
            stop = Record(len(history[incarnation]) + 1, Event.STOP, int(host.is_idle), NO_MESSAGE, self.now_ns)
            history[incarnation].append(stop)
        return history

    def note(
        self,
        incarnation: Incarnation,
        event: Event,
        detail: int = 0,
        message: MessageId = NO_MESSAGE,
        *,
        extra: int = 0,
        value: int = 0,
    ) -> None:
        records = self._records.setdefault(incarnation, [])
        at_ns = self.record_ns(incarnation)
        records.append(Record(len(records) + 1, event, detail, message, at_ns, extra, value, at_ns))

    def record_ns(self, incarnation: Incarnation) -> int:
        """Time of the records of an incarnation."""
        return self.now_ns

    def _start(self, member: int, incarnation: int) -> None:
        self.note(Incarnation(member, incarnation), Event.START)
        super()._start(member, incarnation)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, Report):
            self.note(_incarnation(host), Event.REPORT, effect.code, extra=effect.member, value=effect.value)
        elif isinstance(effect, Installed | Minority | StateTaken):
            self._note_view(_incarnation(host), effect)
        super()._carry_out(host, effect)

    def _note_view(self, incarnation: Incarnation, effect: Installed | Minority | StateTaken) -> None:
        match effect:
            case Installed(number=number, incarnations=incarnations, reason=reason):
                for rank, (member, start) in enumerate(incarnations):
                    message = MessageId(member, start, number)
                    self.note(incarnation, Event.VIEW, reason, message, extra=rank, value=len(incarnations))
            case Minority(view=view, begins=begins, heard=heard):
                self.note(incarnation, Event.MINORITY, int(begins), MessageId(0, 0, view), value=heard)
            case StateTaken(view=view, donor=donor, donor_incarnation=donor_start, size_bytes=size_bytes):
                self.note(incarnation, Event.STATE, 0, MessageId(donor, donor_start, view), value=size_bytes)

    def _deliver(self, host: Host, delivery: Deliver) -> None:
        if delivery.inner is not Kind.APPLICATION:
            super()._deliver(host, delivery)
            return
        message = self._note_handing(host, Event.DELIVER, delivery)
        if delivery.level is not Level.OPTIMISTIC:
            host.delivered.append(message)
            host.payloads.append(delivery.payload)

    def _undo(self, host: Host, undo: Undo) -> None:
        self._note_handing(host, Event.UNDO, undo)

    def _note_handing(self, host: Host, event: Event, effect: Deliver | Undo) -> MessageId:
        """Record a delivery or an undo, also a wrong one: the oracle judges it, not the cluster."""
        stamp = decode_stamp(effect.payload)
        message = MessageId(stamp.origin, stamp.incarnation, stamp.number)
        self.note(_incarnation(host), event, int(effect.level), message)
        return message


def judge(history: History, members: tuple[int, ...], kinds: tuple[Property, ...]) -> dict[Property, Finding]:
    """Findings by the definitions; the verdicts of the linear checker must be the same."""
    findings = oracle.check(history, members=members, kinds=kinds)
    for kind, finding in check_linear(history, members=members, kinds=kinds).items():
        assert finding.verdict is findings[kind].verdict, f"the checkers disagree on {kind.value}"
    return findings


def verdicts(history: History, members: tuple[int, ...], promises: tuple[str, ...]) -> dict[str, Verdict]:
    """Verdict of each promise, by name."""
    kinds = tuple(Property(promise) for promise in promises)
    return {kind.value: finding.verdict for kind, finding in judge(history, members, kinds).items()}


def _incarnation(host: Host) -> Incarnation:
    return Incarnation(host.membership.member, host.membership.incarnation)
