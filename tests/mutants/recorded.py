"""A cluster whose hosts write the records that the oracle judges: what was asked for, what was delivered, who stopped.

Nothing here reads a protocol header: identities are the stamps of the hosts, causality is the order of the records.
"""

from __future__ import annotations

from collections.abc import Iterable

from analysis.oracle import Record, check
from analysis.properties import Finding, Incarnation, MessageId, Property
from analysis.verdict import Verdict
from collector.records import Event
from node.effects import Deliver
from node.trace import decode_stamp
from node.wire import Kind
from tests.node.cluster import Build, Cluster, Host, Network

NOBODY = MessageId(0, 0, 0)


class Recorded(Cluster):
    """See the module's text."""

    def __init__(self, count: int, build: Build, *, seed: int = 1, network: Network | None = None) -> None:
        self._records: dict[Incarnation, list[Record]] = {}
        super().__init__(count, build, seed=seed, network=network)

    def submit(self, member: int, count: int = 1, size: int = 24, target: int | None = None) -> None:
        """One by one, so that each is recorded before its core hears of it."""
        for _ in range(count):
            host = self.hosts[member]
            life = _life(host)
            self._note(life, Event.SUBMIT, MessageId(*life, host.submitted + 1))
            super().submit(member, size=size, target=target)

    def history(self) -> dict[Incarnation, list[Record]]:
        """All records; who is up and was not expelled stops now, drained if it has nothing left to do."""
        stopped = {_life(host): host for host in self.survivors()}
        history = {life: list(records) for life, records in sorted(self._records.items())}
        for life, host in stopped.items():
            records = history[life]
            records.append(Record(len(records) + 1, Event.STOP, int(host.is_idle), NOBODY, self.now_ns))
        return history

    def judge(self) -> dict[Property, Finding]:
        return check(self.history(), members=self.members)

    def _start(self, member: int, incarnation: int) -> None:
        self._note(Incarnation(member, incarnation), Event.START)
        super()._start(member, incarnation)

    def _deliver(self, host: Host, delivery: Deliver) -> None:
        if delivery.inner is Kind.APPLICATION:
            stamp = decode_stamp(delivery.payload)
            message = MessageId(stamp.origin, stamp.incarnation, stamp.number)
            self._note(_life(host), Event.DELIVER, message, int(delivery.level))
        super()._deliver(host, delivery)

    def _note(self, life: Incarnation, event: Event, message: MessageId = NOBODY, detail: int = 0) -> None:
        records = self._records.setdefault(life, [])
        records.append(Record(len(records) + 1, event, detail, message, self.now_ns))


def failed(findings: dict[Property, Finding]) -> set[str]:
    return {kind.value for kind, finding in findings.items() if finding.verdict is Verdict.FAIL}


def passes(findings: dict[Property, Finding], promises: Iterable[str]) -> bool:
    """Whether each promise is kept and could be judged."""
    return all(findings[Property(promise)].verdict is Verdict.PASS for promise in promises)


def _life(host: Host) -> Incarnation:
    return Incarnation(host.membership.member, host.membership.incarnation)
