"""Comparisons of a check with the oracle."""

from __future__ import annotations

from analysis.checks import oracle
from analysis.checks.properties import Finding, Place, Property, Witness
from tests.analysis.histories import PlainHistory, members_of


def outcome(finding: Finding) -> tuple[object, ...]:
    """The compared fields of a finding; of several violations, the checkers may show different ones."""
    return finding.verdict, finding.checked, finding.violations, finding.reason, finding.witness is None


def assert_same(expected: Finding, found: Finding, kind: Property, note: str = "") -> None:
    assert found.verdict is expected.verdict, (note, kind)
    assert found.reason == expected.reason, (note, kind)
    if "missing" in expected.reason:
        return  # counts have no meaning in a history with gaps and repeats
    assert found.checked == expected.checked, (note, kind)
    if kind is Property.CAUSAL:
        # The oracle counts deliveries that lack any cause, the checks those that lack a direct one.
        assert 0 < found.violations <= expected.violations or found.violations == expected.violations == 0, note
    else:
        assert found.violations == expected.violations, (note, kind)
        assert (found.witness is None) is (expected.witness is None), (note, kind)


def assert_witness(history: PlainHistory, kind: Property, witness: Witness | None, note: str = "") -> None:
    """Each place that a witness names agrees with the history."""
    if witness is None:
        return
    run = oracle.JudgedRun(history, members_of(history), {})
    for place in witness.places:
        if place.view is not None:
            assert_place_in_run(run, place)
        elif kind is not Property.INTEGRITY:
            assert place.message is not None
            assert place == run.position(place.incarnation, place.message), (note, kind)


def assert_place_in_run(run: oracle.JudgedRun, place: Place) -> None:
    """The place is an installation, a delivery in a view, or the absence of one."""
    assert place.view is not None
    if place.message is None:
        assert place in [one.place for one in run.synchrony.installations]
    else:
        assert place == run.synchrony.place(place.incarnation, place.message, place.view)
