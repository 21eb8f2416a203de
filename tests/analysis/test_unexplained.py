"""Events that no fault explains cast doubt on the run; explained ones do not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from analysis.checks.properties import Incarnation
from analysis.checks.views import NO_VIEWS
from analysis.inputs import SUSPECT_AFTER_NS, VOTE_NS, RunInputs, read_run
from analysis.metrics.membership import Timeline
from analysis.unexplained import Circumstances, unexplained
from collector.records import EndReason
from node.objects.parameters import ObjectsParameters
from node.reliable.parameters import ReliableParameters
from testbed.fuzz.draw import draw
from testbed.fuzz.scenario import experiment_of
from testbed.sim.point import measure
from tests.analysis.runs import START_NS, MadeRun

VIEWS: dict[str, Any] = {"without_quorum": [], "minorities": [], "absent": [], "views": [], "transfers": []}
NOTHING: dict[str, Any] = {
    "excluded": {},
    "left": {},
    "asked_to_leave": {},
    "crashed": (),
    "views": VIEWS,
    "calls": None,
}
N2, N3 = Incarnation(1, 1), Incarnation(2, 1)


SOON, AT_NS, LATE, SECOND = START_NS + 5, START_NS + 20, START_NS + 50, 10**9


def doubts_of(run: RunInputs, events: dict[str, Any]) -> list[str]:
    """`events`: in place of those of NOTHING."""
    given = NOTHING | events
    timelines = [Timeline(one, NO_VIEWS, SOON, LATE, False, -1) for one in given.pop("crashed")]
    for name, reason in (("excluded", EndReason.EXCLUDED), ("left", EndReason.LEFT)):
        timelines += [Timeline(one, NO_VIEWS, SOON, at_ns, True, reason) for one, at_ns in given.pop(name).items()]
    circumstances = Circumstances(network=run.network, faults=run.faults, protocol=run.manifest.protocol)
    return unexplained(circumstances, timelines, start_ns=START_NS, **given)


def fault(kind: str, *targets: str, at_ns: int = SOON, **more: Any) -> dict[str, Any]:
    given = {"id": 0, "kind": kind, "targets": list(targets), "parameters": {}, "until_id": None}
    return given | {"asked_ns": 0, "issued_ns": at_ns, "effective_ns": at_ns} | more


def cut(**parameters: Any) -> dict[str, Any]:
    return fault("cut", parameters=parameters)


def groups(*sides: str) -> dict[str, Any]:
    """A cut between groups, each the last letters of its nodes."""
    return cut(groups=[[f"p1/n{node}" for node in side] for side in sides])


def healed(ago_ns: int) -> list[dict[str, Any]]:
    """A cut that was healed so long before the exclusion. Members are suspected after ten seconds."""
    heal = fault("heal", at_ns=START_NS + 20 - ago_ns, id=1)
    return [groups("2", "134") | {"issued_ns": SOON - 2 * ago_ns, "until_id": 1}, heal]


def cleared(ago_ns: int) -> dict[str, Any]:
    """The end of an impairment of the start, so long before the exclusion."""
    return fault("impair", "p1--p2", at_ns=AT_NS - ago_ns, direction="there", asked={"p1--p2": {}})


def lasting(began: dict[str, Any], *lasts_ns: int, ago_ns: int = 49 * SECOND) -> list[dict[str, Any]]:
    """Faults that begin so long before the exclusion, a second after each other, each with its length."""
    lines: list[dict[str, Any]] = []
    kind = {"impair": "impair", "cut": "heal", "pause": "resume", "crash": "restart"}.get(began["kind"], "recover")
    cleared: dict[str, Any] = {target: {} for target in began.get("asked", ())}
    for length_ns in lasts_ns:
        number, at_ns = len(lines), AT_NS - ago_ns + len(lines) // 2 * SECOND
        lines.append(began | {"id": number, "until_id": number + 1, "issued_ns": at_ns, "effective_ns": at_ns})
        ended = {"direction": began.get("direction"), "asked": cleared, "restores": kind == "impair"}
        lines.append(fault(kind, *began["targets"], at_ns=at_ns + length_ns, id=number + 1, **ended))
    return lines


def slow(cpu_ratio: float) -> dict[str, Any]:
    return fault("slow", "p1/n2", parameters={"cpu_ratio": cpu_ratio})


def clock(**parameters: float) -> dict[str, Any]:
    return fault("clock", "p1/n2", parameters=parameters)


DEAF = {"loss_ratio": 0.5}


def impaired(target: str, direction: str = "to-node", *, asked: dict[str, float] = DEAF) -> dict[str, Any]:
    return fault("impair", target, direction=direction, asked={target: asked})


SHORT = (
    *(fault("pause", "p1/n2"), fault("deaf", "p1/n2"), slow(0.5), impaired("p1/n2"), groups("2", "134")),
    cut(pairs=[["p1/n4", "p1/n2"]]),
)


def view_without(
    gone: Iterable[str], kept: Iterable[str], *, joined: str = "", reason: str = "suspicion", at_ms: float = 20e-6
) -> Any:
    """Section `views` with one change."""
    parts = {"members": [*kept, *nodes(joined)], "joined": nodes(joined), "gone": gone}
    change = {name: [{"member": node, "incarnation": 1} for node in part] for name, part in parts.items()}
    return VIEWS | {"views": [{"reason": reason, "first_ms": at_ms, **change}]}


def nodes(numbers: str) -> list[str]:
    return [f"p1/n{number}" for number in numbers]


def excluded_from(kept: str, reason: str = "suspicion", *, gone: str = "2", **more: Any) -> dict[str, Any]:
    """The exclusion of p1/n2 from a view of the nodes `kept` and `gone`."""
    views = view_without(nodes(gone), nodes(kept), reason=reason, **more)
    return {"excluded": {N2: AT_NS}, "views": views}


def excluded_without_state(
    kept: str, *, gone: str = "123", joiners: str = "23", taken_ms: float = 20e-6
) -> dict[str, Any]:
    """The exclusion of p1/n2, which had joined the view before with others, and took the state at a time. The others
    that go leave as asked.
    """
    founders = nodes("".join(number for number in kept + gone if number not in joiners))
    before = view_without([], founders, joined=joiners, reason="join", at_ms=10e-6)["views"]
    after = view_without(nodes(gone), nodes(kept))["views"]
    transfers = [{"member": node, "incarnation": 1, "at_ms": taken_ms} for node in nodes(joiners)]
    asked = {Incarnation(int(number) - 1, 1): SOON for number in gone if number != "2"}
    views = VIEWS | {"views": before + after, "transfers": transfers}
    return {"excluded": {N2: AT_NS}, "asked_to_leave": asked, "views": views}


EXCLUDED, LEFT, CRASHED = excluded_from("134"), {"left": {N2: AT_NS}}, {"crashed": [N2]}
ASKED = {"asked_to_leave": {N2: SOON}}
BOTH_EXCLUDED = excluded_from("14", gone="23") | {"excluded": {N2: AT_NS, N3: LATE}}
LEFT_TWICE = {"left": {N2: AT_NS, Incarnation(1, 2): LATE}}
WAS_EXCLUDED = "p1/n2 (incarnation 1) was excluded, which no fault of the run explains"
LEFT_OUT_OF_NONE = "p1/n2 (incarnation 1) was excluded, but no view leaves it out"
NO_VIEW = "p1/n2 (incarnation 1) was excluded, but no view was recorded"
HAS_LEFT = "p1/n2 (incarnation 1) left, which no fault of the run explains"
NO_END = "p1/n2 (incarnation 1) has no record of its end, which no fault of the run explains"
NO_QUORUM = "p1/n2 (incarnation 1) went from view 1 to view 3 without a quorum of the first"
GIVEN_UP = "3 calls were reported as given up, which no fault of the run explains"
ALL_REFUSED = "82 calls and operations were refused and 9 calls had objects, which no fault of the run explains"
NOT_TOLD = "of 2 calls the caller was told neither objects nor end, or a weaker guarantee than it asked for"


def calls(**outcomes: int) -> dict[str, Any]:
    return {"calls": {"calls": 9, "outcomes": {"given_up": 0, "refused": 0, "not_as_asked": 0} | outcomes}}


GONE = {"member": "p1/n2", "incarnation": 1, "before": 1, "view": 3, "reason": "leave"}
WITHOUT_QUORUM = {"views": VIEWS | {"without_quorum": [GONE]}}
BEGUN = {"views": VIEWS | {"without_quorum": [GONE | {"reason": "first"}]}}
DELIVERED_ALONE = "p1/n2 (incarnation 1) delivered 2 messages in a minority of view 3"
OF_ITS_OWN = "p1/n2 (incarnation 1) began a group of its own with view 3, after view 1"


def in_minority(**told: int) -> dict[str, Any]:
    return {"views": VIEWS | {"minorities": [GONE | told]}}


LEFT_OUT = {"views": EXCLUDED["views"]}
"""It does not learn of its exclusion."""


def absent(lacks: str) -> dict[str, Any]:
    one = {"member": "p1/n2", "incarnation": 2, "view": 3, "lacks": lacks}
    return {"views": VIEWS | {"absent": [one]}}


ABSENT = "p1/n2 (incarnation 2) stopped as if it had nothing left to do, but "


TWO_SITES = "name: sites\npartitions:\n  p1: {nodes: 2}\n  p2: {nodes: 3}\nlinks:\n  - {between: [p1, p2]}\n"


@pytest.mark.parametrize(
    ("events", "faults", "doubts"),
    [
        (EXCLUDED, [], [WAS_EXCLUDED]),
        (EXCLUDED, [fault("pause", "p1/n2")], []),
        (EXCLUDED, [fault("pause", "p1/n1")], [WAS_EXCLUDED]),
        (EXCLUDED, [fault("pause", "p1/n2", at_ns=LATE)], [WAS_EXCLUDED]),
        (EXCLUDED, [fault("restart", "p1/n2")], [WAS_EXCLUDED]),
        (EXCLUDED, [groups("2", "134")], []),
        (EXCLUDED, [groups("12", "34")], []),
        (EXCLUDED, [groups("1", "234")], [WAS_EXCLUDED]),
        (EXCLUDED, [groups("1", "34")], [WAS_EXCLUDED]),
        (EXCLUDED, [groups("123", "24")], [WAS_EXCLUDED]),
        (EXCLUDED, [groups("12", "134")], []),
        (EXCLUDED, [cut(pairs=[["p1/n4", "p1/n2"]])], []),
        (EXCLUDED, [cut(pairs=[["p1/n2", "p1/n4"]])], []),
        (EXCLUDED, [cut(pairs=[["p1/n4", "p1/n3"]])], [WAS_EXCLUDED]),
        (EXCLUDED, [groups("1", "234"), groups("3", "124")], []),
        (EXCLUDED, healed(51 * SECOND), [WAS_EXCLUDED]),
        (EXCLUDED, healed(49 * SECOND), []),
        *((EXCLUDED, lasting(one, 3 * SECOND), []) for one in SHORT),
        *((EXCLUDED, lasting(one, 2 * SECOND), [WAS_EXCLUDED]) for one in SHORT),
        *((EXCLUDED, lasting(one, *5 * (SECOND // 2,)), []) for one in SHORT),
        *((EXCLUDED, lasting(one, *4 * (SECOND // 2,)), [WAS_EXCLUDED]) for one in SHORT),
        (EXCLUDED, lasting(fault("crash", "p1/n2"), 1000), []),
        (EXCLUDED, lasting(fault("crash", "p1/n2"), 1000, ago_ns=51 * SECOND), [WAS_EXCLUDED]),
        (EXCLUDED, [*lasting(fault("pause", "p1/n2"), 2 * SECOND), fault("deaf", "p1/n2", id=2)], []),
        (EXCLUDED, [*lasting(fault("pause", "p1/n2"), 2 * SECOND), fault("deaf", "p1/n3", id=2)], [WAS_EXCLUDED]),
        (EXCLUDED, [slow(0.3)], []),
        (EXCLUDED, [slow(0.99)], [WAS_EXCLUDED]),
        (EXCLUDED, [clock(step_ns=-3 * SECOND)], []),
        (EXCLUDED, [clock(step_ns=2 * SECOND)], [WAS_EXCLUDED]),
        (EXCLUDED, [clock(drift_ppm=0.001)], [WAS_EXCLUDED]),
        (EXCLUDED, lasting(clock(step_ns=2 * SECOND, drift_ppm=-10_000), 40 * SECOND), [WAS_EXCLUDED]),
        (EXCLUDED, lasting(clock(step_ns=2 * SECOND, drift_ppm=-20_000), 40 * SECOND), []),
        (EXCLUDED, [impaired("p1/n2")], []),
        (EXCLUDED, [impaired("p1/n2", "from-node")], []),
        (EXCLUDED, [impaired("p1/n2"), impaired("p1/n2", asked={"delay_ns": 5}) | {"id": 1}], [WAS_EXCLUDED]),
        (EXCLUDED, [impaired("p1/n1")], [WAS_EXCLUDED]),
        (EXCLUDED, [impaired("p1/n2", asked={"loss_ratio": 0.01})], [WAS_EXCLUDED]),
        (EXCLUDED, [impaired("p1/n2", asked={"loss_ratio": 0.01, "loss_burst_frames": 4.0})], []),
        (EXCLUDED, [impaired("p1/n2", asked={"delay_ns": 2_000_000_000})], []),
        (EXCLUDED, [impaired("p1/n2", asked={"delay_ns": 5_000_000})], [WAS_EXCLUDED]),
        (EXCLUDED, [impaired("p1/n1"), impaired("p1/n3")], []),
        (excluded_from("13"), [impaired("p1/n1")], [WAS_EXCLUDED]),
        (excluded_from("1"), [impaired("p1/n1")], []),
        (excluded_from("1", joined="34"), [impaired("p1/n1")], []),
        (excluded_from("13", "bad_pair"), [impaired("p1/n1")], []),
        (excluded_from("13", "bad_pair"), [impaired("p1/n4")], [WAS_EXCLUDED]),
        (excluded_from("13", "bad_pair", gone="24"), [impaired("p1/n4")], [WAS_EXCLUDED]),
        (excluded_from("13", "bad_pair"), [], [WAS_EXCLUDED]),
        (excluded_without_state("4"), [], []),
        (excluded_without_state("4", taken_ms=15e-6), [], [WAS_EXCLUDED]),
        (excluded_without_state("4", gone="23"), [], [WAS_EXCLUDED]),
        (excluded_without_state("45"), [], [WAS_EXCLUDED]),
        (excluded_without_state("34", gone="12"), [], [WAS_EXCLUDED]),
        (excluded_without_state("4", gone="12"), [], [WAS_EXCLUDED]),
        (EXCLUDED | {"views": None}, [fault("pause", "p1/n2")], [NO_VIEW]),
        (EXCLUDED | {"views": VIEWS}, [fault("pause", "p1/n2")], [LEFT_OUT_OF_NONE]),
        (
            EXCLUDED | {"excluded": {N2: AT_NS, N3: LATE}},
            [fault("pause", "p1/n2")],
            [LEFT_OUT_OF_NONE.replace("n2", "n3")],
        ),
        (
            BOTH_EXCLUDED,
            [fault("pause", "p1/n2")],
            ["p1/n3 (incarnation 1) was excluded, which no fault of the run explains"],
        ),
        (excluded_from("134", at_ms=4e-6), [fault("pause", "p1/n2")], [WAS_EXCLUDED]),
        (LEFT | ASKED, [], []),
        (LEFT | {"asked_to_leave": {N3: SOON}}, [], [HAS_LEFT]),
        (LEFT | {"asked_to_leave": {N2: LATE}}, [], [HAS_LEFT]),
        (LEFT, [groups("2", "134")], [HAS_LEFT]),
        (LEFT_TWICE | ASKED, [], [HAS_LEFT.replace("1)", "2)")]),
        (CRASHED, [fault("crash", "p1/n2")], []),
        (CRASHED, [fault("crash", "p1/n1")], [NO_END]),
        ({"crashed": [Incarnation(1, 2), N2]}, [fault("crash", "p1/n2")], [NO_END.replace("1)", "2)")]),
        ({"crashed": [Incarnation(1, 2), N2]}, [fault("crash", "p1/n2"), fault("crash", "p1/n2", id=1)], []),
        (WITHOUT_QUORUM, [groups("2", "134")], [NO_QUORUM]),
        (BEGUN, [fault("crash", "p1/n2")], [OF_ITS_OWN]),
        (in_minority(delivered=0), [], []),
        (in_minority(delivered=2), [groups("2", "134")], [DELIVERED_ALONE]),
        (LEFT_OUT, [], [WAS_EXCLUDED]),
        (LEFT_OUT, [groups("2", "134")], []),
        (LEFT_OUT, [groups("1", "234")], [WAS_EXCLUDED]),
        (LEFT_OUT | ASKED, [], []),
        (LEFT_OUT | CRASHED, [], [NO_END]),
        (absent("views"), [fault("crash", "p1/n2")], [ABSENT + "is in no view"]),
        (absent("view"), [], [ABSENT + "did not install view 3, of which it is a member"]),
        (absent("state"), [], [ABSENT + "did not get the state in view 3"]),
        (absent("place"), [], [ABSENT + "is not in view 3, although it was not told that it had been excluded"]),
        (calls(given_up=3), [], [GIVEN_UP]),
        (calls(given_up=3), [fault("pause", "p1/n2")], []),
        (calls(given_up=3), [fault("restart", "p1/n2")], [GIVEN_UP]),
        (calls(given_up=3), [impaired("p1/n1", asked={"delay_ns": 1000})], [GIVEN_UP]),
        (calls(given_up=3), lasting(fault("pause", "p1/n2"), SECOND), [GIVEN_UP]),
        (calls(given_up=3), lasting(fault("pause", "p1/n2"), 2 * SECOND), []),
        (calls(given_up=3), lasting(groups("2", "134"), 2 * SECOND), []),
        (calls(given_up=3), lasting(fault("crash", "p1/n2"), 1000), []),
        (calls(aborted=3, refused=1), [], []),
        (calls(refused=81), [], []),
        (calls(refused=82), [], [ALL_REFUSED]),
        (calls(refused=82), lasting(groups("2", "134"), 2 * SECOND), []),
        (calls(not_as_asked=2), [fault("pause", "p1/n2")], [NOT_TOLD]),
    ],
)
def test_an_event_that_no_fault_explains_casts_doubt(
    tmp_path: Path, events: dict[str, Any], faults: list[dict[str, Any]], doubts: list[str]
) -> None:
    run = read_run(MadeRun(faults=faults).write(tmp_path / "run"))
    assert doubts_of(run, events) == doubts


@pytest.mark.parametrize(
    ("topology", "faults", "is_explained"),
    [
        (TWO_SITES, [], False),
        (TWO_SITES, [cut(links=["p1--p2"])], True),
        (TWO_SITES, lasting(cut(links=["p1--p2"]), 3 * SECOND), True),
        (TWO_SITES, lasting(cut(links=["p1--p2"]), 2 * SECOND), False),
        (TWO_SITES, [impaired("p1--p2", "there")], True),
        (TWO_SITES, [impaired("p1--p2", "back")], True),
        (TWO_SITES.replace("[p1, p2]", "[p1, p2], loss: 20%"), [], True),
        (TWO_SITES.replace("[p1, p2]", "[p1, p2], there: {loss: 20%}"), [cleared(49 * SECOND)], True),
        (TWO_SITES.replace("[p1, p2]", "[p1, p2], there: {loss: 20%}"), [cleared(51 * SECOND)], False),
        (TWO_SITES.replace("nodes: 3", "nodes: 1"), [cut(links=["p1--p2"])], False),
        (TWO_SITES.replace("nodes: 2", "nodes: 2, bus: {rate: 10 Mbit/s}"), [], True),
        (TWO_SITES.replace("nodes: 3", "nodes: 3, bus: {rate: 10 Mbit/s}"), [], True),
        (TWO_SITES.replace("nodes: 3", "nodes: 1, bus: {rate: 10 Mbit/s}"), [], False),
    ],
)
def test_links_and_buses_explain_exclusions_of_those_that_lose_the_majority(
    tmp_path: Path, topology: str, faults: list[dict[str, Any]], is_explained: bool
) -> None:
    run = read_run(MadeRun(topology_text=topology, faults=faults).write(tmp_path / "run"))
    others = [str(node.name) for node in run.topology.nodes() if node.name != "p1/n2"]
    given = EXCLUDED | {"views": view_without(["p1/n2"], others)}
    assert doubts_of(run, given) == ([] if is_explained else [WAS_EXCLUDED])


@pytest.mark.parametrize(
    ("topology", "events", "faults"),
    [
        (TWO_SITES, EXCLUDED | {"views": None}, [impaired("p1/n1")]),
        (TWO_SITES.replace("[p1, p2]", "[p1, p2], loss: 20%"), calls(given_up=3), []),
    ],
)
def test_objects_are_judged_by_sub_network(
    tmp_path: Path, topology: str, events: dict[str, Any], faults: list[dict[str, Any]]
) -> None:
    """Their machines have a view of each sub-network, which no record shows."""
    made = MadeRun(topology_text=topology, faults=faults, manifest={"protocol": {"name": "objects"}})
    run = read_run(made.write(tmp_path / "run"))
    assert doubts_of(run, {"views": None} | events) == []


@pytest.mark.parametrize("seed", [4, 14, 21, 35, 38, 53])
def test_the_faults_of_a_random_world_explain_its_exclusions(seed: int) -> None:
    """Seeds with exclusions; 35 and 38 by bad pairs."""
    results = measure(experiment_of(draw("abcast", seed)))

    assert results["views"]["excluded"] > 0
    assert not [doubt for doubt in results["doubts"] if "was excluded" in doubt]


def test_members_that_the_network_does_not_have_are_doubts(tmp_path: Path) -> None:
    run = read_run(MadeRun(faults=[fault("pause", "p1/n2")]).write(tmp_path / "run"))
    change = {
        "reason": "suspicion",
        "first_ms": 20e-6,
        "joined": [],
        "members": [{"member": "p1/n1", "incarnation": 1}],
    }
    views = VIEWS | {"views": [change | {"gone": [{"member": "member 9", "incarnation": 1}]}]}
    doubts = doubts_of(run, {"excluded": {Incarnation(9, 1): AT_NS}, "views": views})
    assert doubts == ["member 9 (incarnation 1) was excluded, which no fault of the run explains"]


def test_the_patience_of_a_run_that_does_not_give_it_is_the_default_of_the_protocols() -> None:
    assert ReliableParameters().suspect_after_ns == SUSPECT_AFTER_NS
    assert ObjectsParameters().vote_ns == VOTE_NS
