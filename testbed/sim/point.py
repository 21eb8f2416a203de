"""One run in memory: simulated, judged, measured. No run directory, no capture, no Spark; the result is a dictionary.

    result = measure(experiment)
    result["verdict"], result["latency"]["normalised_mean"], result["load"]["dummy_rate"]

Fields that it shares with summary.json have the same name and meaning (docs/run-directory.md), so that the same
expressions read both. Fields that need the frames themselves (`traffic`, `conservation`, `accuracy`) are missing: an
expectation on them is `unknown`.
"""

from __future__ import annotations

import pickle
import time
import traceback
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from analysis import inputs, judgement
from analysis.checks.linear import JudgedRun, check_run, judged_run
from analysis.checks.properties import Property, Verdict
from analysis.metrics import call_cost, measures, membership, offered, ordering_cost, ordering_records, sweep_rows
from analysis.metrics.figures import others_until_ns
from analysis.metrics.offered import FROM_NODE, TO_NODE, Load, Sent
from analysis.network.addresses import MULTICAST_BIT, Flow, ip_number
from analysis.requested_network import build
from analysis.unexplained import Circumstances, unexplained
from node.host.workload import WorkloadKind
from node.registry import PROTOCOLS
from node.trace import Event
from node.wire import Flag, Message
from testbed.rundir import manifest
from testbed.sim.network import Datagram
from testbed.sim.simulation import START_NS, IncarnationRun, Simulation, simulate
from testbed.spec.given import given
from testbed.spec.values import Experiment
from topologies.model import MULTICAST_GROUP, Node, Topology

GROUP = 1
"""Group number; the simulated network has no other group."""

_KNOWN = frozenset(kind.value for kind in Property)


def measure(experiment: Experiment) -> dict[str, Any]:
    """Simulate an experiment to its end. An exception of a core fails the run and all promised properties."""
    began_s = time.perf_counter()
    head = {"seed": experiment.seed, "variant": dict(experiment.variant), "given": given(experiment)}
    meter = LoadMeter(experiment.topology, until_ns=START_NS + experiment.duration_ns)
    try:
        simulation = simulate(experiment, group=GROUP, tap=meter, encodes=False)
    except Exception as error:  # reported with the seed that repeats it
        return head | _broken(error) | {"events": 0, "seconds": time.perf_counter() - began_s}
    results = _results(experiment, simulation, meter)
    seconds = time.perf_counter() - began_s
    return head | results | {"events": simulation.events, "seconds": seconds}


def _results(experiment: Experiment, simulation: Simulation, meter: LoadMeter) -> dict[str, Any]:
    promises = PROTOCOLS[experiment.protocol.name].promised(experiment.protocol.parameters)
    names = {node.index: str(node.name) for node in experiment.topology.nodes()}
    records = simulation.records
    timelines = membership.timelines(records)
    asked_to_leave = membership.asked_to_leave(simulation.faults, names, timelines)
    faults = inputs.faults_of(experiment.topology, simulation.faults)
    network = build(experiment.topology, {}, faults)
    undrained = judgement.undrained(simulation.phases.drained_ns, faults, network)
    view = judged_run(records, members=names, names=names, undrained=undrained)
    requests = measures.requests_of(view)
    load = offered.section(meter.load(simulation.incarnations), experiment.topology, requests)
    results: dict[str, Any] = {
        "messages": measures.messages(view, promises=promises),
        "latency": measures.latency(
            view,
            between_ms=requests.between_ms,
            until_ns=others_until_ns(START_NS, START_NS + experiment.duration_ns),
        ),
        "ordering": ordering_cost.section(
            ordering_records.from_incarnations(records),
            start_ns=START_NS,
            end_ns=START_NS + experiment.duration_ns,
            names=names,
            protocol=experiment.protocol.name,
        ),
        "calls": _calls(experiment, view, load) if view.is_for_objects else None,
        "views": membership.section(
            timelines,
            names=names,
            start_ns=START_NS,
            struck_ns=membership.struck_ns(simulation.faults, names),
            asked_to_leave=asked_to_leave,
        ),
        "load": load,
        "properties": _properties(view, promises, names),
    }
    results["expect"] = [judgement.expectation(str(condition), results) for condition in experiment.expect]
    found = doubts(experiment, simulation)
    protocol = inputs.Protocol(name=experiment.protocol.name, parameters=experiment.protocol.parameters)
    found += unexplained(
        Circumstances(network=network, faults=faults, protocol=protocol),
        timelines,
        asked_to_leave=asked_to_leave,
        views=results["views"],
        calls=results["calls"],
        start_ns=START_NS,
    )
    verdict, reasons = judgement.overall(results["properties"], results["expect"], found)
    return results | {"verdict": verdict.value, "reasons": reasons, "doubts": found}


def _calls(experiment: Experiment, view: JudgedRun, load: Mapping[str, Any]) -> dict[str, Any] | None:
    networks = {node.index: node.partition_index for node in experiment.topology.nodes()}
    full = [incarnation.name for incarnation in view.full]
    return call_cost.per_call(call_cost.section(view.calls, view.raw(), full=full, networks=networks), load)


def _properties(view: JudgedRun, promises: tuple[str, ...], names: Mapping[int, str]) -> dict[str, Any]:
    findings = check_run(view, [Property(name) for name in promises if name in _KNOWN])
    return judgement.property_entries(findings, promises, names)


def doubts(experiment: Experiment, simulation: Simulation) -> list[str]:
    """Reasons why the numbers must not be trusted: a sender delayed by the protocol did not offer the load, or an
    incarnation has records after its STOP or ENDED.
    """
    names = {node.index: node.name for node in experiment.topology.nodes()}
    found = [
        f"{names[one.member]} (incarnation {one.incarnation}) has records after its end"
        for one in simulation.incarnations
        if one.has_records_after_its_end
    ]
    return found + manifest.judge(
        cpu_busy_ratio=0.0,
        steal_ratio=0.0,
        # The lag of a paused member does not count.
        lag_max_ns=max((one.lag_max_ns for one in simulation.incarnations if not one.was_paused), default=0),
        saturating=any(one.kind is WorkloadKind.SATURATING for one in experiment.workloads.values()),
    )


def _broken(error: Exception) -> dict[str, Any]:
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or "no text"
    sentence = f"{type(error).__name__} in {innermost.name}: {text}"
    nothing = dict.fromkeys(("messages", "latency", "ordering", "calls", "load"))
    told = {"verdict": Verdict.FAIL.value, "reasons": [sentence], "doubts": [sentence]}
    return nothing | told | {"properties": {}, "expect": []}


_TrafficClass = tuple[str, int, int]
"""Class, kind, inner kind."""

_NEIGHBOURS, _ALL_NODES = -1, -2
"""Routers are below."""


class LoadMeter:
    """A tap that counts the datagrams of a group from the start until `until_ns` (exclusive): the load as
    analysis.metrics.offered computes it from a capture.

    It keeps one small number for each datagram: the code of its class and kinds. Datagrams of one incarnation are
    numbered in the order in which they are sent, from 1 on, so the number in a SEND record gives the datagram's code.
    """

    def __init__(self, topology: Topology, *, until_ns: int) -> None:
        self._nodes = tuple(topology.nodes())
        self._near_groups = [part.multicast_group for part in topology.partitions for _ in part.nodes]
        """Multicast group of each member's partition, by member index."""
        self._until_ns = until_ns
        self._received = [0] * len(self._nodes)
        self._routers = {
            part.name: (_ALL_NODES - part.index, ip_number(part.router_ip)) for part in topology.partitions
        }
        """Destination and address of each."""
        self._flowed: dict[tuple[int, int], list[int]] = {}
        """Datagrams and bytes, by source and destination: a member, a router, _ALL_NODES or _NEIGHBOURS."""
        self._codes: dict[tuple[int, int], array[int]] = {}
        """Code of each datagram of each incarnation: an index of `_classes`."""
        self._classes: dict[_TrafficClass, int] = {}
        self._message: Message | None = None
        self._code = 0

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        """See `testbed.sim.network.Tap`."""
        if at_ns >= self._until_ns or datagram.is_trace:
            return
        if not inbound:
            self._received[port.index] += 1
            return
        message = datagram.message
        if message is not self._message:  # the datagrams of one multicast follow each other
            assert message is not None
            self._message = message
            self._code = self._classes.setdefault(_class_of(message), len(self._classes))
        destination = datagram.destination
        source = datagram.source.index
        if destination is not None:
            flow = (source, destination.index)
        elif datagram.router is not None:
            flow = (source, self._routers[datagram.router][0])
        else:
            flow = (source, _NEIGHBOURS if datagram.is_near else _ALL_NODES)
        try:
            counts = self._flowed[flow]
        except KeyError:
            counts = self._flowed[flow] = [0, 0]
        counts[0] += 1
        counts[1] += datagram.size_bytes
        incarnation = (source, datagram.incarnation)
        try:
            self._codes[incarnation].append(self._code)
        except KeyError:
            self._codes[incarnation] = array("H", (self._code,))

    def load(self, incarnations: Iterable[IncarnationRun]) -> Load:
        """The counted load; `incarnations`: all of the simulation, with their records."""
        return Load(ordering_records.Span(START_NS, self._until_ns), self._flows(), self._sent(incarnations))

    def _flows(self) -> list[Flow]:
        addresses = [ip_number(node.ip) for node in self._nodes]
        group = ip_number(MULTICAST_GROUP)
        routers = dict(self._routers.values())
        sent: list[Flow] = []
        for (source, target), (datagrams, wire_bytes) in self._flowed.items():
            if target == _ALL_NODES:
                eth_dst, ip_dst = MULTICAST_BIT, group
            elif target == _NEIGHBOURS:
                eth_dst, ip_dst = MULTICAST_BIT, ip_number(self._near_groups[source])
            else:
                eth_dst, ip_dst = 0, routers[target] if target < 0 else addresses[target]
            sent.append(Flow(source, FROM_NODE, eth_dst, ip_dst, datagrams=datagrams, wire_bytes=wire_bytes))
        received = enumerate(self._received)
        return sent + [Flow(node, TO_NODE, 0, addresses[node], datagrams=count) for node, count in received]

    def _sent(self, incarnations: Iterable[IncarnationRun]) -> list[Sent]:
        datagrams: Counter[int] = Counter()
        messages: Counter[int] = Counter()
        for codes in self._codes.values():
            datagrams.update(codes)
        for incarnation in incarnations:
            codes = self._codes.get((incarnation.member, incarnation.incarnation), array("H"))
            firsts = (row[8] for row in incarnation.records if row[0] == Event.SEND and row[6] < self._until_ns)
            messages.update(codes[transmission - 1] for transmission in firsts)
        return [Sent(*what, datagrams[code], messages[code]) for what, code in self._classes.items()]


def _class_of(message: Message) -> _TrafficClass:
    """Class and kinds of a message. A copy of one sent before is a retransmission, as in analysis.capture.decode."""
    flags = message.flags
    if flags & Flag.RETRANSMISSION:
        name = "retransmission"
    elif flags & Flag.DUMMY:
        name = "dummy"
    else:
        name = "control" if flags & Flag.CONTROL else "application"
    return name, int(message.kind), int(message.inner)


RUNS_PER_CORE = 8
"""Runs per core in one batch: few enough for frequent progress in a long sweep, and so many that the last run of a
batch, which may be alone on all cores, costs little."""

Results = list[dict[str, Any]]


def simulate_all(
    spark: SparkSession, experiments: Sequence[Experiment], path: Path, *, on_progress: Callable[[Results], None]
) -> Results:
    """Simulate every experiment, in order; `on_progress` gets the new results of each batch. `path` is replaced."""
    size = RUNS_PER_CORE * spark.sparkContext.defaultParallelism
    tables: list[pa.Table] = []
    results: Results = []
    for first in range(0, len(experiments), size):
        tables.append(_batch(spark, first, experiments[first : first + size]))
        sweep_rows.write(path, tables)
        fresh = sweep_rows.from_table(tables[-1])
        results += fresh
        on_progress(fresh)
    return results


def _batch(spark: SparkSession, first: int, experiments: Sequence[Experiment]) -> pa.Table:
    packed = {point: pickle.dumps(experiment) for point, experiment in enumerate(experiments, start=first)}

    def simulated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for point in batch.column("id").to_pylist():
                yield _row(point, packed[point])

    points = spark.range(first, first + len(experiments), numPartitions=len(experiments))
    rows = points.mapInArrow(simulated, from_arrow_schema(sweep_rows.SCHEMA)).toArrow()
    return rows.cast(sweep_rows.SCHEMA)


def _row(point: int, packed: bytes) -> pa.RecordBatch:
    return sweep_rows.to_batch([measure(pickle.loads(packed)) | {"point": point}])  # noqa: S301 (packed by simulate_all)
