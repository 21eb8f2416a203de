"""Names of nodes and links on the command line, and tables of testbeds and sweeps: each fits and is complete."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

from netem.network import BusCounters, LinkCounters, PortCounters
from testbed.cli import listings
from testbed.cli import live_tables as tables
from testbed.cli.doctor import Check
from testbed.cli.listings import over_seeds
from testbed.cli.live_tables import groups_named, named, nodes_named, one_node, rest_of
from testbed.live import CaptureStatus, Counters, Description, LinkStatus, NodeState, NodeStatus
from testbed.spec.sweeps import setting
from topologies.formats.errors import InputError
from topologies.load import loads
from topologies.model import CLEAR, Direction, Impairment, NodeName, PartitionName

SMALL = loads("name: small\npartitions: {p1: {nodes: 4}, p2: {nodes: 2}}\nlinks: [{between: [p1, p2]}]\n")
WIDE = loads("name: wide\npartitions: {p1: {nodes: 10}, p2: {nodes: 10}}\nlinks: [{between: [p1, p2]}]\n")
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
LOSSY = Impairment(loss_ratio=0.1, delay_ns=20_000_000)


def shown(renderable: object, width: int = 140) -> str:
    console = RichConsole(width=width)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def node(name: str, **changes: Any) -> NodeStatus:
    one = WIDE.node(name)
    plain = {
        "state": NodeState.RUNNING, "incarnation": 1, "since": NOW - timedelta(seconds=42),
        "to_node": CLEAR, "from_node": CLEAR, "cut_off_from": (),
    }  # fmt: skip
    return NodeStatus(name=one.name, ip=one.ip, **{**plain, **changes})


def link(**changes: Any) -> LinkStatus:
    plain = {"there": CLEAR, "back": CLEAR, "is_cut": False}
    return LinkStatus(name="p1--p2", a=PartitionName("p1"), b=PartitionName("p2"), **{**plain, **changes})


def lines_of(*rows: NodeStatus) -> list[str]:
    """The line of each of them in the table."""
    lines = shown(tables.nodes_table(rows, SMALL, NOW)).splitlines()
    return [next(line for line in lines if one.name in line) for one in rows]


def test_what_holds_for_nobody_has_no_column() -> None:
    text = shown(tables.nodes_table([node(one.name) for one in SMALL.nodes()], SMALL, NOW))
    assert "10.2.0.2" in text
    for absent in ("for", "starts", "view", "wires", "unheard"):
        assert absent not in text


def test_everything_that_is_done_to_a_node_is_told() -> None:
    everybody = tuple(one.name for one in SMALL.nodes() if one.name != "p1/n1")
    first, second, third, fourth = lines_of(
        node("p1/n1", to_node=LOSSY, cut_off_from=everybody),
        node("p1/n2", from_node=LOSSY, cut_off_from=(NodeName("p2/n1"), NodeName("p2/n2"))),
        node("p1/n3", state=NodeState.CRASHED, incarnation=2, exit_code=-9, since=NOW - timedelta(seconds=7)),
        node("p1/n4", state=NodeState.ENDED, exit_code=3),
    )
    assert "delay=20ms, loss=10%" in first
    assert "everybody" in first
    assert "p2/*" in second
    assert "crashed" in third
    assert "7 s" in third, "it changed after the testbed came up"
    assert "42 s" not in first
    assert "3" in third
    assert "ended (3)" in fourth


def test_members_of_a_group_show_their_views() -> None:
    first, second, third, fourth = lines_of(
        node("p1/n1", phase="member", view=7, view_members=4),
        node("p1/n2", phase="minority", view=6, view_members=5),
        node("p1/n3", phase="joining"),
        node("p1/n4", state=NodeState.ABSENT, phase="ended", view=6, view_members=5),
    )
    assert "7: 4 members" in first
    assert "6: 5 members, minority" in second
    assert "joining" in third
    assert "absent" in fourth
    assert "ended" not in fourth


def test_a_capture_says_where_it_goes_and_why_it_no_longer_does() -> None:
    path = Path("/runs/capture-1.pcapng")
    assert tables.capture_line(CaptureStatus(path=path, since=NOW - timedelta(seconds=70)), NOW).plain == (
        "capture for 1 min 10 s into /runs/capture-1.pcapng"
    )
    broken = CaptureStatus(path=path, since=NOW, failure="the collector ended in mid-run")
    assert tables.capture_line(broken, NOW).plain == (
        "capture into /runs/capture-1.pcapng has broken off: the collector ended in mid-run"
    )


@pytest.mark.parametrize("width", [80, 120])
def test_tables_keep_names_and_addresses_whole(width: int) -> None:
    rows = [node(one.name, to_node=LOSSY, cut_off_from=(NodeName("p2/n1"),)) for one in SMALL.nodes()]
    text = shown(tables.nodes_table(rows, SMALL, NOW), width)
    assert "…" not in text
    for one in SMALL.nodes():
        assert one.name in text
        assert one.ip in text


def test_many_nodes_that_stand_alike_share_a_row() -> None:
    busy = Impairment(rate_bps=10**6, queue_frames=20, delay_ns=10**7, loss_ratio=0.1)
    rows = [
        *(node(f"p1/n{at}", to_node=busy, cut_off_from=(NodeName("p2/n1"),)) for at in range(1, 11)),
        *(node(f"p2/n{at}", from_node=busy if at == 1 else CLEAR) for at in range(1, 11)),
    ]
    text = shown(tables.nodes_table(rows, WIDE, NOW), 80)
    assert re.findall(r"^ (p\S+)", text, re.MULTILINE) == ["p1/*", "p2/n1", "p2/n2..n10"]
    assert "10.2.0.2 … .10" in text
    assert text.count("queue=20frames") == 2, "no word is cut in two"
    assert max(map(len, text.splitlines())) <= 80
    assert shown(tables.nodes_table(rows, WIDE, NOW, each=True), 80).count("10.1.0.") == 10


def test_two_neighbours_that_stand_alike_are_both_named() -> None:
    states = {one.name: NodeState.CRASHED if one.number <= 2 else NodeState.RUNNING for one in WIDE.nodes()}
    text = shown(tables.nodes_table([node(name, state=state) for name, state in states.items()], WIDE, NOW), 80)
    names = re.findall(r"^ (p\S+)", text, re.MULTILINE)
    assert names == ["p1/n1..n2", "p1/n3..n10", "p2/n1..n2", "p2/n3..n10"]


def test_links_say_both_ways_once_where_they_are_alike() -> None:
    assert "both ways" in shown(tables.links_table([link(there=LOSSY, back=LOSSY)]))
    text = shown(tables.links_table([link(there=LOSSY, is_cut=True)]))
    assert "there" in text
    assert "back" in text
    assert "cut" in text


def test_counters_leave_out_what_never_happened() -> None:
    counts = {
        "sent_frames": 1234, "sent_bytes": 99, "delay_line_dropped_frames": 0, "queue_dropped_frames": 7,
        "cut_dropped_frames": 0, "backlog_frames": 0,
    }  # fmt: skip
    port = PortCounters(node=NodeName("p1/n1"), direction=Direction.TO_NODE, **counts)
    ways = LinkCounters(link="p1--p2", from_partition=PartitionName("p1"), **counts)
    bus = BusCounters(
        partition=PartitionName("p1"), sent_frames=5, sent_bytes=6, queue_dropped_frames=0, backlog_frames=0
    )
    found = [shown(one) for one in tables.counters_tables(Counters(ports=(port,), links=(ways,), buses=(bus,)))]
    assert ["1,234" in text for text in found] == [True, True, False]
    assert ["overrun" in text for text in found] == [True, True, False]
    assert not any("waiting" in text or "lost" in text for text in found)


def test_one_line_says_how_a_testbed_stands() -> None:
    calm = [node(one.name) for one in SMALL.nodes()]
    assert tables.status_line(calm, [link()], SMALL).plain == "6 nodes: all running"
    rows = [node("p1/n1", state=NodeState.CRASHED), node("p1/n2", to_node=LOSSY), *calm[2:]]
    said = tables.status_line(rows, [link(is_cut=True)], SMALL).plain
    assert said == "6 nodes: 5 running, 1 crashed · impaired p1/n2 · link p1--p2 cut"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (130, "2 min 10 s"), (7300, "2 h 1 min"), (90000, "1 d 1 h")],
)
def test_ages_take_two_numbers_at_most(seconds: int, text: str) -> None:
    assert tables.age(NOW - timedelta(seconds=seconds), NOW) == text


def test_testbeds_are_listed() -> None:
    testbed = Description(
        name="lab", topology="small", node_count=6, world="netns", kernel="uml", since=NOW - timedelta(minutes=3),
        directory=Path("runs/up/lab-1"), server_pid=1,
    )  # fmt: skip
    text = shown(tables.testbeds_table([testbed], NOW))
    for word in ("lab", "small", "netns", "uml", "3 min"):
        assert word in text


def test_changes_are_told_with_what_is_in_force_now() -> None:
    asked = {name: {"loss_ratio": 0.1} for name in ("p1/n1", "p1/n2")} | {
        "p1/n3": {"loss_ratio": 0.1, "delay_ns": 10**7}
    }
    change = {
        "kind": "impair", "direction": "to-node", "targets": list(asked), "asked": asked,
        "parameters": {"loss_ratio": 0.1}, "issued_ns": 1_000_000, "effective_ns": 3_500_000,
    }  # fmt: skip
    assert [line.plain for line in tables.change_lines("impair", change, SMALL)] == [
        "p1/n1, p1/n2 to the node: loss=10%  in force after 2.5 ms",
        "p1/n3 to the node: delay=10ms, loss=10%  in force after 2.5 ms",
    ]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"groups": [["p1/n1", "p1/n2", "p1/n3", "p1/n4"], ["p2/n1"]]}, "p1/* | p2/n1"),
        ({"links": ["p1--p2"]}, "link p1--p2"),
        ({"pairs": [["p1/n1", "p2/n1"], ["p1/n1", "p2/n2"]]}, "p1/n1 → p2/*"),
    ],
)
def test_cuts_are_told_as_they_were_asked_for(parameters: dict[str, Any], text: str) -> None:
    change = {"kind": "cut", "targets": [], "parameters": parameters, "issued_ns": 0, "effective_ns": 0}
    assert [line.plain for line in tables.change_lines("cut", change, SMALL)] == [f"{text}  in force after 0.0 ms"]


# Names.


def test_a_partition_alone_is_all_its_nodes_and_commas_join() -> None:
    assert named(["p1", "p2/n1"], SMALL).nodes == ("p1/*", "p2/n1")
    assert named(["p1/n1,p1/n2", "*"], SMALL).nodes == ("p1/n1", "p1/n2", "*")
    assert named(["p1--p2"], SMALL).links == ("p1--p2",)
    assert groups_named(["p1", "p2/n1, p2/n2"], SMALL) == (("p1/*",), ("p2/n1", "p2/n2"))


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("p1/n9", "'p1/n9' names no node of small; did you mean p1/n"),
        ("p9", "'p9' names no node of small"),
        ("p2--p1", "'p2--p1' names no link of small; did you mean p1--p2?"),
        ("p1/n1,p1--p2", "p1/n1 names nodes and p1--p2 a link; give either nodes or links"),
    ],
)
def test_what_is_unknown_is_one_sentence(word: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        named([word], SMALL)
    assert str(refused.value).startswith(sentence)


def test_links_and_crowds_are_refused_where_nodes_are_needed() -> None:
    with pytest.raises(InputError, match=r"p1--p2 is a link; this is done to nodes only, such as p1/n1"):
        nodes_named(["p1--p2"], SMALL)
    with pytest.raises(InputError, match=r"p1 names 4 nodes; one is needed, such as p1/n1"):
        one_node("p1", SMALL)
    assert one_node("p2/n2", SMALL).ip == "10.2.0.2"


def test_an_asterisk_that_the_shell_took_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"these are files: write '\*' in quotes"):
        named(["a.yaml", "b.yaml"], SMALL)


def test_the_rest_of_a_group_is_everybody_else() -> None:
    assert rest_of(["p1/*", "p2/n1"], SMALL) == ("p2/n2",)
    with pytest.raises(InputError, match="there is nobody to be cut off from"):
        rest_of(["*"], SMALL)


# Sweeps.


def point(rate: str, seed: int, delay_ms: float | None, verdict: str = "pass") -> dict[str, Any]:
    variant = {"protocol": {"name": "sequencer"}, "workload.rate": rate, "seed": seed}
    return {"variant": variant, "given": {}, "verdict": verdict, "p50_ms": delay_ms, "directory": None}


def test_runs_of_one_point_become_a_mean_with_its_interval() -> None:
    slow, fast = over_seeds(
        [point("1 /s", 1, 3.0), point("1 /s", 2, 5.0, "fail"), point("9 /s", 1, 1.0), point("9 /s", 2, 1.0)]
    )
    assert slow["variant"] == {"protocol": {"name": "sequencer"}, "workload.rate": "1 /s", "seed": "2 seeds"}
    assert (slow["verdict"], slow["p50_ms"]) == ("fail", "4 ± 13")
    assert (fast["verdict"], fast["p50_ms"]) == ("pass", "1 ± 0")
    (both,) = over_seeds([point("1 /s", 1, 3.0), point("1 /s", 2, None)])
    assert both["p50_ms"] is None, "one of them did not measure it"


def test_a_run_with_no_other_of_its_kind_stands_as_it_is() -> None:
    alone = point("1 /s", 1, 3.0)
    assert over_seeds([alone]) == [alone]
    assert over_seeds([]) == []


def test_settings_are_short() -> None:
    assert setting("1 /s") == "1 /s"
    assert setting({"name": "atop"}) == "atop"
    assert setting({"name": "atop", "parameters": {"window": "9 s"}}) == "{name: atop, parameters: {window: 9 s}}"
    assert setting([1, 2]) == "[1, 2]"


# Claims, sweeps and the doctor.


def test_tables_show_every_row_and_never_interpret_markup() -> None:
    claim = {"id": "[red]x[/]", "statement": "so it is " * 8, "value": 1.23456, "ours": None, "accept": "1 to 2"}
    listed = shown(listings.claims_table([claim | {"verdict": "", "reason": ""}]))
    assert "[red]x[/]" in listed
    assert "ours" not in listed
    assert "…" not in listed
    assert "ours" in shown(listings.claims_table([claim | {"verdict": "pass", "reason": ""}]))
    text = shown(listings.sweep_table([point("1 /s", 2, 5.25) | {"given": {"members": 7}}]))
    assert "members" not in text
    assert "5.25" in text
    assert "pass" in text
    checks = [Check(name="java", ok=False, detail="none", remedy="apt install java")]
    assert "→ apt install java" in shown(listings.doctor_table(checks))


def test_the_worst_verdict_counts_and_nothing_is_unknown() -> None:
    verdicts: tuple[list[str], ...] = (["pass", "unknown"], ["pass", "unknown", "fail"], ["pass"], [])
    assert [listings.worst(one) for one in verdicts] == ["unknown", "fail", "pass", "unknown"]
