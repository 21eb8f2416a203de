"""Recorded campaign: new seeds of each protocol, judged for a given time.

    python -m testbed.fuzz.campaign --minutes 60
    python -m testbed.fuzz.campaign --minutes 60 --protocols co,lo --spark

The record (`docs/campaigns.json`, and `docs/campaigns.md` made from it) has one row for each protocol and commit. The
protocol with the fewest worlds on record comes next, so that all get about as many. Seeds continue where the record
ends, from `FIRST_SEED` on; `orderbed fuzz PROTOCOL --seed SEED` replays a failing one.
Ctrl-C ends it, and the worlds that were judged before are recorded.
Exit codes: 0 no failing seed, 1 a failing seed, 2 wrong use.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from pydantic import TypeAdapter

from analysis.files import read_json, replace_json
from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.fuzz.command import run_fuzz
from testbed.fuzz.draw import FUZZED
from testbed.fuzz.hunt import Tally
from testbed.fuzz.judge import WITHOUT_A_QUORUM
from testbed.rundir.manifest import git_revision
from topologies.formats.errors import InputError

FIRST_SEED = 10_000_000
"""Above all seeds that were used during development."""

CHUNK = 1000
"""Worlds between two writes of the record; no more than these are lost when a campaign is killed. The processes of each
chunk take some seconds to start."""

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "campaigns.json"

KEPT = ROOT / "runs" / "fuzz"
"""Folder of the experiments of failing seeds and of Spark's tables."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """The sums over all worlds of one protocol at one commit. Seeds are `first` to `first + worlds - 1`."""

    protocol: str
    commit: str
    date: str
    first: int
    worlds: int = 0
    faults: int = 0
    faults_met: int = 0
    later_views: int = 0
    """Worlds with a view after the first."""
    unjudged: dict[str, int] = field(default_factory=dict)
    """Worlds in which a property could not be judged, by property or WITHOUT_A_QUORUM."""
    unjudged_worlds: int | None = 0
    """Worlds in which any property could not be judged. None: not counted then; at least the most of `unjudged`."""
    promises: list[str] = field(default_factory=list)
    """The protocol's promises at this commit."""
    failing: list[tuple[int, str]] = field(default_factory=list)
    """Failing seeds, each with its first failure in a sentence."""

    @property
    def end(self) -> int:
        return self.first + self.worlds

    def add(self, tally: Tally) -> None:
        self.worlds += tally.seeds
        self.faults += tally.faults
        self.faults_met += tally.faults_met
        self.later_views += tally.changed_seeds
        self.unjudged = dict(sorted((Counter(self.unjudged) + tally.unjudged).items()))
        if self.unjudged_worlds is not None:
            self.unjudged_worlds += tally.unjudged_seeds
        self.failing += [(bad.seed, f"{bad.kind}: {bad.sentence}") for bad in tally.bad]


class Record:
    """The entries of a file, in the order in which they were begun. Raises InputError when the file holds none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.entries = _ENTRIES.validate_python(read_json(path)) if path.exists() else []
            if unknown := {one.protocol for one in self.entries} - set(PROTOCOLS):
                raise ValueError(f"there is no protocol {min(unknown)!r:.40}")
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"{path}: not the record of campaigns ({reason}); give another --record") from None

    def worlds_of(self, protocol: str) -> int:
        return sum(entry.worlds for entry in self.entries if entry.protocol == protocol)

    def entry(self, protocol: str, commit: str) -> Entry:
        """The protocol's latest entry if it is of this commit, else a new one whose seeds follow it."""
        own = [entry for entry in self.entries if entry.protocol == protocol]
        if own and own[-1].commit == commit:
            return own[-1]
        first = max((entry.end for entry in own), default=FIRST_SEED)
        date, promises = f"{datetime.now(UTC):%Y-%m-%d}", list(PROTOCOLS[protocol].promises)
        entry = Entry(protocol=protocol, commit=commit, date=date, first=first, promises=promises)
        self.entries.append(entry)
        return entry

    def write(self) -> None:
        """Write the record, and the page beside it."""
        replace_json(self._path, [asdict(entry) for entry in self.entries])
        self._path.with_suffix(".md").write_text(page(self.entries), encoding="utf-8")


_ENTRIES = TypeAdapter(list[Entry])

HEAD = """\
# Campaigns on record

`make campaign` judges random worlds (fuzzing.md) with seeds that nobody has seen before, and keeps this page.
The machines of `objects` have a view of each sub-network, which no record shows.
*Promises*: *all*, if each world was judged by all that the protocol promises today; else the promises that are younger
than some of the worlds, with the number of worlds that were judged by each. Checks of a promise may have become
stricter since: most worlds are older than 666d3f31 (validity and agreement bind restarted members), and only those from
eb07b373 on were judged on quorums. Those from 838c6b70 on were judged on deliveries in a minority and on optimistic
deliveries that stand at joiners; a request to leave or a later fault excuses less in them. From 0ae41b00 on a fifth of
the worlds with views has members that come late, and every parameter is drawn but a few (fuzzing.md).

| protocol | worlds | promises | with later views | faults that met traffic | failing |
|---|---|---|---|---|---|
"""

BY_COMMIT = """
## By commit

- *quorum lost*: in so many worlds the group lost its quorum. Progress was not judged there.
- *unjudged*: in so many worlds no event concerned some other promised property. *at least*: before the commits of
  2026-11-29 the worlds were counted for each property alone, and worlds with a lost quorum not at all.

| protocol | commit | date | seeds | worlds | later views | faults that met traffic | quorum lost | unjudged | failing |
|---|---|---|---|---|---|---|---|---|---|
"""


def page(entries: Iterable[Entry]) -> str:
    ordered = sorted(entries, key=lambda one: (one.protocol, one.first))
    totals = [_total(protocol, list(own)) for protocol, own in groupby(ordered, lambda one: one.protocol)]
    return "\n".join([HEAD + "\n".join(totals), BY_COMMIT + "\n".join(map(_line, ordered)), ""])


def _total(protocol: str, entries: Sequence[Entry]) -> str:
    worlds = sum(one.worlds for one in entries)
    later_views = f"{sum(one.later_views for one in entries):,}" if PROTOCOLS[protocol].has_views else "–"
    met, faults = sum(one.faults_met for one in entries), sum(one.faults for one in entries)
    failing = sum(len(one.failing) for one in entries)
    judged = {name: sum(one.worlds for one in entries if name in one.promises) for name in PROTOCOLS[protocol].promises}
    younger = ", ".join(f"{name} {count:,}" for name, count in judged.items() if count < worlds)
    return f"| `{protocol}` | {worlds:,} | {younger or 'all'} | {later_views} | {met:,} of {faults:,} | {failing} |"


def _line(entry: Entry) -> str:
    others = str(entry.unjudged_worlds)
    if entry.unjudged_worlds is None:
        most = max((count for what, count in entry.unjudged.items() if what != WITHOUT_A_QUORUM), default=0)
        others = f"at least {most}"
    failing = "<br>".join(f"{seed}: {sentence.replace('|', '/')}" for seed, sentence in entry.failing) or "none"
    return (
        f"| `{entry.protocol}` | {entry.commit} | {entry.date} | {entry.first} to {entry.end - 1} "
        f"| {entry.worlds:,} | {entry.later_views:,} | {entry.faults_met:,} of {entry.faults:,} "
        f"| {entry.unjudged.get(WITHOUT_A_QUORUM, 0)} | {others} | {failing} |"
    )


def campaign(protocols: Sequence[str], *, minutes: float, jobs: int, is_spark: bool, record: Record) -> int:
    """Judge seeds for `minutes`; the number of failing seeds."""
    until_s = time.monotonic() + 60 * minutes
    commit = git_revision() or "unknown"
    console = Console()
    failing = 0
    while time.monotonic() < until_s:
        entry = record.entry(min(protocols, key=record.worlds_of), commit)
        first = entry.end
        tally = run_fuzz(
            entry.protocol,
            first=first,
            count=CHUNK,
            jobs=jobs,
            goes_on=True,
            keep=KEPT,
            is_spark=is_spark,
            console=console,
        ).tally
        if tally.is_interrupted and not tally.seeds:
            break
        if (git_revision() or "unknown") != commit:
            raise InputError(
                f"the code is no longer that of {commit}, so the last {tally.seeds} worlds are not recorded"
            )
        entry.add(tally)
        record.write()
        failing += len(tally.bad)
        told = "".join(f"\n  seed {bad.seed} fails: {bad.kind}: {bad.sentence}" for bad in tally.bad)
        console.done("record", f"{entry.protocol}: seeds {first} to {entry.end - 1}, {entry.worlds} worlds{told}")
        if tally.is_interrupted:
            break
    return failing


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.fuzz.campaign", description="Random worlds on record.")
    parser.add_argument("--minutes", type=float, required=True, help="for how long")
    parser.add_argument("--protocols", default=",".join(FUZZED), help="names with commas between; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes here")
    parser.add_argument("--spark", action="store_true", help="as Spark jobs (SPARK_MASTER)")
    parser.add_argument("--record", type=Path, default=RECORD, help="the file that is kept")
    asked = parser.parse_args(words)
    protocols = asked.protocols.split(",")
    if unknown := [name for name in protocols if name not in FUZZED]:
        parser.error(f"{unknown[0]} is none of {', '.join(FUZZED)}")
    if asked.minutes <= 0 or asked.jobs < 1:
        parser.error("--minutes and --jobs must be above 0")
    try:
        record = Record(asked.record)
        return int(campaign(protocols, minutes=asked.minutes, jobs=asked.jobs, is_spark=asked.spark, record=record) > 0)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
