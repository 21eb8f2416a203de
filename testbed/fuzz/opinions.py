"""A sampled share of the worlds is judged three times: by the product's checks, by the plain oracle, and in SQL. They
share no code, so a property on which they do not agree is a mistake in one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from analysis.checks import oracle
from analysis.checks.oracle_views import Record
from analysis.checks.properties import Finding, Incarnation, Incarnations, MessageId, Property
from analysis.independent.compare import disagreements
from analysis.independent.judge import History, judge_histories, table_of
from node.trace import Event

EVERY = 100
"""The worlds whose seed this number divides. The two other opinions cost half a second of processor time, most of it to
plan the queries.
"""


def is_sampled(seed: int) -> bool:
    """Whether the world of this seed is judged three times, in whatever campaign."""
    return seed % EVERY == 0


def disputes(
    incarnations: Incarnations, findings: Mapping[Property, Finding], names: Mapping[int, str]
) -> Iterator[str]:
    """A sentence for each property on which the findings of these records and the other two opinions do not agree."""
    members = {incarnation.member for incarnation in incarnations}
    history = History(trace=table_of(incarnations), members=members, names=names)
    yield from disagreements(findings, judge_histories([history], findings)[0])
    plain = oracle.check(plain_history(incarnations), members=members, names=names, kinds=findings)
    for kind, finding in findings.items():
        told, expected = (f"{one.verdict.value} ({one.checked} checked)" for one in (finding, plain[kind]))
        if told != expected:
            yield f"{kind.value}: {told} by the product, {expected} by the oracle"


def plain_history(incarnations: Incarnations) -> dict[Incarnation, list[Record]]:
    """The hosts' own records as the oracle reads them."""
    return {
        incarnation: [
            Record(place, Event(event), detail, MessageId(origin, of, number), at_ns, extra, value, clock_ns, *payload)
            for place, (event, detail, origin, of, extra, number, at_ns, clock_ns, value, *payload) in enumerate(
                records, start=1
            )
        ]
        for incarnation, records in incarnations.items()
    }
