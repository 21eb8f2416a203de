"""Ends of a testbed: nothing is left, however it ends; two at once are separate; invalid requests have no effect."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from netem.errors import FabricError
from netem.kernel.framing import LENGTH, pack
from netem.runtimes.base import Program
from testbed.live import Testbed, rpc, running
from testbed.live.directory import RuntimeDirectory
from testbed.paths import ROOT
from testbed.rundir.store import StoreError
from tests.testbed.live import testbeds
from tests.testbed.live.testbeds import faults, ping, received
from tests.testbed.orderbed_command import command_line, descendants
from topologies.formats.errors import InputError

pytestmark = [pytest.mark.root, pytest.mark.uml]

OWNER = """
import sys
from pathlib import Path
from testbed.live import Testbed
testbed = Testbed(sys.argv[1], world="netns", runs=Path(sys.argv[2]))
testbed.start_capture()
print(testbed.directory, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A mark of one test's own on every process that it starts."""
    made = f"mark-of-{tmp_path.name}"
    monkeypatch.setenv("ORDERBED_TEST_MARK", made)
    return made


def gone(name: str, mark: str) -> None:
    """Wait until neither directory nor processes of the testbed are left."""
    testbeds.wait_until(lambda: name not in [one.name for one in running()], "it is no longer up")
    testbeds.wait_until(lambda: not testbeds.processes_with(mark), "its processes have ended")


def test_a_killed_owner_takes_its_testbed_along_in_order(places: Path, tmp_path: Path, mark: str) -> None:
    command = [sys.executable, "-c", OWNER, str(testbeds.written("orphan", tmp_path)), str(tmp_path / "runs")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        directory = Path(owner.stdout.readline().strip())
        owner.kill()
    gone("orphan", mark)
    manifest = json.loads((directory / "manifest.json").read_text())
    assert (manifest["status"], manifest["captures"][0]["complete"]) == ("complete", True)
    assert f"it ends: process {owner.pid}, whose it is, has ended" in log_of(directory)


def log_of(directory: Path) -> str:
    """Log of the server of a testbed."""
    return (directory / "server.log").read_text(encoding="utf-8")


def test_a_killed_server_leaves_nothing(places: Path, tmp_path: Path, mark: str) -> None:
    path = testbeds.written("headless", tmp_path)
    with (
        Testbed(path, world="netns", runs=tmp_path / "runs") as testbed,
        testbed.start("p1/n1", ["sleep", "600"]) as command,
    ):
        testbed.start_capture()
        os.kill(testbed.description.server_pid, signal.SIGKILL)
        with pytest.raises(FabricError, match="the testbed is no longer up: its server has ended"):
            command.wait(10)
        gone("headless", mark)
        with pytest.raises(FabricError, match="the testbed headless is no longer up"):
            testbed.nodes()
        assert log_of(testbed.directory).endswith(f"found dead: process {testbed.description.server_pid} was killed\n")
        assert not (testbed.directory / ".reserve").exists()
        with Testbed(path, world="netns", runs=tmp_path / "runs") as again:
            assert received(again.run("p1/n1", ["ping", "-c", "1", "10.1.0.2"]).text) == 1


def test_a_network_that_dies_is_told_and_taken_down(places: Path, tmp_path: Path) -> None:
    with Testbed(testbeds.written("dying", tmp_path), world="netns", kernel="uml", runs=tmp_path / "runs") as testbed:
        os.kill(testbed.description.server_pid, signal.SIGUSR1)
        testbeds.wait_until(lambda: "Current thread" in log_of(testbed.directory), "the server shows its threads")
        testbed.start_capture()
        server = testbed.description.server_pid
        (collector,) = (pid for pid in descendants(server) if "-m collector" in command_line(pid))
        os.kill(collector, signal.SIGKILL)
        testbeds.wait_until(lambda: "the collector ended" in log_of(testbed.directory), "its end is noticed")
        broken = testbed.capturing()
        assert broken is not None
        assert "the collector ended" in str(broken.failure)
        with pytest.raises(FabricError, match="what it had recorded is kept"):
            testbed.stop_capture()
        testbed.start_capture()
        # The first of them is the kernel, the others are its processes: parents come before their children.
        kernel, *_ = (pid for pid in descendants(server) if "linux.uml" in command_line(pid))
        os.kill(kernel, signal.SIGKILL)
        testbeds.wait_until(lambda: testbed.failure(), "the end of the guest kernel is noticed")
        for request in (lambda: testbed.impair("p1/*", loss="1 %"), lambda: testbed.run("p1/n1", ["true"])):
            with pytest.raises(FabricError, match="`orderbed down dying` clears away what is left"):
                request()
        assert len(testbed.nodes()) == 4
    assert "the network is gone" in log_of(testbed.directory)
    assert log_of(testbed.directory).endswith("it has ended, nothing of it is left\n")
    assert "dying" not in [one.name for one in running()]
    assert json.loads((testbed.directory / "manifest.json").read_text())["status"] == "failed"


def test_two_at_once_do_not_meet(testbed: Testbed, tmp_path: Path) -> None:
    """Both have the same names, addresses and MAC addresses; neither receives a frame of the other."""
    with Testbed(testbeds.written("other", tmp_path), world="netns", runs=tmp_path / "runs") as other:
        with pytest.raises(InputError, match="several testbeds are up: other, shared; say which one"):
            Testbed.attach()
        for one in (testbed, other):
            one.start_capture()
        testbed.impair("p1/n2", loss="100 %")
        other.crash("p1/n3")
        assert received(ping(testbed, "p1/n1", "p1/n2", count=5)) == 0
        assert received(ping(other, "p1/n1", "p1/n2", count=5)) == 5
        assert received(ping(testbed, "p1/n1", "p1/n3", count=1)) == 1
        # Here the frames of p1/n1 at its port, and those to and from n3; there both ways of both ports.
        assert testbed.stop_capture()["frames"] == 5 + 4
        assert other.stop_capture()["frames"] == 20
        testbed.restore()


def test_a_server_that_stays_outlives_its_starter(places: Path, tmp_path: Path) -> None:
    code = "import sys; from testbed.live import Testbed; Testbed.up(sys.argv[1], world='netns', name='stays')"
    subprocess.run([sys.executable, "-c", code, str(testbeds.written("any", tmp_path))], cwd=ROOT, check=True)
    testbed = Testbed.attach("stays")
    try:
        assert len(testbed.nodes()) == 4
    finally:
        testbed.down()
        shutil.rmtree(testbed.directory)
    with pytest.raises(InputError, match="no testbed"):
        Testbed.attach("stays")


def test_a_testbed_that_nobody_can_find_any_more_ends(places: Path, tmp_path: Path) -> None:
    with Testbed(testbeds.written("lost", tmp_path), world="netns", runs=tmp_path / "runs") as testbed:
        shutil.rmtree(places / "orderbed" / "lost")
        testbeds.wait_until(lambda: "nothing of it is left" in log_of(testbed.directory), "it ends")
    assert f"it ends: {places / 'orderbed' / 'lost'} was removed" in log_of(testbed.directory)


def test_a_testbed_whose_record_is_gone_is_released_before_its_end_is_answered(
    places: Path, tmp_path: Path, mark: str
) -> None:
    testbed = Testbed(testbeds.written("bare", tmp_path), world="netns", runs=tmp_path / "runs")
    shutil.rmtree(testbed.directory)
    with pytest.raises(StoreError, match="No such file or directory"):
        testbed.down()
    assert testbeds.processes_with(mark) == []


def test_a_record_that_lacks_a_change_is_not_complete(places: Path, tmp_path: Path) -> None:
    with Testbed(testbeds.written("lacking", tmp_path), world="netns", runs=tmp_path / "runs") as testbed:
        faults_file = testbed.directory / "faults.jsonl"
        kept = faults_file.rename(faults_file.with_suffix(".kept"))
        faults_file.symlink_to("/dev/full")
        with pytest.raises(StoreError, match="No space left on device"):
            testbed.impair("p1/n1", loss="5 %")
        assert testbeds.status(testbed, "p1/n1").to_node.loss_ratio == 0.05, "it is in force"
        kept.replace(faults_file)
    manifest = json.loads((testbed.directory / "manifest.json").read_text())
    assert (manifest["status"], manifest["faults"]) == ("failed", 0)
    assert manifest["error"].startswith("a change by impair is not in it: ")


def test_what_cannot_come_up_leaves_nothing(places: Path, tmp_path: Path, mark: str) -> None:
    lines: list[str] = []
    with pytest.raises(FabricError, match="cannot start no-such-program: No such file or directory"):
        Testbed(
            testbeds.written("broken", tmp_path),
            world="netns",
            program=Program(argv=("no-such-program",)),
            runs=tmp_path / "runs",
            on_progress=lines.append,
        )
    gone("broken", mark)
    assert any(line.startswith("network ready") for line in lines)
    (manifest,) = (tmp_path / "runs").rglob("manifest.json")
    assert json.loads(manifest.read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topology": "one-partitoin"}, "no topology is called 'one-partitoin'; did you mean one-partition"),
        ({"topology": "nowhere.yaml"}, "nowhere.yaml: there is no such file"),
        ({"topology": "one-partition", "world": "sim"}, "--world: 'sim' is none of auto, netns, docker"),
        ({"topology": "one-partition", "kernel": "best"}, "--kernel: 'best' is none of auto, host, uml"),
        ({"topology": "one-partition", "name": "../up"}, "the name of a testbed: expected a name of lower-case"),
        ({"topology": "one-partition", "name": ""}, "the name of a testbed: expected a name of lower-case"),
        ({}, "expected either a topology or an experiment"),
        ({"topology": "one-partition", "experiment": "churn"}, "expected either a topology or an experiment"),
        ({"experiment": "lamport-anomaly"}, "the calls of its workload are drawn for its duration"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(places: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        Testbed(**options)
    assert sentence in str(refused.value)


# Invalid requests of an attacker.


def say(name: str, data: bytes, descriptors: tuple[int, ...] = ()) -> dict[str, Any]:
    with rpc.connect(RuntimeDirectory.of(name)) as connection:
        socket.send_fds(connection, [data], list(descriptors)) if descriptors else connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return rpc.receive(connection)[0]


BOMB = zlib.compress(b'{"do": "' + b"x" * (64 << 20))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (LENGTH.pack(1 << 31), "it has 2147483648 bytes, at most 8388608 are allowed"),
        (LENGTH.pack(5) + b"hello", "it is no JSON in zlib"),
        (LENGTH.pack(len(BOMB)) + BOMB, "or has more than 33554432 bytes"),
        (pack({"do": "down everything"}), "is nothing that a testbed does"),
        (pack({"do": None}), "nothing is nothing that a testbed does"),
        (pack({}), "is nothing that a testbed does"),
        (pack({"do": "heal", "now": True}), "now: unknown key"),
        (pack({"do": "crash"}), "the key targets is missing"),
        (pack({"do": "crash", "targets": {"a": 1}}), "targets"),
        (pack({"do": "impair", "impair": [[[[]]]]}), "expected a block with the keys"),
        (pack({"do": "exec", "node": "p1/n1", "argv": ["true"]}), "a command needs 3 descriptors with its request"),
        (pack({"do": "exec", "node": "p1/n1", "argv": ["x"], "environment": {"a=b": ""}}), "the name of a variable"),
        (pack({"do": "start_capture", "path": "relative"}), "relative: give the whole path of the capture"),
        (pack({"do": "start_capture", "path": f"/tmp/{'a' * 300}"}), "this cannot be a capture (File name too long)"),
    ],
)
def test_a_request_that_cannot_be_is_refused_in_a_sentence(testbed: Testbed, data: bytes, sentence: str) -> None:
    reply = say(testbed.name, data)
    assert reply["error"]["kind"] == "input"
    assert sentence in reply["error"]["text"]
    assert len(testbed.nodes()) == 4


def test_descriptors_that_nobody_asked_for_are_closed(testbed: Testbed) -> None:
    server = Path(f"/proc/{testbed.description.server_pid}/fd")
    reader, writer = os.pipe()
    before = len(list(server.iterdir()))
    for _ in range(20):
        assert "result" in say(testbed.name, pack({"do": "heal"}), (writer, writer))
        assert "error" in say(testbed.name, pack({"do": "heal"}), (writer,) * 9)
    os.close(writer)
    assert os.read(reader, 1) == b"", "somebody still holds the other end"
    os.close(reader)
    testbeds.wait_until(lambda: len(list(server.iterdir())) <= before, "the server holds no more than before")


def test_silent_clients_block_nobody(testbed: Testbed) -> None:
    silent = [rpc.connect(RuntimeDirectory.of(testbed.name)) for _ in range(50)]
    assert len(testbed.nodes()) == 4
    for connection in silent:
        connection.close()


def test_words_to_a_command_that_are_none_change_nothing(testbed: Testbed) -> None:
    with testbed.start("p1/n1", ["sleep", "600"]) as command:
        for word in ({"signal": 0}, {"signal": 9999}, {"signal": "KILL"}, {"resize": [0, 1]}, {"resize": 3}, {"x": 1}):
            rpc.tell(command._connection, word)
        rpc.tell(command._connection, {"signal": int(signal.SIGUSR2)})
        assert command.wait(5) == -signal.SIGUSR2


def test_all_at_once(testbed: Testbed) -> None:
    """Requests of many clients are carried out one after the other; none is lost."""
    count = len(faults(testbed))
    with ThreadPoolExecutor(30) as pool:
        pool.map(lambda number: testbed.impair("p1/n1", delay=f"{number} ms"), range(1, 31))
    lines = faults(testbed)[count:]
    assert [line["id"] for line in lines] == list(range(lines[0]["id"], lines[0]["id"] + 30))
    assert testbed.nodes()[0].to_node.delay_ns == lines[-1]["asked"]["p1/n1"]["delay_ns"]
    testbed.restore()
