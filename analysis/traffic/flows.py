"""Conversations, their silences, and the node most frequent at their ends. Pure functions over counts by conversation
and span.

A conversation holds all frames between two ends of one service (a protocol and its port), with unicast and multicast
apart. It is *heard* when a frame arrives at either end, except for a TCP segment without payload. A silence between two
spans in which it is heard is exact, by the frames' own times; a silence shorter than a span is not detected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

PROTOCOLS: Final[Mapping[int, str]] = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 132: "sctp", 0x10806: "arp"}
MIDDLE_WINDOW_NS: Final = 1_000_000_000
"""Length of the windows in which the most frequent end of a service is determined."""
MIDDLE_PEER_SHARE: Final = 0.05
"""Least part of a node's frames that it exchanges with a peer; idle connections, which are kept alive, have less."""
MIDDLE_LEAD: Final = 1.25
"""Ratio of the frames of the most frequent end to those of the next node. In a star of three the centre
has twice as many as a leaf; in a uniform exchange all have the same.
"""


class Service(NamedTuple):
    """A service: name of its protocol, and its port; None: it has none."""

    protocol: str
    port: int | None


class Talk(NamedTuple):
    """Identity of a conversation: its two ends and its service. `a` sorts before `b`."""

    a: str
    b: str
    service: Service
    is_cast: bool


class Count(NamedTuple):
    """Frames of one conversation in one span. `first_ns` > `last_ns`: none of them is heard."""

    talk: Talk
    source: str
    arrived: bool
    is_answer: bool
    span: int
    frames: int
    wire_bytes: int
    first_ns: int
    last_ns: int


class Gap(NamedTuple):
    """A silence from `from_ns` to `until_ns`; None: to the end."""

    from_ns: int
    until_ns: int | None

    def length_ns(self, end_ns: int) -> int:
        """Length of the silence; one without an end counts to `end_ns`."""
        return max(0, (end_ns if self.until_ns is None else self.until_ns) - self.from_ns)


@dataclass(slots=True)
class Conversation:
    """One conversation over the whole run."""

    talk: Talk
    frames: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Arrived frames by sender; `wire_bytes` likewise."""
    wire_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    sent_frames: int = 0
    spans: dict[int, list[int]] = field(default_factory=dict)
    """Frames and bytes that arrived in each span."""
    heard: list[tuple[int, int]] = field(default_factory=list)
    """First and last time of each span in which it is heard, in order."""
    answers: list[tuple[int, int]] = field(default_factory=list)
    """Likewise for frames from the service's port."""


def conversations(counts: Iterable[Count]) -> list[Conversation]:
    """Conversations, the greatest first."""
    found: dict[Talk, Conversation] = {}
    for count in counts:
        one = found.setdefault(count.talk, Conversation(count.talk))
        if not count.arrived:
            one.sent_frames += count.frames
            continue
        one.frames[count.source] += count.frames
        one.wire_bytes[count.source] += count.wire_bytes
        inside = one.spans.setdefault(count.span, [0, 0])
        inside[0] += count.frames
        inside[1] += count.wire_bytes
        if count.first_ns <= count.last_ns:
            one.heard.append((count.first_ns, count.last_ns))
            if count.is_answer:
                one.answers.append((count.first_ns, count.last_ns))
    for one in found.values():
        one.heard.sort()
        one.answers.sort()
    return sorted(found.values(), key=lambda one: (-sum(one.wire_bytes.values()), str(one.talk)))


def gaps(heard: Sequence[tuple[int, int]], end_ns: int) -> Iterator[Gap]:
    """Silences between the heard spans, by time, and after the last one up to `end_ns`."""
    latest: int | None = None
    for first_ns, last_ns in sorted(heard):
        if latest is not None and first_ns > latest:
            yield Gap(latest, first_ns)
        latest = last_ns if latest is None else max(latest, last_ns)
    if latest is not None and latest < end_ns:
        yield Gap(latest, None)


def longest_within(heard: Sequence[tuple[int, int]], from_ns: int, until_ns: int, end_ns: int) -> Gap | None:
    """Longest silence that overlaps [from_ns, until_ns); None: there is none, or the conversation was never heard."""
    around = (
        gap
        for gap in gaps(heard, end_ns)
        if gap.from_ns < until_ns and (gap.until_ns is None or gap.until_ns > from_ns)
    )
    return max(around, key=lambda gap: gap.length_ns(end_ns), default=None)


def longest(heard: Sequence[tuple[int, int]]) -> Gap | None:
    """Longest silence between the first and the last heard span."""
    if not heard:
        return None
    last_ns = max(last for _, last in heard)
    return max(gaps(heard, last_ns), key=lambda gap: gap.length_ns(last_ns), default=None)


class MostFrequentEnd(NamedTuple):
    """Most frequent end of a service from `from_ns` to `until_ns`: an end of the part `share` of its frames, with
    `peers` others.
    """

    service: Service
    node: str
    from_ns: int
    until_ns: int
    share: float
    peers: int


def most_frequent_ends(
    found: Sequence[Conversation], time_of: Callable[[int], int], services: int
) -> list[MostFrequentEnd]:
    """Most frequent ends of each of the greatest services, in stretches of whole windows, by time.

    `time_of`: beginning of a span. A window without such an end ends a stretch.
    """
    by_service: dict[Service, list[Conversation]] = defaultdict(list)
    for one in found:
        if not one.talk.is_cast:
            by_service[one.talk.service].append(one)
    result: list[MostFrequentEnd] = []
    for service in list(by_service)[:services]:
        result += _stretches(list(_ends_of_windows(service, by_service[service], time_of)))
    return result


def _ends_of_windows(
    service: Service, found: Sequence[Conversation], time_of: Callable[[int], int]
) -> Iterator[MostFrequentEnd]:
    windows: dict[int, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for one in found:
        for span, (frames, _) in one.spans.items():
            windows[time_of(span) // MIDDLE_WINDOW_NS][one.talk.a, one.talk.b] += frames
    for window, pairs in sorted(windows.items()):
        named = most_frequent_end(pairs)
        if named is not None:
            node, share, peers = named
            yield MostFrequentEnd(
                service, node, window * MIDDLE_WINDOW_NS, (window + 1) * MIDDLE_WINDOW_NS, share, peers
            )


def most_frequent_end(pairs: Mapping[tuple[str, str], int]) -> tuple[str, float, int] | None:
    """Most frequent end of the frames between pairs, with its share of all frames and its number of peers: a node with
    at least two peers and MIDDLE_LEAD times the frames of the next such node. None: there is no such node.
    """
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for (a, b), frames in pairs.items():
        ends[a][b] = ends[b][a] = frames
    ranked = []
    for node, others in sorted(ends.items()):
        total = sum(others.values())
        peers = sum(frames >= MIDDLE_PEER_SHARE * total for frames in others.values())
        if peers >= 2:
            ranked.append((total, node, peers))
    ranked.sort(key=lambda entry: (-entry[0], entry[1]))
    if not ranked or (len(ranked) > 1 and ranked[0][0] < MIDDLE_LEAD * ranked[1][0]):
        return None
    total, node, peers = ranked[0]
    return node, total / sum(pairs.values()), peers


def _stretches(windows: Sequence[MostFrequentEnd]) -> list[MostFrequentEnd]:
    """Neighbouring windows with the same node merged; the share is their mean."""
    groups: list[list[MostFrequentEnd]] = []
    for before, one in pairwise([None, *windows]):
        assert one is not None
        if before is None or (before.node, before.until_ns) != (one.node, one.from_ns):
            groups.append([])
        groups[-1].append(one)
    return [
        group[0]._replace(
            until_ns=group[-1].until_ns,
            share=sum(one.share for one in group) / len(group),
            peers=max(one.peers for one in group),
        )
        for group in groups
    ]


def seconds(time_ns: int | None, start_ns: int) -> float | None:
    """A time in s after the start of the workload."""
    return None if time_ns is None else (time_ns - start_ns) / 1e9


UNNUMBERED: Final = "datagrams of other programs carry no transmission numbers to pair them by"
"""Reason why delay and loss of frames are not known if `is_unnumbered`."""

Rows = list[dict[str, Any]]


def entries(found: Sequence[Conversation], *, start_ns: int, seconds_s: float, width_ns: int) -> Rows:
    """Entries of the conversations for the summary."""
    return [_entry(one, start_ns, seconds_s, width_ns) for one in found]


def _entry(one: Conversation, start_ns: int, seconds_s: float, width_ns: int) -> dict[str, Any]:
    talk, silence = one.talk, longest(one.heard)
    if silence is not None and silence.length_ns(0) < width_ns:
        silence = None
    frames, wire_bytes = sum(one.frames.values()), sum(one.wire_bytes.values())
    peak = max((inside[1] for inside in one.spans.values()), default=0)
    return {
        **named(talk),
        "frames": frames,
        "wire_bytes": wire_bytes,
        "frames_there": one.frames.get(talk.a, 0),
        "frames_back": one.frames.get(talk.b, 0),
        "sent_frames": one.sent_frames if one.sent_frames and not talk.is_cast else None,
        "frames_per_s": frames / seconds_s if seconds_s else None,
        "wire_bytes_per_s": wire_bytes / seconds_s if seconds_s else None,
        "peak_bytes_per_s": peak / (width_ns / 1e9),
        "first_s": seconds(one.heard[0][0], start_ns) if one.heard else None,
        "last_s": seconds(max(last for _, last in one.heard), start_ns) if one.heard else None,
        "silent_s": None if silence is None else silence.length_ns(0) / 1e9,
        "silent_from_s": None if silence is None else seconds(silence.from_ns, start_ns),
    }


def named(talk: Talk) -> dict[str, Any]:
    """Fields that identify a conversation in the summary."""
    return {"a": talk.a, "b": talk.b, **served(talk.service, talk.is_cast)}


def served(service: Service, is_cast: bool) -> dict[str, Any]:
    """Fields that identify a service in the summary."""
    cast = "multicast" if is_cast else "unicast"
    return {"protocol": service.protocol, "port": service.port, "cast": cast}


def is_foreign(summary: Mapping[str, Any]) -> bool:
    """Whether most of a run's traffic is not of Orderbed's protocols: then the results are its conversations."""
    given = summary.get("traffic")
    if not isinstance(given, Mapping) or not given.get("conversations"):
        return False
    other, ours = given.get("other_frames"), given.get("datagrams")
    return isinstance(other, int) and isinstance(ours, int) and other > ours


def is_untraced(summary: Mapping[str, Any]) -> bool:
    """Whether other programs ran without records of submissions and deliveries: the results come from the capture
    alone.
    """
    messages = summary.get("messages")
    is_own = isinstance(messages, Mapping) and (messages.get("submitted") or messages.get("deliveries"))
    return is_foreign(summary) and not is_own


def is_unnumbered(summary: Mapping[str, Any]) -> bool:
    """Whether no datagram was of Orderbed's protocols: then frames cannot be paired over the network."""
    given = summary.get("traffic")
    return is_foreign(summary) and isinstance(given, Mapping) and not given.get("datagrams")
