"""The processor as a new epoch sees it while an older one is incomplete."""

from __future__ import annotations

from node.core import Membership
from node.effects import Deliver, Effect
from node.protocols.adaptive_gate import Gate
from node.protocols.adaptive_words import Tail, with_tail
from node.protocols.execution import Command, Execution, Key, ServiceParameters
from node.trace import Level
from node.wire import Kind, Message


def test_what_has_become_final_while_it_waited_is_executed_and_delivered() -> None:
    """A lied floor could make it so; an assertion of the processor ended the node when the gate opened."""
    execution = Execution(membership=Membership(member=0, members=(0, 1)), parameters=ServiceParameters(), seed=1)
    gate = Gate(execution, {0: 1, 1: 1}, is_open=False)
    out: list[Effect] = []
    for timestamp in (12, 10):
        gate.insert(command(timestamp), 0, out)
    gate.commit((2, 51), out)
    gate.open(frozenset(), 1, out)
    execution.advance(1, out)
    final = [each.seq for each in out if isinstance(each, Deliver) and each.level is Level.FINAL]
    assert final == [10, 12] and execution.held == 0


def command(timestamp: int) -> Command:
    """Of member 1, in epoch 2; its number is its timestamp."""
    key: Key = (2, timestamp, 1, 1, timestamp)
    payload = with_tail(b"%d" % timestamp, Tail(1, False))
    message = Message(
        kind=Kind.TIMEWARP_DATA, origin=1, incarnation=1, seq=timestamp, words=(timestamp,), payload=payload
    )
    return Command(key, message, 0, False)
