"""From a run directory to diagrams: tables and capture, the chosen windows, the report, the command."""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from analysis.checks.properties import MessageId
from analysis.errors import AnalysisError
from analysis.report.page import write_report
from analysis.run import Run
from analysis.spacetime.command import DiagramOptions, diagram_text
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Diagram, Fate, What, Window
from analysis.spacetime.read import Reader
from analysis.spacetime.windows import MAX_MEMBERS, choices, diagram_of, pictures_of
from collector.records import Event, Notice
from node.trace import Stamp, encode_stamp
from node.wire import Flag, Kind
from testbed.cli.main import app
from tests.analysis.runs import START_NS, MadeRun
from tests.analysis.spacetime.scenes import MS, fault, write_tables
from topologies.formats.errors import InputError

MESSAGES = 60
EVERY_NS = 10 * MS
LOST = 20
FAULT_MS = 300
PAIRS = "name: pairs\npartitions: {p1: {nodes: 2}, p2: {nodes: 2}}\nlinks: {between: [p1, p2]}\n"
THIRTY = "name: thirty\npartitions:\n  p1: {nodes: 30}\n"


def made(path: Path, topology: str = "", edit: Callable[[MadeRun], None] | None = None) -> Path:
    """Members take turns; one datagram is lost on its way to n3, and from 300 ms on n2 is paused for some time."""
    run = MadeRun(topology) if topology else MadeRun()
    members = range(len(run.nodes))
    for member in members:
        run.note(member, Event.START, START_NS - 5 * MS)
    for turn in range(MESSAGES):
        origin, number = turn % len(run.nodes), turn // len(run.nodes) + 1
        at_ns = START_NS + turn * EVERY_NS
        run.submit(origin, number, at_ns)
        stamp = encode_stamp(Stamp(origin=origin, incarnation=1, number=number))
        reached = [member for member in members if member != origin and (turn, member) != (LOST, 2)]
        arrivals = {member: [at_ns + 5 * MS] for member in reached}
        named = {"detail": Kind.RELIABLE_DATA, "origin": origin, "incarnation": 1, "value": number}
        run.note(origin, Event.SEND, at_ns + 1000, **named)
        run.datagram(at_ns + 2000, origin, arrivals, payload=stamp + b"x" * 50)
        for member in members:
            run.deliver(member, origin, number, at_ns + (6 * MS if member != origin else 10_000))
    run.datagram(START_NS + 7 * MS, 1, {0: [START_NS + 12 * MS]}, to=0, kind=Kind.RELIABLE_NACK, flags=Flag.CONTROL)
    struck_ms = START_NS / MS + FAULT_MS
    run.faults.append(fault(0, "pause", struck_ms, until=1, targets=["p1/n2"]))
    run.faults.append(fault(1, "resume", struck_ms + 40, targets=["p1/n2"]))
    if edit is not None:
        edit(run)
    return write_tables(run.write(path))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("made") / "made" / "1")


@pytest.fixture
def copy(run_dir: Path, tmp_path: Path) -> Path:
    """A run directory that the test may damage."""
    return Path(shutil.copytree(run_dir, tmp_path / "copy"))


def at(milliseconds: float) -> int:
    return START_NS + round(milliseconds * MS)


def read(run: Path, from_ms: float, until_ms: float) -> Diagram:
    window = Window(at(from_ms), at(until_ms))
    return compose(Reader(run).scene(window), window)


def test_a_window_is_read_with_its_messages_by_name(run_dir: Path) -> None:
    diagram = read(run_dir, 0, 14)
    assert {arrow.label for arrow in diagram.arrows} == {"n1#1", "n2#1", "nack 16"}
    assert {arrow.kind for arrow in diagram.arrows} == {"RELIABLE_DATA", "RELIABLE_NACK"}
    (nack,) = [arrow for arrow in diagram.arrows if arrow.class_ == "control"]
    assert (nack.sender, nack.receiver) == (1, 0)
    assert all(arrow.fate is Fate.ARRIVED for arrow in diagram.arrows)


def test_a_lost_datagram_is_seen_as_one(run_dir: Path) -> None:
    (lost,) = [arrow for arrow in read(run_dir, LOST * 10 - 1, LOST * 10 + 1).arrows if arrow.fate is Fate.LOST]
    assert (lost.sender, lost.receiver) == (LOST % 4, 2)


def test_a_near_multicast_is_missed_in_its_own_partition_only(tmp_path: Path) -> None:
    def tell_neighbours(run: MadeRun) -> None:
        run.datagram(at(7), 0, {1: [at(8)]}, is_near=True, kind=Kind.RELIABLE_HEARTBEAT, flags=Flag.CONTROL)
        run.datagram(at(7), 2, {}, is_near=True, kind=Kind.RELIABLE_HEARTBEAT, flags=Flag.CONTROL)

    diagram = read(made(tmp_path / "pairs", PAIRS, tell_neighbours), 6.5, 9)
    arrows = {(a.sender, a.receiver, a.fate) for a in diagram.arrows if a.kind == "RELIABLE_HEARTBEAT"}
    assert arrows == {(0, 1, Fate.ARRIVED), (2, 3, Fate.LOST)}


def test_without_its_capture_or_with_another_a_run_is_still_drawn(copy: Path) -> None:
    capture = copy / "capture.pcapng"
    capture.write_bytes(b"\xa5" * capture.stat().st_size)
    assert read(copy, 0, 9).arrows
    capture.unlink()
    assert {arrow.label for arrow in read(copy, 0, 9).arrows} == {"data 1", "nack 16"}


def test_the_windows_begin_with_the_first_request_and_a_fault(run_dir: Path) -> None:
    reader = Reader(run_dir)
    first, struck = choices(reader, {})
    assert first.window.from_ns < at(0) < first.window.until_ns
    assert struck.window.from_ns < at(FAULT_MS) < struck.window.until_ns
    assert "pause" in struck.title
    for choice in (first, struck):
        diagram = diagram_of(reader, choice, max_arrows=1000, max_marks=1000)
        assert 20 < len(diagram.arrows) < 120
    assert What.PAUSE in {mark.what for mark in diagram.marks}


def violated(position: int | None = 12, *, is_promised: bool = True) -> dict[str, object]:
    place = {"member": "p1/n3", "incarnation": 1, "position": position, "at_ns": position and at(216)}
    message = {"origin": "p1/n1", "incarnation": 1, "number": 6}
    witness = {"what": "w", "sentence": "n3 lacks n1#6", "places": [place | {"message": message}]}
    agreement = {"verdict": "fail", "promised": is_promised, "witness": witness}
    return {"properties": {"fifo": {"verdict": "pass", "promised": True}, "agreement": agreement}}


@pytest.mark.parametrize("position", [12, None])
def test_a_violation_is_shown_from_the_request_on(run_dir: Path, position: int | None) -> None:
    reader = Reader(run_dir)
    assert reader.submitted_ns([MessageId(0, 1, 6)]) == [at(200)]
    (choice,) = [choice for choice in choices(reader, violated(position)) if choice.is_violation]
    assert choice.why == "n3 lacks n1#6"
    assert choice.window.from_ns < at(200) < choice.window.until_ns
    if position is not None:
        assert choice.window.until_ns > at(216)
    assert 2 in choice.members


def test_what_was_not_promised_is_no_violation(run_dir: Path) -> None:
    found = choices(Reader(run_dir), violated(is_promised=False))
    assert [choice.title for choice in found if choice.title.startswith("Not promised")] == ["Not promised: agreement"]
    assert not any(choice.is_violation for choice in found)


def test_of_many_members_a_few_are_chosen(tmp_path: Path) -> None:
    reader = Reader(made(tmp_path / "thirty", THIRTY))
    for choice in choices(reader, {}):
        assert len(choice.members) == MAX_MEMBERS
    assert 1 in choice.members, "the one that the fault strikes"


def test_the_first_change_and_a_telling_roll_back_are_shown(tmp_path: Path) -> None:
    def report(run: MadeRun) -> None:
        for member in range(4):
            run.note(member, Event.REPORT, at(-4), detail=Notice.IN_FORCE, extra=Kind.ABCAST_DATA >> 4, value=1)
            switched = at(200 + 9 * member)
            run.note(member, Event.REPORT, switched, detail=Notice.IN_FORCE, extra=Kind.TIMEWARP_DATA >> 4, value=2)
        for milliseconds, undone in ((210, 1), (400, 3)):
            run.note(1, Event.REPORT, at(milliseconds), detail=Notice.ROLLED_BACK, extra=undone)

    reader = Reader(made(tmp_path / "made" / "1", edit=report))
    chosen = {choice.title: choice for choice in choices(reader, {})}
    switch, roll_back = chosen["Change to Time Warp"].window, chosen["Roll-back"].window
    assert switch.from_ns < at(200) and at(200 + 9 * 3) < switch.until_ns, "to the last member"
    assert roll_back.from_ns < at(400) < roll_back.until_ns
    assert "3 executions undone" in chosen["Roll-back"].why


def test_the_report_has_a_picture_of_each_window(run_dir: Path) -> None:
    pictures = pictures_of(run_dir, violated(), "made/1")
    assert pictures.absent == ""
    assert [one.id for one in pictures.pictures] == ["spacetime-0", "spacetime-1", "spacetime-2"]
    for one in pictures.pictures:
        ET.fromstring(str(one.picture))
        assert one.command.startswith("orderbed diagram made/1 --from ")


def test_a_broken_table_is_a_sentence_in_the_report(copy: Path) -> None:
    (copy / "tables" / "frames.parquet").write_bytes(b"nothing")
    assert pictures_of(copy, {}, "made/1").absent.startswith("No space-time diagram: ")
    (copy / "tables" / "frames.parquet").unlink()
    assert "frames.parquet: is missing" in pictures_of(copy, {}, "made/1").absent
    assert "No space-time diagram" in write_report(copy).read_text(encoding="utf-8")


def many_equal_rows(path: Path) -> None:
    """Some kilobytes that take gigabytes when they are read."""
    rows = pq.read_table(path).slice(0, 1)
    places = pa.array(np.zeros(2_000_000, np.int32))
    equal = [
        pa.nulls(len(places), column.type)
        if column.null_count
        else pa.DictionaryArray.from_arrays(places, column.combine_chunks())
        for column in rows.columns
    ]
    pq.write_table(pa.table(equal, rows.column_names), path, row_group_size=500_000)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["frames", "trace"])
@pytest.mark.parametrize(
    "spoil",
    [
        many_equal_rows,
        a_pipe,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-9] + b"x" * 9),
        lambda path: path.write_bytes(path.read_bytes().replace(b"\x00\x00", b"\xff\x00", 40)),
        lambda path: pq.write_table(pa.table({"at_ns": ["a"], "time_ns": ["b"]}), path),
        lambda path: pq.write_table(pq.read_table(path).slice(0, 0), path),
    ],
)
def test_a_table_of_a_stranger_is_one_sentence(copy: Path, name: str, spoil: Callable[[Path], object]) -> None:
    spoil(copy / "tables" / f"{name}.parquet")
    pictures_of(copy, {}, "made/1")
    try:
        diagram_text(copy, DiagramOptions())
    except AnalysisError as error:
        assert "\n" not in str(error)
    if spoil is many_equal_rows:
        with pytest.raises(AnalysisError, match=r"it has more than 1,[0-9,]+ rows"):
            diagram_text(copy, DiagramOptions())
        with pytest.raises(AnalysisError, match=r"it has more than 1,[0-9,]+ rows"):
            Run(copy).table(name)


def test_a_run_without_records_is_a_sentence(copy: Path) -> None:
    run = MadeRun()
    run.datagram(START_NS, 0, {1: [START_NS + 1]})
    empty = write_tables(run.write(copy / "empty"))
    assert pictures_of(empty, {}, "x").absent == "No space-time diagram: no message was sent."
    with pytest.raises(AnalysisError, match="no host recorded anything"):
        diagram_text(empty, DiagramOptions())


def run_cli(run_dir: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["diagram", str(run_dir), *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_draws_a_window(run_dir: Path, tmp_path: Path) -> None:
    text = run_cli(run_dir, "--from", "0 s", "--until", "14ms")
    assert "■ 1 n1#1" in text
    assert "n2#1" in text
    assert max(map(len, text.splitlines())) <= 100
    few = run_cli(run_dir, "--until", "14ms", "--members", "p1/n1..n2", "--kinds", "reliable_nack,dummy")
    assert ("p1/n3" in few, "nack 16" in few) == (False, True)
    assert run_cli(run_dir, "--until", "14 ms", "--format", "shiviz").startswith("(?<time>")
    assert json.loads(run_cli(run_dir, "--until", "14 ms", "--json"))["format"] == "text"
    output = tmp_path / "x.svg"
    assert str(output) in run_cli(run_dir, "--format", "svg", "-o", str(output)).replace("\n", "")
    ET.parse(output)


def test_left_to_itself_the_command_shows_a_violation_or_the_begin(copy: Path) -> None:
    assert "▽ n1#1" in diagram_text(copy, DiagramOptions())
    (copy / "summary.json").write_text(json.dumps(violated()))
    text = diagram_text(copy, DiagramOptions())
    assert "▽ n1#6" in text
    assert "▽ n1#1 " not in text
    (copy / "summary.json").write_text("[" * 100_000)
    assert "▽ n1#1" in diagram_text(copy, DiagramOptions())


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        (DiagramOptions(begin="4 s", end="3 s"), "would end before it begins"),
        (DiagramOptions(begin="1 h"), "the run has nothing from 3600 s to"),
        (DiagramOptions(begin="soon"), "--from: expected a duration"),
        (DiagramOptions(end="5"), "--until: "),
        (DiagramOptions(members=("p1/n9",)), "--members: 'p1/n9' names no node"),
        (DiagramOptions(kinds=("RELIABLE_NAK",)), "did you mean reliable_nack?"),
    ],
)
def test_a_wish_that_cannot_be_is_one_sentence(run_dir: Path, wishes: DiagramOptions, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        diagram_text(run_dir, wishes)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_was_not_analysed_says_how(copy: Path) -> None:
    shutil.rmtree(copy / "tables")
    with pytest.raises(AnalysisError, match="orderbed analyze"):
        diagram_text(copy, DiagramOptions())
