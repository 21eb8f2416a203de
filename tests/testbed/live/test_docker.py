"""The world docker: what a testbed does with containers as with namespaces."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from netem.daemon import LABEL, connect
from netem.errors import FabricError
from testbed.live import NodeState, Testbed
from tests.testbed.live import beds

pytestmark = [pytest.mark.root, pytest.mark.uml, pytest.mark.docker]

PROBE = """
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 9000))
udp.settimeout(2)
if len(sys.argv) > 1:
    udp.sendto(b"hello", (sys.argv[1], 9000))
else:
    print("up", flush=True)
    print(udp.recv(100).decode(), flush=True)
"""


@pytest.fixture(scope="module")
def bed(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    folder = tmp_path_factory.mktemp("docker")
    with Testbed(beds.written("boxes", folder), world="docker", runs=folder / "runs") as opened:
        yield opened


def test_a_command_is_in_its_container(bed: Testbed) -> None:
    done = bed.run("p1/n1", ["sh", "-c", "hostname; cat /sys/class/net/eth0/address; cat; echo $WORD >&2; exit 7"],
                   input=b"to and fro\n" * 20_000, environment={"WORD": "hello"})  # fmt: skip
    assert (done.code, done.stderr) == (7, b"hello\n")
    assert done.stdout == b"p1-n1\n02:0b:00:01:00:01\n" + b"to and fro\n" * 20_000


def heard(bed: Testbed, source: str, target: str) -> bool:
    """Whether a datagram arrives."""
    with bed.start(target, ["python3", "-c", PROBE]) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"up\n"
        assert bed.run(source, ["python3", "-c", PROBE, bed.topology.node(target).ip]).code == 0
        return listener.stdout.readline() == b"hello\n"


def test_a_restarted_container_gets_its_wires_back(bed: Testbed) -> None:
    assert heard(bed, "p1/n1", "p1/n2")
    bed.crash("p1/n2")
    with pytest.raises(FabricError, match="p1/n2 has ended and its container with it: restart it, then enter it"):
        bed.run("p1/n2", ["true"])
    bed.restart("p1/n2")
    assert [(one.state, one.incarnation) for one in bed.nodes()][1] == (NodeState.RUNNING, 2)
    assert heard(bed, "p1/n1", "p1/n2")
    bed.cut("p1/n1", "p1/n2")
    assert not heard(bed, "p1/n1", "p1/n2")
    bed.heal()


def test_a_paused_container_says_so(bed: Testbed) -> None:
    bed.pause("p1/n3")
    with pytest.raises(FabricError, match="p1/n3 is paused and runs nothing: resume it, then enter it"):
        bed.run("p1/n3", ["true"])
    bed.resume("p1/n3")
    assert bed.run("p1/n3", ["true"]).code == 0


def test_a_program_that_is_not_there_is_told(bed: Testbed) -> None:
    with pytest.raises(FabricError, match=r'p1/n1: cannot start no-such-program: .*"no-such-program": .* not found'):
        bed.run("p1/n1", ["no-such-program"])


def test_a_command_takes_signals_and_ends_with_its_time(bed: Testbed) -> None:
    with bed.start("p1/n1", ["sleep", "600"]) as command:
        command.signal(signal.SIGTERM)
        assert command.wait(10) == -signal.SIGTERM
    with pytest.raises(TimeoutError):
        bed.run("p1/n1", ["sleep", "600"], timeout_s=0.3)


def test_a_command_has_a_terminal_with_a_size(bed: Testbed) -> None:
    outer, inner = pty.openpty()
    script = ["sh", "-c", "tty; read line; stty size; echo got $line"]
    with bed.start("p1/n1", script, stdin=inner, stdout=inner, stderr=inner, is_terminal=True) as command:
        os.close(inner)
        command.resize(33, 99)
        os.write(outer, b"yes\r")
        assert command.wait(10) == 0
        said = os.read(outer, 4096).replace(b"\r", b"").decode()
    os.close(outer)
    assert "/dev/pts/" in said
    assert said.endswith("33 99\ngot yes\n")


def test_a_killed_server_leaves_no_container(places: Path, tmp_path: Path) -> None:
    with Testbed(beds.written("crates", tmp_path), world="docker", runs=tmp_path / "runs") as bed:
        os.kill(bed.description.server_pid, signal.SIGKILL)
        with closing(connect()) as client:
            beds.wait_until(
                lambda: not [
                    one for one in client.api.containers(all=True, filters={"label": [f"{LABEL}=1"]})
                    if "crates" in one["Names"][0]
                ],
                "the containers are removed",
            )  # fmt: skip
