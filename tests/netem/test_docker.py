"""Real containers: the environment and the end of a node, and that nothing is left when any process is killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest

from netem.errors import FabricError
from netem.runtimes.base import Program
from netem.runtimes.container import freezer_file, is_frozen
from netem.runtimes.daemon import LABEL, RUN_LABEL, connect, remove_abandoned, remove_containers
from netem.runtimes.docker import DockerRuntime
from netem.runtimes.image import ensure_image
from tests.netem.carriers import BOUND_S, Incarnation
from tests.waiting import wait_until
from topologies.model import Node, NodeName, PartitionName

pytestmark = [pytest.mark.root, pytest.mark.docker]

ROOT = Path(__file__).parents[2]

NODE = Node(name=NodeName("p1/n1"), index=0, partition=PartitionName("p1"), partition_index=1, number=1)

ECHO = "import sys\nfor line in sys.stdin: print('got', line, end='', flush=True)"
SLEEP = "import time\nwhile True: time.sleep(3600)"


class OneWire:
    """A network of one wire: gives each namespace a device of that name, so that a node can check that it is there."""

    def __init__(self) -> None:
        self.attached: list[NodeName] = []

    def attach(self, node: Node, netns_fd: int) -> None:
        inside = ["nsenter", f"--net=/proc/self/fd/{netns_fd}", "ip", "link", "add"]
        subprocess.run([*inside, "eth0", "type", "veth", "peer", "name", "peer0"], check=True, pass_fds=[netns_fd])
        self.attached.append(node.name)


class BrokenBed:
    """A network that fails half-way through a start."""

    def attach(self, node: Node, netns_fd: int) -> None:
        raise FabricError(f"no wire for {node.name}: the drum is empty")


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    with closing(connect()) as client:
        yield client


@pytest.fixture(scope="module")
def image(client: docker.DockerClient) -> str:
    return ensure_image(client)


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> str:
    return f"test/{request.node.name}-{os.getpid()}"


@pytest.fixture
def runtime(image: str, run_id: str) -> Iterator[DockerRuntime]:
    with DockerRuntime(OneWire(), run_id=run_id, image=image) as runtime:
        yield runtime


class Talk(Incarnation):
    """A node that runs a piece of Python."""

    def __init__(self, runtime: DockerRuntime, log: Path, code: str) -> None:
        program = Program(argv=["python3", "-c", code], environment={"COLOUR": "blue"})
        super().__init__(runtime, NODE, program, log)


@pytest.fixture
def start(runtime: DockerRuntime, tmp_path: Path) -> Callable[[str], Talk]:
    return lambda code: Talk(runtime, tmp_path / "node.log", code)


def containers(client: docker.DockerClient, run_id: str) -> list[str]:
    found = client.api.containers(all=True, filters={"label": [f"{LABEL}=1", f"{RUN_LABEL}={run_id}"]})
    return [container["Id"] for container in found]


INSIDE = """
import json, os, sys
def writable(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "devices": sorted(os.listdir("/sys/class/net")), "uid": os.getuid(), "pid": os.getpid(),
    "capabilities": [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "root": writable("/x"), "code": writable("/orderbed/node/x"), "tmp": writable("/tmp/x"),
    "colour": os.environ["COLOUR"], "python": list(sys.version_info[:2])}))
import node.wire
print(node.wire.MAGIC)
"""


def test_a_node_starts_with_its_wire_and_without_rights(start: Callable[[str], Talk]) -> None:
    node = start(INSIDE)
    inside = json.loads(node.line())
    assert "eth0" in inside["devices"], "the wire was attached before the first instruction"
    assert inside["uid"] == 65534
    assert inside["pid"] == 1, "no shell stays between us and the program"
    assert inside["capabilities"] == [0, 0, 0, 0]
    assert inside["no_new_privileges"] == "1"
    assert (inside["root"], inside["code"], inside["tmp"]) == (False, False, True)
    assert inside["colour"] == "blue"
    assert inside["python"] >= [3, 11]
    assert node.line() == str(0x6F62), "our node package can be imported"
    assert node.end() == 0


def test_lines_go_in_and_out_and_errors_to_the_log(start: Callable[[str], Talk]) -> None:
    node = start("import sys; print('oh', file=sys.stderr, flush=True)\n" + ECHO)
    node.handle.send('{"a": "ä"}')
    node.handle.send("second")
    assert [node.line(), node.line()] == ['got {"a": "ä"}', "got second"]
    wait_until(lambda: node.log.read_text() == "oh\n", "the log", BOUND_S)
    assert node.handle.poll() is None


def test_output_of_any_size_and_form_arrives(start: Callable[[str], Talk]) -> None:
    node = start("import sys; sys.stdout.buffer.write(b'x' * 300_000 + b'\\n\\xff\\n' + b'tail')")
    assert node.line() == "x" * 65536, "over-long lines are cut"
    assert [node.line(), node.line()] == ["�", "tail"]


def test_the_exit_code_is_the_last_word(start: Callable[[str], Talk]) -> None:
    node = start("print('bye'); raise SystemExit(7)")
    assert node.end() == 7
    assert node.lines.get_nowait() == "bye", "everything it said was there before its exit code"
    with pytest.raises(FabricError, match="p1/n1 has ended"):
        node.handle.send("hello?")


def test_kill_returns_when_container_and_namespace_are_gone(
    start: Callable[[str], Talk], client: docker.DockerClient, run_id: str
) -> None:
    node = start(SLEEP)
    pid = node.handle.pid()
    node.handle.kill()
    assert containers(client, run_id) == []
    assert not Path(f"/proc/{pid}").exists()
    assert node.handle.poll() == -signal.SIGKILL
    node.handle.kill()


def test_a_node_can_start_again_after_a_crash(start: Callable[[str], Talk]) -> None:
    first = start(ECHO)
    first.handle.kill()
    second = start(ECHO)
    second.handle.send("again")
    assert second.line() == "got again"


def test_pause_returns_frozen_and_resume_running(start: Callable[[str], Talk]) -> None:
    node = start(ECHO)
    node.handle.send("before")
    assert node.line() == "got before"
    state = freezer_file(node.handle.pid())
    node.handle.pause()
    assert is_frozen(state)
    node.handle.send("kept")
    with pytest.raises(queue.Empty):
        node.lines.get(timeout=0.2)
    node.handle.resume()
    assert not is_frozen(state)
    assert node.line() == "got kept"


def test_a_frozen_node_can_be_killed(start: Callable[[str], Talk]) -> None:
    node = start(SLEEP)
    node.handle.pause()
    node.handle.kill()
    assert node.handle.poll() == -signal.SIGKILL


def test_a_log_that_cannot_be_written_is_told_and_not_lost_in_a_thread(runtime: DockerRuntime) -> None:
    node = Talk(runtime, Path("/dev/full"), "import sys; print('oh', file=sys.stderr, flush=True); sys.stdin.read()")
    with pytest.raises(FabricError, match=r"lost track of p1/n1: .*No space left"):
        node.end()


def test_a_program_that_is_not_there_ends_at_once_and_says_why(runtime: DockerRuntime, tmp_path: Path) -> None:
    handle = runtime.start(NODE, Program(argv=["no-such-program"]), on_line=lambda _: None, log_path=tmp_path / "log")
    wait_until(lambda: handle.poll() is not None, "the end of the node", BOUND_S)
    assert handle.poll() == 127
    assert "the image has no program no-such-program: name one that has it" in (tmp_path / "log").read_text()


def test_a_start_that_fails_half_way_leaves_no_container(
    image: str, run_id: str, tmp_path: Path, client: docker.DockerClient
) -> None:
    with DockerRuntime(BrokenBed(), run_id=run_id, image=image) as runtime:
        with pytest.raises(FabricError, match="the drum is empty"):
            Talk(runtime, tmp_path / "log", ECHO)
        assert containers(client, run_id) == []
        with pytest.raises(FabricError, match=r"would not start p1/n1: .*no-such-folder"):
            Talk(runtime, tmp_path / "no-such-folder" / "log", ECHO)
        assert containers(client, run_id) == []


def test_an_image_that_is_not_there_is_a_sentence(run_id: str) -> None:
    with pytest.raises(FabricError, match="there is no image orderbed/none:such here, and it cannot be pulled"):
        DockerRuntime(OneWire(), run_id=run_id, image="orderbed/none:such")


def test_down_removes_exactly_what_carries_the_label(
    image: str, run_id: str, tmp_path: Path, client: docker.DockerClient
) -> None:
    foreign = client.api.create_container(image, command=["true"], name=f"orderbed-foreign-{os.getpid()}")["Id"]
    try:
        with (
            DockerRuntime(OneWire(), run_id=run_id, image=image) as ours,
            DockerRuntime(OneWire(), run_id=run_id + "-other", image=image) as other,
        ):
            Talk(ours, tmp_path / "log", SLEEP)
            theirs = Talk(other, tmp_path / "log", SLEEP)
            assert len(remove_containers(run_id, client=client)) == 1
            assert containers(client, run_id) == []
            assert theirs.handle.poll() is None
        assert containers(client, run_id + "-other") == []
        assert client.api.inspect_container(foreign)["State"]["Status"] == "created"
    finally:
        client.api.remove_container(foreign)


Begin = Callable[[str], tuple[subprocess.Popen[str], int]]

CONDUCTOR = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from netem.runtimes.base import Program
from netem.runtimes.docker import DockerRuntime
from tests.netem.test_docker import NODE, OneWire
runtime = DockerRuntime(OneWire(), run_id={run_id!r}, image={image!r})
handles = [
    runtime.start(NODE, Program(argv=["python3", "-c", {code!r}]), on_line=lambda _: None, log_path=Path({log!r}))
    for _ in range(3)
]
handles[0].pause()
print("guard", runtime._guard.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def conductor(image: str, run_id: str, tmp_path: Path) -> Iterator[Begin]:
    """Starts a conductor of its own with three nodes, one of them frozen; returns it and the pid of its guard."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str) -> tuple[subprocess.Popen[str], int]:
        script = CONDUCTOR.format(root=str(ROOT), run_id=run_id, image=image, code=code, log=str(tmp_path / "log"))
        process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline().split()[1])

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    remove_containers(run_id)


def test_sigkill_of_the_conductor_leaves_no_container(
    conductor: Begin, run_id: str, client: docker.DockerClient
) -> None:
    process, guard = conductor(SLEEP)
    assert len(containers(client, run_id)) == 3
    process.kill()
    process.wait()
    wait_until(lambda: containers(client, run_id) == [], "the removal of all containers", BOUND_S)
    wait_until(
        lambda: not Path(f"/proc/{guard}").exists() or "zombie" in Path(f"/proc/{guard}/status").read_text(),
        "the end of the guard",
        BOUND_S,
    )


def test_sigkill_of_everything_leaves_only_what_the_next_start_removes(
    conductor: Begin, run_id: str, client: docker.DockerClient
) -> None:
    process, guard = conductor(ECHO)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait()
    # Two have read the end of their input; one is frozen.
    wait_until(lambda: len(containers(client, run_id)) == 1, "the end of two", BOUND_S)
    wait_until(lambda: len(remove_abandoned(client)) == 1, "an abandoned container", BOUND_S)
    assert containers(client, run_id) == []
