"""The log for ShiViz is parsed as ShiViz does it, and its clocks are compared with happened-before."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import NamedTuple

from hypothesis import given, settings

from analysis.spacetime.command import PARSER, shiviz_log
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Diagram, Scene, Window
from collector.records import Event
from tests.analysis.spacetime import scenes as scenes
from tests.analysis.spacetime.scenes import MS, WHOLE


class Entry(NamedTuple):
    host: str
    clock: dict[str, int]
    event: str


def parsed(log: str) -> list[Entry]:
    """Entries of the log. Its lines: the expression, the delimiter of executions, then events and nothing else."""
    head, delimiter, body = log.split("\n", 2)
    assert delimiter == ""
    expression = re.compile(head.replace("(?<", "(?P<"))
    found = list(expression.finditer(body))
    assert expression.sub("", body).strip("\n") == ""
    return [Entry(one["host"], json.loads(one["clock"]), one["event"]) for one in found]


def before(one: Entry, other: Entry) -> bool:
    return one is not other and all(count <= other.clock.get(host, 0) for host, count in one.clock.items())


def happened_before(diagram: Diagram) -> set[tuple[int, int]]:
    """Pairs of events, by a plain walk along lines and arrows."""
    count = len(diagram.marks)
    edges = {(a.tail, a.head) for a in diagram.arrows if a.is_causal}
    for late in diagram.marks:
        edges |= {
            (early.number, late.number) for early in diagram.marks[: late.number] if early.recorder == late.recorder
        }
    reached = {(a, b) for a, b in edges if a is not None and b is not None}
    for middle in range(count):
        into = [a for a, b in reached if b == middle]
        out = [b for a, b in reached if a == middle]
        reached |= {(a, b) for a in into for b in out}
    return reached


def check(diagram: Diagram) -> list[Entry]:
    entries = parsed(shiviz_log(diagram))
    assert len(entries) == len(diagram.marks)
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.host] = counts.get(entry.host, 0) + 1
        assert entry.clock[entry.host] == counts[entry.host], "a host's own entry counts its events from 1"
    pairs = happened_before(diagram)
    for a, one in enumerate(entries):
        for b, other in enumerate(entries):
            assert before(one, other) == ((a, b) in pairs), (one, other)
    return entries


def test_clocks_say_what_happened_before_what() -> None:
    entries = check(compose(scenes.lost_and_found(), WHOLE))
    assert {entry.host for entry in entries} == {"n1", "n2", "n3"}
    crash = next(entry for entry in entries if "killed" in entry.event)
    assert crash.clock == {"n1": 3, "n2": 6}


def test_another_incarnation_is_another_host() -> None:
    scene = scenes.lost_and_found()
    reborn = scenes.step(1, 1, Event.START, 20, recorder=2)
    entries = check(compose(replace(scene, steps=[*scene.steps, reborn]), WHOLE))
    assert next(entry for entry in entries if entry.host == "n2.2").clock == {"n2.2": 1}


def test_the_expression_names_what_shiviz_asks_for() -> None:
    assert {"event", "host", "clock"} <= set(re.compile(PARSER.replace("(?<", "(?P<")).groupindex)


@settings(max_examples=60)
@given(scenes.scenes())
def test_any_diagram_gives_a_log_that_agrees_with_it(scene: Scene) -> None:
    check(compose(scene, Window(-5 * MS, 40 * MS)))
