"""A campaign: many seeds of one protocol, one after another or in several processes, and their tally.

    tally = hunt(Campaign(protocol="reliable", first=0, count=1000), jobs=2)

A tally does not depend on the number of processes: the seeds are judged in chunks, and chunks add up in their order.
The first failing seed ends it, unless all are wanted. Ctrl-C ends it with the tally so far.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from multiprocessing import connection
from multiprocessing.synchronize import Event
from typing import Any, TypeAlias

from testbed.console import held_back
from testbed.fuzz.coverage import Coverage
from testbed.fuzz.draw import draw
from testbed.fuzz.judge import WITHOUT_A_QUORUM, Judged, judge

CHUNK_SEEDS = 10
CHUNKS_AHEAD = 3
"""Chunks queued per process, so that no process waits and little work is discarded when a seed fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Seeds `first` to `first + count - 1`."""

    protocol: str
    first: int
    count: int
    goes_on: bool = False
    """Go on after the first failing seed."""

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A seed that failed, with its first failure."""

    seed: int
    kind: str
    sentence: str


@dataclass(slots=True, kw_only=True)
class Tally:
    """Sums over the results of seeds."""

    protocol: str
    seeds: int = 0
    bad: list[Bad] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    faults: int = 0
    faults_met: int = 0
    unmet_seeds: int = 0
    """Seeds whose faults met nothing."""
    changed_seeds: int = 0
    """Seeds with a view after the first."""
    unjudged: Counter[str] = field(default_factory=Counter)
    """Seeds in which a promised property could not be judged, by property."""
    unjudged_seeds: int = 0
    """Seeds in which any of them could not be judged, progress after a lost quorum aside."""
    deliveries: int = 0
    events: int = 0
    is_interrupted: bool = False

    def count(self, judged: Judged) -> None:
        """Add one seed."""
        self.seeds += 1
        faults = len(judged.scenario.faults)
        self.faults += faults
        self.faults_met += judged.faults_met
        self.unmet_seeds += faults > 0 and not judged.faults_met
        self.changed_seeds += bool(judged.coverage.views)
        self.unjudged.update(judged.unjudged)
        self.unjudged_seeds += not {WITHOUT_A_QUORUM}.issuperset(judged.unjudged)
        self.deliveries += judged.deliveries
        self.events += judged.events
        self.coverage.add(judged.coverage)
        if judged.failures:
            first = judged.failures[0]
            self.bad.append(Bad(seed=judged.scenario.seed, kind=first.kind, sentence=first.sentence))

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.bad += other.bad
        self.coverage.add(other.coverage)
        self.faults += other.faults
        self.faults_met += other.faults_met
        self.unmet_seeds += other.unmet_seeds
        self.changed_seeds += other.changed_seeds
        self.unjudged.update(other.unjudged)
        self.unjudged_seeds += other.unjudged_seeds
        self.deliveries += other.deliveries
        self.events += other.events

    def as_dict(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "seeds": self.seeds,
            "interrupted": self.is_interrupted,
            "failing": [{"seed": bad.seed, "kind": bad.kind, "sentence": bad.sentence} for bad in self.bad],
            "faults": self.faults,
            "faults_met": self.faults_met,
            "seeds_whose_faults_met_nothing": self.unmet_seeds,
            "seeds_with_later_views": self.changed_seeds,
            "views": self.coverage.views_as_dict(),
            "unjudged": dict(sorted(self.unjudged.items())),
            "seeds_with_unjudged": self.unjudged_seeds,
            "deliveries": self.deliveries,
            "events": self.events,
            "pairs": len(self.coverage.pairs),
            "pairs_met": self.coverage.pairs_met,
            "coverage": self.coverage.as_dict(),
        }


def tally_of(protocol: str, seeds: Iterable[int], *, goes_on: bool) -> Tally:
    """Judge these seeds in this process."""
    tally = Tally(protocol=protocol)
    for seed in seeds:
        tally.count(judge(draw(protocol, seed)))
        if tally.bad and not goes_on:
            break
    return tally


def hunt(campaign: Campaign, *, jobs: int, on_progress: Callable[[Tally], None] | None = None) -> Tally:
    """Run the whole campaign in `jobs` processes. `on_progress` gets the tally so far after each chunk."""
    total = Tally(protocol=campaign.protocol)
    parts = _here(campaign) if jobs == 1 else _in_processes(campaign, jobs)
    try:
        for part in parts:
            total.add(part)
            if on_progress is not None:
                on_progress(total)
            if total.bad and not campaign.goes_on:
                break
    except KeyboardInterrupt:
        total.is_interrupted = True
    finally:
        parts.close()
    return total


Parts: TypeAlias = Generator[Tally, None, None]


def _chunks(campaign: Campaign) -> Iterator[range]:
    for start in range(0, campaign.count, CHUNK_SEEDS):
        yield campaign.seeds[start : start + CHUNK_SEEDS]


def _here(campaign: Campaign) -> Parts:
    for seeds in _chunks(campaign):
        yield tally_of(campaign.protocol, seeds, goes_on=campaign.goes_on)


def _in_processes(campaign: Campaign, jobs: int) -> Parts:
    """Tallies of chunks in their order, some computed ahead; unneeded chunks are given up at the end."""
    context = multiprocessing.get_context("spawn")
    with held_back(), _deaf_children():
        given_up = context.Event()
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_work, initargs=(given_up,))
    waiting: deque[Future[Tally]] = deque()
    try:
        for seeds in _chunks(campaign):
            # A pool that is half started, or half shut down, cannot be given up.
            with held_back(), _deaf_children():
                waiting.append(pool.submit(_work, campaign.protocol, seeds, goes_on=campaign.goes_on))
            if len(waiting) >= CHUNKS_AHEAD * jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        with held_back():
            given_up.set()
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Ctrl-C reaches all processes of the terminal, but the first one decides about the others. A process that is
    started inside the block never gets SIGINT, not even before its first line: a blocked signal is inherited.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_given_up: Event
"""In a worker: set when its chunk is not needed any more."""


def _begin_work(given_up: Event) -> None:
    """Initialise a worker, which ends with the first process, however that ends."""
    global _given_up
    _given_up = given_up
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _work(protocol: str, seeds: Iterable[int], *, goes_on: bool) -> Tally:
    """`tally_of`, up to the seed at which the chunk is given up."""
    return tally_of(protocol, takewhile(lambda _: not _given_up.is_set(), seeds), goes_on=goes_on)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
