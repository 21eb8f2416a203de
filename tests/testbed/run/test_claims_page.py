"""The page of claims: one line for each claim, one entry for each world; a new measurement keeps the rest."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.expression import Unknown, condition, parse
from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.run.claims import (
    HEAD,
    MATTERS,
    NOT_RUN,
    Row,
    Selection,
    judged_row,
    list_claims,
    render_page,
    run_claims,
    update_page,
)
from testbed.run.perform import Overrides
from testbed.run.sweep import Point
from testbed.spec import experiment as spec
from testbed.spec.raw import within
from topologies.formats.errors import InputError

ROOT = Path(__file__).parents[3]
BROKEN = {"promised": True, "verdict": "fail", "violations": 1}
UNTOLD = {"promised": True, "verdict": "unknown", "violations": 0}
OTHER_NETWORK = "the network of a run was not as asked"
KEPT = {"promised": True, "verdict": "pass", "violations": 0}


def row(**changes: Any) -> dict[str, Any]:
    return {
        "experiment": "co-figure7",
        "id": "000-figure7-tco",
        "paper": "000",
        "statement": "T_co grows as O(n) | linearly.",
        "value": "O(n)",
        "formula": "fit.r_squared",
        "accept": "0.9 to 1",
        "note": "",
        "by_construction": False,
        "asked": "0123456789abcdef",
        "ours": 0.98765,
        "verdict": "pass",
        "reason": "",
        "world": "sim",
        "runs": 8,
        "seeds": 4,
        "commit": "0123abc",
        "date": "2026-11-25",
        **changes,
    }


def line_of(*rows: dict[str, Any]) -> str:
    """Line of a page that lists the claim of the first of these rows."""
    (line,) = [line for line in render_page(rows[:1], rows).splitlines() if "000-figure7-tco" in line]
    return line


ORIGIN = "<br><sub>0123abc, 2026-11-25, 8 runs, 4 seeds</sub>"


def test_one_line_for_a_claim_and_an_entry_for_each_world_with_its_origin() -> None:
    line = line_of(row(), row(world="netns", ours=None, verdict="unknown", reason="a busy machine"))
    assert line.endswith(f"| ? netns: – (a busy machine){ORIGIN}<br>✔ sim: 0.9877{ORIGIN} |")
    assert "T_co grows as O(n) \\| linearly." in line
    assert "## Paper 000: CO" in render_page([row()], [])


def test_a_note_says_why_ours_differs() -> None:
    assert line_of(row(note="it was a | short day")).endswith(f"✔ sim: 0.9877{ORIGIN}<br>it was a \\| short day |")


def test_what_no_run_can_contradict_has_no_tick() -> None:
    assert line_of(row(by_construction=True)).endswith(f"= sim: 0.9877{ORIGIN} |")
    assert line_of(row(by_construction=True, verdict="fail")).endswith(f"✘ sim: 0.9877{ORIGIN} |")


def test_a_claim_without_a_measurement_stands_on_the_page_as_such() -> None:
    for measured in ([], [row(experiment="co-scale")]):
        assert render_page([row()], measured).rstrip().endswith(f"| 0.9 to 1 | {NOT_RUN} |")


@pytest.mark.parametrize(
    ("changes", "this"),
    [
        ({"accept": "0.8 to 1"}, "this accepted range"),
        ({"value": 1}, "this expected value"),
        ({"formula": "1", "statement": "T_co grows."}, "this statement and this formula"),
        ({"asked": "fedcba9876543210"}, "this experiment"),
        ({"asked": ""}, "this experiment"),
    ],
)
def test_a_measurement_with_another_claim_or_experiment_stands_on_it_as_stale(
    changes: dict[str, Any], this: str
) -> None:
    (line,) = [line for line in render_page([row()], [row(**changes)]).splitlines() if "000-figure7-tco" in line]
    assert line.endswith(f"| 0.9 to 1 | stale sim: not measured with {this}{ORIGIN} |")


def test_an_experiment_with_another_network_or_load_is_another_one_but_its_prose_does_not_matter() -> None:
    path = spec.find("co-stages")
    text = path.read_text(encoding="utf-8")

    def asked(old: str, new: str) -> str:
        assert old in text
        experiment = spec.loads(text.replace(old, new), protocols=PROTOCOLS, folder=path.parent)
        return judged_row(
            experiment, experiment.claims[0], [Point(variant={}, given={}, summary={}, world="sim")], {}
        ).asked

    same = asked("", "")
    assert asked("question: ", "question: Again, ") == asked("statement: ", "statement: Again, ") == same
    assert len({same, asked("delay: 20 ms", "delay: 200 ms"), asked("rate: 200 /s", "rate: 2 /s")}) == 3


NETWORK = "name: {}\npartitions: {{p1: {{nodes: 3}}}}\nimpairments: {{'*': {{to-node: {{delay: {}}}}}}}\n"
PROGRAM = "program: {{command: ./serve.py, ready: {{port: 80}}, files: {{serve.py: {}}}}}\n"
NEAR = (
    "name: x\nquestion: q\ntopology: ./near.yaml\nduration: 1 s\n"
    "claims: {id: c, paper: '000', statement: s, value: 1, ours: '1', accept: [0, 2]}\n"
)
SENT = "protocol: {name: reliable}\nworkload: {kind: periodic, rate: 1 /s, size: 64 B}\n"


@pytest.mark.parametrize(
    "ran",
    [
        SENT + "sweep: {topology: [./near.yaml, ./far.yaml], seeds: 2}",
        SENT + "sweep: {'topology, duration': [[./near.yaml, 1 s], [./far.yaml, 2 s]]}",
        PROGRAM.format("{from: far.yaml}"),
        PROGRAM.format("a text") + "sweep: {program.files: [{serve.py: {from: far.yaml}}]}",
    ],
)
def test_so_is_one_with_another_file_that_its_sweep_or_its_program_names(ran: str, tmp_path: Path) -> None:
    def asked(delay: str) -> str:
        (tmp_path / "far.yaml").write_text(NETWORK.format("far", delay))
        experiment = spec.loads(NEAR + ran, protocols=PROTOCOLS, folder=tmp_path)
        point = Point(variant={}, given={}, summary={}, world="sim")
        return judged_row(experiment, experiment.claims[0], [point], {}).asked

    (tmp_path / "near.yaml").write_text(NETWORK.format("near", "1 ms"))
    assert asked("50 ms") == asked("50 ms") != asked("60 ms")


def test_a_record_has_the_digest_of_the_files_from_which_its_runs_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.yaml").write_text(f"{NEAR}{SENT}sweep: {{topology: [./near.yaml, ./far.yaml]}}\n")
    for name in ("near", "far"):
        (tmp_path / f"{name}.yaml").write_text(NETWORK.format(name, "1 ms"))

    def run_points(*_: Any) -> list[Point]:
        (tmp_path / "far.yaml").write_text(NETWORK.format("far", "50 ms"))
        return [Point(variant={}, given={}, summary={}, world="sim")]

    monkeypatch.setattr("testbed.run.claims.run_points", run_points)
    selection = Selection(experiment=str(tmp_path / "x.yaml"))
    (before,) = list_claims(selection)
    (measured,) = run_claims(selection, Console(quiet=True), overrides=Overrides())
    (after,) = list_claims(selection)
    assert before.asked == measured.asked != after.asked


def test_a_claim_is_unknown_when_there_is_a_doubt_about_any_of_its_runs() -> None:
    experiment = spec.load(spec.find("atop-window"), protocols=PROTOCOLS)
    order = next(claim for claim in experiment.claims if claim.id == "002-window-order")
    sure = Point(variant={}, given={}, summary={"verdict": "pass"}, world="sim")
    doubtful = replace(sure, doubts=("p1/n3 was excluded, which no fault of the run explains",))

    assert judged_row(experiment, order, [sure, sure], {}).verdict == "pass"
    row = judged_row(experiment, order, [sure, doubtful], {})
    assert (row.verdict, row.ours, row.reason) == ("unknown", None, *doubtful.doubts)


@pytest.mark.parametrize(
    ("name", "world", "summary", "reason"),
    [
        ("002-window-broker-dummies", "netns", {}, ""),
        ("002-window-broker-dummies", "netns", {"properties": {"fifo": BROKEN | {"promised": False}}}, ""),
        ("002-window-broker-dummies", "netns", {"properties": {"fifo": BROKEN}}, "a run violates fifo"),
        ("002-window-broker-dummies", "netns", {"properties": {"fifo": UNTOLD}}, "a run does not tell fifo"),
        ("002-window-order", "netns", {"properties": {"fifo": BROKEN}}, ""),
        ("002-window-order", "netns", {"accuracy": {"verdict": "fail", "pass": 3}}, OTHER_NETWORK),
        ("002-window-order", "netns", {"accuracy": {"verdict": "unknown", "pass": 1}}, ""),
        (
            "002-window-order",
            "netns",
            {"accuracy": {"verdict": "unknown", "pass": 0}},
            "no port of a run could be certified",
        ),
        # In the simulator an idle port is certain.
        ("002-window-order", "sim", {"accuracy": {"verdict": "unknown", "pass": 0}}, ""),
        ("002-window-broker-dummies", "sim", {"accuracy": {"verdict": "fail", "pass": 3}}, OTHER_NETWORK),
    ],
)
def test_so_is_a_claim_about_runs_that_broke_a_promise_or_had_another_network(
    name: str, world: str, summary: dict[str, Any], reason: str
) -> None:
    experiment = spec.load(spec.find("atop-window"), protocols=PROTOCOLS)
    claim = next(claim for claim in experiment.claims if claim.id == name)
    results = {"verdict": "pass", "load": {"dummy_rate": 0.0}, **summary}
    point = Point(variant={}, given={"protocol": "atop_mbs"}, summary=results, world=world)
    row = judged_row(experiment, claim, [point], {})
    assert (row.verdict, row.reason) == ("unknown" if reason else "pass", reason)


@pytest.mark.parametrize(
    ("run", "broken", "verdict", "reason"),
    [
        (0, "grant_order", "pass", ""),
        (0, "mutual_exclusion", "fail", ""),
        (0, "fence_order", "unknown", "a run violates fence_order"),
        (1, "grant_order", "pass", ""),
        (1, "mutual_exclusion", "unknown", "a run violates mutual_exclusion"),
        (2, "grant_order", "unknown", "a run violates grant_order"),
    ],
)
def test_a_broken_promise_of_a_run_is_the_matter_of_the_claim_that_reads_it(
    run: int, broken: str, verdict: str, reason: str
) -> None:
    row = _of_mutex_central(run, {"properties": PROMISES | {broken: BROKEN}})
    assert (row.verdict, row.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("run", "untold"), [(0, "grant_order"), (0, "mutual_exclusion"), (1, "grant_order"), (2, "grant_order")]
)
def test_a_promise_that_a_run_does_not_tell_makes_every_claim_unknown(run: int, untold: str) -> None:
    row = _of_mutex_central(run, {"properties": PROMISES | {untold: UNTOLD}})
    assert (row.verdict, row.reason) == ("unknown", f"a run does not tell {untold}")


@pytest.mark.parametrize(
    ("run", "condition", "verdict"),
    [
        (0, "properties.mutual_exclusion.verdict == 'pass'", "pass"),
        (1, "properties.mutual_exclusion.verdict == 'pass'", "unknown"),
        (0, "properties.mutual_exclusion.checked > 0", "unknown"),
        (0, "properties.mutual_exclusion.verdict == 'pass' and latency.p99_ms < 9", "unknown"),
    ],
)
def test_so_is_an_expectation_about_it_that_was_not_met(run: int, condition: str, verdict: str) -> None:
    row = _of_mutex_central(run, {"properties": PROMISES, "expect": [{"condition": condition, "verdict": "fail"}]})
    assert (row.verdict, row.reason) == (verdict, f"a run does not meet {condition}" if verdict == "unknown" else "")


@pytest.mark.parametrize("ours", ["latency.p50_ms", "latency.p50_ms + 0 * links[0].frames"])
def test_a_claim_about_latency_is_unknown_in_another_network_and_one_about_links_is_not(ours: str) -> None:
    experiment = spec.load(spec.find("objects-server"), protocols=PROTOCOLS)
    claim = experiment.claims[0].model_copy(update={"ours": parse(ours), "accept": parse("ours < 9")})
    summary = {"latency": {"p50_ms": 3.0}, "links": [{"frames": 7}], "accuracy": {"verdict": "fail", "pass": 3}}
    point = Point(variant={}, given={}, summary=summary, world="netns")
    row = judged_row(replace(experiment, claims=(claim,)), claim, [point], {})
    told = ("pass", "") if "links" in ours else ("unknown", OTHER_NETWORK)
    assert (row.verdict, row.reason) == told


@pytest.mark.parametrize(
    ("condition", "world", "is_told"),
    [
        ("faults[0].frames > 0", "netns", False),
        ("sum(conservation.unexplained) == 0", "netns", False),
        ("calls.counted.wrong == 0", "sim", False),
        ("sum(conservation.unexplained) == 0", "sim", True),
        ("properties.mutual_exclusion.verdict == 'pass'", "netns", False),
        ("properties.grant_order.violations == 0", "sim", False),
    ],
)
def test_so_is_one_that_is_unknown_unless_a_run_in_memory_has_no_such_numbers(
    condition: str, world: str, is_told: bool
) -> None:
    expect = [{"condition": condition, "verdict": "unknown"}]
    row = _of_mutex_central(0, {"properties": PROMISES, "expect": expect}, world=world)
    reason = "" if is_told else f"a run does not tell whether {condition}"
    assert (row.verdict, row.reason) == ("pass" if is_told else "unknown", reason)


PROMISES = {"mutual_exclusion": KEPT, "service": KEPT, "grant_order": KEPT}


def _of_mutex_central(run: int, summary: dict[str, Any], *, world: str = "sim") -> Row:
    """Row of a claim about two properties of run 0. Other claims read the grant order of runs 0 and 1, no claim reads
    run 2.
    """
    experiment = spec.load(spec.find("mutex-central"), protocols=PROTOCOLS)
    claim = next(claim for claim in experiment.claims if claim.id == "001-central-exclusion")
    points = [Point(variant={}, given={}, summary={"properties": PROMISES}, world=world)] * 3
    points[run] = replace(points[run], summary=summary)
    return judged_row(experiment, claim, points, {})


@pytest.mark.parametrize(("seeds", "verdict"), [((1,), "unknown"), ((1, 2), "unknown"), ((1, 2, 3, 4), "pass")])
@pytest.mark.parametrize(
    ("ours", "accept"),
    [
        ("estimate(runs.load.server_share)", "ours.high <= 1"),
        ("estimate(runs.load.server_share).high", "ours <= 1"),
        ("1", "estimate(runs.load.server_share).high <= 1"),
    ],
)
def test_runs_of_one_seed_are_not_independent(ours: str, accept: str, seeds: tuple[int, ...], verdict: str) -> None:
    experiment = spec.load(spec.find("atop-patience"), protocols=PROTOCOLS)
    claim = experiment.claims[0].model_copy(update={"ours": parse(ours), "accept": parse(accept)})
    experiment = replace(experiment, claims=(claim,))
    points = [
        Point(variant={"seed": seed}, given={}, summary={"load": {"server_share": 1.0}}, world="sim")
        for seed in (seeds * 4)[:4]
    ]
    row = judged_row(experiment, claim, points, {})
    assert (row.verdict, f"4 runs of {len(seeds)} seed" in row.reason) == (verdict, verdict == "unknown")


def test_papers_in_order_each_with_its_table() -> None:
    listed = [row(id="001-x", paper="001"), row(id="000-c", paper="beyond 000"), row(id="000-b"), row(id="000-a")]
    text = render_page(listed, [])
    said, own = "| claim | the paper says | paper |", "| claim | statement | expected |"
    words = ("Paper 000", said, "000-a", "000-b", "Beyond paper 000", own, "000-c", "Paper 001", "001-x")
    places = [text.index(word) for word in words]
    assert places == sorted(places)
    assert (text.count(said), text.count(own)) == (2, 1), "no paper says what is beyond it"


def test_the_page_of_the_repository_has_every_claim_as_its_rows_say_it() -> None:
    """`update_page` adds a new claim, or one whose condition has changed."""
    page = ROOT / "docs" / "claims.md"
    claims = [row.as_dict() for row in list_claims(Selection())]
    rows = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert page.read_text(encoding="utf-8") == render_page(claims, rows)
    assert all(one["commit"] and one["date"] and one["runs"] and one["seeds"] for one in rows)
    notes = {one["id"]: one["note"] for one in claims}
    verdicts = {"pass": True, "fail": False}
    for one in rows:
        claim = next(claim for claim in claims if claim["id"] == one["id"])
        if all(one[key] == claim[key] for key in MATTERS) and one["verdict"] in verdicts:
            assert _rejudged(one) in (verdicts[one["verdict"]], None), f"{one['id']}: its value has another verdict"
    silent = [one["id"] for one in rows if one["verdict"] == "fail" and not notes[one["id"]]]
    assert not silent, "a claim that does not hold says why"
    opening = re.compile(r"(And|But|It|Nor|So|They|This|The same)\b")
    assert not [one["statement"] for one in claims if opening.match(one["statement"])], "the page orders them by name"


def _rejudged(one: dict[str, Any]) -> bool | None:
    """Whether the value of a row is accepted; None if its runs must be known, too."""
    bounds = [float(bound) for bound in one["accept"].split(" to ")] if " to " in one["accept"] else []
    accept = within(one["ours"], *bounds) if bounds else one["accept"]
    held = condition(parse(accept), {"ours": one["ours"], "value": one["value"]})
    return None if isinstance(held, Unknown) else held


def test_measuring_again_replaces_one_row_and_keeps_the_others(tmp_path: Path) -> None:
    page = tmp_path / "claims.md"
    mine = row(experiment="mine", id="mine-tco")
    update_page(page, [mine, mine | {"world": "netns"}])
    update_page(page, [mine | {"ours": 0.5, "verdict": "fail"}])
    kept = {(one["world"], one["verdict"]) for one in json.loads((tmp_path / "claims.json").read_text())}
    assert kept == {("sim", "fail"), ("netns", "pass")}
    assert "✘ sim: 0.5" in page.read_text()


@pytest.mark.parametrize("changes", [{"experiment": "mine"}, {"asked": "0"}, {"accept": "0 to 1"}])
def test_a_claim_of_another_experiment_does_not_take_the_place_of_a_shipped_one(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    shipped = list_claims(Selection(experiment="co-stages"))[0].as_dict()
    measured = shipped | {"verdict": "fail", "world": "sim", "runs": 1, "seeds": 1}
    update_page(tmp_path / "claims.md", [measured])
    with pytest.raises(InputError, match="is not that of the shipped experiment co-stages"):
        update_page(tmp_path / "claims.md", [measured | {"verdict": "pass"} | changes])
    assert [one["verdict"] for one in json.loads((tmp_path / "claims.json").read_text())] == ["fail"]
    (tmp_path / "claims.json").write_text(json.dumps([measured | {"verdict": "pass"} | changes]))
    update_page(tmp_path / "claims.md", [])
    assert "✔" not in (tmp_path / "claims.md").read_text().removeprefix(HEAD)


@pytest.mark.parametrize("damage", ["{", "[1]", '[{"id": 1}]', '[{"id": "a", "world": "b", "verdict": "x"}] x'])
def test_rows_that_are_none_are_refused_and_kept(damage: str, tmp_path: Path) -> None:
    data = tmp_path / "claims.json"
    data.write_text(damage)
    with pytest.raises(InputError, match="not the rows of a page of claims"):
        update_page(tmp_path / "claims.md", [row()])
    assert data.read_text() == damage


def test_a_page_that_is_no_markdown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Markdown file"):
        update_page(tmp_path / "claims.json", [row()])
