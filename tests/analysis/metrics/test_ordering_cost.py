"""Cost of the order, over records made by hand with known figures."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import schema
from analysis.checks.properties import Incarnation, Raw
from analysis.metrics import ordering_cost, ordering_records
from analysis.metrics.ordering_cost import MAX_EPOCHS
from analysis.metrics.ordering_records import LEFT, Records
from node.trace import Event, Level, Notice
from node.wire import Kind

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
START_NS = 1_000 * SECOND
ABCAST, TIMEWARP, SEQUENCER = (kind >> 4 for kind in (Kind.ABCAST_DATA, Kind.TIMEWARP_DATA, Kind.SEQUENCER_DATA))
HUGE = 2**64 - 1
NAMES = {0: "p1/n1", 1: "p1/n2", 2: "p1/n3"}


class Made:
    """Records of members, by hand; times in ms of the load."""

    def __init__(self, *, members: int = 2) -> None:
        self.incarnations: dict[Incarnation, list[Raw]] = {}
        for member in range(members):
            self.note(member, Event.START, -1)

    def note(self, member: int, event: Event, at_ms: float, *fields: int, incarnation: int = 1) -> None:
        """`fields`: detail, origin, incarnation, extra, number, value."""
        detail, origin, start, extra, number, value = (*fields, 0, 0, 0, 0, 0, 0)[:6]
        at_ns = START_NS + round(at_ms * MILLISECOND)
        row = (int(event), detail, origin, start, extra, number, at_ns, at_ns, value, 0, 0)
        self.incarnations.setdefault(Incarnation(member, incarnation), []).append(row)

    def report(self, member: int, at_ms: float, code: int, value: int, *, about: int = 0, incarnation: int = 1) -> None:
        self.note(member, Event.REPORT, at_ms, code, 0, 0, about, 0, value, incarnation=incarnation)

    def cost(self, member: int, at_ms: float, cost_ms: float, *, incarnation: int = 1) -> None:
        self.report(member, at_ms, Notice.COST, round(cost_ms * MILLISECOND), incarnation=incarnation)

    def submit(self, member: int, at_ms: float, number: int) -> None:
        self.note(member, Event.SUBMIT, at_ms, 0, member, 1, 0, number)

    def deliver(self, member: int, at_ms: float, origin: int, number: int, level: Level = Level.FINAL) -> None:
        self.note(member, Event.DELIVER, at_ms, level, origin, 1, 0, number, 1)

    def section(self, *, load_ms: float = 2_000, protocol: str = "timewarp") -> dict[str, Any] | None:
        for incarnation in self.incarnations:
            if incarnation.member < 2 and incarnation.incarnation == 1:
                self.note(incarnation.member, Event.STOP, load_ms + 10, 1)
        records = ordering_records.from_incarnations(self.incarnations)
        section: dict[str, Any] | None = section_of(records, load_ms=load_ms, protocol=protocol)
        return section

    def found(self, *, load_ms: float = 2_000, protocol: str = "timewarp") -> dict[str, Any]:
        section = self.section(load_ms=load_ms, protocol=protocol)
        assert section is not None
        return section


def section_of(records: Records | None, *, load_ms: float | None = 2_000, protocol: str = "timewarp") -> Any:
    end_ns = None if load_ms is None else START_NS + round(load_ms * MILLISECOND)
    return ordering_cost.section(records, start_ns=START_NS, end_ns=end_ns, names=NAMES, protocol=protocol)


def having(found: dict[str, Any], **expected: object) -> None:
    assert {name: found[name] for name in expected} == expected


def test_nothing_reported_is_no_section() -> None:
    run = Made()
    run.submit(0, 1, 1)
    run.deliver(1, 2, 0, 1)
    run.report(0, 3, Notice.RESIDENT, 5)
    assert run.section() is None


@pytest.mark.parametrize("load_ms", [None, 0, -1e-6])
def test_a_load_that_did_not_end_has_no_section(load_ms: float | None) -> None:
    run = Made()
    run.cost(0, 1, 1)
    assert section_of(ordering_records.from_incarnations(run.incarnations), load_ms=load_ms) is None


def test_costs_of_all_members_and_of_each() -> None:
    run = Made()
    for at_ms, cost_ms in ((100, 1), (200, 2), (300, 6)):
        run.cost(0, at_ms, cost_ms)
    run.cost(1, 1_500, 3)
    found = run.found()
    having(found, messages=4, cost_mean_ms=3.0, cost_p50_ms=2.5, cost_p99_ms=pytest.approx(3 + 3 * 0.97))
    having(found, cost_max_ms=6.0, cost_per_s=12 * MILLISECOND / 2 / 2)  # two seconds, two members
    one, other = found["by_member"]
    having(one, member="p1/n1", messages=3, cost_mean_ms=3.0, cost_per_s=4_500_000)
    having(other, member="p1/n2", messages=1, cost_per_s=1_500_000)
    having(found, roll_backs=0, redone=0, redone_mean_ms=None, lost_ms=0, finality_p50_ms=None, gvt_still_max_ms=None)


def test_only_what_is_reported_within_the_load_counts() -> None:
    run = Made()
    for at_ms in (-0.5, 0, 1_999.9, 2_000, 2_005):
        run.report(0, at_ms, Notice.COST, 0)
    assert run.found()["messages"] == 2


def test_members_without_a_message_share_the_load() -> None:
    run = Made(members=3)
    run.cost(0, 100, 6)
    run.report(1, 100, Notice.GVT, 1)
    found = run.found()
    assert [entry["member"] for entry in found["by_member"]] == ["p1/n1", "p1/n2"], "n3 reports nothing"
    assert found["cost_per_s"] == 6 * MILLISECOND / 2 / 2
    assert (found["by_member"][1]["cost_mean_ms"], found["by_member"][1]["cost_per_s"]) == (None, None)


def test_rollbacks_and_what_they_undid() -> None:
    run = Made()
    for member, cost_ms in ((0, 0), (0, 0), (1, 4), (1, 8)):
        run.cost(member, 500, cost_ms)
    run.report(1, 300, Notice.ROLLED_BACK, 7 * MILLISECOND, about=3)
    run.report(1, 400, Notice.ROLLED_BACK, 0, about=0)  # undoes an execution that had just begun
    run.report(0, 450, Notice.ROLLED_BACK, 5 * MILLISECOND, about=3)
    run.report(1, 500, Notice.REDONE, 2 * MILLISECOND)
    run.report(1, 500, Notice.REDONE, 6 * MILLISECOND)
    found = run.found()
    having(found, roll_backs=3, roll_backs_per_message=0.75, undone_per_roll_back=2.0)
    having(found, lost_ms=12.0, redone=2, redone_mean_ms=4.0)
    assert [entry["roll_backs"] for entry in found["by_member"]] == [1, 2]


def test_finality_is_from_the_first_handing_over_to_the_last() -> None:
    run = Made()
    run.cost(0, 1, 0)
    run.deliver(0, 10, 1, 1, Level.OPTIMISTIC)
    run.note(0, Event.UNDO, 12, Level.OPTIMISTIC, 1, 1, 0, 1)
    run.deliver(0, 20, 1, 1, Level.OPTIMISTIC)
    run.deliver(0, 50, 1, 1)
    run.deliver(1, 15, 1, 1, Level.OPTIMISTIC)
    run.deliver(1, 35, 1, 1)
    run.deliver(1, 40, 1, 2)  # final at once: never optimistic
    run.deliver(1, 1_990, 1, 3, Level.OPTIMISTIC)
    run.deliver(1, 2_001, 1, 3)  # after the load
    run.report(1, 41, Notice.GVT, 1)
    found = run.found()
    assert (found["finality_p50_ms"], found["finality_max_ms"]) == (30.0, 40.0)
    assert [entry["finality_max_ms"] for entry in found["by_member"]] == [40.0, 20.0]


def test_the_gvt_stands_still_only_while_something_waits_for_it() -> None:
    run = Made()
    run.cost(0, 1, 0)
    run.report(0, 1, Notice.GVT, 1)
    run.deliver(0, 100, 0, 1, Level.OPTIMISTIC)  # waits from here
    run.report(0, 103, Notice.GVT, 2)
    run.deliver(0, 105, 0, 2, Level.OPTIMISTIC)
    run.report(0, 110, Notice.GVT, 3)  # 7 ms after the last rise
    run.report(0, 112, Notice.GVT, 3)  # no rise
    run.deliver(0, 115, 0, 1)
    run.deliver(0, 119, 0, 2)  # after 9 ms nothing waits any more
    run.report(0, 900, Notice.GVT, 4)  # a late rise, for which nothing waits
    run.report(1, 1, Notice.GVT, 1)
    run.deliver(1, 1_950, 0, 1, Level.OPTIMISTIC)  # to the end of the load and longer
    run.deliver(1, 2_005, 0, 1)
    found = run.found()
    assert [entry["gvt_still_max_ms"] for entry in found["by_member"]] == [9.0, 50.0]
    assert found["gvt_still_max_ms"] == 50.0


def test_who_crashed_waits_for_nothing_any_more() -> None:
    run = Made(members=3)
    run.report(2, 10, Notice.GVT, 1)
    run.deliver(2, 20, 0, 1, Level.OPTIMISTIC)
    run.deliver(2, 25, 0, 2, Level.OPTIMISTIC)
    assert run.found()["by_member"][0]["gvt_still_max_ms"] == 5.0


def test_without_a_switch_the_runs_own_protocol_was_in_force() -> None:
    run = Made()
    for at_ms in (100, 300):
        run.cost(0, at_ms, 4)
    run.report(1, 10, Notice.GVT, 1)
    found = run.found(protocol="abcast")
    having(found, epochs=[], switches=0, switch_max_ms=None, pause_max_ms=None)
    assert list(found["by_protocol"]) == ["abcast"]
    (abcast,) = found["by_protocol"].values()
    having(abcast, seconds=2.0, messages=2, cost_mean_ms=4.0, cost_per_s=found["cost_per_s"], roll_backs=0)
    having(abcast, estimates=0, estimate_per_s=None, estimate_ratio=None)
    having(abcast, estimates_otherwise=0, estimate_otherwise_per_s=None)


@pytest.fixture
def switched() -> Made:
    """ABCAST from before the load on, Time Warp from 800 ms (n1) and 810 ms (n2) on."""
    run = Made()
    for member, at_ms in ((0, 800), (1, 810)):
        run.report(member, -0.5, Notice.IN_FORCE, 1, about=ABCAST)
        run.cost(member, 500, 4)
        run.report(member, 600, Notice.ESTIMATE, 2 * MILLISECOND, about=ABCAST)
        run.report(member, 600, Notice.ESTIMATE, 1 * MILLISECOND, about=TIMEWARP)
        run.submit(member, 780, 1)
        run.report(member, 790, LEFT, 1)
        if member:
            run.cost(1, 805, 2)  # n1 is in the new epoch, n2 not yet
        run.report(member, at_ms, Notice.IN_FORCE, 2, about=TIMEWARP)
        run.submit(member, 820, 2)
    for member in (0, 1):
        run.deliver(member, 830 + member, 0, 1)
        run.deliver(member, 840 + member, 1, 1)  # the last message of the old epoch: 841 at n2
        run.deliver(member, 850, 0, 2)
        run.deliver(member, 860, 1, 2)
        run.cost(member, 1_000, 1)
        run.report(member, 1_000, Notice.ROLLED_BACK, 5, about=1)
        run.report(member, 1_500, Notice.ESTIMATE, 6 * MILLISECOND, about=ABCAST)
    return run


def test_epochs_with_their_costs(switched: Made) -> None:
    found = switched.found()
    first, second = found["epochs"]
    having(first, number=1, protocol="abcast", from_ms=0.0, to_ms=800.0, switch_ms=None, pause_ms=None)
    having(first, messages=2, cost_mean_ms=4.0, roll_backs=0, cost_per_s=pytest.approx(8 * MILLISECOND / 0.8 / 2))
    having(second, number=2, protocol="timewarp", from_ms=800.0, to_ms=2_000.0, switch_ms=10.0, pause_ms=20.0)
    having(second, messages=3, cost_mean_ms=pytest.approx(4 / 3), roll_backs=2)
    having(found, switches=1, switch_max_ms=10.0, pause_max_ms=20.0)


def test_each_protocol_while_it_was_in_force(switched: Made) -> None:
    by_protocol = switched.found()["by_protocol"]
    assert list(by_protocol) == ["abcast", "timewarp"]
    abcast, timewarp = by_protocol.values()
    having(abcast, seconds=pytest.approx((0.8 + 0.81) / 2), messages=3, cost_mean_ms=pytest.approx(10 / 3))
    having(abcast, cost_per_s=pytest.approx(10 * MILLISECOND / 1.61))  # with n2's cost at 805 ms
    having(abcast, estimates=2, estimate_per_s=2 * MILLISECOND, estimate_ratio=pytest.approx(2 * 1.61 / 10))
    having(abcast, estimates_otherwise=2, estimate_otherwise_per_s=6 * MILLISECOND)
    having(timewarp, seconds=pytest.approx((1.2 + 1.19) / 2), messages=2, roll_backs=2)
    having(timewarp, estimate_per_s=None, estimate_ratio=None, estimate_otherwise_per_s=1 * MILLISECOND)


def test_a_joiner_is_no_late_switch(switched: Made) -> None:
    switched.note(2, Event.START, 1_700, incarnation=2)
    switched.report(2, 1_700, Notice.IN_FORCE, 2, about=TIMEWARP, incarnation=2)
    switched.note(2, Event.STOP, 2_010, 1, incarnation=2)
    found = switched.found()
    assert [epoch["switch_ms"] for epoch in found["epochs"]] == [None, 10.0]
    assert found["by_protocol"]["timewarp"]["seconds"] == pytest.approx((1.2 + 1.19 + 0.3) / 3)


def test_the_pause_of_a_switch_is_the_longest_of_its_members() -> None:
    run = Made()
    for member, left_ms in ((0, 480), (1, 470)):
        run.report(member, 0, Notice.IN_FORCE, 1, about=ABCAST)
        run.report(member, left_ms, LEFT, 1)
        run.report(member, 500, Notice.IN_FORCE, 2, about=SEQUENCER)
        run.report(member, 700, Notice.IN_FORCE, 3, about=ABCAST)  # with a view: no member left epoch 2
    epochs = run.found()["epochs"]
    assert [epoch["pause_ms"] for epoch in epochs] == [None, 30.0, None]
    assert [epoch["switch_ms"] for epoch in epochs] == [None, 0.0, 0.0]


def test_the_series_has_a_bin_for_each_second() -> None:
    run = Made()
    for member, at_ms, cost_ms in ((0, 100, 1), (1, 999, 3), (0, 2_100, 5)):
        run.cost(member, at_ms, cost_ms)
    run.report(0, 1_500, Notice.ROLLED_BACK, 0, about=1)
    run.report(0, 1_000, Notice.ESTIMATE, 10, about=ABCAST)
    run.report(1, 1_999, Notice.ESTIMATE, 20, about=ABCAST)
    series = run.found(load_ms=2_500)["series"]
    assert [row["t_s"] for row in series] == [0.0, 1.0, 2.0]
    assert [row["messages"] for row in series] == [2, 0, 1]
    assert [row["roll_backs"] for row in series] == [0, 1, 0]
    assert [row["cost_per_s"] for row in series] == [2 * MILLISECOND, 0.0, 5 * MILLISECOND], "half a second, 2 members"
    assert [row["estimates"] for row in series] == [{}, {"abcast": 15.0}, {}]


def test_where_no_cost_is_reported_none_is_known_at_any_time() -> None:
    run = Made()
    run.report(0, 300, Notice.ROLLED_BACK, MILLISECOND, about=3)
    series = run.found()["series"]
    assert [row["cost_per_s"] for row in series] == [None, None]
    assert [row["roll_backs"] for row in series] == [1, 0]


@pytest.mark.parametrize(("load_s", "bins", "width_s"), [(400, 400, 1.0), (401, 201, 2.0), (100_000, 400, 250.0)])
def test_a_long_load_has_wider_bins(load_s: int, bins: int, width_s: float) -> None:
    run = Made()
    run.cost(0, 1_000 * load_s - 1, 1)
    series = run.found(load_ms=1_000 * load_s)["series"]
    assert len(series) == bins
    assert series[1]["t_s"] == width_s
    assert (series[-1]["messages"], sum(row["messages"] for row in series)) == (1, 1)


def test_what_cannot_be_is_counted_and_left_out(switched: Made) -> None:
    before = switched.found()
    for code in (Notice.COST, Notice.REDONE, Notice.ROLLED_BACK, Notice.IN_FORCE, Notice.ESTIMATE):
        for value in (HUGE, 2**63):
            switched.report(0, 1_900, code, value, about=0xFFFF)
    for code in (Notice.COST, Notice.REDONE, Notice.ROLLED_BACK):
        switched.report(0, 1_000, code, 2_000 * MILLISECOND + 1)
    after = switched.found()
    assert after.pop("implausible") == 13
    assert before.pop("implausible") == 0
    assert after == before


def test_large_values_that_can_be_do_not_wrap() -> None:
    run = Made()
    for at_ms in (1, 2, 3):
        run.report(0, at_ms, Notice.ESTIMATE, 2**63 - 1, about=TIMEWARP)
        run.report(0, at_ms, Notice.GVT, HUGE - round(at_ms))
    run.report(0, 4, Notice.IN_FORCE, 2**63 - 1, about=TIMEWARP)
    found = run.found()
    assert found["by_protocol"]["timewarp"]["estimate_otherwise_per_s"] == pytest.approx(2**63)
    assert found["epochs"][0]["number"] == 2**63 - 1
    assert found["implausible"] == 0


def test_a_protocol_that_does_not_exist_is_unknown_and_is_outvoted() -> None:
    run = Made(members=3)
    for member, code in enumerate((ABCAST, ABCAST, 0xFFFF)):
        run.report(member, 0, Notice.IN_FORCE, 1, about=code)
    run.report(0, 10, Notice.ESTIMATE, 7, about=0)
    found = run.found()
    assert [epoch["protocol"] for epoch in found["epochs"]] == ["abcast"]
    assert list(found["by_protocol"]) == ["abcast", "unknown"]
    assert found["by_protocol"]["unknown"]["estimate_otherwise_per_s"] == 7


def test_costs_of_any_incarnation_count_and_an_unknown_member_has_its_number_for_a_name() -> None:
    run = Made()
    run.cost(1, 100, 5, incarnation=9)
    run.cost(0, 100, 1)
    run.cost(77, 100, 3)
    found = run.found()
    having(found, messages=3, cost_mean_ms=3.0)
    assert [entry["member"] for entry in found["by_member"]] == ["p1/n1", "p1/n2", "member 77"]


def test_final_before_optimistic_is_no_wait() -> None:
    run = Made()
    run.report(0, 1, Notice.GVT, 1)
    run.deliver(0, 100, 1, 1)
    run.deliver(0, 500, 1, 1, Level.OPTIMISTIC)
    run.deliver(0, 600, 1, 1)
    found = run.found()
    assert (found["finality_max_ms"], found["gvt_still_max_ms"]) == (None, None)


def test_a_core_that_counts_epochs_without_end_fills_no_memory() -> None:
    run = Made()
    for number in range(MAX_EPOCHS + 500):
        run.report(0, number / 10, Notice.IN_FORCE, number, about=ABCAST + number % 2)
    epochs = run.found()["epochs"]
    assert len(epochs) == MAX_EPOCHS
    assert [epoch["number"] for epoch in epochs[:3]] == [0, 1, 2]
    assert sum(epoch["to_ms"] - epoch["from_ms"] for epoch in epochs) == pytest.approx(2_000)


def senseless(seed: int) -> Made:
    """Arbitrary records."""
    rng, run = random.Random(seed), Made()
    words = (0, 1, 2, 0xFFFF, 2**31, 2**32, 2**61, 2**63 - 1, 2**63, HUGE)
    for _ in range(200):
        event = rng.choice([*Event, Event.REPORT, Event.REPORT, Event.DELIVER])
        detail = rng.choice([*ordering_records.REPORTS, *Level, 250])
        origin, start, extra = (rng.choice([0, 1, 0xFFFF]) for _ in range(3))
        at_ns = rng.choice([START_NS + rng.randrange(2 * SECOND), rng.choice(words)])
        value = rng.choice([rng.randrange(SECOND), *words])
        incarnation = Incarnation(rng.randrange(3), rng.choice([1, 2, 0xFFFF]))
        run.incarnations.setdefault(incarnation, []).append(
            (int(event), int(detail), origin, start, extra, rng.choice(words), at_ns, at_ns, value, 0, 0)
        )
    run.cost(0, 1_000, 1)
    return run


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_recorded_gives_a_section_of_the_same_keys(seed: int) -> None:
    """A failure is replayed by its seed."""
    usual = Made()
    usual.cost(0, 1, 1)
    found = senseless(seed).found()
    assert found.keys() == usual.found().keys()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all((row["cost_per_s"] or 0) >= 0 for row in found["series"])
    assert all(epoch["from_ms"] < epoch["to_ms"] for epoch in found["epochs"])
    assert found["cost_max_ms"] <= 2 * 2_000


NAMES_OF_COLUMNS = [field.name for field in schema.TRACE.fields if field.name != "seen_ns"]


@pytest.mark.parametrize("seed", range(10))
def test_a_table_in_any_order_tells_the_same_as_the_records(seed: int, tmp_path: Path) -> None:
    """Also when the rows of a datagram occur twice. A failure is replayed by its seed."""
    run, rng = senseless(seed), random.Random(seed)
    expected = run.found()
    rows = [(*one, number, *row) for one, records in run.incarnations.items() for number, row in enumerate(records, 1)]
    rows += rng.sample(rows, 20)
    rng.shuffle(rows)
    columns = [np.array([value & HUGE for value in column], np.uint64) for column in zip(*rows, strict=True)]
    table = pa.table([pa.array(column.view(np.int64)) for column in columns], names=NAMES_OF_COLUMNS)
    pq.write_table(table, tmp_path / "trace.parquet")
    assert section_of(ordering_records.from_trace(tmp_path / "trace.parquet")) == expected


@pytest.mark.parametrize("rows", [[], [[0, 1, 1, int(Event.START), 0, 0, 0, 0, 0, START_NS, START_NS, 0, 0, 0]]])
def test_a_table_without_such_reports_has_no_section(tmp_path: Path, rows: list[list[int]]) -> None:
    columns = np.array(rows, np.int64).reshape(-1, len(NAMES_OF_COLUMNS)).T
    table = pa.table([pa.array(column) for column in columns], names=NAMES_OF_COLUMNS)
    pq.write_table(table, tmp_path / "trace.parquet")
    assert ordering_records.from_trace(tmp_path / "trace.parquet") is None
