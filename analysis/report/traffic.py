"""What the report shows of programs of others: bytes by node over time, conversations, silences, what TCP cost, who was
in the middle. From section `traffic` of the summary and the table `node_series`.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.report import formatting as words
from analysis.report import svg
from analysis.report.plots import COLOURS, Frame, line_of, over_time, shades, y_axis
from analysis.report.rows import Fact
from analysis.report.time_axis import FaultWindow, Phases, Series, series_of
from analysis.traffic.flows import is_foreign

MAX_ROWS: Final = 60
SECTION: Final = ("conversations", "Conversations")


class ConversationRow(NamedTuple):
    """Two ends and their service."""

    ends: str
    service: str
    frames: str
    size: str
    rate: str
    again: str
    round_trip: str
    silent: str


class SilenceRow(NamedTuple):
    """What a fault did to one conversation, or to a service on one side."""

    fault: str
    who: str
    service: str
    silent: str
    since: str
    back: str


class MiddleRow(NamedTuple):
    """Who was in the middle of a service, and when."""

    service: str
    node: str
    span: str
    share: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The section."""

    conversations: list[ConversationRow]
    left_out: int
    facts: list[Fact]
    sides: list[SilenceRow]
    silences: list[SilenceRow]
    middles: list[MiddleRow]


def told(summary: Mapping[str, Any]) -> Told | None:
    """None for a run of our own protocols: those have better sections."""
    if not is_foreign(summary):
        return None
    given = words.mapping(summary.get("traffic"))
    entries = words.objects(given.get("conversations"))
    left_out = int(words.number(given.get("conversations_left_out")) or 0)
    return Told(
        conversations=[_conversation(entry) for entry in entries[:MAX_ROWS]],
        left_out=left_out + max(0, len(entries) - MAX_ROWS),
        facts=[*_phases(given)],
        sides=[_side(row, words.number(given.get("span_s"))) for row in words.objects(given.get("sides"))[:MAX_ROWS]],
        silences=[_silence(row) for row in words.objects(given.get("silences"))[:MAX_ROWS]],
        middles=[_middle(row) for row in words.objects(given.get("middles"))[:MAX_ROWS]],
    )


def _service(entry: Mapping[str, Any]) -> str:
    port = words.number(entry.get("port"))
    text = words.clean(entry.get("protocol"), 20) + ("" if port is None else f" {port:.0f}")
    return f"{text} multicast" if entry.get("cast") == "multicast" else text


def _ends(entry: Mapping[str, Any]) -> str:
    return f"{words.clean(entry.get('a'), 40)} – {words.clean(entry.get('b'), 40)}"


def _seconds(value: object) -> str:
    return words.MISSING if words.number(value) is None else words.seconds(words.number(value), 2)


def _conversation(entry: Mapping[str, Any]) -> ConversationRow:
    tcp = words.mapping(entry.get("tcp"))
    since = words.number(entry.get("silent_from_s"))
    silent = _seconds(entry.get("silent_s"))
    return ConversationRow(
        ends=_ends(entry),
        service=_service(entry),
        frames=words.count(entry.get("frames")),
        size=words.size(entry.get("wire_bytes")),
        rate=f"{words.size(entry.get('wire_bytes_per_s'))}/s",
        again=words.percent(tcp.get("retransmission_ratio")) if tcp else words.MISSING,
        round_trip=words.milliseconds(tcp.get("rtt_p50_ms")) if tcp else words.MISSING,
        silent=silent if since is None else f"{silent} from {words.seconds(since, 1)}",
    )


def _fault(row: Mapping[str, Any]) -> str:
    return f"#{words.count(row.get('fault'))} {words.clean(row.get('kind'), 24)}"


def _until(row: Mapping[str, Any]) -> str:
    return "to the end" if words.number(row.get("silent_until_s")) is None else _seconds(row.get("silent_until_s"))


def _side(row: Mapping[str, Any], span_s: float | None) -> SilenceRow:
    never = words.number(row.get("silent_s")) == 0 and span_s is not None
    return SilenceRow(
        fault=_fault(row),
        who=_members(words.clean(row.get("side"), 4000)),
        service=_service(row),
        silent=f"< {words.seconds(span_s, 1)}" if never else _seconds(row.get("silent_s")),
        since=_seconds(row.get("silent_from_s")),
        back=_until(row) if words.number(row.get("silent_s")) else words.MISSING,
    )


def _members(side: str) -> str:
    """`p1/n3..n5, p2/n1` of all their names."""
    runs: list[list[str]] = []
    for name in side.split(", "):
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    texts = [run[0] if len(run) == 1 else f"{run[0]}..{run[-1].rpartition('/')[2]}" for run in runs]
    return ", ".join(texts[:20]) + (" …" if len(texts) > 20 else "")


def _follows(before: str, name: str) -> bool:
    stem, other = before.rstrip(string.digits), name.rstrip(string.digits)
    number, following = before[len(stem) :], name[len(other) :]
    return stem == other and "" not in (number, following) and int(following[:9]) == int(number[:9]) + 1


def _silence(row: Mapping[str, Any]) -> SilenceRow:
    back = words.number(row.get("back_s"))
    return SilenceRow(
        fault=_fault(row),
        who=_ends(row),
        service=_service(row),
        silent=_seconds(row.get("silent_s")),
        since=_seconds(row.get("silent_from_s")),
        back="never" if back is None else "while it lasted" if back == 0 else _seconds(back),
    )


def _middle(row: Mapping[str, Any]) -> MiddleRow:
    return MiddleRow(
        service=_service(row),
        node=words.clean(row.get("node"), 60),
        span=f"{_seconds(row.get('from_s'))} to {_seconds(row.get('until_s'))}",
        share=words.percent(row.get("share")),
    )


def _phases(given: Mapping[str, Any]) -> list[Fact]:
    """TCP over the whole run, and between one change of the network and the next."""
    whole = words.mapping(given.get("tcp"))
    if not whole:
        return []
    facts = [_tcp("TCP segments sent again", whole)]
    for phase in words.objects(given.get("phases")):
        faults = [f"#{value:.0f}" for value in map(words.number, phase.get("faults") or []) if value is not None]
        span = f"{_seconds(phase.get('from_s'))} to {_seconds(phase.get('until_s'))}"
        tcp = words.mapping(phase.get("tcp"))
        if tcp:
            facts.append(_tcp(f"… {span}{', ' + ', '.join(faults) if faults else ''}", tcp))
    return facts


def _tcp(name: str, tcp: Mapping[str, Any]) -> Fact:
    trips = f"round trip {words.milliseconds(tcp.get('rtt_p50_ms'))}, p99 {words.milliseconds(tcp.get('rtt_p99_ms'))}"
    counted = f"{words.count(tcp.get('retransmissions'))} of {words.count(tcp.get('segments'))}; {trips}"
    return Fact(name, words.percent(tcp.get("retransmission_ratio")), counted)


# --- the plot


def node_lines(table: pd.DataFrame) -> Series:
    """Bytes per second that each node put on the wire; with more nodes than colours, that each partition did."""
    rows = table[np.isfinite(table["t_s"])]
    if len(rows) and rows["node"].nunique() > COLOURS:
        rows = rows.assign(node=rows["node"].str.partition("/")[0])
    names = sorted(rows["node"].unique())[:COLOURS]
    wide = rows.pivot_table(index="t_s", columns="node", values="sent_bytes", aggfunc="sum")
    wide = wide.reindex(columns=names).fillna(0.0).reset_index()
    series = series_of(wide, names, np.nanmean)
    per_s = {name: np.nan_to_num(values) / (series.step_s / series.merged) for name, values in series.lines.items()}
    return Series(t_s=series.t_s, step_s=series.step_s, lines=per_s, merged=series.merged)


def bytes_over_time(series: Series, windows: Sequence[FaultWindow], phases: Phases, surface: Frame) -> Markup:
    """One line for each node."""
    highest = max((series.range(name)[1] for name in series.lines), default=0.0)
    highest = highest if math.isfinite(highest) else 0.0
    y = svg.linear(0.0, svg.nice_ceiling(highest / 1000), surface.floor, surface.top)
    scaled = Series(
        t_s=series.t_s, step_s=series.step_s, lines={name: values / 1000 for name, values in series.lines.items()}
    )
    means = [f"{name} {words.size(float(values.mean()))}/s" for name, values in series.lines.items()]
    return over_time(
        surface,
        "bytes",
        "Bytes put on the wire by each node",
        f"Means: {', '.join(means)}.",
        shades(surface, windows, phases),
        y_axis(surface, y, "kB/s"),
        *(line_of(scaled, name, surface, y, f"cdf c{place}") for place, name in enumerate(scaled.lines)),
    )
