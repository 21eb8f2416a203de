"""From a run directory to its tables and summary.json: everything is derived, so doing it again replaces what was
there.

    capture ──> frames, trace ──> messages, deliveries ──> latency, orders
                        └──────────────────────────────> traffic, realised network, conservation

Works on what there is: a run that was interrupted, a capture that was cut off, an empty one. What cannot be told is
`unknown`, with the reason; what cannot be read at all is an AnalysisError.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)
from pyspark.sql.types import StructType

from analysis import accuracy, conservation, cost, expression, order, schema, session, source, staging, tables
from analysis.errors import AnalysisError
from analysis.inputs import RunInputs, open_cuts, read_run
from analysis.properties import Finding, Place, Property, Witness
from analysis.verdict import Verdict, merge
from collector.records import Level

FORMAT = 1
LONG_RUN_BYTES = 256 << 20
"""From this size of capture on it pays that the Java machine optimises."""

Say = Callable[[str], None]
T = TypeVar("T")


class _Submit(Protocol):
    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


def analyze(run_dir: Path, *, spark: SparkSession | None = None, on_progress: Say) -> dict[str, Any]:
    """Make the tables and the summary of a run, and return the summary (docs/run-directory.md).

    `spark`: a session to use; without one, one is opened and closed again. `on_progress` gets a few words now and then.
    Raises AnalysisError, one sentence, when the run directory cannot be used or Spark cannot be started.
    """
    inputs = read_run(run_dir)
    on_progress("looking through the capture")
    capture = source.inspect(inputs.capture_path) if inputs.capture_path.exists() else None
    with _session(spark, capture, on_progress) as opened, staging.replace_tables(run_dir) as stage:
        summary = _Analysis(inputs, capture, opened, stage, on_progress).run()
    _write_json(run_dir / "summary.json", summary)
    return summary


@contextlib.contextmanager
def _session(spark: SparkSession | None, capture: source.CaptureState | None, say: Say) -> Iterator[SparkSession]:
    if spark is not None:
        yield spark
        return
    say("starting Spark")
    is_long = capture is not None and capture.bytes > LONG_RUN_BYTES
    with session.open_session(long_run=is_long) as opened:
        yield opened


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    """What was counted while the capture became tables."""

    undecodable: int = 0
    foreign_records: int = 0
    """Trace records that came in at another port than their member's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Orders:
    """What follows from the trace."""

    facts: order.RunFacts
    findings: Mapping[Property, Finding]
    requests: cost.Requests
    latency: dict[str, Any]


class _Analysis:
    """One pass over one run."""

    def __init__(
        self,
        inputs: RunInputs,
        capture: source.CaptureState | None,
        spark: SparkSession,
        stage: staging.Staging,
        say: Say,
    ) -> None:
        self.inputs = inputs
        self.manifest = inputs.manifest
        self.capture = capture
        self.spark = spark
        self.stage = stage
        self.say = say
        self.names = [inputs.names[index] for index in sorted(inputs.names)]
        offset_ns = self.manifest.clock_offset_ns
        self.first_ns = 0 if capture is None or capture.first_ns is None else capture.first_ns - offset_ns
        self.last_ns = 0 if capture is None or capture.last_ns is None else capture.last_ns - offset_ns
        self.start_ns = self.manifest.phases.start_ns or self.first_ns

    def run(self) -> dict[str, Any]:
        staged = self._stage_capture()
        self.stage.write_rows("faults", [_fault_row(line) for line in self.inputs.fault_lines], schema.FAULTS)
        # Each half is a chain of small queries, and most of a small query is planning, which takes one core.
        with _two_threads() as submit:
            network = submit(self._network)
            ordered = submit(self._orders)
            counted = cost.traffic(self._read("frames"), start_ns=self.start_ns)
            orders, (links, balance) = ordered.result(), network.result()
        self.stage.write_rows("traffic_series", cost.traffic_series(counted), schema.TRAFFIC_SERIES)
        requests, deliveries = orders.requests, orders.findings[Property.FIFO].checked
        messages = {
            "submitted": requests.submitted,
            "deliveries": deliveries,
            "deliveries_expected": requests.submitted * len(orders.facts.full),
            "level": _level_name(orders.facts.level),
        }
        traffic = cost.traffic_figures(counted, submitted=requests.submitted, deliveries=deliveries)
        results = {
            "messages": messages,
            "latency": orders.latency,
            "traffic": traffic,
            "links": links,
            "conservation": balance,
        }
        return self._summary(orders=orders, staged=staged, results=results)

    def _orders(self) -> _Orders:
        """Messages, deliveries and all that follows from the trace."""
        events = tables.events(self._read("trace")).persist()
        facts = order.run_facts(events, members={0: self.inputs.names}, names=self.inputs.names)
        self.say("judging the orders")
        asked = Observation("messages")
        figures = (F.count("number"), F.min("submit_ns"), F.max("submit_ns"))
        named = [one.alias(name) for one, name in zip(figures, ("submitted", "first_ns", "last_ns"), strict=True)]
        self.stage.write("messages", tables.messages(events, names=self.names).observe(asked, *named))
        self.stage.write("deliveries", tables.deliveries(events, self._read("messages"), names=self.names))
        findings = order.check_with(events, facts)[0]
        events.unpersist()
        self.say("adding up the costs")
        requests = cost.requests(**asked.get)
        judged = tables.judged(self._read("deliveries"), level=facts[0].level)
        latency, cdf = cost.latency(judged, between_ms=requests.between_ms)
        self.stage.write_rows("latency_cdf", cdf, schema.LATENCY_CDF)
        series = cost.latency_series(judged, start_ns=self.start_ns)
        self.stage.write_rows("latency_series", series, schema.LATENCY_SERIES)
        return _Orders(facts=facts[0], findings=findings, requests=requests, latency=latency)

    # --- tables

    def _stage_capture(self) -> _Staged:
        if self.capture is None or not self.capture.interface_names:
            self._stage_empty("frames", schema.FRAMES)
            self._stage_empty("trace", schema.TRACE)
            return _Staged()
        self.say(f"reading {self.capture.frames:,} frames")
        path, group = self.inputs.capture_path, self.manifest.group
        index = {name: member for member, name in self.inputs.names.items()}
        ports = [(name, index[name]) if name in index else None for name in self.capture.interface_names]
        frames = tables.frames(
            tables.read_capture(self.spark, path, "frames"),
            ports=ports,
            group=group,
            clock_offset_ns=self.manifest.clock_offset_ns,
        )
        seen = Observation("frames")
        self.stage.write("frames", frames.observe(seen, F.count_if("is_undecodable").alias("undecodable")))
        raw = tables.read_capture(self.spark, path, "trace").where(F.col("group") == group)
        told = Observation("trace")
        is_foreign = ~F.coalesce(tables.is_own_record(ports), F.lit(False))
        observed = raw.observe(told, F.count_if(is_foreign).alias("foreign"))
        self.stage.write("trace", tables.trace(observed, ports=ports))
        return _Staged(undecodable=seen.get["undecodable"], foreign_records=told.get["foreign"])

    def _stage_empty(self, name: str, contract: StructType) -> None:
        self.stage.write_rows(name, [], contract)

    def _read(self, name: str) -> DataFrame:
        return self.spark.read.schema(schema.TABLES[name]).parquet(str(self.stage.path(name)))

    # --- the network

    def _network(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The certificate and the conservation of frames."""
        if self.manifest.clock is None or self.last_ns <= self.first_ns:
            self._stage_empty("links", schema.LINKS)
            return [], []
        self.say("measuring the network")
        frames = self._read("frames")
        rows = accuracy.links(frames, self.inputs.network, first_ns=self.first_ns, last_ns=self.last_ns)
        extra = {(row["direction"], row["node"]): row.pop("extra_copies") for row in rows}
        self.stage.write_rows("links", rows, schema.LINKS)
        balance = conservation.balance(conservation.flows(frames), self.inputs.topology, self.manifest, extra)
        return [row | {"asked": json.loads(row["asked"])} for row in rows], balance

    # --- the summary

    def _summary(
        self,
        *,
        orders: _Orders,
        staged: _Staged,
        results: dict[str, Any],
    ) -> dict[str, Any]:
        doubts = self._doubts(staged)
        undrained = self._undrained()
        judged = {kind: _bounded(finding, kind, undrained) for kind, finding in orders.findings.items()}
        properties = {kind.value: self._property(kind, finding) for kind, finding in judged.items()}
        lag_ns = self.manifest.health.lag_max_ns
        results |= {
            "properties": properties,
            "accuracy": _accuracy(results["links"]),
            "capture": {
                "frames": 0 if self.capture is None else self.capture.frames,
                "kernel_dropped_frames": self.manifest.capture.kernel_dropped_frames,
                "trace_gaps": orders.facts.missing_records,
                "undecodable": staged.undecodable,
                "foreign_records": staged.foreign_records,
                "truncated": self.capture is None or self.capture.truncated,
            },
            "health": {
                "cpu_busy_ratio": self.manifest.health.cpu_busy_ratio,
                "lag_max_ms": None if lag_ns is None else lag_ns / 1e6,
            },
        }
        expect = [_expectation(text, results) for text in self.manifest.expect]
        verdict, reasons = _verdict(properties, expect, doubts)
        head = {"format": FORMAT, "run": self.manifest.run, "verdict": verdict.value, "reasons": reasons}
        order_of_keys = ("messages", "latency", "traffic", "accuracy", "links", "conservation", "capture", "health")
        return head | {"properties": properties, "expect": expect} | {key: results[key] for key in order_of_keys}

    def _doubts(self, staged: _Staged) -> list[str]:
        """Why this run can be `unknown` at best."""
        manifest, capture = self.manifest, self.capture
        doubts = [f"the run is {manifest.status}" + (f": {manifest.error}" if manifest.error else "")]
        if manifest.status == "complete":
            doubts.clear()
        doubts += manifest.invalid
        if capture is None:
            doubts.append("there is no capture")
        elif capture.problem:
            doubts.append(f"the capture is damaged: {capture.problem}")
        elif capture.damaged:
            doubts.append(f"{capture.damaged} blocks of the capture contradict themselves")
        lost = manifest.capture.kernel_dropped_frames
        if lost and not any("collector lost" in reason for reason in manifest.invalid):
            doubts.append(f"the collector lost {lost} frames")
        if manifest.clock is None and capture is not None:
            doubts.append("the manifest has no clock readings, so the capture cannot be set against the faults")
        if self.inputs.unread_faults:
            doubts.append(f"{self.inputs.unread_faults} lines of faults.jsonl cannot be read")
        if staged.foreign_records:
            doubts.append(f"{staged.foreign_records} trace records came from another port than their member's")
        return doubts

    def _undrained(self) -> str:
        """Why what should happen eventually may not have had the time."""
        drained_ns = self.manifest.phases.drained_ns
        if drained_ns is None:
            return "the run did not drain"
        cuts = open_cuts(self.inputs.strikes, drained_ns)
        return "the network was still cut when the run drained" if cuts else ""

    def _property(self, kind: Property, finding: Finding) -> dict[str, Any]:
        return {
            "verdict": finding.verdict.value,
            "promised": kind.value in self.manifest.promises,
            "checked": finding.checked,
            "violations": finding.violations,
            "reason": finding.reason,
            "witness": None if finding.witness is None else _witness(finding.witness, self.inputs.names),
        }


@contextlib.contextmanager
def _two_threads() -> Iterator[_Submit]:
    """Run functions beside the caller. When the caller fails or is interrupted, nobody waits for them."""
    executor = ThreadPoolExecutor(2, thread_name_prefix="analysis")
    try:
        yield executor.submit
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _bounded(finding: Finding, kind: Property, undrained: str) -> Finding:
    """A judgement of liveness needs a run that drained."""
    if not undrained or not kind.is_liveness or finding.verdict is Verdict.UNKNOWN:
        return finding
    return replace(finding, verdict=Verdict.UNKNOWN, reason=undrained, witness=None)


def _verdict(
    properties: Mapping[str, Mapping[str, Any]], expect: Sequence[Mapping[str, Any]], doubts: Sequence[str]
) -> tuple[Verdict, list[str]]:
    """The worst of what was promised and expected; unknown at best when there are doubts, or nothing was to be
    judged.
    """
    promised = {name: entry for name, entry in properties.items() if entry["promised"]}
    verdicts = [Verdict(entry["verdict"]) for entry in (*promised.values(), *expect)]
    reasons = [f"{name}: {_why(entry)}" for name, entry in promised.items() if entry["verdict"] != "pass"]
    reasons += [f"{entry['condition']}: {_why(entry)}" for entry in expect if entry["verdict"] != "pass"]
    if not verdicts:
        doubts = [*doubts, "nothing was promised and nothing expected"]
    if doubts:
        verdicts.append(Verdict.UNKNOWN)
    return merge(verdicts), [*doubts, *reasons]


def _why(entry: Mapping[str, Any]) -> str:
    if entry["reason"]:
        return str(entry["reason"])
    if "violations" in entry:
        count = entry["violations"]
        return f"{count} {'violation' if count == 1 else 'violations'} in {entry['checked']} checked"
    return f"it is {entry['value']}"


def _expectation(text: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """One condition of the experiment; unknown when it cannot be read or speaks of something that there is not."""
    entry = {"condition": text, "verdict": Verdict.UNKNOWN.value, "value": None, "reason": ""}
    try:
        condition = expression.parse(text)
    except expression.ExpressionError as error:
        return entry | {"reason": str(error)}
    value = expression.subject(condition, results)
    answer = expression.condition(condition, results)
    if isinstance(answer, expression.Unknown):
        return entry | {"reason": answer.reason}
    verdict = Verdict.PASS if answer else Verdict.FAIL
    return entry | {"verdict": verdict.value, "value": value if isinstance(value, int | float | str) else None}


def _accuracy(links: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The certificate in short."""
    counts = {verdict.value: sum(row["verdict"] == verdict.value for row in links) for verdict in Verdict}
    worst = merge(Verdict(row["verdict"]) for row in links) if links else Verdict.UNKNOWN
    return {"verdict": worst.value} | counts


def _witness(witness: Witness, names: Mapping[int, str]) -> dict[str, Any]:
    return {
        "what": witness.what,
        "sentence": witness.sentence(names),
        "places": [_place(place, names) for place in witness.places],
    }


def _place(place: Place, names: Mapping[int, str]) -> dict[str, Any]:
    message = place.message
    return {
        "member": names.get(place.incarnation.member, f"member {place.incarnation.member}"),
        "incarnation": place.incarnation.incarnation,
        "message": {
            "origin": names.get(message.origin, f"member {message.origin}"),
            "incarnation": message.incarnation,
            "number": message.number,
        },
        "position": place.position,
        "at_ns": place.at_ns,
    }


def _fault_row(line: Mapping[str, Any]) -> dict[str, Any]:
    row = {field.name: line.get(field.name) for field in schema.FAULTS.fields}
    return row | {"parameters": json.dumps(line.get("parameters", {})), "targets": line.get("targets", [])}


def _level_name(level: int) -> str:
    return Level(level).name.lower() if level in set(Level) else str(level)


def _write_json(path: Path, value: object) -> None:
    """Replace a file at once: a reader sees the old one or the whole new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, ensure_ascii=False, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        fresh.unlink(missing_ok=True)
