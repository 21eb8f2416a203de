"""The supervisor: processes in namespaces of their own, and nothing left when any process ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from netem.errors import FabricError
from netem.kernel.supervised import Process, Sandbox, SupervisorLink
from testbed.paths import ROOT
from tests.waiting import in_time

pytestmark = pytest.mark.root

SANDBOX = Sandbox(readable=[Path(sys.prefix), Path(sys.base_prefix)])
SAY = "import os, sys; sys.stdout.write({}); sys.stdout.flush(); sys.stdin.read()"


class Child:
    """A Python program in the supervisor's namespaces, with its input and output."""

    def __init__(self, supervisor: SupervisorLink, code: str, *, namespace: str = "", isolated: bool = False) -> None:
        theirs, self.input = os.pipe()
        output, write = os.pipe()
        self.process: Process = supervisor.spawn(
            [sys.executable, "-ISc", code],
            {"GREETING": "hello"},
            [theirs, write, 2],
            namespace=namespace,
            directory=Path("/"),
            sandbox=SANDBOX if isolated else None,
        )
        os.close(theirs)
        os.close(write)
        self.output = os.fdopen(output)

    def close(self) -> None:
        os.close(self.input)
        self.output.close()


def spoken(supervisor: SupervisorLink, expression: str, *, namespace: str = "", isolated: bool = False) -> str:
    """Value of an expression in such a child, as text; the child ends with its input."""
    child = Child(supervisor, SAY.format(expression), namespace=namespace, isolated=isolated)
    os.close(child.input)
    with child.output as output:
        text = output.read()
    assert child.process.wait(5) == 0
    return text


def test_an_isolated_child_is_alone_powerless_and_has_its_own_proc(supervisor: SupervisorLink) -> None:
    supervisor.ask("namespace", name="n")

    def inside(expression: str) -> str:
        return spoken(supervisor, expression, namespace="n", isolated=True)

    assert inside("str(os.getpid())") == "1"
    assert inside("str([p for p in os.listdir('/proc') if p.isdigit()])") == "['1']"
    status = inside("open('/proc/self/status').read()")
    found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(found[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")} == {0}
    assert found["NoNewPrivs"] == "1"
    assert int(found["SigIgn"], 16) & (1 << (signal.SIGINT - 1)) == 0


def test_a_child_gets_its_descriptors_and_environment_and_no_others(supervisor: SupervisorLink) -> None:
    # Python itself adds LC_CTYPE where no locale is set
    assert spoken(supervisor, "str(sorted(set(os.environ) - {'LC_CTYPE'}))") == "['GREETING']"
    # the fourth is the directory that is being listed
    assert spoken(supervisor, "str(sorted(os.listdir('/proc/self/fd')))") == "['0', '1', '2', '3']"


def test_a_network_namespace_is_its_own(supervisor: SupervisorLink) -> None:
    supervisor.ask("namespace", name="n")
    own = spoken(supervisor, "os.readlink('/proc/self/ns/net')", namespace="n")
    fabric = spoken(supervisor, "os.readlink('/proc/self/ns/net')")
    assert len({own, fabric, str(Path("/proc/self/ns/net").readlink())}) == 3


def test_exit_codes_and_signals_come_back(supervisor: SupervisorLink) -> None:
    child = Child(supervisor, "raise SystemExit(7)")
    assert child.process.wait(5) == 7
    assert child.process.poll() == 7
    child.close()
    child = Child(supervisor, SAY.format("'up'"), isolated=True)
    with pytest.raises(TimeoutError, match=r"still running after 0\.01 s"):
        child.process.wait(0.01)
    assert child.process.poll() is None
    child.process.kill()
    assert child.process.wait(5) == -signal.SIGKILL
    child.process.kill()  # a signal to an ended process does nothing
    child.close()


FAMILY = """
import os, sys, threading, time
if os.fork() == 0:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
while True:
    sys.stdout.write("."); sys.stdout.flush(); time.sleep(0.005)
"""


def test_a_freeze_stops_the_whole_family_and_a_thaw_lets_it_go_on(supervisor: SupervisorLink) -> None:
    child = Child(supervisor, FAMILY, isolated=True)
    assert child.output.read(4) == "...."
    asked_ns = time.monotonic_ns()
    stopped_ns = child.process.freeze()
    assert asked_ns < stopped_ns < time.monotonic_ns()
    os.set_blocking(child.output.fileno(), False)
    with suppress(BlockingIOError):
        os.read(child.output.fileno(), 65536)
    assert not select.select([child.output], [], [], 0.1)[0]
    child.process.thaw()
    assert select.select([child.output], [], [], 5)[0]
    child.process.kill()
    child.close()


def test_what_is_not_there_or_there_already_is_named(supervisor: SupervisorLink) -> None:
    supervisor.ask("namespace", name="n")
    with pytest.raises(FabricError, match="'n' is held already"):
        supervisor.ask("namespace", name="n")
    with pytest.raises(FabricError, match="no namespace named 'nowhere'"):
        supervisor.spawn([sys.executable], {}, [0, 1, 2], namespace="nowhere")
    with pytest.raises(FabricError, match="cannot start /no/such/program: No such file"):
        supervisor.spawn(["/no/such/program"], {}, [0, 1, 2])


def test_close_is_quick_takes_all_along_and_may_be_repeated(supervisor: SupervisorLink) -> None:
    child = Child(supervisor, SAY.format("'up'"), isolated=True)
    assert child.output.read(2) == "up"
    started = time.monotonic()
    supervisor.close()
    assert in_time(time.monotonic() - started, 2)
    assert child.output.read() == ""
    supervisor.close()
    with pytest.raises(FabricError, match="supervisor"):
        child.process.poll()
    child.close()


def test_the_supervisor_ignores_ctrl_c(supervisor: SupervisorLink) -> None:
    os.kill(supervisor.pid, 0)
    assert os.getsid(supervisor.pid) != os.getsid(0)
    assert supervisor.ask("hello")[0]["pid"] == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_supervisor_is_noticed_and_takes_all_along(supervisor: SupervisorLink, number: signal.Signals) -> None:
    child = Child(supervisor, SAY.format("'up'"))
    assert child.output.read(2) == "up"
    assert supervisor.failure() is None
    os.kill(supervisor.pid, number)
    assert child.output.read() == ""  # end of output: no process holds the pipe
    with pytest.raises(FabricError, match="supervisor of the emulated network ended"):
        supervisor.ask("hello")
    failure = supervisor.failure()
    assert failure is not None
    assert "exit code" in str(failure)
    child.close()


def test_without_the_privilege_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    """Root without CAP_SYS_ADMIN, as in many containers."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom netem.kernel.supervised import SupervisorLink\n"
        "from netem.errors import FabricError\n"
        "try: SupervisorLink.start(Path(sys.argv[1]))\nexcept FabricError as error: print(error)"
    )
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", code]
    said = subprocess.run(
        [*command, str(tmp_path / "log")], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert said.stdout.strip() == "making network namespaces needs root: run the same command with sudo, or as root"
