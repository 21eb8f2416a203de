"""One run in memory: simulated, judged, measured. No run directory, no capture, no Spark; a dictionary comes back.

    result = measure(experiment)
    result["verdict"], result["latency"]["normalised_mean"], result["load"]["dummy_rate"]

What it has in common with summary.json has the same name and means the same (docs/run-directory.md), so that the same
expressions read both. What needs the frames themselves (`traffic`, `conservation`, `accuracy`) is not there: an
expectation that speaks of it is `unknown`.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from analysis.checks import judgement
from analysis.checks.linear import View, check_view, view_of
from analysis.checks.properties import Incarnation, Property, Verdict
from analysis.metrics import call_cost, measures, membership, offered, ordering_cost, ordering_records, sweep_rows
from node.host.workload import WorkloadKind
from node.registry import PROTOCOLS
from testbed.run import health
from testbed.sim.meter import LoadMeter
from testbed.sim.simulation import START_NS, IncarnationRun, Simulation, simulate
from testbed.spec.faults import Cut, Heal
from testbed.spec.given import given
from testbed.spec.values import Experiment

GROUP = 1
"""Nobody else is on these wires."""

_KNOWN = frozenset(kind.value for kind in Property)


def measure(experiment: Experiment) -> dict[str, Any]:
    """Simulate an experiment to its end. What a core raises is the run's failure: it breaks all that was promised."""
    began_s = time.perf_counter()
    head = {"seed": experiment.seed, "variant": dict(experiment.variant), "given": given(experiment)}
    meter = LoadMeter(experiment.topology, until_ns=START_NS + experiment.duration_ns)
    try:
        simulation = simulate(experiment, group=GROUP, tap=meter, encodes=False)
    except Exception as error:  # reported with the seed that does it again
        return head | _broken(error) | {"events": 0, "seconds": time.perf_counter() - began_s}
    results = _results(experiment, simulation, meter)
    seconds = time.perf_counter() - began_s
    return head | results | {"events": simulation.events, "seconds": seconds}


def _results(experiment: Experiment, simulation: Simulation, meter: LoadMeter) -> dict[str, Any]:
    promises = PROTOCOLS[experiment.protocol.name].promised(experiment.protocol.parameters)
    names = {node.index: str(node.name) for node in experiment.topology.nodes()}
    records = {
        Incarnation(incarnation.member, incarnation.incarnation): incarnation.records
        for incarnation in simulation.incarnations
    }
    view = view_of(records, members=names, names=names)
    requests = measures.requests_of(view)
    load = offered.section(meter.load(simulation.incarnations), experiment.topology, requests)
    results: dict[str, Any] = {
        "messages": measures.messages(view, promises=promises),
        "latency": measures.latency(
            view, between_ms=requests.between_ms, load_end_ns=START_NS + experiment.duration_ns
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
            membership.courses(records),
            names=names,
            start_ns=START_NS,
            struck_ns=membership.struck_ns(simulation.faults, names),
        ),
        "load": load,
        "properties": _properties(experiment, simulation, view, promises, names),
    }
    results["expect"] = [judgement.expectation(str(condition), results) for condition in experiment.expect]
    invalid = doubts(experiment, simulation)
    verdict, reasons = judgement.overall(results["properties"], results["expect"], invalid)
    return results | {"verdict": verdict.value, "reasons": reasons, "invalid": invalid}


def _calls(experiment: Experiment, view: View, load: Mapping[str, Any]) -> dict[str, Any] | None:
    networks = {node.index: node.partition_index for node in experiment.topology.nodes()}
    full = [incarnation.name for incarnation in view.full]
    return call_cost.per_call(call_cost.section(view.calls, view.raw(), full=full, networks=networks), load)


def _properties(
    experiment: Experiment,
    simulation: Simulation,
    view: View,
    promises: tuple[str, ...],
    names: Mapping[int, str],
) -> dict[str, Any]:
    """The promised properties, as summary.json has them."""
    findings = check_view(view, [Property(name) for name in promises if name in _KNOWN])
    bounded = judgement.bounded(findings, undrained=undrained(experiment, simulation))
    return judgement.property_entries(bounded, promises, names)


def undrained(experiment: Experiment, simulation: Simulation) -> str:
    """As analysis.checks.judgement: why what should happen eventually may not have had the time; empty when it had."""
    if simulation.phases.drained_ns is None:
        return "the run did not drain"
    cuts = [fault for fault in experiment.faults if isinstance(fault, Cut | Heal)]
    return "the network was still cut when the run drained" if cuts and cuts[-1].in_force else ""


def doubts(experiment: Experiment, simulation: Simulation) -> list[str]:
    """Reasons why the numbers must not be trusted: a sender that the protocol held up did not offer the load."""
    return health.judge(
        cpu_busy_ratio=0.0,
        steal_ratio=0.0,
        lag_max_ns=max(
            (incarnation.lag_max_ns for incarnation in simulation.incarnations if _was_at_work(incarnation)), default=0
        ),
        saturating=any(one.kind is WorkloadKind.SATURATING for one in experiment.workloads.values()),
    )


def _was_at_work(incarnation: IncarnationRun) -> bool:
    """Who was paused was behind on purpose."""
    return not incarnation.was_paused


def _broken(error: Exception) -> dict[str, Any]:
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or "no text"
    sentence = f"{type(error).__name__} in {innermost.name}: {text}"
    nothing = dict.fromkeys(("messages", "latency", "ordering", "calls", "load"))
    judged = {"properties": {}, "expect": [], "invalid": [], "verdict": Verdict.FAIL.value, "reasons": [sentence]}
    return nothing | judged


RUNS_PER_CORE = 8
"""In one batch: so few that something is heard of a long sweep, and so many that the last run of a batch, which may be
alone on all cores, costs little."""

Results = list[dict[str, Any]]


def simulate_all(
    spark: SparkSession, experiments: Sequence[Experiment], path: Path, *, on_progress: Callable[[Results], None]
) -> Results:
    """Every experiment, in the order given; `on_progress` gets the new results of each batch. `path` is replaced."""
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
    # Imported where it runs: a worker that has it in its process already pays nothing.
    from testbed.sim.point import measure

    return sweep_rows.to_batch([measure(pickle.loads(packed)) | {"point": point}])  # noqa: S301 (we packed it)
