"""Rows of every benchmark: a measure of Orderbed beside a peer, a bar, and the conditions of the measurement.

A benchmark module has

    PROGRAMS = ("tcpdump",)                         the peers it runs; looked for before anything starts
    def measure(*, quick: bool) -> Iterator[Row]    `quick`: fewest rounds and smallest sizes, to see that it runs

Orderbed and the peer take turns in the same run (`take_turns`), so that other load of the machine affects both. The
ratio of a row is the median of the rounds' own ratios; its spread shows its reliability.
"""

from __future__ import annotations

import enum
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np


class Compared(enum.Enum):
    """Number of a row that is compared with its bar."""

    OURS = "ours"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bound for a row. An aim is only reported."""

    limit: float
    is_floor: bool
    compared: Compared = Compared.OURS
    aim: str = ""

    def holds(self, ours: float, ratio: float | None) -> bool | None:
        """Whether the bar holds; None for a ratio to a peer that was not measured."""
        value = ours if self.compared is Compared.OURS else ratio
        if value is None:
            return None
        return value >= self.limit if self.is_floor else value <= self.limit

    def words(self, unit: str, peer: str) -> str:
        sign = "≥" if self.is_floor else "≤"
        what = f" {unit}" if self.compared is Compared.OURS else f" × {peer}"
        return f"{sign} {shown(self.limit)}{what}" + (f"; aim {self.aim}" if self.aim else "")


def at_most(limit: float, *, of: Compared = Compared.OURS, aim: str = "") -> Bar:
    """Upper bound: less is better."""
    return Bar(limit=limit, is_floor=False, compared=of, aim=aim)


def at_least(limit: float, *, of: Compared = Compared.OURS, aim: str = "") -> Bar:
    """Lower bound: more is better."""
    return Bar(limit=limit, is_floor=True, compared=of, aim=aim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, least and greatest of several rounds of one measurement."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median=statistics.median(values), least=min(values), greatest=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of the machine while a row was measured. `stolen_ratio`: share of processor time that the hypervisor
    gave to others; `load`: runnable tasks, mean of a minute, at the end; `busy_ratio`: share of the processors in use
    by all programs.
    """

    kernel: str
    cpus: int
    load: float
    stolen_ratio: float
    busy_ratio: float
    measured_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the page. `id` is `subject.what`, unique; `holds` is None without a bar, or if its peer was not
    measured.
    """

    id: str
    what: str
    unit: str
    ours: Spread
    rounds: int
    peer_name: str = ""
    peer: Spread | None = None
    ratio: Spread | None = None
    bar: str = ""
    holds: bool | None = None
    note: str = ""
    conditions: Conditions

    @property
    def subject(self) -> str:
        return self.id.partition(".")[0]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Watch:
    """Recorder of the machine's conditions from its creation on; `row` adds them to a row."""

    before: tuple[int, int, int] = field(default_factory=lambda: _processor_ticks())
    """(stolen, idle, all) ticks at the creation."""

    def row(
        self,
        id: str,  # noqa: A002  # the row's own field
        what: str,
        unit: str,
        ours: Sequence[float] | float,
        *,
        peer: tuple[str, Sequence[float] | float] | None = None,
        bar: Bar | None = None,
        note: str = "",
    ) -> Row:
        """Row from the rounds of Orderbed and, in the same order, of the peer."""
        mine = _rounds(ours)
        name, theirs = (peer[0], _rounds(peer[1])) if peer else ("", [])
        ratio = Spread.of(_ratios(mine, theirs)) if theirs else None
        middle = Spread.of(mine)
        return Row(
            id=id, what=what, unit=unit, ours=middle, rounds=len(mine), peer_name=name,
            peer=Spread.of(theirs) if theirs else None, ratio=ratio, bar=bar.words(unit, name) if bar else "",
            holds=bar.holds(middle.median, ratio.median if ratio else None) if bar else None, note=note,
            conditions=self.conditions(),
        )  # fmt: skip

    def conditions(self) -> Conditions:
        stolen, idle, total = (now - then for now, then in zip(_processor_ticks(), self.before, strict=True))
        return Conditions(
            kernel=os.uname().release,
            cpus=os.cpu_count() or 1,
            load=round(os.getloadavg()[0], 2),
            stolen_ratio=round(stolen / max(total, 1), 4),
            busy_ratio=round(1 - idle / max(total, 1), 3),
            measured_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )


def take_turns(rounds: int, contenders: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Numbers of each contender, round by round. The order alternates, so that none always runs with a warm cache."""
    results: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders)[:: 1 if number % 2 == 0 else -1]
        for name in order:
            results[name].append(contenders[name]())
    return results


def seconds_of(action: Callable[[], object]) -> float:
    """Wall-clock time of the action, in s."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A straight line through points, and the part of their variance that it explains (R²)."""

    at_zero: float
    slope: float
    explained: float


def straight_line(x: Sequence[float], y: Sequence[float]) -> Fit:
    """Fit by least squares; needs at least two different x."""
    across, up = np.asarray(x, float), np.asarray(y, float)
    slope, at_zero = np.polyfit(across, up, 1)
    rest = float(((up - (slope * across + at_zero)) ** 2).sum())
    whole = float(((up - up.mean()) ** 2).sum())
    return Fit(at_zero=float(at_zero), slope=float(slope), explained=1 - rest / whole if whole else 1.0)


def shown(value: float) -> str:
    """Three significant digits, with thousands separators: 0.0123, 4.57, 400,000."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    rounded = round(value, digits) if digits else round(value, 2 - int(np.floor(np.log10(abs(value)))))
    text = f"{rounded:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# Helpers.


def _rounds(values: Sequence[float] | float) -> list[float]:
    return [float(values)] if isinstance(values, int | float) else [float(value) for value in values]


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ratios round by round, or to the median of a peer with another number of rounds (a slow one)."""
    if len(ours) == len(theirs):
        return [mine / its for mine, its in zip(ours, theirs, strict=True)]
    return [mine / statistics.median(theirs) for mine in ours]


def _processor_ticks() -> tuple[int, int, int]:
    """(stolen, idle, all) since boot, of all processors."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return ticks[7], ticks[3] + ticks[4], sum(ticks)
