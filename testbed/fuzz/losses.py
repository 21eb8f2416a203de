"""Frames that a simulated network lost: chance alone may silence a member for longer than the others have patience, or
take all frames of a call. A world is simulated again with this tap when an exclusion, or a call that was given up, has
no other explanation.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from node.wire import Kind
from testbed.sim.network import Datagram
from topologies.model import Node

LEAST_FRAMES = 3
"""Fewer frames in a row that nobody got, or fewer lost frames of one kind between two members, explain nothing."""


class Silence(NamedTuple):
    """A time in which a member sent frames and none of them arrived anywhere."""

    from_ns: int
    until_ns: int
    frames: int


class Losses:
    """A tap that notes all silences, and the frames that each member sent to each other one."""

    def __init__(self) -> None:
        self._silences: dict[int, list[Silence]] = defaultdict(list)
        self._waiting: dict[int, Silence] = {}
        self._sent: dict[tuple[Kind, int, int], list[int]] = defaultdict(list)
        self._arrived: dict[tuple[Kind, int, int], list[int]] = defaultdict(list)

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:  # noqa: ARG002
        if datagram.is_trace:
            return
        source, target, message = datagram.source.index, datagram.destination, datagram.message
        pair = None if target is None or message is None else (message.kind, source, target.index)
        if inbound:
            waiting = self._waiting.get(source, Silence(at_ns, at_ns, 0))
            self._waiting[source] = waiting._replace(until_ns=at_ns, frames=waiting.frames + 1)
            if pair is not None:
                self._sent[pair].append(datagram.sent_ns)
        elif not datagram.flipped_bits:
            waiting = self._waiting.pop(source, Silence(at_ns, at_ns, 0))
            if waiting.frames >= LEAST_FRAMES:
                self._silences[source].append(waiting._replace(until_ns=at_ns))
            if pair is not None:
                self._arrived[pair].append(datagram.sent_ns)

    def has_silenced(self, member: int, *, least_ns: int, after_ns: int, since_ns: int, until_ns: int) -> bool:
        """Whether a silence of a member, as long as `least_ns` by `until_ns`, began after `after_ns` and ended after
        `since_ns`.
        """
        silences = list(self._silences[member])
        if member in self._waiting:
            silences.append(self._waiting[member])
        return any(
            one.frames >= LEAST_FRAMES
            and one.from_ns >= after_ns
            and one.until_ns >= since_ns
            and min(one.until_ns, until_ns) - one.from_ns >= least_ns
            for one in silences
        )

    def has_parted(self, *, since_ns: int, until_ns: int) -> bool:
        """Whether all frames of one kind that a member sent to another in this time were lost."""

        def during(sent_ns: list[int]) -> int:
            return sum(since_ns <= at_ns <= until_ns for at_ns in sent_ns)

        return any(
            during(sent) >= LEAST_FRAMES and not during(self._arrived[pair]) for pair, sent in self._sent.items()
        )
