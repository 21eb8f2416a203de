"""Analysis of a run directory: its tables and summary.json. All of them are derived, so a repeated analysis replaces
them.

    capture ──> frames, trace ──> messages, deliveries ──> latency, orders
                        └──────────────────────────────> traffic, realised network, conservation

It also handles a run that was interrupted, and a capture that was cut off or is empty. A value that cannot be
determined is `unknown`, with the reason; an unreadable file is an AnalysisError.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pyspark.sql import SparkSession

from analysis import judgement, schema, tasks
from analysis.capture import source
from analysis.checks import incarnations, order
from analysis.checks.by_message import RunFacts
from analysis.checks.calls import read_calls
from analysis.checks.properties import SECTIONS, Finding, Incarnation, Property
from analysis.checks.sequences import IncarnationFacts
from analysis.engine import ingest, session
from analysis.errors import MachineError
from analysis.files import digest, is_there, replace_json
from analysis.inputs import RunInputs, idle_ns, read_run
from analysis.judgement import Staged
from analysis.metrics import (
    anomalies,
    call_cost,
    cost,
    measures,
    membership,
    offered,
    ordering_cost,
    ordering_records,
    reported,
    skew,
)
from analysis.metrics.figures import others_until_ns
from analysis.network import accuracy, addresses, conservation, fault_overlap
from analysis.traffic import section as traffic
from analysis.unexplained import Circumstances, unexplained
from collector.records import Level, Notice

FORMAT = 1
COUNTED = (*reported.COUNTED, *ordering_records.REPORTS)
"""Reports that any section reads."""

LONG_RUN_BYTES = 256 << 20
"""Size of a capture from which the JVM's optimising compiler is worth its time."""

CONCURRENT_ROWS = 1 << 22
"""Most steps with which latency is measured while the orders are checked: 50 bytes each."""

Say = Callable[[str], None]
T = TypeVar("T")


class _Submit(Protocol):
    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


def analyze(run_dir: Path, *, spark: SparkSession | None = None, on_progress: Say) -> dict[str, Any]:
    """Write the tables and the summary of a run, and return the summary (docs/run-directory.md).

    `spark`: a session to use; None: one is opened and closed again. `on_progress` is called with a few words at each
    stage. Raises AnalysisError, one sentence, when the run directory cannot be used or Spark cannot be started.
    """
    inputs = read_run(run_dir)
    on_progress("looking through the capture")
    capture = source.inspect(inputs.capture_path) if is_there(inputs.capture_path) else None
    if capture is None or not capture.frames:
        with tasks.replace_tables(run_dir) as stage:
            summary = _Analysis(inputs, capture, stage, on_progress).empty_summary()
    else:
        # The session is the innermost: its end also ends its tasks, and so the threads that wait for them. So nothing
        # writes tables any more when they are put in place or removed, even after an interrupt.
        with (
            tasks.replace_tables(run_dir) as stage,
            _threads() as submit,
            _session(spark, capture, on_progress) as opened,
        ):
            summary = _Analysis(inputs, capture, stage, on_progress).run(opened, submit)
    path = run_dir / "summary.json"
    try:
        path.with_name("report.html").unlink(missing_ok=True)  # it shows the verdict of the summary before
        replace_json(path, summary)
    except OSError as error:
        raise MachineError(f"{path}: cannot be written ({error.strerror})") from error
    return summary


@contextlib.contextmanager
def _session(spark: SparkSession | None, capture: source.CaptureState, say: Say) -> Iterator[SparkSession]:
    if spark is not None:
        yield spark
        return
    say("starting Spark")
    with session.open_session(long_run=capture.bytes > LONG_RUN_BYTES) as opened:
        yield opened


@dataclass(frozen=True, slots=True, kw_only=True)
class _Orders:
    """Results from the trace."""

    facts: RunFacts
    findings: Mapping[Property, Finding]
    requests: cost.Requests
    latency: dict[str, Any]
    by_fault: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Latency before, during and after each fault, by its id."""
    timelines: Sequence[membership.Timeline] = ()
    asked_to_leave: Mapping[Incarnation, int] = field(default_factory=dict)
    """Result of membership.asked_to_leave."""
    deliveries_full: int = 0
    """Judged deliveries at members that ran from start to end."""
    reported: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the summary from reports."""


class _Analysis:
    """Analysis of one run."""

    def __init__(
        self,
        inputs: RunInputs,
        capture: source.CaptureState | None,
        stage: tasks.Staging,
        say: Say,
    ) -> None:
        self.inputs = inputs
        self.manifest = inputs.manifest
        self.capture = capture
        self.stage = stage
        self.say = say
        self.names = [inputs.names[index] for index in sorted(inputs.names)]
        offset_ns = self.manifest.clock_offset_ns
        self.first_ns = 0 if capture is None or capture.first_ns is None else capture.first_ns - offset_ns
        self.last_ns = 0 if capture is None or capture.last_ns is None else capture.last_ns - offset_ns
        self.start_ns = self.manifest.phases.start_ns or self.first_ns
        self.undrained = judgement.undrained(self.manifest.phases.drained_ns, inputs.faults, inputs.network)

    def empty_summary(self) -> dict[str, Any]:
        """Summary of a run without frames: empty tables, unknown results, no Spark."""
        for name, contract in schema.TABLES.items():
            self.stage.write_rows(name, [], contract)
        self.stage.write_rows("faults", [_fault_row(line) for line in self.inputs.fault_lines], schema.FAULTS)
        facts = self._facts([])
        findings = order.no_findings(facts) | reported.nothing_found(self.manifest.promises, facts.evidence)
        findings |= self._views_missing(facts)
        orders = _Orders(facts=facts, findings=findings, requests=cost.Requests(0, None), latency=cost.NO_LATENCY)
        return self._summary(orders=orders, staged=Staged(), results=self._results(orders, None, [], [], []))

    def run(self, spark: SparkSession, submit: _Submit) -> dict[str, Any]:
        """Run the whole analysis."""
        assert self.capture is not None
        self.spark = spark
        self.talk = traffic.Measurement(self.inputs, self.capture, start_ns=self.start_ns, spark=spark)
        staged = self._stage_capture()
        self.stage.write_rows("faults", [_fault_row(line) for line in self.inputs.fault_lines], schema.FAULTS)
        self.say("judging the orders and measuring the network")
        # They run side by side, because none of them keeps all cores busy.
        network = submit(self._network)
        ordered = submit(lambda: self._orders(staged, submit))
        talk = self._traffic()
        load = self._load()
        orders, (links, balance) = ordered.result(), network.result()
        counted = self.counts.sent
        self.stage.write_rows("traffic_series", cost.traffic_series(counted), schema.TRAFFIC_SERIES)
        results = self._results(orders, load, counted, links, balance)
        results["traffic"] |= talk
        results["faults"] = fault_overlap.section(self.inputs, self.stage.path("frames"), orders.by_fault)
        return self._summary(orders=orders, staged=staged, results=results)

    def _orders(self, staged: Staged, submit: _Submit) -> _Orders:
        """Messages, deliveries and the other results from the trace."""
        trace = self.stage.path("trace")
        with incarnations.walked(trace, self.stage, tasks.OfSpark(self.spark), self.names, self.counts.records) as walk:
            requests = cost.requests_of(self.stage.path("messages"))
            facts = self._facts([one.facts for one in walk.incarnations])
            # Latency needs this process, the checks the workers; both need memory.
            is_short = sum(incarnation.rows for incarnation in walk.incarnations) <= CONCURRENT_ROWS
            timed = submit(lambda: self._latency(facts, requests)) if is_short else None
            findings = order.check_with(walk, facts)
            timelines = [_timeline(incarnation.facts) for incarnation in walk.incarnations]
            asked = membership.asked_to_leave(self.inputs.fault_lines, self.inputs.names, timelines)
            views = membership.section(
                timelines,
                names=self.inputs.names,
                start_ns=self.start_ns,
                struck_ns=membership.struck_ns(self.inputs.fault_lines, self.inputs.names),
                asked_to_leave=asked,
            )
        if views is None:
            findings |= self._views_missing(facts)
        findings |= reported.findings(
            trace,
            staged.notices,
            self.manifest.promises,
            full=facts.full,
            present=facts.present,
            evidence=replace(facts.evidence, undrained=facts.evidence.undrained or self.undrained),
        )
        latency, by_fault = self._latency(facts, requests) if timed is None else timed.result()
        return _Orders(
            facts=facts,
            findings=findings,
            requests=requests,
            latency=latency,
            by_fault=by_fault,
            timelines=timelines,
            asked_to_leave=asked,
            deliveries_full=reported.deliveries_of(self.stage.path("deliveries"), facts.level, facts.full),
            reported=self._reported(staged.notices, facts, findings)
            | self._of_objects(staged.notices, facts, requests)
            | {"views": views},
        )

    def _facts(self, found: list[IncarnationFacts]) -> RunFacts:
        return order.run_facts(found, members=self.inputs.members, names=self.inputs.names)

    def _views_missing(self, facts: RunFacts) -> dict[Property, Finding]:
        """Findings on the promised properties of views, in a run without views."""
        found = order.without_views(facts)
        return {kind: finding for kind, finding in found.items() if kind.value in self.manifest.promises}

    def _latency(self, facts: RunFacts, requests: cost.Requests) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """Section `latency` and its tables, and latency around each fault."""
        judged = cost.judged(self.stage.path("deliveries"), facts.level)
        latency, cdf = cost.latency(judged, between_ms=requests.between_ms, until_ns=self._others_until_ns())
        self.stage.write_rows("latency_cdf", cdf, schema.LATENCY_CDF)
        series = cost.latency_series(judged, start_ns=self.start_ns)
        self.stage.write_rows("latency_series", series, schema.LATENCY_SERIES)
        return latency, cost.latency_around(judged, fault_overlap.around(self.inputs))

    def _others_until_ns(self) -> int | None:
        return others_until_ns(self.start_ns, self.manifest.phases.load_end_ns)

    def _reported(
        self, notices: Mapping[Notice, int], facts: RunFacts, findings: Mapping[Property, Finding]
    ) -> dict[str, Any]:
        """Sections that only some protocols have."""
        trace, sections = self.stage.path("trace"), dict[str, Any]()
        if notices.get(Notice.CLOCK):
            phases = self.manifest.phases
            load_ns = None if phases.load_end_ns is None else phases.load_end_ns - self.start_ns
            incarnations = reported.readings(trace)
            readings = skew.with_jumps(incarnations, reported.jumps(trace))
            sections["clocks"] = skew.clocks(readings, start_ns=self.start_ns, load_ns=load_ns)
            sections["clocks"] |= {"readings": sum(map(len, incarnations.values()))}
        if notices.get(Notice.ACCEPTED):
            sections["stages"] = reported.stages(trace, self.inputs.names)
        if notices.get(Notice.RESIDENT):
            sections["resident"] = reported.residents(trace, self.inputs.names)
        if any(notices.get(code) for code in ordering_records.REPORTS):
            sections["ordering"] = ordering_cost.section(
                ordering_records.from_trace(trace),
                start_ns=self.start_ns,
                end_ns=self.manifest.phases.load_end_ns,
                names=self.inputs.names,
                protocol=self.manifest.protocol.name,
            )
        is_granted = Property.MUTUAL_EXCLUSION in findings
        if is_granted or Property.TOTAL_ORDER.value in self.manifest.promises:
            served = reported.served(self.stage.path("deliveries"), facts.level, None if is_granted else facts.full)
            sections["anomalies"] = anomalies.table(
                served,
                order="grants" if is_granted else "deliveries",
                mu_ns=self.manifest.protocol.mu_ns,
                calls=self._calls(),
            )
        return sections

    def _calls(self) -> list[anomalies.Call]:
        members = {name: member for member, name in self.inputs.names.items()}
        given = (call for call in self.manifest.calls if {call.caller, call.callee} <= members.keys())
        return [anomalies.Call(members[call.caller], members[call.callee], call.every) for call in given]

    def _of_objects(self, notices: Mapping[Notice, int], facts: RunFacts, requests: cost.Requests) -> dict[str, Any]:
        """Section `calls`, and the figures of `messages` and `latency` for messages addressed to objects."""
        if not notices.get(Notice.ADDRESSED):
            return {}
        incarnations = reported.incarnations_of(self.stage.path("trace"))
        calls = read_calls(incarnations)
        networks = {node.index: node.partition_index for node in self.inputs.topology.nodes()}
        until_ns = self._others_until_ns()
        return {
            "calls": call_cost.section(calls, incarnations, full=facts.full, networks=networks),
            "messages": call_cost.messages(calls, facts.full),
            "latency": measures.latency_of_calls(calls, between_ms=requests.between_ms, until_ns=until_ns),
        }

    # --- tables

    def _stage_capture(self) -> Staged:
        assert self.capture is not None
        self.say(f"reading {self.capture.frames:,} frames")
        index = {name: member for member, name in self.inputs.names.items()}
        plan = ingest.Plan(
            talk=self.talk.plan,
            max_talk=self.talk.max_rows,
            ports=tuple((name, index[name]) if name in index else None for name in self.capture.interface_names),
            group=self.manifest.group,
            clock_offset_ns=self.manifest.clock_offset_ns,
            start_ns=self.start_ns,
            load_end_ns=self.manifest.phases.load_end_ns,
            notices=COUNTED,
            idle_ns=idle_ns(self.inputs),
        )
        self.counts = counts = ingest.write_tables(self.spark, self.inputs.capture_path, plan, self.stage)
        return Staged(
            undecodable=counts.undecodable,
            foreign_records=counts.foreign_records,
            strange_datagrams=counts.strange_datagrams,
            idle_records=counts.idle_records,
            future_records=counts.future_records,
            notices=counts.notices,
        )

    # --- the network

    def _network(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The accuracy certificate and the conservation of frames."""
        if self.manifest.clock is None or self.last_ns <= self.first_ns:
            self.stage.write_rows("links", [], schema.LINKS)
            return [], []
        assert self.capture is not None
        crashed = {target for fault in self.inputs.faults if fault.kind == "crash" for target in fault.targets}
        rows = accuracy.links(
            self.spark,
            self.stage.path("frames"),
            self.inputs.network,
            first_ns=self.first_ns,
            last_ns=self.last_ns,
            count=self.capture.frames,
            stalls=self.manifest.stalls.spans or (),
            capture=self.inputs.capture_path,
            queue_drops=conservation.queue_drops(self.manifest, crashed),
            media_drops={one.partition: one.queue_dropped_frames for one in self.manifest.bus_counters},
        )
        extra = {(row["direction"], row["node"]): row.pop("extra_copies") for row in rows}
        self.stage.write_rows("links", rows, schema.LINKS)
        flows = addresses.flows(self.counts.flows)
        balance = conservation.balance(
            flows,
            self.inputs.topology,
            self.manifest,
            extra,
            copying=self.inputs.network.copying,
            down=self.inputs.network.downs.keys(),
            is_corrupting=bool(self.inputs.network.corrupting),
        )
        return [row | {"asked": json.loads(row["asked"])} for row in rows], balance

    def _load(self) -> offered.Load | None:
        """Traffic within the load; None: the load did not end."""
        end_ns = self.manifest.phases.load_end_ns
        if end_ns is None or end_ns <= self.start_ns:
            return None
        span = ordering_records.Span(self.start_ns, end_ns)
        sent = offered.sent(self.stage.path("frames"), self.stage.path("trace"), span)
        return offered.Load(span, addresses.flows(self.counts.flows), sent)

    def _traffic(self) -> dict[str, Any]:
        """Conversations of any protocol: the only results for other programs."""
        talk = self.talk.of(self.counts.talk)
        self.stage.write_rows("conversations", talk.conversations, schema.CONVERSATIONS)
        self.stage.write_rows("node_series", talk.nodes, schema.NODE_SERIES)
        return talk.summary

    # --- the summary

    def _results(
        self, orders: _Orders, load: offered.Load | None, counted: cost.Rows, links: cost.Rows, balance: cost.Rows
    ) -> dict[str, Any]:
        requests, deliveries = orders.requests, orders.findings[Property.FIFO].checked
        is_for_all = not measures.FOR_ALL.isdisjoint(self.manifest.promises)
        sent = None if load is None else offered.section(load, self.inputs.topology, requests)
        sections = orders.reported
        return {
            "messages": {
                "submitted": requests.submitted,
                "deliveries": deliveries,
                "deliveries_full": orders.deliveries_full,
                "deliveries_expected": requests.submitted * len(orders.facts.full) if is_for_all else None,
                "level": _level_name(orders.facts.level),
                **sections.get("messages", {}),
            },
            "latency": {**orders.latency, **sections.get("latency", {})},
            "calls": call_cost.per_call(sections.get("calls"), sent),
            "load": sent,
            "traffic": cost.traffic_figures(
                counted, submitted=requests.submitted, deliveries=deliveries, application_bytes=requests.size_bytes
            )
            | dict(traffic.NOTHING),
            "processing": cost.processing(self.manifest.nodes),
            **{name: sections.get(name) for name in ("ordering", "views", "clocks", "stages", "resident", "anomalies")},
            "links": links,
            "conservation": balance,
            "faults": fault_overlap.section(self.inputs, None),
        }

    def _summary(self, *, orders: _Orders, staged: Staged, results: dict[str, Any]) -> dict[str, Any]:
        manifest, facts = self.manifest, orders.facts
        findings = judgement.bounded(
            orders.findings,
            gap=judgement.unrecorded(self.inputs, ended=facts.ended, crashed=facts.crashed)
            or judgement.lost_tails(self.inputs, facts.crashed),
            undrained=self.undrained,
        )
        findings = judgement.noted(findings, self.inputs, facts.crashed, results["views"])
        lag_ns = manifest.health.lag_max_ns
        results = _rounded(results)
        results |= {
            "properties": judgement.property_entries(findings, manifest.promises, self.inputs.names),
            "accuracy": judgement.accuracy(results["links"], results["conservation"]),
            "capture": {
                "frames": 0 if self.capture is None else self.capture.frames,
                "kernel_dropped_frames": manifest.capture.kernel_dropped_frames,
                "trace_gaps": facts.missing_records,
                "undecodable": staged.undecodable,
                "foreign_records": staged.foreign_records,
                "truncated": self.capture is None or self.capture.truncated,
            },
            "health": {
                "cpu_busy_ratio": manifest.health.cpu_busy_ratio,
                "lag_max_ms": None if lag_ns is None else lag_ns / 1e6,
                **manifest.stalls.as_summary,
            },
        }
        results["expect"] = [
            judgement.expectation(text, results, is_valid=not manifest.invalid) for text in manifest.expect
        ]
        doubts = judgement.doubts(self.inputs, self.capture, staged, facts.mistakes)
        doubts += unexplained(
            Circumstances(network=self.inputs.network, faults=self.inputs.faults, protocol=manifest.protocol),
            orders.timelines,
            asked_to_leave=orders.asked_to_leave,
            views=results["views"],
            calls=results["calls"],
            start_ns=self.start_ns,
        )
        verdict, reasons = judgement.overall(results["properties"], results["expect"], doubts)
        head = {
            "format": FORMAT,
            "run": manifest.run,
            "manifest": digest(self.inputs.path / "manifest.json"),
            "verdict": verdict.value,
            "reasons": reasons,
            "doubts": doubts,
        }
        return head | {name: results[name] for name in SECTIONS}


def _timeline(facts: IncarnationFacts) -> membership.Timeline:
    return membership.Timeline(
        facts.incarnation, facts.views, facts.first_ns, facts.last_ns, facts.has_ended, facts.end_detail
    )


@contextlib.contextmanager
def _threads() -> Iterator[_Submit]:
    """Run functions in threads. They have ended when the block ends, also after an error."""
    executor = ThreadPoolExecutor(3, thread_name_prefix="analysis")
    try:
        yield executor.submit
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _rounded(value: Any) -> Any:
    """Value with floats rounded to nine digits, because the order of Spark's additions varies."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _fault_row(line: Mapping[str, Any]) -> dict[str, Any]:
    row = {field.name: line.get(field.name) for field in schema.FAULTS.fields}
    return row | {"parameters": json.dumps(line.get("parameters", {})), "targets": line.get("targets", [])}


def _level_name(level: int) -> str:
    return Level(level).name.lower() if level in set(Level) else str(level)
