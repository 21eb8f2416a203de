"""The keeper: processes in namespaces of their own, and nothing left when anything ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netem.errors import FabricError
from netem.kernel.supervised import KeeperLink, Process

pytestmark = pytest.mark.root

SAY = "import os, sys; sys.stdout.write({}); sys.stdout.flush(); sys.stdin.read()"


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[KeeperLink]:
    link = KeeperLink.start(tmp_path / "keeper.log")
    yield link
    link.close()


class Child:
    """A Python program in the keeper's namespaces, with its input and output."""

    def __init__(self, keeper: KeeperLink, code: str, *, namespace: str = "", isolated: bool = False) -> None:
        theirs, self.input = os.pipe()
        output, write = os.pipe()
        self.process: Process = keeper.spawn(
            [sys.executable, "-ISc", code],
            {"GREETING": "hello"},
            [theirs, write, 2],
            namespace=namespace,
            isolated=isolated,
        )
        os.close(theirs)
        os.close(write)
        self.output = os.fdopen(output)

    def close(self) -> None:
        os.close(self.input)
        self.output.close()


def spoken(keeper: KeeperLink, expression: str, *, namespace: str = "", isolated: bool = False) -> str:
    """What a child in there finds an expression to be; it ends when its input does."""
    child = Child(keeper, SAY.format(expression), namespace=namespace, isolated=isolated)
    os.close(child.input)
    with child.output as output:
        text = output.read()
    assert child.process.wait(5) == 0
    return text


def test_an_isolated_child_is_alone_powerless_and_has_its_own_proc(keeper: KeeperLink) -> None:
    keeper.ask("namespace", name="n")

    def inside(expression: str) -> str:
        return spoken(keeper, expression, namespace="n", isolated=True)

    assert inside("str(os.getpid())") == "1"
    assert inside("str([p for p in os.listdir('/proc') if p.isdigit()])") == "['1']"
    status = inside("open('/proc/self/status').read()")
    found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(found[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")} == {0}
    assert found["NoNewPrivs"] == "1"
    assert int(found["SigIgn"], 16) & (1 << (signal.SIGINT - 1)) == 0


def test_a_child_gets_its_descriptors_and_environment_and_no_others(keeper: KeeperLink) -> None:
    # Python itself adds LC_CTYPE where no locale is set
    assert spoken(keeper, "str(sorted(set(os.environ) - {'LC_CTYPE'}))") == "['GREETING']"
    # the fourth is the directory that is being listed
    assert spoken(keeper, "str(sorted(os.listdir('/proc/self/fd')))") == "['0', '1', '2', '3']"


def test_a_network_namespace_is_its_own(keeper: KeeperLink) -> None:
    keeper.ask("namespace", name="n")
    own = spoken(keeper, "os.readlink('/proc/self/ns/net')", namespace="n")
    fabric = spoken(keeper, "os.readlink('/proc/self/ns/net')")
    assert len({own, fabric, str(Path("/proc/self/ns/net").readlink())}) == 3


def test_exit_codes_and_signals_come_back(keeper: KeeperLink) -> None:
    child = Child(keeper, "raise SystemExit(7)")
    assert child.process.wait(5) == 7
    assert child.process.poll() == 7
    child.close()
    child = Child(keeper, SAY.format("'up'"), isolated=True)
    assert child.process.poll() is None
    child.process.kill()
    assert child.process.wait(5) == -signal.SIGKILL
    child.process.kill()  # what has ended is left alone
    child.close()


def test_a_wait_that_is_too_short_says_so(keeper: KeeperLink) -> None:
    child = Child(keeper, SAY.format("'up'"))
    with pytest.raises(TimeoutError, match=r"still running after 0\.01 s"):
        child.process.wait(0.01)
    child.close()


FAMILY = """
import os, sys, threading, time
if os.fork() == 0:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
while True:
    sys.stdout.write("."); sys.stdout.flush(); time.sleep(0.005)
"""


def test_a_freeze_stops_the_whole_family_and_a_thaw_lets_it_go_on(keeper: KeeperLink) -> None:
    child = Child(keeper, FAMILY, isolated=True)
    assert child.output.read(4) == "...."
    asked_ns = time.monotonic_ns()
    stopped_ns = child.process.freeze()
    assert asked_ns < stopped_ns < time.monotonic_ns()
    os.set_blocking(child.output.fileno(), False)
    _drain(child)
    assert not select.select([child.output], [], [], 0.1)[0]
    child.process.thaw()
    assert select.select([child.output], [], [], 5)[0]
    child.process.kill()
    child.close()


def _drain(child: Child) -> int:
    try:
        return len(os.read(child.output.fileno(), 65536))
    except BlockingIOError:
        return 0


def test_a_program_that_is_not_there_is_named(keeper: KeeperLink) -> None:
    with pytest.raises(FabricError, match="cannot start /no/such/program: No such file"):
        keeper.spawn(["/no/such/program"], {}, [0, 1, 2])


def test_a_namespace_that_is_not_held_is_named(keeper: KeeperLink) -> None:
    with pytest.raises(FabricError, match="no namespace named 'nowhere'"):
        keeper.spawn([sys.executable], {}, [0, 1, 2], namespace="nowhere")


def test_the_same_namespace_is_not_made_twice(keeper: KeeperLink) -> None:
    keeper.ask("namespace", name="n")
    with pytest.raises(FabricError, match="'n' is held already"):
        keeper.ask("namespace", name="n")


def test_close_is_quick_takes_all_along_and_may_be_repeated(keeper: KeeperLink) -> None:
    child = Child(keeper, SAY.format("'up'"), isolated=True)
    assert child.output.read(2) == "up"
    started = time.monotonic()
    keeper.close()
    assert time.monotonic() - started < 2
    assert child.output.read() == ""
    keeper.close()
    with pytest.raises(FabricError, match="keeper"):
        child.process.poll()
    child.close()


def test_the_keeper_ignores_ctrl_c(keeper: KeeperLink) -> None:
    os.kill(keeper.pid, 0)
    assert os.getsid(keeper.pid) != os.getsid(0)
    assert keeper.ask("hello")[0]["pid"] == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_keeper_is_noticed_and_takes_all_along(keeper: KeeperLink, number: signal.Signals) -> None:
    child = Child(keeper, SAY.format("'up'"))
    assert child.output.read(2) == "up"
    assert keeper.failure() is None
    os.kill(keeper.pid, number)
    assert child.output.read() == ""  # the end of its output: nobody holds it any more
    with pytest.raises(FabricError, match="keeper of the emulated network ended"):
        keeper.ask("hello")
    failure = keeper.failure()
    assert failure is not None
    assert "exit code" in str(failure)
    child.close()


def test_without_the_privilege_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    """Root without CAP_SYS_ADMIN, as in many containers."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom netem.kernel.supervised import KeeperLink\n"
        "from netem.errors import FabricError\n"
        "try: KeeperLink.start(Path(sys.argv[2]))\nexcept FabricError as error: print(error)"
    )
    root = Path(__file__).parents[2]
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", code]
    said = subprocess.run(
        [*command, str(root), str(tmp_path / "keeper.log")], capture_output=True, text=True, timeout=30, check=True
    )
    assert said.stdout.strip() == "making network namespaces needs root: run the same command with sudo, or as root"
