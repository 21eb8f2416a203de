"""Scenes made by hand, random scenes, and run directories with the tables that diagrams read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from analysis.capture.source import CaptureReader, Pieces, table_schema
from analysis.checks.properties import Incarnation, MessageId
from analysis.engine import ingest
from analysis.inputs import faults_of
from analysis.requested_network import build
from analysis.spacetime.model import Header, Scene, Sighting, Step, Transmission, Window
from analysis.tasks import Staging
from collector.records import Event, Flag, Kind, Level, Notice, ViewReason
from tests.analysis.runs import CLOCK_OFFSET_NS, GROUP, START_NS
from topologies import load

MS = 1_000_000
WHOLE = Window(0, 30 * MS)
"""All of the scenes below."""
NAMES = ("p1/n1", "p1/n2", "p1/n3")
DATA = Header((Kind.RELIABLE_DATA, Kind.SEQUENCER_DATA), 0, 0, 1, 1, MessageId(0, 1, 1))
ANSWER = Header((Kind.RELIABLE_DATA,), 0, 1, 1, 1, MessageId(1, 1, 1))
ASKING = Header((Kind.RELIABLE_NACK,), Flag.CONTROL, 2, 1, 3)
AGAIN = DATA._replace(flags=Flag.RETRANSMISSION)
THREE_NODES = load.loads("name: three\npartitions:\n  p1: {nodes: 3}\n")


def step(member: int, record: int, event: Event, at_ms: float, *, recorder: int = 1, **fields: int) -> Step:
    known = {"detail": 0, "origin": member, "incarnation": 1, "extra": 0, "number": 0, "value": 0} | fields
    return Step(recorder=Incarnation(member, recorder), record=record, event=event, at_ns=round(at_ms * MS), **known)


def delivery(member: int, record: int, at_ms: float, origin: int, number: int, position: int) -> Step:
    told = {"detail": Level.AGREED, "origin": origin, "number": number, "value": position}
    return step(member, record, Event.DELIVER, at_ms, **told)


def send(member: int, record: int, at_ms: float, header: Header, transmission: int) -> Step:
    named = {"origin": header.origin, "incarnation": header.incarnation, "number": header.seq}
    told = {"detail": header.kinds[0], "extra": header.flags, "value": transmission}
    return step(member, record, Event.SEND, at_ms, **named, **told)


def frame(at_ms: float, member: int, sender: int, number: int, header: Header, target: int | None = None) -> Sighting:
    """A frame at the port of `member`: inbound if it is the sender."""
    transmission = Transmission(sender, 1, number)
    return Sighting(round(at_ms * MS), member, member != sender, transmission, header, target)


def fault(number: int, kind: str, at_ms: float, *, until: int | None = None, **fields: Any) -> dict[str, Any]:
    known = {"id": number, "kind": kind, "targets": [], "parameters": {}, "until_id": until, "asked_ns": 0}
    return known | {"issued_ns": round(at_ms * MS), "effective_ns": round(at_ms * MS)} | fields


CUT = {"groups": [["p1/n3"], ["p1/n1", "p1/n2"]]}


def lost_and_found() -> Scene:
    """n1's message is cut off from n3 and sent a second time, which arrives twice; n2 answers and crashes."""
    steps = [
        *(step(member, 1, Event.START, 0) for member in range(3)),
        step(0, 2, Event.SUBMIT, 1, number=1, size_bytes=512),
        send(0, 3, 1.1, DATA, 1),
        delivery(0, 4, 1.2, 0, 1, 1),
        delivery(1, 2, 6.2, 0, 1, 1),
        step(1, 3, Event.SUBMIT, 7, number=1, size_bytes=100),
        send(1, 4, 7, ANSWER, 1),
        delivery(0, 5, 12.3, 1, 1, 2),
        send(2, 2, 13, ASKING, 1),
        send(0, 6, 18.1, AGAIN, 2),
        delivery(2, 3, 23.2, 0, 1, 1),
        delivery(2, 4, 23.2, 1, 1, 2),
    ]
    sightings = [
        frame(1.15, 0, 0, 1, DATA),
        frame(6.1, 1, 0, 1, DATA),
        frame(7.01, 1, 1, 1, ANSWER),
        frame(12.1, 0, 1, 1, ANSWER),
        frame(12.2, 2, 1, 1, ANSWER),
        frame(13.01, 2, 2, 1, ASKING, 0),
        frame(18, 0, 2, 1, ASKING, 0),
        frame(18.15, 0, 0, 2, AGAIN, 2),
        frame(23.1, 2, 0, 2, AGAIN, 2),
        frame(23.3, 2, 0, 2, AGAIN, 2),
    ]
    faults = [
        fault(0, "cut", 0.5, until=1, parameters=CUT),
        fault(1, "heal", 8),
        fault(2, "crash", 15, targets=["p1/n2"]),
    ]
    network = build(THREE_NODES, {}, faults_of(THREE_NODES, faults))
    return Scene(names=NAMES, steps=steps, sightings=sightings, faults=faults, network=network)


def view(member: int, record: int, at_ms: float, number: int, *members: Incarnation, recorder: int = 1) -> list[Step]:
    """The records of one installation."""
    reason = ViewReason.FIRST if number == 1 else ViewReason.SUSPICION
    told = {"detail": reason, "number": number, "value": len(members), "recorder": recorder}
    return [
        step(
            member, record + rank, Event.VIEW, at_ms, origin=one.member, incarnation=one.incarnation, extra=rank, **told
        )
        for rank, one in enumerate(members)
    ]


def a_change_of_views() -> Scene:
    """n3 is cut off, left without a quorum and excluded; its next incarnation joins and takes the state."""
    everybody = [Incarnation(member, 1) for member in range(3)]
    rest, again = everybody[:2], [*everybody[:2], Incarnation(2, 2)]
    steps = [
        *(step(member, 1, Event.START, 0) for member in range(3)),
        *(one for member in range(3) for one in view(member, 2, 1 + member, 1, *everybody)),
        step(2, 5, Event.MINORITY, 10, detail=1, number=1, value=1),
        *(one for member in range(2) for one in view(member, 5, 12 + member, 2, *rest)),
        step(2, 6, Event.ENDED, 20),
        step(2, 1, Event.START, 20.1, recorder=2),
        *(one for member in range(2) for one in view(member, 7, 22 + member, 3, *again)),
        *view(2, 2, 23, 3, *again, recorder=2),
        step(2, 5, Event.STATE, 24, recorder=2, origin=0, number=3, value=70_000),
        step(1, 10, Event.MINORITY, 25, detail=1, number=3, value=1),
        step(1, 11, Event.MINORITY, 27, detail=0, number=3, value=3),
    ]
    return Scene(names=NAMES, steps=steps, faults=[fault(0, "cut", 5, until=1, parameters=CUT), fault(1, "heal", 18)])


WARP = (Kind.RELIABLE_DATA, Kind.ADAPTIVE_CARRIED, Kind.TIMEWARP_DATA)
CANCELLING = Header((Kind.RELIABLE_DATA, Kind.ADAPTIVE_CARRIED, Kind.TIMEWARP_ANTI), Flag.CONTROL, 1, 1, 5, epoch=2)
NUMBERING = Header((Kind.RELIABLE_DATA, Kind.ADAPTIVE_CARRIED, Kind.ABCAST_FINAL), Flag.CONTROL, 0, 1, 1, epoch=1)


def optimism() -> Scene:
    """From ABCAST to Time Warp: n2 has executed n1's two messages when n3's arrives, which is ordered before them."""
    first, second, late = (
        Header(WARP, 0, member, 1, seq, MessageId(member, 1, number), epoch=2)
        for member, seq, number in ((0, 2, 1), (0, 3, 2), (2, 1, 1))
    )
    steps = [
        *(step(member, 1, Event.START, 0) for member in range(3)),
        *(notice(member, 2, 0.1, Notice.IN_FORCE, extra=0xB, value=1) for member in range(3)),
        *(notice(member, 3, at_ms, Notice.IN_FORCE, extra=0xC, value=2) for member, at_ms in enumerate((3, 4.5, 6))),
        *(send(0, 4, 2, NUMBERING, 1), send(2, 4, 6.5, late, 1)),
        *(step(0, 5, Event.SUBMIT, 5, number=1, size_bytes=64), send(0, 6, 5, first, 2)),
        *(step(0, 7, Event.SUBMIT, 6, number=2, size_bytes=64), send(0, 8, 6, second, 3)),
        step(2, 5, Event.SUBMIT, 6.4, number=1, size_bytes=64),
        *(optimistic(1, 4, 8, 0, 1, 1), optimistic(1, 5, 11, 0, 2, 2)),
        *(step(1, 6, Event.UNDO, 14, origin=0, number=2), step(1, 7, Event.UNDO, 14, origin=0, number=1)),
        notice(1, 8, 14, Notice.ROLLED_BACK, extra=2, value=6 * MS),
        *(optimistic(1, 9, 14, 2, 1, 1), send(1, 10, 14.2, CANCELLING, 1)),
        *(optimistic(1, 11, 17, 0, 1, 2), optimistic(1, 12, 20, 0, 2, 3)),
        notice(1, 13, 25, Notice.GVT, value=17),
        notice(1, 14, 25, Notice.COST, extra=2, value=0),
        delivery(1, 15, 25, 2, 1, 1)._replace(detail=Level.FINAL),
        delivery(1, 16, 26, 0, 1, 2)._replace(detail=Level.FINAL),
        delivery(1, 17, 27, 0, 2, 3)._replace(detail=Level.FINAL),
    ]
    sightings = [
        *(frame(2, 0, 0, 1, NUMBERING), frame(4, 1, 0, 1, NUMBERING), frame(5, 2, 0, 1, NUMBERING)),
        *(frame(5, 0, 0, 2, first), frame(8, 1, 0, 2, first), frame(9, 2, 0, 2, first)),
        *(frame(6, 0, 0, 3, second), frame(9.5, 1, 0, 3, second), frame(10, 2, 0, 3, second)),
        *(frame(6.5, 2, 2, 1, late), frame(14, 1, 2, 1, late), frame(12, 0, 2, 1, late)),
        *(frame(14.2, 1, 1, 1, CANCELLING), frame(17, 0, 1, 1, CANCELLING), frame(18, 2, 1, 1, CANCELLING)),
    ]
    return Scene(names=NAMES, steps=steps, sightings=sightings)


def notice(member: int, record: int, at_ms: float, code: Notice, *, extra: int = 0, value: int = 0) -> Step:
    return step(member, record, Event.REPORT, at_ms, detail=code, extra=extra, value=value)


def optimistic(member: int, record: int, at_ms: float, origin: int, number: int, position: int) -> Step:
    return delivery(member, record, at_ms, origin, number, position)._replace(detail=Level.OPTIMISTIC)


TIMES = st.integers(-5 * MS, 40 * MS)
HOSTILE = st.text(max_size=12) | st.sampled_from(["</svg><script>", "p1/n1", '" onload="x', "\x1b[31m", "日本", "a\nb"])


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Arbitrary content of tables: members that do not exist, times out of order, bytes that belong to no sender."""
    names = draw(st.lists(HOSTILE, min_size=1, max_size=6))
    member = st.integers(0, len(names) - 1)
    anybody = st.integers(0, len(names))
    small = st.integers(0, 3)
    code = st.integers(0, 255)
    incarnations = st.builds(Incarnation, member, st.integers(1, 2))
    messages = st.none() | st.builds(MessageId, anybody, small, small)
    headers = st.builds(
        Header, st.tuples(code) | st.tuples(code, code), st.integers(0, 7), anybody, small, small, messages
    )
    steps = st.builds(
        *(Step, incarnations, small, st.sampled_from(Event) | code, st.sampled_from(Notice) | code),
        *(anybody, small, small, small, TIMES, small),
    )
    sightings = st.builds(
        *(Sighting, TIMES, member, st.booleans()),
        *(st.none() | st.builds(Transmission, anybody, st.just(1), small), st.none() | headers),
        *(st.none() | member, st.booleans()),
    )
    faults = st.builds(
        fault,
        st.integers(0, 3),
        st.sampled_from(["cut", "heal", "crash", "restart", "pause", "resume", "impair", "odd"]),
        st.integers(0, 30),
        until=st.none() | st.integers(0, 3),
        targets=st.lists(st.sampled_from(names), max_size=3),
    )
    return Scene(
        names=names,
        steps=draw(st.lists(steps, max_size=25)),
        sightings=draw(st.lists(sightings, max_size=25)),
        faults=draw(st.lists(faults, max_size=4)),
        until_ns=draw(st.none() | TIMES),
    )


def write_tables(run: Path) -> Path:
    """Write the tables `frames` and `trace` of a run from its capture, without Spark."""
    (run / "tables").mkdir()
    stage, nodes = Staging(run / "tables"), load.load(run / "topology.yaml").nodes()
    plan = ingest.Plan(
        ports=tuple((str(node.name), node.index) for node in nodes),
        group=GROUP,
        clock_offset_ns=CLOCK_OFFSET_NS,
        start_ns=START_NS,
        load_end_ns=None,
    )
    reader = CaptureReader(str(run / "capture.pcapng"), table_schema("frames"), "frames", 1)
    (part,) = (part for part in reader.partitions() if isinstance(part, Pieces))
    ingest.write_part(0, part, plan, [stage.parts(name) for name in ("frames", "trace")])
    for name in ("frames", "trace"):
        stage.gather(name)
    return run
