"""Effect of each fault on the conversations: silence of the affected ones, time until they were heard again, and the
time without an answer on each side of a cut. Pure functions.

A fault *touches* a conversation between two nodes when it acts on the path between them. A *side* is a maximal set of
nodes that could all reach each other while the fault lasted; the time without an answer of a service is the time for
which that side stood still. Only conversations that were alive count: heard in several spans of the five seconds before
the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

from analysis.formatting import LASTING
from analysis.requested_network import Network, RecordedFault, acts_on
from analysis.traffic.flows import Conversation, Gap, Rows, longest_within, named, seconds, served

ALIVE_NS: Final = 5_000_000_000
ALIVE_SPANS: Final = 3
MAX_FAULTS: Final = 100
MAX_SERVICES: Final = 8
_DOWN: Final = ("crash", "pause")


class LastingFault(NamedTuple):
    """A lasting fault, from its effect until that of its end. `until_ns` None: to the end of the run.

    `number`: index in section `faults` of summary.json.
    """

    number: int
    record: RecordedFault
    from_ns: int
    until_ns: int | None
    lifted_ns: int | None
    """Time at which its end was issued: from then on a frame may pass."""


class FaultInputs(NamedTuple):
    """Input: network, nodes, and times on the monotonic clock."""

    network: Network
    nodes: Sequence[str]
    start_ns: int
    end_ns: int
    least_ns: int
    """Least silence that is reported."""


def lasting_faults(faults: Iterable[RecordedFault]) -> list[LastingFault]:
    """Lasting faults by time, without impairments that only end another."""
    known = list(faults)
    by_id = {fault.id: fault for fault in known}
    found = [
        _lasting_fault(place, fault, None if fault.until_id is None else by_id.get(fault.until_id))
        for place, fault in enumerate(one for one in known if not one.is_end)
        if fault.kind in LASTING
    ]
    return sorted(found, key=lambda fault: (fault.from_ns, fault.number))[:MAX_FAULTS]


def _lasting_fault(number: int, fault: RecordedFault, end: RecordedFault | None) -> LastingFault:
    if end is None:
        return LastingFault(number, fault, fault.effective_ns, None, None)
    return LastingFault(number, fault, fault.effective_ns, end.effective_ns, end.issued_ns)


def section(found: Sequence[Conversation], faults: Iterable[RecordedFault], inputs: FaultInputs) -> dict[str, Rows]:
    """Rows of the section: `faults`, one for each; `silences`, one for each fault and silent conversation; `sides`, one
    for each fault, side and service that had answered before. `silent_s` 0: no silence as long as a span.
    """
    result: dict[str, Rows] = {"faults": [], "silences": [], "sides": []}
    for fault in lasting_faults(faults):
        touches = _touches(fault.record, inputs.network)
        alive = [one for one in found if _is_alive(one, fault)]
        touched = [one for one in alive if touches(one.talk.a, one.talk.b)]
        silences = _silences(fault, touched, inputs)
        result["faults"].append(_fault(fault, len(touched), silences, inputs))
        result["silences"] += silences
        result["sides"] += _sides(fault, alive, found, inputs)
    return result


def sides(fault: RecordedFault, network: Network, nodes: Sequence[str]) -> list[list[str]]:
    """Sides of at least two nodes while the fault lasted, the greatest first. An impairment leaves one side of all
    nodes.
    """
    if fault.kind not in ("cut", *_DOWN):
        return [list(nodes)]
    touches = _touches(fault, network)
    left, found = list(nodes), []
    while left:
        side, border = [], [left.pop(0)]
        while border:
            here = border.pop()
            side.append(here)
            reached = [node for node in left if not touches(here, node)]
            left = [node for node in left if node not in reached]
            border += reached
        found.append(sorted(side, key=nodes.index))
    return sorted((side for side in found if len(side) > 1), key=lambda side: -len(side))


def _is_alive(one: Conversation, fault: LastingFault) -> bool:
    before = (fault.from_ns - ALIVE_NS <= last < fault.from_ns for _, last in one.heard)
    return sum(before) >= ALIVE_SPANS


def _head(fault: LastingFault) -> dict[str, Any]:
    return {"fault": fault.number, "kind": fault.record.kind}


def _fault(fault: LastingFault, touched: int, silences: Rows, inputs: FaultInputs) -> dict[str, Any]:
    late = [row["back_s"] for row in silences]
    return {
        **_head(fault),
        "from_s": seconds(fault.from_ns, inputs.start_ns),
        "until_s": seconds(fault.until_ns, inputs.start_ns),
        "touched": touched,
        "silent": len(silences),
        "silent_s": max((row["silent_s"] for row in silences), default=0.0 if touched else None),
        "back": sum(value is not None for value in late),
        "back_s": None if not late or None in late else max(late),
    }


def _silences(fault: LastingFault, touched: Sequence[Conversation], inputs: FaultInputs) -> Rows:
    until_ns = inputs.end_ns if fault.until_ns is None else fault.until_ns
    rows = []
    for one in touched:
        gap = longest_within(one.heard, fault.from_ns, until_ns, inputs.end_ns)
        if _is_reported(gap, inputs):
            rows.append({**_head(fault), **named(one.talk), **_gap(gap, inputs), "back_s": _back_s(gap, fault)})
    return rows


def _back_s(gap: Gap, fault: LastingFault) -> float | None:
    """Time from the issue of the fault's end until heard again, in s; 0: heard before it. None: not heard again, or the
    fault did not end.
    """
    if gap.until_ns is None or fault.lifted_ns is None:
        return None
    return max(0, gap.until_ns - fault.lifted_ns) / 1e9


_NONE_NOTICED: Final = {"silent_s": 0.0, "silent_from_s": None, "silent_until_s": None}


def _is_reported(gap: Gap | None, inputs: FaultInputs) -> TypeGuard[Gap]:
    return gap is not None and gap.length_ns(inputs.end_ns) >= inputs.least_ns


def _gap(gap: Gap, inputs: FaultInputs) -> dict[str, Any]:
    return {
        "silent_s": gap.length_ns(inputs.end_ns) / 1e9,
        "silent_from_s": seconds(gap.from_ns, inputs.start_ns),
        "silent_until_s": seconds(gap.until_ns, inputs.start_ns),
    }


# --- sides


def _sides(
    fault: LastingFault, alive: Sequence[Conversation], found: Sequence[Conversation], inputs: FaultInputs
) -> Rows:
    """Longest time without an answer, from the fault on, of each alive service within each side."""
    until_ns = inputs.end_ns if fault.until_ns is None else fault.until_ns
    # A protocol without ports, such as ICMP, has no answers: it would stand still to the end.
    answering = (one.talk for one in alive if one.talk.service.port is not None)
    services = list(dict.fromkeys((talk.service, talk.is_cast) for talk in answering))[:MAX_SERVICES]
    rows: Rows = []
    for side in sides(fault.record, inputs.network, inputs.nodes):
        members = frozenset(side)
        for service, is_cast in services:
            serving = [one for one in found if (one.talk.service, one.talk.is_cast) == (service, is_cast)]
            ours = [one for one in serving if members & {one.talk.a, one.talk.b}]
            # A service that never answered, such as a one-way one, cannot be seen to wait.
            if not any(one in alive and _has_answered(one, fault) for one in ours):
                continue
            # A node without a partner on its own side waits from the fault on.
            heard = [(fault.from_ns, fault.from_ns), *_answers(ours, members, fault)]
            gap = longest_within(heard, fault.from_ns, until_ns, inputs.end_ns)
            about = {"side": ", ".join(side), "nodes": len(side), **served(service, is_cast)}
            rows.append(
                {**_head(fault), **about, **(_gap(gap, inputs) if _is_reported(gap, inputs) else _NONE_NOTICED)}
            )
    return rows


def _has_answered(one: Conversation, fault: LastingFault) -> bool:
    return any(first_ns < fault.from_ns for first_ns, _ in one.answers)


def _answers(found: Sequence[Conversation], side: frozenset[str], fault: LastingFault) -> Iterator[tuple[int, int]]:
    """Answers from the fault on within a side, and from all nodes once the fault's end was issued."""
    for one in found:
        from_ns = fault.from_ns if {one.talk.a, one.talk.b} <= side else fault.lifted_ns
        if from_ns is not None:
            yield from (heard for heard in one.answers if heard[0] >= from_ns)


def _touches(fault: RecordedFault, network: Network) -> Callable[[str, str], bool]:
    """Predicate: does the fault act on the path between two ends? An address of no node is affected only through a
    target.
    """
    known = {str(node.name) for node in network.topology.nodes()}
    targets = set(fault.targets) if fault.kind != "cut" else set()
    acts = acts_on(fault, network)

    def touches(a: str, b: str) -> bool:
        if a not in known or b not in known:
            return bool(targets & {a, b})
        return acts(a, b) or acts(b, a)

    return touches
