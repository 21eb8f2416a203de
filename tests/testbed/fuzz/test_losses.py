"""Losses by chance that explain an exclusion, or a call that was given up."""

from __future__ import annotations

import pytest

from node.wire import Kind, Message
from testbed.fuzz.draw import draw
from testbed.fuzz.judge import judge
from testbed.fuzz.losses import Losses
from testbed.sim.network import Datagram
from tests.testbed.sim.made import topology

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


@pytest.mark.parametrize(("protocol", "seed"), [("mutex", 10_037_161), ("objects", 40_000_192)])
def test_a_world_in_which_chance_took_many_frames_is_good(
    protocol: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = draw(protocol, seed)
    assert judge(scenario).is_good
    for name in ("has_silenced", "has_parted"):
        monkeypatch.setattr(Losses, name, lambda *_, **__: False)
    assert not judge(scenario).is_good, "nothing else explains it"
