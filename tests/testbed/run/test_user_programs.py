"""Users' programs in real runs: members in three languages, a mixed group, and the errors."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netem.errors import FabricError
from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.paths import ROOT
from testbed.run import fleet
from testbed.run.perform import Overrides, apply_overrides, perform
from testbed.spec import experiment as spec
from tests.collector import strict
from tests.testbed.live.testbeds import processes_with
from tests.testbed.orderbed_command import manifest_of, only_run, orderbed
from tests.worlds import WORLDS
from topologies.formats.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.root, pytest.mark.uml]

SENDERS = ROOT / "docs" / "senders"
LIE = """
            for one in everybody:
                one.write(line)
"""
LYING = """
            lines.append(line)
            for one in everybody:
                if one is not everybody[-1] or not 2 <= len(lines) <= 3:
                    one.write(line)
            if len(lines) == 3:
                everybody[-1].write(lines[2] + lines[1])
"""
HEAD = """\
name: own
question: Does it come through?
topology: {partitions: {p1: {nodes: 3}}}
duration: 1 s
world: netns
"""


def run(text: str, tmp_path: Path, *, spark: SparkSession | None = None) -> tuple[dict[str, Any], Path]:
    """Manifest and directory of a run, which is analysed if there is a session."""
    runs = tmp_path / "runs"
    overrides = Overrides(runs=runs, analyze=spark is not None)
    experiment = apply_overrides(spec.loads(text, "own.yaml", protocols=PROTOCOLS, folder=tmp_path), overrides)
    outcome = perform(experiment, overrides, Console(quiet=True), spark=spark)
    return outcome.summary or manifest_of(outcome.directory), outcome.directory


def failure(text: str, tmp_path: Path) -> str:
    """The error of a failed run; no process of it is left."""
    with pytest.raises(FabricError) as caught:
        run(text, tmp_path)
    manifest = manifest_of(only_run(tmp_path / "runs"))
    assert (manifest["status"], manifest["error"]) == ("failed", str(caught.value))
    assert processes_with(str(tmp_path)) == []
    return str(caught.value)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The senders of the documentation, those in C and Go compiled as on its page."""
    folder = tmp_path_factory.mktemp("senders")
    shutil.copytree(SENDERS, folder, dirs_exist_ok=True)
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", "member-c", "member.c"], cwd=folder, check=True)
    environment = {"PATH": "/usr/local/go/bin:/usr/bin:/bin", "HOME": str(folder), "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-o", "member-go", "member.go"], cwd=folder, env=environment, check=True)
    return folder


@pytest.mark.compilers
@pytest.mark.spark
@pytest.mark.parametrize("world", WORLDS)
def test_three_languages_deliver_in_one_order(world: str, members: Path, tmp_path: Path, spark: SparkSession) -> None:
    shutil.copytree(members, tmp_path, dirs_exist_ok=True)
    text = (members / "experiment.yaml").read_text(encoding="utf-8") + f"world: {world}\n"
    summary, directory = run(text, tmp_path, spark=spark)
    promised = {name: entry["verdict"] for name, entry in summary["properties"].items() if entry["promised"]}
    properties = ("validity", "agreement", "integrity", "fifo", "causal", "total_order")
    assert promised == dict.fromkeys(properties, "pass")
    assert [one["verdict"] for one in summary["expect"]] == ["pass"] * 3
    assert summary["capture"]["trace_gaps"] == 0
    manifest = manifest_of(directory)
    assert manifest["members"] == ["p1/n2", "p1/n3", "p1/n4"]
    assert [(node["exit"], node["killed"]) for node in manifest["nodes"]][1:] == [(0, False)] * 3
    assert (directory / "nodes" / "p1.n3.log").read_text() == "ready\ndrained\n"


@pytest.mark.compilers
@pytest.mark.spark
def test_a_sequencer_that_lies_is_found_out(members: Path, tmp_path: Path, spark: SparkSession) -> None:
    shutil.copytree(members, tmp_path, dirs_exist_ok=True)
    honest = (members / "sequencer.py").read_text(encoding="utf-8")
    assert LIE in honest
    lying = honest.replace(LIE, LYING).replace("is_full = ", "lines: list[bytes] = []\n    is_full = ")
    (tmp_path / "sequencer.py").write_text(lying, encoding="utf-8")
    text = (members / "experiment.yaml").read_text(encoding="utf-8") + "world: netns\n"
    summary, _ = run(text, tmp_path, spark=spark)
    assert summary["properties"]["total_order"]["verdict"] == "fail"
    assert summary["properties"]["total_order"]["witness"]
    assert summary["properties"]["agreement"]["verdict"] == "pass"
    assert summary["verdict"] == "fail"


@pytest.mark.spark
def test_a_mixed_group_is_judged_without_the_stranger(tmp_path: Path, spark: SparkSession) -> None:
    text = (
        HEAD + "protocol: {name: sequencer}\nworkload: {kind: periodic, rate: 40 /s, size: 64 B}\n"
        "program: {nodes: p1/n2, command: bash chatter.sh, ready: {line: sent},\n"
        "  files: {chatter.sh: 'while echo hello >/dev/udp/{ip:p1/n1}/9; do echo sent; sleep 0.1; done'}}\n"
        "faults: {at: 300 ms, for: 200 ms, pause: {targets: p1/n2}}\n"
    )
    summary, directory = run(text, tmp_path, spark=spark)
    assert summary["properties"]["total_order"]["verdict"] == "pass"
    assert summary["messages"]["deliveries"] == 2 * summary["messages"]["submitted"] > 100
    manifest = manifest_of(directory)
    assert [(one["node"], one["member"]) for one in manifest["programs"]] == [("p1/n2", False)]
    assert "sent" in (directory / "nodes" / "p1.n2.log").read_text()


def example(name: str) -> str:
    page = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- example: {name} -->\n```yaml\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("world", WORLDS)
def test_the_cued_example_of_the_page_sends_within_the_load(world: str, tmp_path: Path) -> None:
    manifest, directory = run(example("cued.yaml") + f"world: {world}\n", tmp_path)
    phases = manifest["phases"]
    assert manifest["status"] == "complete"
    assert phases["drained_ns"] - phases["load_end_ns"] < 2 * 10**9
    offset_ns = manifest["clock"]["realtime_ns"] - manifest["clock"]["monotonic_ns"]
    packets = strict.read(directory / "capture.pcapng")
    first, *_, last = (packet.time_ns - offset_ns for packet in packets if b"tick" in packet.data)
    assert phases["start_ns"] - 500_000_000 < first < last < phases["drained_ns"]


GREETING = """
import socket, time
joined = socket.inet_aton("239.1.2.3") + socket.inet_aton("{ip}")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
    one.sendto(b"here I am", ("239.1.2.3", 6000))
    time.sleep(60)
"""


@pytest.mark.spark
@pytest.mark.parametrize("world", WORLDS)
def test_nobody_begins_before_all_are_wired(world: str, tmp_path: Path, spark: SparkSession) -> None:
    """Members multicast at once, also to nodes that Docker starts later: such frames were once lost without a cause."""
    program = f"program: {{command: python3 hello.py, files: {{hello.py: {json.dumps(GREETING)}}}}}\n"
    expect = "expect: [sum(conservation.unexplained) == 0, sum(conservation.arrived) >= 12 * 11]\n"
    head = HEAD.replace("netns", world).replace("nodes: 3", "nodes: 12")
    summary, _directory = run(head + expect + program, tmp_path, spark=spark)
    assert [entry["verdict"] for entry in summary["expect"]] == ["pass", "pass"], summary["conservation"]


def test_who_does_not_become_quiet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    others = "{nodes: [p1/n1, p1/n3], command: sleep 60}"
    path.write_text(f"{HEAD}drain: 300 ms\nprogram: [{{nodes: p1/n2, command: cat, cues: true}}, {others}]\n")
    done = orderbed("run", str(path), "--runs", str(tmp_path / "runs"), "--no-analyze")
    assert done.code == (3 if manifest_of(only_run(tmp_path / "runs"))["invalid"] else 0), done.err
    assert "not quiet within 0.3 s: p1/n2;" in done.err


@pytest.mark.parametrize("world", WORLDS)
def test_the_example_of_the_page_incarnations_through_a_crash(world: str, tmp_path: Path) -> None:
    manifest, directory = run(example("echo.yaml") + f"world: {world}\n", tmp_path)
    assert manifest["status"] == "complete"
    server = [node for node in manifest["nodes"] if node["node"] == "p1/n1"]
    assert [(node["incarnation"], node["crashed"]) for node in server] == [(1, True), (2, False)]
    logs = [(directory / "nodes" / f"p1.n{number}.log").read_text().splitlines() for number in (2, 3, 4)]
    assert logs[0][0] == "p1-n2 is client 1 of 10.1.0.2,10.1.0.3,10.1.0.4"
    answers = sorted(int(line.split()[0]) for log in logs for line in log[1:] if " from p1/" in line)
    assert len(answers) > 10
    assert answers == sorted(set(answers)), "the count was kept over the crash"
    assert int((directory / "nodes" / "p1.n1" / "count").read_text()) >= answers[-1]


@pytest.mark.parametrize("world", WORLDS)
def test_programs_know_the_nodes_by_name(world: str, tmp_path: Path) -> None:
    asking = "{command: \"sh -c 'getent hosts n2 n3.p1 p1-n1; exec sleep 60'\", ready: {line: '10.1.0.1 '}}"
    manifest, directory = run(HEAD.replace("netns", world) + f"program: {asking}\n", tmp_path)
    assert manifest["status"] == "complete"
    for number in (1, 2, 3):
        found = (directory / "nodes" / f"p1.n{number}.log").read_text().splitlines()
        assert [line.split()[:2] for line in found] == [[f"10.1.0.{one}", f"n{one}.p1"] for one in (2, 3, 1)]


@pytest.mark.parametrize(
    ("program", "end"),
    [
        ("{command: \"bash -c 'trap : TERM; while :; do sleep 0.1; done'\", stop: {grace: 200 ms}}", (-9, True)),
        ("{command: 'true', may_end: true}", (0, False)),
    ],
    ids=["is killed if it does not end", "may end where that is said"],
)
def test_a_program(program: str, end: tuple[int, bool], tmp_path: Path) -> None:
    manifest, _ = run(f"{HEAD}program: {program}\n", tmp_path)
    assert [(node["exit"], node["killed"]) for node in manifest["nodes"]] == [end] * 3


def test_a_restart_may_take_as_long_as_the_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "RESTART_TIMEOUT_S", 0.2)
    script = "if [ -e was ]; then sleep 1; fi; touch was; echo up; exec sleep 60"
    program = f"program: {{command: \"bash -c '{script}'\", ready: {{line: up, within: 20 s}}}}\n"
    fault = "faults: {at: 100 ms, for: 100 ms, crash: {targets: p1/n1}}\n"
    manifest, _ = run(HEAD + program + fault, tmp_path)
    assert [node["incarnation"] for node in manifest["nodes"]] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("{command: sleep 60, ready: {port: 2379, within: 300 ms}}",
         r"the program of p1/n\d is not ready after 0.3 s \(waited for port 2379\); its log .*p1.n\d.log is empty"),
        ("{command: \"bash -c 'echo hello; sleep 60'\", ready: {line: bye, within: 300 ms}}",
         r"the program of p1/n\d is not ready after 0.3 s \(waited for a line with bye\); its log .* ends: hello"),
        ("{command: \"bash -c 'echo no configuration; exit 7'\", ready: {after: 9 s}}",
         r"p1/n\d ended by itself \(exit code 7\); its log .* ends: no configuration"),
        ("{command: ./run, files: {run: no program}}",
         r"the program of p1/n1 cannot be started: cannot start ./run: Permission denied"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_sentence(program: str, sentence: str, tmp_path: Path) -> None:
    assert re.match(sentence, failure(HEAD + f"program: {program}\n", tmp_path))


@pytest.mark.docker
def test_an_image_that_there_is_not_is_refused_before_anything_starts(tmp_path: Path) -> None:
    text = HEAD.replace("netns", "docker") + "program: {image: 'orderbed/no-such-image:1', command: x}\n"
    with pytest.raises(
        InputError, match=r"program\.image: there is no image orderbed/no-such-image:1 here, and it cannot"
    ):
        run(text, tmp_path)
    assert not (tmp_path / "runs").exists()
