"""Stretches of members' lines: protocols in force, faults in force, critical sections, and times without a quorum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from analysis import formatting as words
from analysis.checks.properties import Incarnation
from analysis.spacetime.model import Band, Scene, Step, Window, protocol_name
from collector.records import Event, Notice


def fault_bands(scene: Scene, window: Window, members: Sequence[int]) -> Iterator[Band]:
    """Bands of lasting faults, on the lines of the members that they affect."""
    ends = {words.number(fault.get("id")): fault.get("effective_ns") for fault in scene.faults}
    known = {name: member for member, name in enumerate(scene.names)}
    numbers = words.numbers(scene.faults)
    for fault in scene.faults:
        kind, from_ns = words.clean(fault.get("kind"), 24), fault.get("effective_ns")
        until_ns = ends.get(words.number(fault.get("until_id")))
        has_ended = isinstance(until_ns, int) and until_ns < window.from_ns
        if kind not in words.LASTING or words.is_end(fault) or has_ended:
            continue
        if not isinstance(from_ns, int) or from_ns > window.until_ns:
            continue
        number = str(numbers[words.number(fault.get("id"))])
        until = min(until_ns, window.until_ns) if isinstance(until_ns, int) else window.until_ns
        touched = [known[name] for name in _touched(fault) if name in known]
        for member in touched or (members if _names_links(fault) else ()):
            if member in members:
                yield Band(
                    member=member,
                    from_ns=max(from_ns, window.from_ns),
                    until_ns=until,
                    kind=kind,
                    number=number,
                    words=f"fault #{number}: {words.fault(fault)}",
                )


def holds(scene: Scene, window: Window, members: Sequence[int]) -> Iterator[Band]:
    """Bands of critical sections: from the delivery that grants one to the report LEFT."""
    if not grants(scene):
        return
    for entered, until_ns in _stretches(
        scene, window, lambda step: step.event == Event.DELIVER, lambda step: is_notice(step, Notice.LEFT)
    ):
        text = f"in the critical section from {(entered.at_ns - scene.start_ns) / 1e9:.6f} s"
        yield from _band(window, members, entered, until_ns, kind="hold", words=text)


def epochs(scene: Scene, window: Window, members: Sequence[int]) -> Iterator[Band]:
    """Bands of the protocol in force at each member, from its reports."""
    begun: dict[Incarnation, list[Step]] = {}
    for step in _in_order(scene):
        if is_notice(step, Notice.IN_FORCE):
            begun.setdefault(step.recorder, []).append(step)
    ends = {step.recorder: step.at_ns for step in scene.steps if step.event in _ENDS}
    for incarnation, steps in begun.items():
        until = [*(step.at_ns for step in steps[1:]), min(ends.get(incarnation, window.until_ns), window.until_ns)]
        for step, until_ns in zip(steps, until, strict=True):
            text = f"epoch {step.value}: {protocol_name(step.extra)}"
            for band in _band(window, members, step, until_ns, kind="epoch", words=text, number=str(step.value)):
                yield replace(band, protocol=step.extra)


def minorities(scene: Scene, window: Window, members: Sequence[int]) -> Iterator[Band]:
    """Bands without a quorum: from the record that a member has none to the one that it has one again, or its end."""
    for step, until_ns in _stretches(
        scene,
        window,
        lambda step: step.event == Event.MINORITY and step.detail == 1,
        lambda step: step.event in (Event.MINORITY, *_ENDS),
    ):
        text = f"without a quorum of view {step.number} from {(step.at_ns - scene.start_ns) / 1e9:.6f} s"
        yield from _band(window, members, step, until_ns, kind="minority", words=text, number=str(step.number))


_ENDS: Final = (Event.STOP, Event.ENDED)


def _in_order(scene: Scene) -> list[Step]:
    return sorted(scene.steps, key=lambda step: (step.at_ns, step.record))


def _stretches(
    scene: Scene, window: Window, begins: Callable[[Step], bool], ends: Callable[[Step], bool]
) -> Iterator[tuple[Step, int]]:
    """Stretches of each incarnation, from a step that begins one to the next that ends it, or to the end of the window.
    A second begin is ignored, except that of two deliveries the later one grants the critical section.
    """
    open_: dict[Incarnation, Step] = {}
    for step in _in_order(scene):
        if begins(step):
            if step.event == Event.DELIVER or step.recorder not in open_:
                open_[step.recorder] = step
        elif ends(step) and step.recorder in open_:
            yield open_.pop(step.recorder), step.at_ns
    for step in open_.values():
        yield step, window.until_ns


def _band(
    window: Window, members: Sequence[int], step: Step, until_ns: int, *, kind: str, words: str, number: str = ""
) -> Iterator[Band]:
    """Part of a stretch within the window, if its member is shown."""
    if step.recorder.member in members and step.at_ns <= window.until_ns and until_ns >= window.from_ns:
        yield Band(
            member=step.recorder.member,
            from_ns=max(step.at_ns, window.from_ns),
            until_ns=min(until_ns, window.until_ns),
            kind=kind,
            number=number,
            words=words,
        )


def grants(scene: Scene) -> bool:
    """Whether deliveries grant critical sections: a report LEFT exists."""
    return any(is_notice(step, Notice.LEFT) for step in scene.steps)


def is_notice(step: Step, notice: Notice) -> bool:
    return step.event == Event.REPORT and step.detail == notice


def _touched(fault: Mapping[str, Any]) -> list[str]:
    """Nodes on whose lines a fault is shown: the smaller side of a cut into two groups, else the fault's targets."""
    groups = words.mapping(fault.get("parameters")).get("groups")
    if fault.get("kind") == "cut" and isinstance(groups, list) and len(groups) == 2:
        return words.texts(min(groups, key=lambda group: len(group) if isinstance(group, list) else 0))
    return words.texts(fault.get("targets"))


def _names_links(fault: Mapping[str, Any]) -> bool:
    return any("--" in name for name in words.texts(fault.get("targets")))
