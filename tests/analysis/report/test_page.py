"""report.html as a file: complete, self-contained, reproducible, and unaffected by hostile input."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.errors import MachineError
from analysis.report.files import SERIES, read_run
from analysis.report.page import ONLY_OF_SOME, SECTIONS, render, write_report
from tests import report_runs
from tests.analysis.report.tables import JSON
from topologies.formats.errors import InputError

MAX_BYTES = 700_000
VOID = {"meta", "link", "br", "hr", "img", "input"}

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>"


@dataclass
class Page(HTMLParser):
    """The parts of the page that the tests read. Fails on a tag that is not closed in its place."""

    text: str = ""
    ids: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
        elif self._open and self._open[-1] != "style":
            self.text += data

    @property
    def is_closed(self) -> bool:
        return not self._open


def page_of(html: str) -> Page:
    page = Page()
    page.feed(html)
    page.close()
    assert page.is_closed
    return page


def says(page: Page, *texts: str) -> None:
    assert [text for text in texts if text not in page.text] == []


ALWAYS = {name for name, _ in SECTIONS} - set(ONLY_OF_SOME)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_runs.quickstart(tmp_path_factory.mktemp("run") / "quickstart")


@pytest.fixture(scope="module")
def three_partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_runs.three_partitions(tmp_path_factory.mktemp("run") / "three")


@pytest.fixture
def broken(quickstart: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(quickstart, tmp_path / "run"))


def rendered(run: Path) -> Page:
    return page_of(write_report(run).read_text(encoding="utf-8"))


def test_all_sections_are_there(quickstart: Path) -> None:
    page = rendered(quickstart)
    parts = {"verdict", "faults-wide", "latency-wide", "traffic-narrow", "cdf", "members", "topology-wide"}
    assert ALWAYS | parts <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_what_a_reader_asks_first_is_said(quickstart: Path) -> None:
    page = rendered(quickstart)
    says(page, "quickstart", "does every member still deliver in one order?", "sequencer", "11.8 ms", "149 ms")
    says(page, "5 of 5 promised properties hold, 2 of 2 expectations are met", "of 16,048 expected")
    says(page, "the host has no sch_netem, and user-mode-linux is installed")
    says(page, "orderbed run quickstart --seed 1 --world netns --kernel uml")
    # Requested, issued and effective times of faults.
    says(page, "14.000 s", "14.001 s", "14.013 s", "+12.8 ms", "15.513 s")


def test_a_violation_is_told_and_drawn(three_partitions: Path) -> None:
    page = rendered(three_partitions)
    says(page, "p3/n7 #388", "position 1,203", "total_order: 3 violations")
    assert "witness-4" in page.ids


@pytest.mark.parametrize("make", [report_runs.quickstart, report_runs.three_partitions])
def test_the_file_is_small_and_needs_nothing_else(make: Any, tmp_path: Path) -> None:
    path = write_report(make(tmp_path / "run"))
    assert path.stat().st_size < MAX_BYTES
    page = page_of(path.read_text(encoding="utf-8"))
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "image", "use")
        assert "src" not in attributes
        assert "srcset" not in attributes
        for name in ("href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,"))
    style = path.read_text(encoding="utf-8")
    assert "@import" not in style
    assert not re.search(r"url\((?!#)", style), "only to places in the page itself"


def test_the_same_run_gives_the_same_bytes(quickstart: Path) -> None:
    assert write_report(quickstart).read_bytes() == write_report(quickstart).read_bytes()


def test_nothing_but_the_report_is_left_behind(broken: Path) -> None:
    before = set(broken.iterdir())
    path = write_report(broken)
    assert set(broken.iterdir()) == before | {path}


def test_a_failed_write_keeps_the_old_report(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_report(broken)
    old = path.read_bytes()
    before = set(broken.iterdir())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(MachineError, match="No space left"):
        write_report(broken)
    assert path.read_bytes() == old
    assert set(broken.iterdir()) == before


def test_an_interrupted_run_says_what_is_missing(tmp_path: Path) -> None:
    page = rendered(report_runs.interrupted(tmp_path / "run"))
    says(page, "the run is interrupted", "summary.json is missing: the capture has not been analysed")
    says(page, "tables/latency_cdf.parquet is missing", "No property was checked.")
    assert "faults-wide" in page.ids


def test_an_empty_directory_still_gives_a_report(tmp_path: Path) -> None:
    page = rendered(tmp_path)
    says(page, "no manifest says how the run ended")
    assert set(page.ids) >= ALWAYS


def test_no_directory_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such run directory"):
        write_report(tmp_path / "nowhere")


def test_a_report_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    run = report_runs.quickstart(tmp_path / "run")
    (run / "report.html").mkdir()
    before = sorted(run.iterdir())
    with pytest.raises(MachineError, match=r"report\.html: cannot be written \(Is a directory\); see to it, then run"):
        write_report(run)
    assert sorted(run.iterdir()) == before


# `node_series` is read for foreign programs only: see test_traffic.
TABLES = tuple(f"tables/{name}.parquet" for name in SERIES if name != "node_series")
RUN_FILES = ("manifest.json", "summary.json", "faults.jsonl", "topology.yaml", *TABLES)


@pytest.mark.parametrize("name", RUN_FILES)
@pytest.mark.parametrize("content", [b"", b"\x00\xff{[", b"[" * 100_000, b'{"phases": [], "latency": 3, "links": {}}'])
def test_a_broken_file_is_said_and_the_rest_is_shown(broken: Path, name: str, content: bytes) -> None:
    (broken / name).write_bytes(content)
    page = rendered(broken)
    said = [part for part in read_run(broken).problems if part.startswith(name)]
    if name != "faults.jsonl" or content.strip():
        harmless = content.startswith(b"{") and name in ("manifest.json", "summary.json", "faults.jsonl")
        assert bool(said) is not harmless
    for sentence in said:
        assert sentence in page.text


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(broken: Path, name: str) -> None:
    (broken / name).unlink()
    os.mkfifo(broken / name)
    assert name in "".join(read_run(broken).problems)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("latency_series", "No latency over time"),
        ("traffic_series", "No traffic"),
        ("latency_cdf", "No distribution"),
    ],
)
def test_an_empty_table_is_no_problem(broken: Path, name: str, text: str) -> None:
    path = broken / f"tables/{name}.parquet"
    pd.read_parquet(path).iloc[:0].to_parquet(path, index=False)
    says(rendered(broken), text)
    assert read_run(broken).problems == ()


def test_a_table_without_its_columns_is_said(broken: Path) -> None:
    pd.DataFrame({"t_s": [1.0]}).to_parquet(broken / "tables/latency_series.parquet")
    assert "tables/latency_series.parquet cannot be used" in rendered(broken).text


def test_a_table_written_as_a_directory_of_parts_is_read(broken: Path) -> None:
    path = broken / "tables/latency_series.parquet"
    table = pd.read_parquet(path)
    path.unlink()
    path.mkdir()
    table.iloc[:50].to_parquet(path / "part-0.parquet", index=False)
    table.iloc[50:].to_parquet(path / "part-1.parquet", index=False)
    run = read_run(broken)
    assert run.problems == ()
    assert len(run.latency) == len(table)


def poisoned(value: Any, key: object = None) -> Any:
    """Every text becomes an attack, but for the texts by which the report tells cases apart."""
    if isinstance(value, dict):
        return {key: poisoned(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    is_kept = not isinstance(value, str) or key in ("verdict", "status", "kind", "direction")
    return value if is_kept else ATTACK


def test_no_text_of_a_run_can_become_markup(broken: Path) -> None:
    clean = rendered(broken)
    for name in ("manifest.json", "summary.json"):
        path = broken / name
        path.write_text(json.dumps(poisoned(json.loads(path.read_text()))))
    faults = [poisoned(json.loads(line)) for line in (broken / "faults.jsonl").read_text().splitlines()]
    (broken / "faults.jsonl").write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    cdf = pd.read_parquet(broken / "tables/latency_cdf.parquet")
    cdf.assign(member_name=ATTACK).to_parquet(broken / "tables/latency_cdf.parquet", index=False)
    page = rendered(broken)
    assert len(page.scripts) == len(clean.scripts) == 2
    assert page.scripts[1] == clean.scripts[1]
    json.loads(page.scripts[0])
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [attributes for _, attributes in page.tags if any(name.startswith("on") for name in attributes)]
    assert "alert(1)" in page.text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_of_a_wrong_kind_stops_the_report(quickstart: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Any value of manifest, summary and faults, at any depth, is replaced by an arbitrary one."""
    run = tmp_path / "run"
    if not run.exists():
        shutil.copytree(quickstart, run)
    for name in ("manifest.json", "summary.json"):
        value = json.loads((quickstart / name).read_text())
        for _ in range(3):
            _replace_somewhere(value, data)
        (run / name).write_text(json.dumps(value))
    faults = [json.loads(line) for line in (quickstart / "faults.jsonl").read_text().splitlines()]
    _replace_somewhere(faults, data)
    (run / "faults.jsonl").write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    page_of(render(read_run(run)))


def _replace_somewhere(value: Any, data: st.DataObject) -> None:
    """Replace one value on a drawn path."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        inside = value[key]
        if isinstance(inside, dict | list) and inside and data.draw(st.integers(0, 2)):
            value = inside
            continue
        value[key] = data.draw(JSON)
        return


def test_thirty_nodes_with_ten_intervals_each_stay_small(three_partitions: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(three_partitions, tmp_path / "run"))
    summary = json.loads((run / "summary.json").read_text())
    impaired = [link for link in summary["links"] if link["asked"].get("loss_ratio")]
    report_runs.edit_json(run / "summary.json", {"links": (impaired * 200)[:600]})
    fault = (run / "faults.jsonl").read_text().splitlines()[2]
    (run / "faults.jsonl").write_text("\n".join([fault] * 300))
    path = write_report(run)
    assert "All 600 intervals of impaired ports" in path.read_text(encoding="utf-8")
    assert path.stat().st_size < MAX_BYTES


def test_the_certificate_has_the_columns_that_something_was_asked_of_and_what_was_asked(tmp_path: Path) -> None:
    page = write_report(report_runs.quickstart(tmp_path / "run")).read_text()
    table = re.search(r'aria-label="Accuracy of impaired ports">.*?</table>', page, re.DOTALL)
    assert table is not None
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', table[0])
    assert heads[4:] == ["Delay, ms: p50 / p99", "Jitter, ms", "Loss, % [interval]", "Rate"]
    row = next(row for row in table[0].split("<tr") if "p1/n3" in row and "4.0 to 9.0" in row)
    assert re.findall(r'<span class="asked">([^<]*) →</span>', row) == ["5", "±1 (σ 0.577)", "10"]
    assert row.count('class="glyph"') == 2
