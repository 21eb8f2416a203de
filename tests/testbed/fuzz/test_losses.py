"""Losses by chance that explain an exclusion, or a call that was given up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from node.wire import Kind, Message
from testbed.fuzz.judge import judge
from testbed.fuzz.losses import Losses
from testbed.fuzz.scenario import Crash, Cut, Freeze, Member, Scenario, Segment
from testbed.sim.network import Datagram
from testbed.spec.raw import Dissemination
from tests.testbed.sim.made import topology
from topologies.model import Bus, Distribution, Impairment

NODES = tuple(topology(3).nodes())


def observed(*steps: str) -> Losses:
    """A tap that has seen these frames. `5 0>1`: at 5 member 0 sends a frame to 1; `6 0>1 arrives` and
    `6 0>1 damaged`: it arrives.
    """
    losses = Losses()
    for step in steps:
        at, pair, *end = step.split()
        source, target = (NODES[int(one)] for one in pair.split(">"))
        datagram = Datagram(
            source=source,
            destination=target,
            payload=b"",
            size_bytes=60,
            sent_ns=int(at),
            message=Message(kind=Kind.RELIABLE_DATA, origin=source.index, incarnation=1),
            flipped_bits=(3,) if end == ["damaged"] else (),
        )
        losses.frame(target if end else source, not end, int(at), datagram)
    return losses


LOST = ("1 0>1", "3 0>2", "5 0>1")


@pytest.mark.parametrize(
    ("steps", "is_silenced"),
    [
        ((*LOST, "9 0>1", "11 0>1 arrives"), True),
        ((*LOST, "7 0>1 damaged", "9 0>1", "11 0>1 arrives"), True),
        ((*LOST, "7 0>1 arrives", "9 0>1", "11 0>1 arrives"), False),
        (("1 0>1", "9 0>1", "12 0>1 arrives"), False),
        (("1 1>0", "3 1>0", "5 1>0", "12 1>0"), False),
        (("8 0>1", "9 0>1", "10 0>1", "22 0>1 arrives"), False),
    ],
)
def test_a_member_is_silent_while_it_sends_and_nothing_arrives(steps: tuple[str, ...], is_silenced: bool) -> None:
    losses = observed(*steps)

    assert losses.has_silenced(0, least_ns=10, after_ns=0, since_ns=0, until_ns=15) is is_silenced
    assert not losses.has_silenced(0, least_ns=10, after_ns=0, since_ns=13, until_ns=15)
    assert not losses.has_silenced(0, least_ns=10, after_ns=2, since_ns=0, until_ns=15)


@pytest.mark.parametrize(
    ("steps", "is_parted"),
    [
        (("1 0>1", "3 0>1", "5 0>1"), True),
        (("1 0>1", "3 0>1", "5 0>2"), False),
        (("1 0>1", "3 0>1", "5 0>1", "5 0>1 arrives"), False),
        (("1 0>1", "3 0>1", "5 0>1", "5 0>1 damaged"), True),
        (("1 0>1", "3 0>1", "25 0>1"), False),
    ],
)
def test_two_members_are_parted_while_all_frames_of_a_kind_are_lost(steps: tuple[str, ...], is_parted: bool) -> None:
    assert observed(*steps).has_parted(since_ns=0, until_ns=10) is is_parted


def silenced() -> Scenario:
    """After its pause, frames of member 1 get lost until it is excluded."""
    noisy = Impairment(
        delay_ns=1_000_000,
        loss_ratio=0.03,
        loss_burst_frames=2.0,
        reorder_ratio=0.1,
        rate_bps=5_000_000,
        queue_frames=3,
    )
    far = Impairment(delay_ns=20_000_000)
    members = (
        Member(),
        Member(from_node=noisy),
        Member(submissions_ns=(273_099_437,), to_node=far),
        Member(submissions_ns=(57_214_000,)),
        Member(submissions_ns=(95_400_437,), to_node=far, from_node=noisy),
    )
    return Scenario(
        protocol="mutex",
        seed=10_037_161,
        segments=(Segment(members=members),),
        faults=(
            Crash(at_ns=57_391_437, for_ns=1_000_000, member=3, is_final=True),
            Freeze(at_ns=120_424_437, for_ns=1_763_508_000, member=1),
        ),
        parameters={
            "reliable": {"heartbeat_ns": 30_000_000, "retry_first_ns": 50_000_000, "suspect_after_ns": 1_200_000_000}
        },
        size_bytes=8,
    )


def parted() -> Scenario:
    """A call is given up: all frames of a kind from one machine to another get lost."""
    towards = Impairment(
        delay_ns=20_000_000,
        jitter_ns=20_000_000,
        distribution=Distribution.PARETO,
        loss_ratio=0.03,
        loss_burst_frames=2.0,
        corrupt_ratio=0.02,
        rate_bps=4_000_000,
        queue_frames=9,
    )
    machine = partial(Member, from_node=Impairment(loss_ratio=0.12))
    first, second, third = 12_550_000, 31_949_000, 61_876_000
    one = (machine(submissions_ns=(first, second, third), to_node=towards),)
    other = (
        machine(submissions_ns=(first, second), to_node=towards, drift_ppm=100),
        machine(submissions_ns=(second, third), to_node=towards, drift_ppm=-200),
        machine(submissions_ns=(second, third), offset_ns=-50_000_000),
        machine(submissions_ns=(third,), to_node=towards),
        machine(submissions_ns=(third,), to_node=towards, offset_ns=1_000_000_000, drift_ppm=100),
    )
    bus = Bus(rate_bps=36_000_000, queue_frames=100)
    return Scenario(
        protocol="objects",
        seed=1,
        segments=(
            Segment(members=(*one, replace(one[0], drift_ppm=100))),
            Segment(members=(*one, *one, *other), bus=bus, link=Impairment(delay_ns=30_000_000)),
        ),
        faults=(Cut(at_ns=0, for_ns=153_000_000, sides=((5, 6, 7), (2, 3), (0, 1, 4, 8))),),
        parameters={
            "spaces": 3,
            "objects_per_space": 2,
            "outstanding": 4,
            "patience_ns": 4_000_000_000,
            "vote_ns": 4_000_000_000,
            "retry_ns": 10_000_000,
            "amoeba": {"large_bytes": 0, "outstanding": 64},
            "load": {
                "atomic_permille": 500,
                "listed_permille": 400,
                "members": 2,
                "grouped_permille": 600,
                "changes_permille": 300,
            },
            "reliable": {
                "window": 4,
                "burst": 2,
                "heartbeat_ns": 30_000_000,
                "heartbeat_per_member_ns": 5_000_000,
                "announce_ns": 10_000_000,
                "nack_delay_ns": 1_000_000,
                "acknowledge_ns": 5_000_000,
                "retry_least_ns": 20_000_000,
                "retry_first_ns": 50_000_000,
                "retry_most_ns": 500_000_000,
                "suspect_after_ns": 3_000_000_000,
            },
        },
        dissemination=Dissemination.ROUTERS,
    )


@pytest.mark.parametrize("scenario", [silenced(), parted()], ids=["silenced", "parted"])
def test_a_world_in_which_chance_took_many_frames_is_good(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(scenario).is_good
    for name in ("has_silenced", "has_parted"):
        monkeypatch.setattr(Losses, name, lambda *_, **__: False)
    assert not judge(scenario).is_good, "nothing else explains it"
