"""A line under test: numbered frames go in at known times, and what comes out is noted with its time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from testbed.sim.engine import Engine
from testbed.sim.line import Line
from topologies.model import Impairment

MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    number: int
    size_bytes: int = 500
    flipped: tuple[int, ...] = ()

    def damaged(self, bit: int) -> Frame:
        return replace(self, flipped=(*self.flipped, bit))


@dataclass(slots=True)
class Wire:
    """A line and everything that has come out of it."""

    impairment: Impairment
    seed: int = 1
    engine: Engine = field(default_factory=lambda: Engine(start_ns=0))
    out: list[tuple[int, Frame]] = field(default_factory=list)
    line: Line[Frame] = field(init=False)
    offered: int = 0

    def __post_init__(self) -> None:
        self.line = Line(self.engine, self.impairment, Random(self.seed), forward=self._note, damage=Frame.damaged)

    def _note(self, frame: Frame) -> None:
        self.out.append((self.engine.now_ns, frame))

    def send(self, count: int, *, every_ns: int = 0, size_bytes: int = 500, from_ns: int | None = None) -> Wire:
        """Frames from now on (or from an instant), numbered on."""
        start_ns = self.engine.now_ns if from_ns is None else from_ns
        for index in range(count):
            frame = Frame(number=self.offered, size_bytes=size_bytes)
            self.offered += 1
            self.engine.at(start_ns + index * every_ns, self.line.enter, frame)
        return self

    def change(self, **fields: Any) -> Wire:
        """Another impairment at this instant."""
        self.impairment = Impairment(**fields)
        self.line.change(self.impairment)
        return self

    def run(self, for_ns: int | None = None) -> Wire:
        """Time passes: so much, or until nothing is left to happen."""
        if for_ns is not None:
            self.engine.run(self.engine.now_ns + for_ns)
        while for_ns is None and self.engine.next_ns is not None:
            self.engine.run(self.engine.next_ns)
        return self

    @property
    def numbers(self) -> list[int]:
        return [frame.number for _, frame in self.out]

    @property
    def times_ns(self) -> list[int]:
        return [at_ns for at_ns, _ in self.out]

    def check_conservation(self) -> None:
        """Frames that came = frames that went, were dropped or are still in there, counted outside of the line."""
        line = self.line
        assert line.sent == len(self.out)
        assert line.sent_bytes == sum(frame.size_bytes for _, frame in self.out)
        dropped = line.delay_line_dropped + line.queue_dropped
        assert self.offered + line.duplicated == len(self.out) + dropped + line.backlog
