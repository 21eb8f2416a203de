"""The world docker: a testbed does the same with containers as with namespaces."""

from __future__ import annotations

import os
import pty
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from netem.errors import FabricError
from netem.runtimes.daemon import LABEL, connect
from testbed.live import NodeState, Testbed
from tests.testbed.live import testbeds
from topologies.formats.errors import InputError

pytestmark = [pytest.mark.root, pytest.mark.uml, pytest.mark.docker]


@pytest.fixture(scope="module")
def testbed(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    folder = tmp_path_factory.mktemp("docker")
    with Testbed(testbeds.written("boxes", folder), world="docker", runs=folder / "runs") as opened:
        yield opened


def test_a_command_is_in_its_container(testbed: Testbed) -> None:
    done = testbed.run("p1/n1", ["sh", "-c", "hostname; cat /sys/class/net/eth0/address; cat; echo $WORD >&2; exit 7"],
                   input=b"to and fro\n" * 20_000, environment={"WORD": "hello"})  # fmt: skip
    assert (done.code, done.stderr) == (7, b"hello\n")
    assert done.stdout == b"p1-n1\n02:0b:00:01:00:01\n" + b"to and fro\n" * 20_000


def test_a_crashed_container_says_so(testbed: Testbed) -> None:
    testbed.crash("p1/n2")
    with pytest.raises(InputError, match="p1/n2 has crashed and its container with it: `orderbed restart p1/n2`"):
        testbed.run("p1/n2", ["true"])
    testbed.restart("p1/n2")
    assert testbed.run("p1/n2", ["true"]).code == 0


@pytest.mark.parametrize("verb", ["kill", "restart"])
def test_a_container_that_somebody_else_ends_is_told_removed_and_comes_back_with_its_wires(
    testbed: Testbed, verb: str
) -> None:
    with closing(connect()) as client:
        found = [one["Id"] for one in client.api.containers() if re.search("boxes.*p2-n1", one["Names"][0])]
        assert len(found) == 1
        client.api.kill(found[0]) if verb == "kill" else client.api.restart(found[0], timeout=0)
        testbeds.wait_until(lambda: testbed.nodes()[3].state is NodeState.ENDED, "its end is noticed")
        assert testbed.nodes()[3].cause.startswith(
            "somebody else ended its container through Docker (kill, stop or restart"
        )
        assert found[0] not in [one["Id"] for one in client.api.containers(all=True)]
    testbed.restart("p2/n1")
    assert testbeds.received(testbed.run("p1/n1", ["ping", "-c", "1", "10.2.0.1"]).text) == 1


def test_a_paused_container_says_so(testbed: Testbed) -> None:
    testbed.pause("p1/n3")
    with pytest.raises(InputError, match="p1/n3 is paused and runs nothing: resume it, then enter it"):
        testbed.run("p1/n3", ["true"])
    testbed.resume("p1/n3")
    assert testbed.run("p1/n3", ["true"]).code == 0


def test_a_program_that_is_not_there_is_told(testbed: Testbed) -> None:
    with pytest.raises(FabricError, match=r'p1/n1: cannot start no-such-program: .*"no-such-program": .* not found'):
        testbed.run("p1/n1", ["no-such-program"])


def test_a_command_takes_signals_and_ends_with_its_time(testbed: Testbed) -> None:
    with testbed.start("p1/n1", ["sleep", "600"]) as command:
        command.signal(signal.SIGTERM)
        assert command.wait(10) == -signal.SIGTERM
    with pytest.raises(TimeoutError):
        testbed.run("p1/n1", ["sleep", "600"], timeout_s=0.3)


def test_a_command_has_a_terminal_with_a_size(testbed: Testbed) -> None:
    outer, inner = pty.openpty()
    # Requests of the client and typed input use different channels.
    script = ["sh", "-c", "tty; read line; until stty size | grep -v '^0 0$'; do sleep 0.02; done; echo got $line"]
    with testbed.start("p1/n1", script, stdin=inner, stdout=inner, stderr=inner, is_terminal=True) as command:
        os.close(inner)
        command.resize(33, 99)
        os.write(outer, b"yes\r")
        assert command.wait(10) == 0
        said = os.read(outer, 4096).replace(b"\r", b"").decode()
    os.close(outer)
    assert "/dev/pts/" in said
    assert said.endswith("33 99\ngot yes\n")


def test_a_killed_server_leaves_no_container(places: Path, tmp_path: Path) -> None:
    with Testbed(testbeds.written("crates", tmp_path), world="docker", runs=tmp_path / "runs") as testbed:
        os.kill(testbed.description.server_pid, signal.SIGKILL)
        with closing(connect()) as client:
            testbeds.wait_until(
                lambda: not [
                    one for one in client.api.containers(all=True, filters={"label": [f"{LABEL}=1"]})
                    if "crates" in one["Names"][0]
                ],
                "the containers are removed",
            )  # fmt: skip
