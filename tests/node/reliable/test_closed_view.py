"""The end of a view: freeze, fetch, rest, and the remaining actions of a frozen member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core import Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Send, SetTimer, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.reliable import Phase, ReliableCore, view_of
from node.reliable.codec import KINDS, MAX_LAG, VIEW_SHIFT, entry, pack_data, pack_heartbeat, unpack_data
from node.trace import decode_stamp
from node.wire import Flag, Kind, Message
from tests.node.by_hand import reported
from tests.node.cluster import MILLISECOND, Cluster, Identity, Network
from tests.node.reliable.open_view import PARAMETERS, VIEW, build, core_of, group

HEAD = VIEW << VIEW_SHIFT
Cut = Mapping[int, int]


def core_in(phase: Phase, members: int = 3) -> ReliableCore:
    core = build(Membership(member=0, members=tuple(range(members))), 1)
    core.on_start(0)
    if phase is not Phase.OPEN:
        core.freeze([], 0)
    if phase is Phase.STOPPED:
        core.stop(0)
    return core


def message_of(kind: Kind, origin: int, *words: int, **fields: Any) -> Message:
    return Message(kind=kind, origin=origin, incarnation=fields.pop("incarnation", 1), words=words, **fields)


def data_of(origin: int, seq: int, *, lag: int = 0, **fields: Any) -> Message:
    payload = bytes([origin, seq % 256])
    return message_of(Kind.RELIABLE_DATA, origin, *pack_data(VIEW, lag), seq=seq, payload=payload, **fields)


def fenced(origin: int) -> Message:
    """A first multicast of `origin` that waits for a unicast to us."""
    return message_of(Kind.RELIABLE_DATA, origin, *pack_data(VIEW, 1, (entry(0, 1),)), seq=1, payload=b"f")


def heartbeat_of(origin: int, *, positions: tuple[tuple[int, int], ...] = (), floor: int = 0) -> Message:
    words = (HEAD | len(positions) << 16, *(entry(*one) for one in positions))
    return message_of(Kind.RELIABLE_HEARTBEAT, origin, *words, seq=floor)


def nack_of(source: int, origin: int, first: int, last: int) -> Message:
    return message_of(Kind.RELIABLE_NACK, source, HEAD | origin, first << 32 | last)


def refused(effects: list[Effect]) -> list[int]:
    return [code for code, _, _ in reported(effects)]


def sends(effects: list[Effect]) -> list[tuple[int, Message]]:
    return [(effect.target, effect.message) for effect in effects if isinstance(effect, Send)]


def call(cluster: Cluster, member: int, name: str, *given: Any) -> None:
    """Call this method of a core now, and carry out its effects."""
    method = getattr(core_of(cluster, member), name)
    cluster._call(cluster.hosts[member], name, lambda: method(*given, cluster.now_ns))


def freeze(cluster: Cluster, member: int) -> None:
    """Freeze a member, with all submissions that wait for flow control."""
    queue = cluster.hosts[member].queue
    waiting = list(queue)
    queue.clear()
    call(cluster, member, "freeze", waiting)


def cut_of(cluster: Cluster, promisers: Iterable[int]) -> dict[int, int]:
    """The cut: the greatest positions of the promisers."""
    told = [core_of(cluster, member).positions() for member in promisers]
    return {origin: max(positions[origin] for positions in told) for origin in cluster.members}


def rest_of(cluster: Cluster, member: int, cut: Cut, origin: int) -> list[Identity]:
    """Identities of the messages of `origin` in `rest`."""
    stamps = [decode_stamp(message.payload) for message in core_of(cluster, member).rest(cut)[origin]]
    return [(stamp.origin, stamp.incarnation, stamp.number) for stamp in stamps]


def run_until_all_have(cluster: Cluster, members: list[int], cut: dict[int, int]) -> None:
    for _ in range(200):
        cluster.run(for_ns=50 * MILLISECOND)
        if all(core_of(cluster, member).has(cut) for member in members):
            return
    raise AssertionError(f"not all have {cut} after 10 s (seed {cluster.seed})")


# Freeze.


def test_freeze_cancels_all_timers_and_says_nothing() -> None:
    core = core_in(Phase.OPEN)
    core.on_submit(Submission(payload=b"x"), 0)
    core.on_submit(Submission(payload=b"y", target=1), 0)
    core.on_message(data_of(1, 3), 1, 0)
    effects = core.freeze([Submission(payload=b"z")], 0)
    assert effects
    assert all(isinstance(effect, CancelTimer) for effect in effects)
    assert (core.phase, core.can_submit, core.is_idle) == (Phase.FROZEN, False, True)
    with pytest.raises(LocalError, match="can_submit"):
        core.on_submit(Submission(payload=b"x"), 0)


def test_what_flow_control_held_back_is_numbered_and_void_if_it_is_a_unicast() -> None:
    core = core_in(Phase.OPEN)
    for _ in range(PARAMETERS.window):
        core.on_submit(Submission(payload=b"x"), 0)
    waiting = [
        Submission(payload=b"a", inner=Kind.SEQUENCER_DATA, flags=Flag.CONTROL),
        Submission(payload=b"b", target=1),
        Submission(payload=b"c"),
    ]
    core.freeze(waiting, 0)
    last = PARAMETERS.window + 2
    assert core.positions() == {0: last, 1: 0, 2: 0}
    rest = core.rest(core.positions())
    assert [(one.seq, one.payload, one.inner, one.flags) for one in rest[0]] == [
        (last - 1, b"a", Kind.SEQUENCER_DATA, Flag.CONTROL),
        (last, b"c", Kind.APPLICATION, 0),
    ]
    assert (rest[1], rest[2]) == ([], [])
    assert [unpack_data(one)[0] for one in rest[0]] == [0, 0], "a frozen member says nothing about its watermark"


def test_a_lonely_member_keeps_what_waits() -> None:
    core = core_in(Phase.OPEN, members=1)
    core.on_submit(Submission(payload=b"x"), 0)
    core.freeze([Submission(payload=b"a")], 0)
    assert [one.payload for one in core.rest({0: 2})[0]] == [b"a"]


def test_data_that_comes_late_is_stored_and_neither_told_nor_delivered() -> None:
    core = core_in(Phase.OPEN)
    core.on_message(data_of(1, 1), 1, 0)
    core.freeze([], 0)
    assert core.on_message(data_of(1, 2), 1, 0) == []
    assert (core.positions()[1], core.received()[1]) == (1, 2)
    beyond = core.on_message(data_of(1, 3 + PARAMETERS.window), 1, 0)
    assert refused(beyond) == [DropReason.OUT_OF_WINDOW]
    assert core.positions()[1] == 1


def test_a_frozen_member_acknowledges_nothing() -> None:
    """Its requests for missing messages have no position either."""
    core = core_in(Phase.OPEN)
    core.freeze([], 0)
    for seq in (1, 2, 4):
        assert core.on_message(data_of(1, seq), 1, 0) == []
    effects = core.fetch({1: 4}, {1: [1]}, 0)
    assert [(target, message.kind, message.seq) for target, message in sends(effects)] == [(1, Kind.RELIABLE_NACK, 0)]
    for message in (
        heartbeat_of(1, positions=((1, 9),)),
        message_of(Kind.RELIABLE_UNICAST, 1, HEAD, 0, seq=1),
        message_of(Kind.RELIABLE_ACKNOWLEDGEMENT, 1, HEAD, seq=1),
    ):
        assert refused(core.on_message(message, 1, 0)) == [DropReason.UNEXPECTED]


def test_fences_are_void_in_rest() -> None:
    core = core_in(Phase.OPEN)
    effects = core.on_message(fenced(1), 1, 0)
    assert not any(isinstance(effect, Deliver) for effect in effects)
    core.freeze([], 0)
    assert [one.payload for one in core.rest({0: 0, 1: 1, 2: 0})[1]] == [b"f"]


def test_a_frozen_member_answers_for_every_stream_and_to_its_asker_alone() -> None:
    core = core_in(Phase.OPEN)
    core.on_submit(Submission(payload=b"x"), 0)
    core.on_message(data_of(1, 1), 1, 0)
    assert refused(core.on_message(nack_of(2, 1, 1, 1), 2, 0)) == [DropReason.UNEXPECTED], "not in an open view"
    core.freeze([Submission(payload=b"y")], 0)
    for phase in (Phase.FROZEN, Phase.STOPPED):
        for asker in (1, 2):
            answers = sends(core.on_message(nack_of(asker, 0, 1, 5), asker, 0))
            assert [(target, one.payload, one.flags) for target, one in answers] == [
                (asker, b"x", Flag.RETRANSMISSION),
                (asker, b"y", Flag.RETRANSMISSION),
            ]
        ((target, relayed),) = sends(core.on_message(nack_of(2, 1, 1, 1), 2, 0))
        assert (target, relayed.origin, relayed.payload) == (2, 1, b"\x01\x01")
        assert refused(core.on_message(nack_of(2, 9, 1, 1), 2, 0)) == [DropReason.UNEXPECTED]
        if phase is Phase.FROZEN:
            core.stop(0)


# Fetch.


def test_what_is_missing_is_fetched_from_holders_in_turn() -> None:
    core = core_in(Phase.FROZEN)
    assert not core.has({0: 0, 1: 3, 2: 0})
    effects = core.fetch({0: 0, 1: 3, 2: 0}, {1: [0, 1, 2]}, 0)
    asked = [target for target, _ in sends(effects)]
    now_ns = 0
    while len(asked) < 4:
        (timer,) = [effect for effect in effects if isinstance(effect, SetTimer)]
        now_ns = timer.at_ns
        effects = core.on_timer(timer.timer, now_ns)
        asked += [target for target, _ in sends(effects)]
    assert asked == [1, 2, 1, 2], "ourselves left out"
    assert core.phase is Phase.FROZEN
    effects = [effect for seq in (3, 1, 2) for effect in core.on_message(data_of(1, seq), 2, now_ns)]
    assert effects == [CancelTimer(timer=Timer("nack", 1))]
    assert core.has({0: 0, 1: 3, 2: 0})
    assert core.is_idle
    assert [message.seq for message in core.rest({0: 0, 1: 3, 2: 0})[1]] == [1, 2, 3]


def test_a_second_fetch_replaces_cut_and_holders() -> None:
    core = core_in(Phase.FROZEN)
    core.fetch({1: 3}, {1: [1]}, 0)
    effects = core.fetch({1: 2, 2: 1}, {1: [2], 2: [1]}, 5)
    assert [(target, message.words) for target, message in sends(effects)] == [
        (2, (HEAD | 1, 1 << 32 | 2)),
        (1, (HEAD | 2, 1 << 32 | 1)),
    ]
    assert refused(core.on_message(data_of(1, 3), 2, 5)) == [DropReason.UNEXPECTED]
    core.on_message(data_of(1, 3), 1, 5)
    effects = core.fetch({}, {}, 6)
    assert not sends(effects), "what was seen and is not in the cut is of no interest"
    assert core.is_idle


def test_a_cut_far_beyond_the_window_is_fetched() -> None:
    """Messages held by flow control count by the origin's promise; then the origin crashes, and one member has them."""
    cluster = group(3)
    cluster.pause(2)
    cluster.submit(0, 5 * PARAMETERS.window)
    cluster.run(for_ns=300 * MILLISECOND)
    cluster.resume(2)
    for member in cluster.members:
        freeze(cluster, member)
    cut = cut_of(cluster, cluster.members)
    assert cut[0] == 5 * PARAMETERS.window
    call(cluster, 1, "fetch", cut, {0: [0]})
    run_until_all_have(cluster, [1], cut)
    cluster.crash(0)
    call(cluster, 1, "stop")
    call(cluster, 2, "fetch", cut, {0: [0, 1]})
    run_until_all_have(cluster, [2], cut)
    assert core_of(cluster, 2).is_idle
    total = [(0, 1, number) for number in range(1, cut[0] + 1)]
    for member in (1, 2):
        assert cluster.hosts[member].delivered + rest_of(cluster, member, cut, 0) == total


# The property that the group layer needs.


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 2**32))
def test_delivered_and_rest_are_one_prefix_of_each_stream_everywhere(seed: int) -> None:
    """Random loss, random load, members freeze at random moments; some have crashed, and the cut is that of a random
    set of promisers. All promisers end with the same messages of every stream, no member with other ones, and the
    traffic ends.
    """
    rng = Random(seed)
    count = rng.randint(2, 5)
    network = Network(
        loss_ratio=rng.choice([0.0, 0.1, 0.3]),
        duplicate_ratio=rng.choice([0.0, 0.1]),
        jitter_ns=rng.choice([0, 5]) * MILLISECOND,
    )
    cluster = group(count, network=network, seed=seed, has_multicast=rng.random() < 0.8)
    unicasts: set[Identity] = set()
    load(cluster, rng, unicasts)
    promisers = sorted(rng.sample(cluster.members, rng.randint(1, count)))
    for member in cluster.members:
        at_ns = rng.randint(0, 400) * MILLISECOND
        is_gone = member not in promisers and rng.random() < 0.5
        act = cluster.crash if is_gone else partial(freeze, cluster)
        cluster.at(at_ns, partial(act, member))
    cluster.run(for_ns=400 * MILLISECOND)

    cut = cut_of(cluster, promisers)
    told = {one: core_of(cluster, one).positions() for one in promisers}
    holders = {origin: [one for one, mine in told.items() if mine[origin] == number] for origin, number in cut.items()}
    up = [host.membership.member for host in cluster.up()]
    for member in rng.sample(up, len(up)):
        call(cluster, member, "fetch", cut, holders)
        if rng.random() < 0.3:
            run_until_all_have(cluster, [member], cut)
            call(cluster, member, "stop")
    run_until_all_have(cluster, up, cut)
    cluster.run()
    assert not any(host.timers for host in cluster.up()), f"seed {seed}"

    for origin, number in cut.items():
        stream = [one for one in cluster.submissions if one[0] == origin and one not in unicasts]
        for member in cluster.members:
            had = [one for one in cluster.hosts[member].delivered if one[0] == origin and one not in unicasts]
            had += rest_of(cluster, member, cut, origin) if member in up else []
            assert had == stream[: len(had)], f"seed {seed}"
            assert member not in promisers or len(had) == number, f"seed {seed}"


def load(cluster: Cluster, rng: Random, unicasts: set[Identity]) -> None:
    """Bursts of multicasts, more than the window now and then, and some unicasts, for 400 ms."""
    for member in cluster.members:
        for _ in range(rng.randint(0, 12)):
            target = rng.choice(cluster.members) if rng.random() < 0.3 else None
            size = rng.choice([1, 3, 10, PARAMETERS.window + 10]) if target is None else 1

            def act(member: int = member, target: int | None = target, size: int = size) -> None:
                if not cluster.hosts[member].is_up or core_of(cluster, member).phase is not Phase.OPEN:
                    return
                cluster.submit(member, size, target=target)
                if target is not None:
                    unicasts.add(cluster.submissions[-1])

            cluster.at(rng.randint(0, 400) * MILLISECOND, act)


# Stability.


def urge_all(cluster: Cluster) -> None:
    for member in cluster.members:
        call(cluster, member, "acknowledge_soon")


def stable_after_ns(acknowledges_soon: bool) -> int:
    cluster = group(4)
    cluster.submit(0)
    for now_ms in range(1, 400):
        cluster.run(for_ns=MILLISECOND)
        if all(core_of(cluster, member).acknowledged()[0] == 1 for member in cluster.members):
            return now_ms * MILLISECOND
        if acknowledges_soon and now_ms == 2:
            urge_all(cluster)
    raise AssertionError("never stable")


def test_a_member_that_waits_for_stability_gets_it_soon() -> None:
    assert stable_after_ns(acknowledges_soon=False) > 50 * MILLISECOND
    assert stable_after_ns(acknowledges_soon=True) <= 2 * PARAMETERS.stability_ns + 6 * MILLISECOND


def test_acknowledging_soon_batches_and_ends_in_silence() -> None:
    cluster = group(4)
    for number in range(50):
        cluster.submit_later(number % 4, number * MILLISECOND)
    for number in range(60):
        cluster.at(number * MILLISECOND, lambda: urge_all(cluster))
    cluster.run()
    assert len(cluster.kinds(Kind.RELIABLE_HEARTBEAT)) < 4 * 30
    assert all(host.is_idle and not host.timers for host in cluster.up())
    assert core_of(cluster, 0).acknowledge_soon(cluster.now_ns) == [], "nothing to wait for"


def test_acknowledged_is_what_the_origins_say_and_never_more_than_has_come() -> None:
    core = core_in(Phase.OPEN)
    core.on_submit(Submission(payload=b"x"), 0)
    core.on_message(data_of(1, 1), 1, 0)
    core.on_message(data_of(1, 2, lag=1), 1, 0)
    core.on_message(heartbeat_of(2, positions=((0, 1),), floor=7), 2, 0)
    assert core.acknowledged() == {0: 0, 1: 1, 2: 0}
    core.on_message(heartbeat_of(1, positions=((0, 1),), floor=9), 1, 0)
    assert core.acknowledged() == {0: 1, 1: 2, 2: 0}


# Refusals.


def test_a_message_that_is_not_of_this_view_is_refused_with_its_reason() -> None:
    other_view = message_of(Kind.RELIABLE_DATA, 1, *pack_data(VIEW + 1, 1), seq=1)
    for phase in (Phase.OPEN, Phase.FROZEN):
        core = core_in(phase)
        assert refused(core.on_message(other_view, 1, 0)) == [DropReason.UNEXPECTED]
        assert refused(core.on_message(data_of(1, 1, incarnation=2), 1, 0)) == [DropReason.STALE_INCARNATION]
        assert refused(core.on_message(data_of(7, 1), 7, 0)) == [DropReason.UNKNOWN_MEMBER]
        assert refused(core.on_message(data_of(0, 1), 1, 0)) == [DropReason.OWN]
        assert refused(core.on_message(data_of(1, 2**32), 1, 0)) == [DropReason.MALFORMED]
        assert core.received() == {0: 0, 1: 0, 2: 0}


def test_the_view_is_read_from_every_kind_or_the_message_is_malformed() -> None:
    assert view_of(data_of(1, 1)) == VIEW
    assert view_of(heartbeat_of(1)) == VIEW
    assert view_of(nack_of(1, 1, 1, 1)) == VIEW
    assert view_of(message_of(Kind.RELIABLE_UNICAST, 1, 2**64 - 1, 0)) == 2**31 - 1
    with pytest.raises(RemoteError, match="MALFORMED"):
        view_of(message_of(Kind.RELIABLE_DATA, 1))


def test_relayed_data_counts_only_while_it_is_fetched_and_up_to_the_cut() -> None:
    for phase in Phase:
        core = core_in(phase)
        assert refused(core.on_message(data_of(1, 1), 2, 0)) == [DropReason.UNEXPECTED]
    core = core_in(Phase.FROZEN)
    core.fetch({1: 200, 2: 0}, {1: [2]}, 0)
    assert core.on_message(data_of(1, 200), 2, 0) == [], "up to the cut the window does not count"
    assert refused(core.on_message(data_of(1, 201), 2, 0)) == [DropReason.UNEXPECTED]
    assert refused(core.on_message(data_of(1, 201), 1, 0)) == [DropReason.OUT_OF_WINDOW]
    assert refused(core.on_message(data_of(2, 1), 1, 0)) == [DropReason.UNEXPECTED]
    assert core.buffered == 1


def test_nobody_speaks_for_another_member() -> None:
    for message in (heartbeat_of(1), nack_of(1, 0, 1, 1)):
        assert refused(core_in(Phase.OPEN).on_message(message, 2, 0)) == [DropReason.UNEXPECTED]


def test_a_lag_that_is_a_lie_harms_nobody() -> None:
    core = core_in(Phase.OPEN)
    with pytest.raises(RemoteError, match="MALFORMED"):
        core.on_message(data_of(1, 2, lag=3), 1, 0)
    with pytest.raises(RemoteError, match="MALFORMED"):
        core.on_message(data_of(1, 0), 1, 0)
    assert core.received()[1] == 0
    core.on_message(data_of(1, 9, lag=1), 1, 0)
    core.on_message(data_of(1, 2, lag=1), 1, 0)
    assert core.acknowledged()[1] == 0, "what has not come is not everywhere"
    core.on_message(data_of(1, 1, lag=1), 1, 0)
    core.freeze([], 0)
    assert [one.seq for one in core.rest({1: 2})[1]] == []
    assert MAX_LAG > 65536, "the largest window"


def test_acknowledgements_of_what_was_never_sent_harm_nobody() -> None:
    core = core_in(Phase.OPEN)
    core.on_submit(Submission(payload=b"x"), 0)
    for member in (1, 2):
        core.on_message(heartbeat_of(member, positions=((0, 5),)), member, 0)
    assert core.acknowledged()[0] == 0
    core.freeze([Submission(payload=b"y")], 0)
    assert [one.payload for one in core.rest({0: 2})[0]] == [b"y"]


def test_a_fence_that_never_opens_does_not_fill_the_memory() -> None:
    """A liar claims that a unicast precedes its first multicast, and sends multicasts for ever."""
    core = core_in(Phase.OPEN)
    core.on_message(fenced(1), 1, 0)
    for seq in range(2, 10 * PARAMETERS.window):
        core.on_message(data_of(1, seq), 1, 0)
    assert core.buffered == 2 * PARAMETERS.window


SHAPES: list[tuple[int, ...]] = [
    (),
    (0,),
    (HEAD,),
    (HEAD | 1,),
    (2**64 - 1,),
    (HEAD | 2**33 - 1, 1, 2),
    (HEAD, 1 << 32 | 3),
    (HEAD | 1, 1 << 32 | 3),
    (HEAD | 1, 3 << 32 | 1),
    (HEAD | 9, 1 << 32 | 2**32 - 1),
    (HEAD, 2**64 - 1),
    pack_heartbeat(VIEW, (), (0, 9)),
    (HEAD | 2 << 16, entry(0, 2**48 - 1), entry(1, 7)),
    pack_data(VIEW, 1, (entry(0, 5),), (entry(0, 9),)),
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", [*sorted(KINDS), Kind.GROUP_JOIN, Kind.OBJECTS_NEWS], ids=lambda kind: str(kind.name))
def test_every_phase_takes_or_refuses_every_message(phase: Phase, kind: Kind) -> None:
    """Any message gives effects or a RemoteError, never another exception; a frozen member only answers requests."""
    numbers, paths = (0, 1, 2, 65, 2**32, 2**64 - 1), ((1, 1), (0, 1), (1, 2), (9, 1), (1, 0))
    for words, seq, incarnation, (origin, source) in product(SHAPES, numbers, (0, 1, 2), paths):
        core = core_in(phase)
        before = core.received()
        try:
            effects = core.on_message(message_of(kind, origin, *words, incarnation=incarnation, seq=seq), source, 1000)
        except RemoteError as error:
            assert error.reason is DropReason.MALFORMED
            assert core.received() == before
            continue
        if phase is not Phase.OPEN:
            assert not any(isinstance(effect, Deliver | Multicast | SetTimer) for effect in effects)
        if refused(effects):
            assert core.received() == before
