"""A diagram as a log for ShiViz (https://bestchai.bitbucket.io/shiviz/): events with vector time stamps.

The first line is the regular expression that parses the rest, the second (the delimiter of several executions) is
empty; then two lines per event: time, kind and words, then host and vector clock as JSON. A host is one life: what
starts again after a crash knows nothing any more and is a host of its own.

The time stamps are made here, from the order of each host's events and from who received what: none is taken from a
protocol's header. Only what the diagram holds counts: a message that was sent before the window causes nothing in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from analysis.checks.properties import FIRST_INCARNATION, Incarnation
from analysis.report import formatting as words
from analysis.spacetime.model import Arrow, Diagram, Mark

PARSER: Final = r"(?<time>\S+) s (?<kind>\S+): (?<event>.*)\n(?<host>\S+) (?<clock>\{.*\})"
"""As ShiViz wants it: named groups, of which `event`, `host` and `clock` must be there; others are shown beside."""

Clock = Mapping[Incarnation, int]


def shiviz_log(diagram: Diagram) -> str:
    """The whole log, ready to be opened in ShiViz."""
    hosts = _hosts(diagram)
    lines = [PARSER, ""]
    for mark, clock in vector_clocks(diagram):
        stamp = {hosts[life]: count for life, count in sorted(clock.items())}
        lines.append(f"{diagram.seconds(mark.at_ns):.9f} s {mark.what.value}: {words.clean(mark.words)}")
        lines.append(f"{hosts[mark.life]} {json.dumps(stamp, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def vector_clocks(diagram: Diagram) -> Iterator[tuple[Mark, Clock]]:
    """Each event with its vector time: how many events of each life happened before it, itself included."""
    causes: dict[int, list[Arrow]] = {}
    for arrow in diagram.arrows:
        if arrow.is_causal and arrow.head is not None:
            causes.setdefault(arrow.head, []).append(arrow)
    latest: dict[Incarnation, dict[Incarnation, int]] = {}
    clocks: dict[int, dict[Incarnation, int]] = {}
    for mark in diagram.marks:
        clock = dict(latest.get(mark.life, {}))
        for arrow in causes.get(mark.number, ()):
            if arrow.tail is not None:
                _merge(clock, clocks[arrow.tail])
        clock[mark.life] = clock.get(mark.life, 0) + 1
        latest[mark.life] = clocks[mark.number] = clock
        yield mark, clock


def _merge(clock: dict[Incarnation, int], other: Clock) -> None:
    for life, count in other.items():
        clock[life] = max(count, clock.get(life, 0))


def _hosts(diagram: Diagram) -> dict[Incarnation, str]:
    """A name without spaces for each life, no two the same."""
    hosts: dict[Incarnation, str] = {}
    taken: set[str] = set()
    for life in sorted({mark.life for mark in diagram.marks}):
        name = "_".join(diagram.names.get(life.member, f"member{life.member}").split()) or f"member{life.member}"
        name = name if life.incarnation == FIRST_INCARNATION else f"{name}.{life.incarnation}"
        name = name if name not in taken else f"{name}({life.member}.{life.incarnation})"
        taken.add(name)
        hosts[life] = name
    return hosts
