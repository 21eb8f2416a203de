"""CBCAST within one view: the delay rule sentence by sentence, over the reliable layer, and its cost.

The end of a view is in tests/node/group/test_close_cbcast.py, random histories of views in test_histories.py there.
"""

from __future__ import annotations

import time

import pytest

from analysis.checks.properties import Verdict
from node.core import Membership, Submission
from node.effects import Deliver, Multicast, Report
from node.errors import DropReason
from node.protocols.cbcast import CbcastCore, CbcastParameters
from node.registry import PROTOCOLS
from node.wire import Flag, Kind, Message, encode_message
from tests.mutants.recorded import Recorded, verdicts
from tests.node.by_hand import delivered
from tests.node.cluster import MILLISECOND, check_silence, stack
from tests.node.grouped import SUSPECT_AFTER_NS

MEMBERS = (0, 1, 2)
PROMISES = PROTOCOLS["cbcast"].promises
# Core alone.


def core(member: int, *, members: tuple[int, ...] = MEMBERS, waiting: int = 65536) -> CbcastCore:
    membership = Membership(member=member, members=members)
    return CbcastCore(membership=membership, parameters=CbcastParameters(waiting=waiting))


def sent_by(one: CbcastCore, payload: bytes = b"") -> Message:
    """The multicast of a submission."""
    multicast, _ = one.on_submit(Submission(payload=payload), 0)
    assert isinstance(multicast, Multicast)
    return multicast.message


def data(origin: int, seq: int, *causes: int) -> Message:
    """A data message. `causes`: number of deliveries at the sender, by member."""
    return Message(kind=Kind.CBCAST_DATA, origin=origin, incarnation=1, seq=seq, words=causes)


def give(one: CbcastCore, *messages: Message) -> list[tuple[int, int]]:
    """Deliveries of these messages, in order."""
    return [found for message in messages for found in delivered(one.on_message(message, message.origin, 0))]


def test_a_sender_delivers_its_own_message_as_it_sends_it() -> None:
    one = core(1)
    multicast, delivery = one.on_submit(Submission(payload=b"x", flags=Flag.DUMMY.value), 0)
    assert isinstance(multicast, Multicast)
    assert delivery == Deliver(payload=b"x", origin=1, incarnation=1, seq=1)
    assert (multicast.message.seq, multicast.message.flags) == (1, Flag.DUMMY)
    assert one.on_message(multicast.message, 1, 0) == [], "it comes back from the layer below"


def test_the_vector_says_what_the_sender_had_delivered() -> None:
    one = core(1)
    give(one, data(0, 1, 0, 0, 0), data(0, 2, 1, 0, 0))
    sent_by(one)
    assert sent_by(one).words == (2, 1, 0)


def test_a_message_is_delayed_until_its_causes_are_delivered() -> None:
    one = core(2)
    assert give(one, data(1, 1, 1, 0, 0)) == []
    assert (one.buffered, one.is_idle) == (1, False)
    assert give(one, data(0, 1, 0, 0, 0)) == [(0, 1), (1, 1)]
    assert (one.buffered, one.is_idle) == (0, True)


def test_concurrent_messages_are_delivered_as_they_come() -> None:
    one, other = core(2), core(2)
    assert give(one, data(1, 1, 0, 0, 0), data(0, 1, 0, 0, 0)) == [(1, 1), (0, 1)]
    assert give(other, data(0, 1, 0, 0, 0), data(1, 1, 0, 0, 0)) == [(0, 1), (1, 1)]


def test_what_was_received_and_not_delivered_is_no_cause() -> None:
    """Guard against counting receipts: c has message 1 of b, which waits, and must not name it as a cause."""
    one = core(2)
    give(one, data(1, 1, 1, 0, 0))
    assert sent_by(one).words == (0, 0, 0)


def test_one_release_sets_off_the_next() -> None:
    one = core(2)
    waiting = [data(1, 1, 1, 0, 0), data(1, 2, 2, 1, 0), data(1, 3, 2, 2, 0)]
    assert give(one, *waiting) == []
    assert give(one, data(0, 1, 0, 0, 0)) == [(0, 1), (1, 1)]
    assert give(one, data(0, 2, 1, 1, 0)) == [(0, 2), (1, 2), (1, 3)]


def test_one_release_looks_at_all_that_waited_for_it() -> None:
    one = core(3, members=(0, 1, 2, 3))
    assert give(one, data(1, 1, 1, 0, 0, 0), data(2, 1, 1, 1, 0, 0), data(2, 2, 1, 1, 1, 0)) == []
    assert give(one, data(0, 1, 0, 0, 0, 0)) == [(0, 1), (1, 1), (2, 1), (2, 2)]


def test_without_a_layer_that_sees_losses_all_behind_a_loss_waits_for_ever() -> None:
    """Paper 000, section 1: "vector clocks detect no loss". 2 loses one message: it asks for nothing, the sender learns
    nothing, and neither the sender's next message nor one that another sends after the lost one is ever delivered."""
    cluster = Recorded(3, lambda us, _: CbcastCore(membership=us, parameters=CbcastParameters()))
    cluster.lose = lambda source, target, message: (source, target, message.seq) == (0, 2, 1)
    cluster.submit(0)
    cluster.submit_later(1, 10 * MILLISECOND)
    cluster.submit_later(0, 20 * MILLISECOND)
    cluster.run()
    everything = [(0, 1, 1), (1, 1, 1), (0, 1, 2)]
    assert [host.delivered for host in cluster.up()] == [everything, everything, []]
    assert len(cluster.sent) == 3
    assert [(host.core.buffered, host.timers) for host in cluster.up()] == [(0, {}), (0, {}), (1, {})]


@pytest.mark.parametrize(
    ("reason", "wrong"),
    [
        (DropReason.DUPLICATE, data(0, 1, 0, 0, 0)),
        (DropReason.UNEXPECTED, data(0, 3, 2, 0, 0)),
        (DropReason.MALFORMED, data(0, 2, 0, 0, 0)),
        (DropReason.MALFORMED, data(0, 2, 2, 0, 0)),
        (DropReason.MALFORMED, data(0, 2)),
        (DropReason.MALFORMED, data(0, 2, 1, 0)),
        (DropReason.MALFORMED, data(0, 2, 1, 0, 0, 0)),
    ],
)
def test_a_number_or_a_vector_that_cannot_be_is_refused_and_changes_nothing(reason: DropReason, wrong: Message) -> None:
    one = core(2)
    give(one, data(0, 1, 0, 0, 0))
    assert one.on_message(wrong, 0, 0) == [Report(code=reason, member=0)]
    assert give(one, data(0, 2, 1, 0, 0)) == [(0, 2)]


def test_a_vector_that_names_what_we_have_not_sent_waits_until_we_have() -> None:
    """A lie; others cannot detect it, and wait, too. Refusals must be the same at all members."""
    one = core(2)
    assert give(one, data(0, 1, 0, 0, 1)) == []
    effects = one.on_submit(Submission(payload=b""), 0)
    assert delivered(effects) == [(2, 1), (0, 1)]


def test_no_more_is_taken_of_a_member_of_which_too_much_waits() -> None:
    one = core(2, waiting=4)
    for seq in range(1, 5):
        one.on_message(data(1, seq, 9, seq - 1, 0), 1, 0)
    assert one.on_message(data(1, 5, 9, 4, 0), 1, 0) == [Report(code=DropReason.OUT_OF_WINDOW, member=1)]
    assert one.buffered == 4
    assert give(one, data(0, 1, 0, 0, 0)) == [(0, 1)]


# Over the reliable layer.


def test_an_answer_that_overtakes_its_question_waits_for_it() -> None:
    cluster = Recorded(3, stack("cbcast", reliable={"suspect_after_ns": SUSPECT_AFTER_NS}))
    cluster.lose = lambda source, target, message: (
        (source, target, message.seq, message.flags) == (0, 2, 1, 0) and message.kind is Kind.RELIABLE_DATA
    )
    cluster.submit(0)
    cluster.submit_later(1, 5 * MILLISECOND)
    cluster.run(for_ns=10 * MILLISECOND)
    assert (cluster.hosts[2].delivered, cluster.core(2).buffered >= 1) == ([], True)
    check_silence(cluster)
    assert set(verdicts(cluster.history(), cluster.members, PROMISES).values()) == {Verdict.PASS}
    assert cluster.hosts[2].delivered == [(0, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", DropReason.TRUNCATED),
        (encode_message(data(1, 1, 0, 0, 0)) + b"x", DropReason.BAD_LENGTH),
        (encode_message(data(2, 1, 0, 0, 0)), DropReason.MALFORMED),
        (encode_message(data(1, 5, 0, 4, 0)), DropReason.UNEXPECTED),
    ],
)
def test_a_wrong_message_inside_a_right_one_is_refused_by_the_core_alone(payload: bytes, reason: DropReason) -> None:
    """The layer below takes it as a normal multicast."""
    cluster = Recorded(2, lambda us, seed: stack("cbcast" if us.member == 0 else "reliable")(us, seed))
    cluster.hosts[1].queue.append(Submission(payload=payload, inner=Kind.CBCAST_DATA))
    cluster.run()
    receiver = cluster.hosts[0]
    assert ([report.code for report in receiver.reports], receiver.delivered) == ([reason], [])


def cost_us(members: int, messages: int) -> float:
    """CPU time in us of the core alone per received message that can be delivered."""
    everybody = tuple(range(members))
    cores = [core(member, members=everybody) for member in everybody]
    made = [sent_by(cores[number % (members - 1)]) for number in range(messages)]
    receiver = cores[-1]
    began = time.process_time_ns()
    for message in made:
        receiver.on_message(message, message.origin, 0)
    return (time.process_time_ns() - began) / messages / 1000


def test_the_cost_of_a_receipt_is_at_most_linear_in_the_members() -> None:
    small, large = (min(cost_us(members, 1000) for _ in range(5)) for members in (8, 64))
    assert large <= 8 * small
