"""`orderbed watch` and `orderbed info`: their results, their end, and their errors for unreadable files."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from analysis.capture.totals import totals
from analysis.errors import AnalysisError
from analysis.files import replace_json
from analysis.live.counts import Figures, Quantiles, Snapshot
from netem.errors import FabricError
from testbed.cli.watch import update_table
from testbed.run import watch
from testbed.run.watch import Update
from testbed.rundir import store
from tests.analysis.runs import MadeRun, ordered
from tests.collector.captures import interface, packet, pcap, pcapng, section, traffic
from tests.testbed.orderbed_command import inside, interrupt, orderbed, refused, start
from topologies.formats.errors import InputError


def figures(name: str) -> Figures:
    return Figures(
        name=name, sent_per_s=12_345.0, sent_bps=98_765_432.0, received_per_s=99_999.0, submitted_per_s=1.0,
        delivered_per_s=50_000.0, dummy_rate=0.333, control_ratio=None, retransmission_ratio=0.031, loss_ratio=1.0,
        network=Quantiles(p50_ms=5.14, p99_ms=1203.4), delivery=Quantiles(p50_ms=None, p99_ms=None),
    )  # fmt: skip


def update(count: int, *, behind_bytes: int = 0, **changes: Any) -> Update:
    snapshot = Snapshot(
        is_started=True, since_s=20.5, window_s=5.0, frames=50_516, records=38_000, lost=3_871, late=3, unpaired=0,
        total=figures(""), nodes=tuple(figures(f"p1/n{number}") for number in range(1, count + 1)),
    )  # fmt: skip
    snapshot = dataclasses.replace(snapshot, **changes)
    return Update(snapshot=snapshot, behind_bytes=behind_bytes, batch_s=0.31, has_ended=False)


def shown(one: Update, width: int, height: int | None = None) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(update_table(one, "runs/a/1", width=width, height=height))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_and_no_figure_is_cut(width: int) -> None:
    text = shown(update(4), width)
    assert "…" not in text
    assert "p1/n4" in text
    assert text.count("100.0 %") == 5
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_views_have_a_column_where_there_are_any_and_minorities_are_named(width: int) -> None:
    plain = update(4)
    nodes = tuple(dataclasses.replace(one, view=3, is_minority=one.name == "p1/n4") for one in plain.snapshot.nodes)
    viewed = shown(update(4, nodes=nodes, total=dataclasses.replace(plain.snapshot.total, view=3)), width)

    assert "view" not in shown(plain, width)
    assert "in a minority: p1/n4" in viewed.partition("view")[2]
    assert max(map(len, viewed.splitlines())) <= width


def test_a_short_terminal_shows_the_busiest() -> None:
    text = shown(update(40), 120, height=24)
    assert "and 26 nodes with less traffic" in text
    assert len(text.splitlines()) <= 24


@pytest.mark.parametrize(
    ("frames", "behind_bytes", "state"), [(0, 14 << 20, "starting"), (0, 0, "live"), (9, 14 << 20, "live")]
)
def test_what_has_counted_nothing_yet_is_not_called_live(frames: int, behind_bytes: int, state: str) -> None:
    assert shown(update(2, frames=frames, behind_bytes=behind_bytes), 120).split()[0] == state


def test_a_run_or_a_capture_is_found(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "runs" / "made" / "1")
    capture = run / "capture.pcapng"

    assert watch.find(tmp_path / "runs", "made").run == run
    assert watch.find(tmp_path / "runs", None).capture == capture
    assert watch.find(tmp_path / "runs", str(capture)).run is None
    with pytest.raises(InputError, match="there is no such capture"):
        watch.find(tmp_path / "runs", "missing.pcapng")
    with pytest.raises(InputError, match="no such run"):
        watch.find(tmp_path / "runs", "missing")


def test_info_of_a_capture_of_others(tmp_path: Path) -> None:
    path = tmp_path / "foreign.pcap"
    path.write_bytes(pcap(traffic(100)))
    table, data = orderbed("info", str(path)), inside("info", str(path), "--json")

    assert (table.code, data.code) == (0, 0), table.err + data.err
    assert "orderbed messages" in table.out
    assert data.json()["frames"] == 100


def test_info_of_a_run_is_that_of_its_capture(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "made" / "1"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    (run / "capture.pcapng").write_bytes(pcap(traffic(10)))
    for name in ("made", "made/1", str(run)):
        said = inside("info", name, "--json", "--runs", str(tmp_path / "runs"))
        assert said.code == 0, said.err
        assert said.json()["frames"] == 10
    assert refused("info", "missing", "--runs", str(tmp_path)).partition(";")[0] == "orderbed: missing: no such run"


def test_info_of_what_is_no_capture_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "packed.pcap.gz"
    path.write_bytes(b"\x1f\x8b\x08" + bytes(40))
    assert refused("info", str(path)) == (
        f"orderbed: {path}: is compressed (gzip); unpack it first: gunzip --keep {path.name}"
    )
    assert "/dev/zero: is no regular file" in refused("info", "/dev/zero")


def test_info_lets_no_control_character_through_and_takes_any_date(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    head = section(comment="\x1b[2J") + interface(name="evil\x07name", resolution=0)
    path.write_bytes(head + packet(b"x" * 20, 2**64 - 1) + packet(bytes(40))[:-1])
    said = inside("info", str(path))

    assert said.code == 0, said.err
    assert not {"\x1b", "\x07"} & set(said.out)
    assert "1969-12-31" in said.out
    assert f"cut off at byte {len(head) + len(packet(b'x' * 20))}" in said.out


def test_totals_of_a_device_do_not_begin() -> None:
    with pytest.raises(AnalysisError, match="/dev/zero: is no regular file; write what comes out of it to one first"):
        totals(Path("/dev/zero"))


@pytest.mark.spark
def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path: Path) -> None:
    """The capture is written piece by piece while it is watched; the last line covers all of it."""
    made = MadeRun()
    truth = ordered(made, messages=400, loss={1: 0.2})
    run = made.write(tmp_path / "runs" / "made" / "1")
    capture, index = run / "capture.pcapng", run / "capture.pcapng.index"
    whole, end = capture.read_bytes(), index.read_bytes()
    (run / ".reserve").touch()
    index.unlink()
    capture.write_bytes(whole[:3000])

    def write() -> None:
        with capture.open("ab", buffering=0) as file:
            for at in range(3000, len(whole), 7001):
                file.write(whole[at : at + 7001])
                time.sleep(0.01)
        index.write_bytes(end)

    writer = threading.Thread(target=write)
    writer.start()
    said = orderbed("watch", "--runs", str(tmp_path / "runs"), "--json")
    writer.join()
    lines: list[dict[str, Any]] = [json.loads(line) for line in said.out.splitlines()]

    assert said.code == 0, said.err
    assert [line["has_ended"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (lines[-1]["lost"], lines[-1]["behind_bytes"]) == (sum(truth.lost.values()), 0)
    assert lines[-1]["frames"] > 1000
    assert [node["name"] for node in lines[-1]["nodes"]] == ["p1/n1", "p1/n2", "p1/n3", "p1/n4"]


@pytest.mark.spark
def test_ctrl_c_ends_a_look_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "growing.pcapng"
    path.write_bytes(pcapng(traffic(50)))
    process = start("watch", str(path), "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["has_ended"] is False
    _, done = interrupt(process)

    assert (done.code, done.err) == (0, "")


@pytest.mark.spark
def test_a_run_that_failed_is_shown_and_the_exit_code_says_so(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "runs" / "made" / "1")
    manifest = json.loads((run / "manifest.json").read_text())
    replace_json(run / "manifest.json", manifest | {"status": "failed", "error": "p1/n1 ended by itself"})
    said = orderbed("watch", "made", "--json", "--runs", str(tmp_path / "runs"))
    last = said.out.splitlines()[-1]

    assert (said.code, json.loads(last)["has_ended"]) == (3, True)
    assert said.err == f"orderbed: {run}: this run is failed (p1/n1 ended by itself)\n"


def test_a_run_whose_conductor_still_works_is_not_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = store.create(tmp_path, "made", 1)
    target = watch.Target(name="made", capture=directory.capture_path, run=directory.path)

    assert not target.has_ended
    target.require_whole()
    directory.note({"status": "interrupted"})
    with monkeypatch.context() as patch:
        patch.setattr(watch, "END_S", 0.1)
        patch.setattr("testbed.run.watch.index.read", lambda _capture: Mock(end=Mock()))
        with pytest.raises(FabricError, match=r"^made: this run is interrupted \(before its end\)$"):
            target.require_whole()  # its capture is closed: it was killed
    directory.close()
    with pytest.raises(FabricError, match=r"^made: this run is interrupted \(before its end\)$"):
        target.require_whole()
    assert target.has_ended
