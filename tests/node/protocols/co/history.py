"""History of each message of a CO group, and true causality, from the stages that cores report.

Causality here is the paper's: p precedes q when the sender of q had sent or accepted p before it sent q, or when such
steps lead from p to q. It comes from the reported sendings and acceptances, never from an ACK, to be compared with the
order of the numbers.
"""

from __future__ import annotations

from functools import cached_property
from random import Random
from typing import Any

from analysis.checks.properties import Verdict
from node.core import Submission, random_for
from node.effects import Effect, Report, Timer
from node.parameters import from_mapping
from node.protocols.co.codec import Layout, Vector
from node.protocols.co.core import CoCore, CoParameters
from node.registry import CAUSAL_PROMISES
from node.trace import Notice
from node.wire import Flag, Kind, Message
from tests.mutants.recorded import Recorded, verdicts
from tests.node.cluster import MILLISECOND, Build, Host, Network, check_silence

Label = tuple[int, int]
"""(rank of the source, SEQ)."""

SEQ = 0xFFFF_FFFF
"""Mask for SEQ in the value of a report of a stage; the bits above it are the number of the view."""
STAGES = (Notice.ACCEPTED, Notice.PREACKNOWLEDGED, Notice.ACKNOWLEDGED)


class Watched(CoCore):
    """A core that keeps the effects of each call, and checks its invariants afterwards."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.batches: list[list[Effect]] = []

    def on_start(self, now_ns: int) -> list[Effect]:
        return self._note(super().on_start(now_ns))

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        return self._note(super().on_submit(submission, now_ns))

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return self._note(super().on_message(message, source, now_ns))

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        return self._note(super().on_timer(timer, now_ns))

    def _note(self, effects: list[Effect]) -> list[Effect]:
        self.batches.append(effects)
        check_invariants(self)
        return effects


def check_invariants(core: CoCore) -> None:
    """The invariants of the header of `co.py`, and incremental values equal to their definitions."""
    state, holding = core._state, core._holding
    for matrix in (state.al, state.pal, state.stated):
        assert matrix.least == [min(column) for column in zip(*matrix.rows, strict=True)]
    assert not any(low > req for low, req in zip(state.al.least, state.req, strict=True))
    assert not any(mine > req for mine, req in zip(state.al.rows[state.me], state.req, strict=True))
    logs = [*state.rrl, state.prl, *(held.values() for held in holding.buffered)]
    resident = [p for log in logs for p in log]
    assert (state.resident, state.used) == (len(resident), sum(p.size for p in resident))
    assert list(state.sl.values()) == list(state.rrl[state.me])
    if not core._holding.is_selective:
        held = zip(state.req, holding.buffered, strict=True)
        assert all(sorted(some) == list(range(req, req + len(some))) for req, some in held)
    for j, log in enumerate(state.rrl):
        assert all(state.al.least[j] <= p.seq < state.req[j] for p in log)
    assert state._others_least_buf == min(buf for j, buf in enumerate(state.buf) if j != state.me)


class Staged(Recorded):
    """Remembers every stage of every message, in the order and at the time of the whole group."""

    def __init__(self, count: int, build: Build, *, seed: int = 1, network: Network | None = None) -> None:
        self.stages: list[tuple[int, Notice, Label]] = []
        self.stages_ns: list[int] = []
        super().__init__(count, build, seed=seed, network=network)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, Report) and effect.code in STAGES:
            self.stages.append((host.membership.member, Notice(effect.code), (effect.member, effect.value & SEQ)))
            self.stages_ns.append(self.now_ns)
        super()._carry_out(host, effect)


class History:
    """History of a cluster of watched cores that report their stages."""

    def __init__(self, cluster: Staged) -> None:
        self.cluster = cluster
        self.cores = [host.core for host in cluster.hosts.values() if isinstance(host.core, Watched)]
        self.layout = Layout(len(self.cores))

    def stage(self, rank: int, notice: Notice) -> list[tuple[int, Label]]:
        """(number of the call, message) of every message that reached that stage at that member, in order."""
        return [
            (batch, (effect.member, effect.value & SEQ))
            for batch, effects in enumerate(self.cores[rank].batches)
            for effect in effects
            if isinstance(effect, Report) and effect.code == notice
        ]

    @cached_property
    def pasts(self) -> dict[Label, frozenset[Label]]:
        """All messages that truly precede each message."""
        accepted = [[label for _, label in self.stage(rank, Notice.ACCEPTED)] for rank in range(len(self.cores))]
        found: dict[Label, frozenset[Label]] = {}
        positions = [0] * len(accepted)
        known: list[set[Label]] = [set() for _ in accepted]
        is_moving = True
        while is_moving:
            is_moving = False
            for rank, labels in enumerate(accepted):
                while positions[rank] < len(labels):
                    label = labels[positions[rank]]
                    if label[0] == rank:
                        found[label] = frozenset(known[rank])
                    elif label not in found:
                        break
                    known[rank] |= {label} | found[label]
                    positions[rank] += 1
                    is_moving = True
        assert positions == list(map(len, accepted)), "somebody accepted what nobody sent"
        return found

    @cached_property
    def acks(self) -> dict[Label, Vector]:
        """ACK of each message."""
        return {
            (source, message.seq): self.layout.unpack_data(message.words).ack
            for source, message in self.cluster.sent
            if message.kind is Kind.CO_DATA and not message.flags & Flag.RETRANSMISSION
        }

    def out_of_order(self) -> list[tuple[int, Label, Label]]:
        """(member, p, q): p truly precedes q, but that member delivered q first."""
        found = []
        for rank in range(len(self.cores)):
            delivered = [label for _, label in self.stage(rank, Notice.ACKNOWLEDGED)]
            place = {label: position for position, label in enumerate(delivered)}
            pairs = ((p, q) for q in delivered for p in sorted(self.pasts[q]))
            found += [(rank, p, q) for p, q in pairs if place.get(p, len(delivered)) > place[q]]
        return found

    def broken_promises(self) -> list[str]:
        """Promises that the oracle finds broken, by the hosts' records of submissions and deliveries."""
        found = verdicts(self.cluster.history(), self.cluster.members, CAUSAL_PROMISES)
        return [promise for promise, verdict in found.items() if verdict is not Verdict.PASS]


def build_watched(**parameters: Any) -> Build:
    checked = from_mapping(CoParameters, {"trace_stages": True, **parameters}, "co")
    return lambda us, seed: Watched(membership=us, parameters=checked, rng=random_for(seed, us, "co"))


def run_dense(
    seed: int, *, members: int = 3, each: int = 3, loss_ratio: float = 0.3, within_ms: int = 6, **parameters: Any
) -> History:
    """A few messages of every member within a few delays, so that many are in transit while others are lost; run until
    all is silent."""
    rng = Random(f"{seed}/dense")
    network = Network(delay_ns=1 * MILLISECOND, jitter_ns=rng.choice((0, 2)) * MILLISECOND, loss_ratio=loss_ratio)
    cluster = Staged(members, build_watched(**parameters), seed=seed, network=network)
    for member in cluster.members:
        for _ in range(each):
            cluster.submit_later(member, rng.randrange(within_ms * 1000) * 1000)
    check_silence(cluster)
    return History(cluster)
