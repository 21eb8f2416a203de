"""Scene of a window from a run directory: the tables `frames` and `trace`, and the capture for fields that they lack.

    reader = Reader(Path("runs/quickstart/1-20260101T120000Z"))
    diagram = compose(reader.scene(window), window)

Only records and frames of the window, and datagrams in transit at its ends, are read. The tables do not hold the
application message of a datagram, nor whether its bytes were damaged. If the capture from which they were made is
present, these few frames are looked up in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.capture.decode import checksums_are_good, decode_frames, frames_at
from analysis.checks.properties import Incarnation, MessageId
from analysis.errors import AnalysisError
from analysis.inputs import RunInputs, read_run
from analysis.network.addresses import ip_number
from analysis.requested_network import MARGIN_NS, Network
from analysis.requested_network import Path as NetworkPath
from analysis.spacetime.model import Header, Scene, Sighting, Step, Transmission, Window, read_datagram
from analysis.tables import table_at
from collector.parse import map_capture
from collector.records import CaptureError, Event, Notice

MAX_FRAMES: Final = 400_000
MAX_STEPS: Final = 1_000_000
"""Most records of a window with its surroundings; more cannot be drawn usefully."""

LONGEST_AROUND_NS: Final = 30_000_000_000
"""Longest time before and after a window in which the other ends of its arrows are sought."""

UNUSABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError)

Row: TypeAlias = dict[str, Any]

_FRAME_COLUMNS = (
    *("time_ns", "node_index", "direction", "length", "class", "sender", "sender_incarnation", "transmission"),
    *("kind", "flags", "inner", "origin", "incarnation", "seq", "ip_dst", "offset", "is_undecodable"),
)
_STEP_COLUMNS = (
    *("member", "member_incarnation", "record", "event", "detail", "origin", "incarnation"),
    *("extra", "number", "at_ns", "value", "size_bytes"),
)
_INCARNATION_EVENTS = [int(Event.START), int(Event.STOP), int(Event.ENDED), int(Event.MINORITY)]


class Reader:
    """One analysed run directory. Raises AnalysisError, one sentence, when it cannot be used, and one of UNUSABLE for
    tables with other contents than those of the analysis.
    """

    def __init__(self, path: Path) -> None:
        self.inputs: RunInputs = read_run(path)
        self.names = tuple(name for _, name in sorted(self.inputs.names.items()))
        self._frames = self._table("frames")
        self._trace = self._table("trace")
        topology = self.inputs.topology
        self._members = {ip_number(node.ip): node.index for node in topology.nodes()}
        self._routers = {ip_number(part.router_ip): str(part.name) for part in topology.partitions}
        self._near_groups = {ip_number(part.multicast_group) for part in topology.partitions}
        self._around_ns = min(longest_ns(self.inputs.network), LONGEST_AROUND_NS)

    @property
    def start_ns(self) -> int:
        """Beginning of the time axis: the workload's start, or the first record of a run that never started."""
        start_ns = self.inputs.manifest.phases.start_ns
        return start_ns if start_ns is not None else self.span.from_ns

    @property
    def span(self) -> Window:
        """Window from the first to the last record."""
        times = pq.read_table(self._trace, columns=["at_ns"])["at_ns"]
        if not len(times):
            raise AnalysisError(f"{self.inputs.path}: no host recorded anything, there is nothing to draw")
        ends = pc.min_max(times).as_py()
        return Window(ends["min"], ends["max"])

    def scene(self, window: Window) -> Scene:
        """Scene for this window or a part of it."""
        wide = Window(window.from_ns - self._around_ns, window.until_ns + self._around_ns)
        return Scene(
            names=self.names,
            steps=list(self._steps(wide)),
            sightings=self._sightings(window, wide),
            faults=self.inputs.fault_lines,
            start_ns=self.start_ns,
            network=self.inputs.network,
            until_ns=self.inputs.manifest.phases.end_ns,
        )

    def first_event(self, event: Event) -> int | None:
        """Time of the first record of this event; None: there is none."""
        times = pq.read_table(self._trace, columns=["at_ns"], filters=[("event", "=", int(event))])["at_ns"]
        found: int | None = pc.min(times).as_py()
        return found

    def reports(self, notice: Notice) -> list[Step]:
        """All reports of this code, by time."""
        chosen = (pc.field("event") == int(Event.REPORT)) & (pc.field("detail") == int(notice))
        return sorted(self._read_steps(chosen), key=lambda step: (step.at_ns, step.recorder))

    def installations(self) -> list[Step]:
        """All records of views, by time."""
        return sorted(
            self._read_steps(pc.field("event") == int(Event.VIEW)), key=lambda step: (step.at_ns, step.recorder)
        )

    def submitted_ns(self, messages: Iterable[MessageId]) -> list[int]:
        """Times of the recorded submissions of these messages."""
        wanted = set(messages)
        if not wanted:
            return []
        chosen = [("event", "=", int(Event.SUBMIT)), ("number", "in", sorted({one.number for one in wanted}))]
        rows = pq.read_table(self._trace, columns=["origin", "incarnation", "number", "at_ns"], filters=chosen)
        return [
            row["at_ns"]
            for row in rows.to_pylist()
            if MessageId(row["origin"], row["incarnation"], row["number"]) in wanted
        ]

    def _table(self, name: str) -> Path:
        path = self.inputs.path / "tables" / f"{name}.parquet"
        if not path.exists():
            raise AnalysisError(f"{path}: is missing; make it with `orderbed analyze {self.inputs.path}`")
        table_at(path)
        return path

    def _steps(self, wide: Window) -> Iterator[Step]:
        inside = (pc.field("at_ns") >= wide.from_ns) & (pc.field("at_ns") <= wide.until_ns)
        # Protocols in force, incarnations and quorums may have been recorded long before.
        in_force = (pc.field("event") == int(Event.REPORT)) & (pc.field("detail") == int(Notice.IN_FORCE))
        chosen = inside | pc.field("event").isin(_INCARNATION_EVENTS) | in_force
        return self._read_steps(chosen)

    def _read_steps(self, chosen: pc.Expression) -> Iterator[Step]:
        for row in _read(self._trace, _STEP_COLUMNS, chosen, MAX_STEPS):
            incarnation = Incarnation(row.pop("member"), row.pop("member_incarnation"))
            if 0 <= incarnation.member < len(self.names):
                yield Step(recorder=incarnation, **row)

    def _sightings(self, window: Window, wide: Window) -> list[Sighting]:
        inside = (pc.field("time_ns") >= wide.from_ns) & (pc.field("time_ns") <= wide.until_ns)
        rows = _read(self._frames, _FRAME_COLUMNS, inside & (pc.field("class") != "trace"), MAX_FRAMES)
        known = [row for row in rows if row["node_index"] is not None and row["direction"] is not None]
        kept = _about(known, window)
        found = _Capture(self.inputs.path / "capture.pcapng").tell(kept)
        return [self._sighting(row, *what) for row, what in zip(kept, found, strict=True)]

    def _sighting(self, row: Row, header: Header | None, is_damaged: bool) -> Sighting:
        transmission, is_arrival = _transmission(row), row["direction"] == "to-node"
        if transmission is not None and header is None:
            kinds = (row["kind"], row["inner"]) if row["inner"] else (row["kind"],)
            header = Header(kinds, row["flags"], row["origin"], row["incarnation"], row["seq"])
        return Sighting(
            at_ns=row["time_ns"],
            member=row["node_index"],
            is_arrival=is_arrival,
            transmission=transmission,
            header=header,
            target=self._members.get(row["ip_dst"]),
            is_near=row["ip_dst"] in self._near_groups,
            router=self._routers.get(row["ip_dst"]),
            # A datagram that leaves a node is whole: a checksum that is still missing is added when it is forwarded.
            is_corrupt=is_arrival and is_damaged,
        )


def longest_ns(network: Network) -> int:
    """Upper bound of the transit time of a frame in ns, from all requested states of the network."""
    by_kind: dict[str, int] = {}
    for element, start in network.start.items():
        states = [start, *(change.state for change in network.changes.get(element, ()))]
        longest = max(NetworkPath(elements=((element, state),)).longest_ns for state in states)
        by_kind[element[0]] = max(by_kind.get(element[0], 0), longest)
    buses = tuple(partition.bus for partition in network.topology.partitions if partition.bus is not None)
    return sum(by_kind.values()) + NetworkPath(elements=(), buses=buses).longest_ns + MARGIN_NS


class _Capture:
    """The captured frames, for fields that the tables lack. A capture that is missing or a different one gives
    nothing.
    """

    def __init__(self, path: Path) -> None:
        self._buffer: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        # A run that was copied without its capture is still drawn, with the names in the tables.
        with contextlib.suppress(OSError, CaptureError):
            self._buffer = map_capture(path)

    def tell(self, rows: Sequence[Row]) -> list[tuple[Header | None, bool]]:
        """For each row of `frames`: its headers, and whether its bytes were damaged; None and False if the capture does
        not have it.
        """
        offset = np.array([row["offset"] for row in rows], np.int64)
        length = np.array([row["length"] for row in rows], np.int64)
        places = np.flatnonzero((offset >= 0) & (length >= 0) & (offset + length <= len(self._buffer)))
        found: list[tuple[Header | None, bool]] = [(None, False)] * len(rows)
        if not len(places):
            return found
        columns = decode_frames(self._buffer, frames_at(self._buffer, offset[places], length[places].astype(np.int32)))
        is_good = checksums_are_good(self._buffer, columns)
        for place, at, size, good in zip(
            places.tolist(), columns["payload_offset"], columns["payload_length"], is_good, strict=True
        ):
            read = read_datagram(self._buffer[at : at + size].tobytes())
            if read is not None and read[0] == _transmission(rows[place]):
                found[place] = read[1], not good
        return found


def _about(rows: Sequence[Row], window: Window) -> list[Row]:
    """Frames of the datagrams that are in transit at some time of the window, and undecodable frames in it."""
    first: dict[Transmission, int] = {}
    last: dict[Transmission, int] = {}
    for row in rows:
        transmission = _transmission(row)
        if transmission is not None:
            first[transmission] = min(row["time_ns"], first.get(transmission, row["time_ns"]))
            last[transmission] = max(row["time_ns"], last.get(transmission, row["time_ns"]))
    kept = {one for one in first if first[one] <= window.until_ns and last[one] >= window.from_ns}
    return [
        row
        for row in rows
        if _transmission(row) in kept or (row["is_undecodable"] and window.from_ns <= row["time_ns"] <= window.until_ns)
    ]


def _transmission(row: Row) -> Transmission | None:
    if row["transmission"] is None:
        return None
    return Transmission(row["sender"], row["sender_incarnation"], row["transmission"])


def _read(path: Path, columns: Sequence[str], chosen: pc.Expression, most: int) -> list[Row]:
    """Chosen rows of a table. Raises AnalysisError when there are more than `most`."""
    table = table_at(path).scanner(columns=list(columns), filter=chosen).head(most + 1)
    if len(table) > most:
        raise AnalysisError(
            f"{path}: the window and what lies around it hold more rows than the {most:,} that can be drawn; "
            "choose a shorter one"
        )
    rows: list[Row] = table.to_pylist()
    return rows
