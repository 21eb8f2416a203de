"""Stretches of members' lines: protocols in force, faults in force, critical sections, and times without a quorum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.checks.properties import Incarnation
from analysis.report import formatting as words
from analysis.spacetime.model import Band, Scene, Step, Window, protocol_name
from collector.records import Event, Notice


def fault_bands(scene: Scene, window: Window, members: Sequence[int]) -> Iterator[Band]:
    """Where faults that last were in force, on the lines that they touched."""
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
    """Critical sections: from the delivery that grants one to the notice that it was left."""
    if not grants(scene):
        return
    entered: dict[Incarnation, int] = {}
    found: list[tuple[Incarnation, int, int]] = []
    for step in sorted(scene.steps, key=lambda step: (step.at_ns, step.record)):
        if step.event == Event.DELIVER:
            entered[step.recorder] = step.at_ns
        elif is_notice(step, Notice.LEFT) and step.recorder in entered:
            found.append((step.recorder, entered.pop(step.recorder), step.at_ns))
    for incarnation, from_ns in entered.items():
        found.append((incarnation, from_ns, window.until_ns))
    for incarnation, from_ns, until_ns in found:
        if incarnation.member in members and until_ns >= window.from_ns and from_ns <= window.until_ns:
            yield Band(
                member=incarnation.member,
                from_ns=max(from_ns, window.from_ns),
                until_ns=min(until_ns, window.until_ns),
                kind="hold",
                number="",
                words=f"in the critical section from {(from_ns - scene.start_ns) / 1e9:.6f} s",
            )


def epochs(scene: Scene, window: Window, members: Sequence[int]) -> Iterator[Band]:
    """Which protocol each member sends by, from its notices."""
    begun: dict[Incarnation, list[Step]] = {}
    for step in sorted(scene.steps, key=lambda step: (step.at_ns, step.record)):
        if is_notice(step, Notice.IN_FORCE) and step.recorder.member in members:
            begun.setdefault(step.recorder, []).append(step)
    ends = {step.recorder: step.at_ns for step in scene.steps if step.event in (Event.STOP, Event.ENDED)}
    for incarnation, steps in begun.items():
        until = [*(step.at_ns for step in steps[1:]), min(ends.get(incarnation, window.until_ns), window.until_ns)]
        for step, until_ns in zip(steps, until, strict=True):
            if step.at_ns <= window.until_ns and until_ns >= window.from_ns:
                name = protocol_name(step.extra)
                yield Band(
                    member=incarnation.member,
                    from_ns=max(step.at_ns, window.from_ns),
                    until_ns=min(until_ns, window.until_ns),
                    kind="epoch",
                    number=str(step.value),
                    words=f"epoch {step.value}: {name}",
                    protocol=step.extra,
                )


def minorities(scene: Scene, window: Window, members: Sequence[int]) -> Iterator[Band]:
    """From the record that a member has no quorum to the one that it has one again, or its end."""
    began: dict[Incarnation, Step] = {}
    found: list[tuple[Step, int]] = []
    ends = (Event.STOP, Event.ENDED)
    for step in sorted(scene.steps, key=lambda step: (step.at_ns, step.record)):
        if step.event == Event.MINORITY and step.detail == 1:
            began.setdefault(step.recorder, step)
        elif (step.event == Event.MINORITY or step.event in ends) and step.recorder in began:
            found.append((began.pop(step.recorder), step.at_ns))
    for step, until_ns in (*found, *((step, window.until_ns) for step in began.values())):
        if step.recorder.member in members and until_ns >= window.from_ns and step.at_ns <= window.until_ns:
            yield Band(
                member=step.recorder.member,
                from_ns=max(step.at_ns, window.from_ns),
                until_ns=min(until_ns, window.until_ns),
                kind="minority",
                number=str(step.number),
                words=f"without a quorum of view {step.number} from {(step.at_ns - scene.start_ns) / 1e9:.6f} s",
            )


def grants(scene: Scene) -> bool:
    """Whether deliveries grant critical sections: somebody has left one."""
    return any(is_notice(step, Notice.LEFT) for step in scene.steps)


def is_notice(step: Step, notice: Notice) -> bool:
    return step.event == Event.REPORT and step.detail == notice


def _touched(fault: Mapping[str, Any]) -> list[str]:
    """The nodes that a fault touches: of a cut into two groups only the smaller side, else its targets."""
    groups = words.mapping(fault.get("parameters")).get("groups")
    if fault.get("kind") == "cut" and isinstance(groups, list) and len(groups) == 2:
        return words.texts(min(groups, key=lambda group: len(group) if isinstance(group, list) else 0))
    return words.texts(fault.get("targets"))


def _names_links(fault: Mapping[str, Any]) -> bool:
    return any("--" in name for name in words.texts(fault.get("targets")))
