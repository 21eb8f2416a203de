"""scripts/setup with a toolbox of its own instead of this machine's: what it installs, what it prints, and when it is
silent. scripts/test with a pytest of its own: what it makes of the two halves.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]

SYSTEM_TOOLS = (
    "bash", "cat", "chmod", "cut", "dirname", "env", "flock", "grep", "mkdir", "mktemp", "paste", "rm", "sed",
    "sha256sum", "sort", "tail", "touch", "uname",
)  # fmt: skip

PYTHON = """#!/usr/bin/env bash
# Makes a virtual environment with itself in it; notes what pip was asked for.
echo "$0 $*" >>"$TOOLBOX/calls"
if [[ $* == "-m venv"* ]]; then
    mkdir -p "$3/bin"
    cat "$0" >"$3/bin/python"
    touch "$3/bin/orderbed"
    chmod +x "$3/bin/python" "$3/bin/orderbed"
elif [[ $* == -V ]]; then
    echo Python 3.11.2
elif [[ $* == *"pip"*"-r requirements.lock" && -e $TOOLBOX/pip-breaks ]]; then
    echo "no matching distribution" >&2
    exit 1
elif [[ $* == "-m analysis.engine.prepare" ]]; then
    mkdir -p "$HOME/.cache/orderbed"
    touch "$HOME/.cache/orderbed/spark-1.jsa"
fi
"""

JAVA = """#!/usr/bin/env bash
echo "openjdk version \\"${JAVA_VERSION:-17}.0.1\\"" >&2
"""

APT_CACHE = """#!/usr/bin/env bash
echo "  Candidate: 1.0"
"""

APT_GET = """#!/usr/bin/env bash
echo "apt-get $*" >>"$TOOLBOX/calls"
for package in "$@"; do
    case $package in
        openjdk-17-jre-headless) cp_tool java ;;
        chromium-driver) cp_tool chromedriver ;;
        tshark | chromium) cp_tool "$package" ;;
    esac
done
"""

CP_TOOL = """#!/usr/bin/env bash
cat "$TOOLBOX/../java" >"$TOOLBOX/$1"
chmod +x "$TOOLBOX/$1"
"""


class Clone:
    """A clone with only the files that set-up reads, and a toolbox that is its whole PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self.toolbox = folder / "toolbox"
        self.toolbox.mkdir()
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")
        (self.folder / "requirements.lock").write_text("setuptools==80.0 \\\n    --hash=sha256:0\nzebra==1.0\n")
        (self.folder / "pyproject.toml").write_text("[project]\n")
        (folder / "java").write_text(JAVA)
        for name in SYSTEM_TOOLS:
            found = shutil.which(name)
            assert found is not None
            (self.toolbox / name).symlink_to(found)
        self.tool("python3", PYTHON)
        for name in ("linux.uml", "ip", "ping", "pgrep", "git", "tcpdump", "etcd", "etcdctl", "corosync", "gcc", "go"):
            self.tool(name)

    def tool(self, name: str, text: str = JAVA) -> None:
        (self.toolbox / name).write_text(text)
        (self.toolbox / name).chmod(0o755)

    def with_apt(self) -> Clone:
        for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE), ("cp_tool", CP_TOOL)):
            self.tool(name, text)
        return self

    def set_up(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {"PATH": str(self.toolbox), "TOOLBOX": str(self.toolbox), "HOME": str(self.folder)}
        command = [str(self.folder / "scripts" / "setup"), *arguments]
        return subprocess.run(command, env=clean | environment, capture_output=True, text=True)

    def calls(self, word: str) -> list[str]:
        log = self.toolbox / "calls"
        return [line for line in log.read_text().splitlines() if word in line] if log.exists() else []


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_set_up_installs_and_is_silent_until_the_lock_is_new(clone: Clone) -> None:
    clone.tool("java")
    first = clone.set_up()
    assert first.returncode == 0, first.stderr
    assert "python    3.11.2 from" in first.stderr
    assert "installing 2 pinned packages into .venv" in first.stderr
    pip = [call.split(" install --quiet ")[1] for call in clone.calls(" install ")]
    assert pip[0].startswith("--require-hashes -r "), "the build tool first, pinned like the rest"
    assert pip[1:] == [
        "--require-hashes --no-build-isolation -r requirements.lock",
        "--no-deps --no-build-isolation --editable .",
    ]
    second = clone.set_up()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    (clone.folder / "requirements.lock").write_text("zebra==1.1\n")
    assert "installing 1 pinned packages" in clone.set_up().stderr


def test_a_set_up_that_broke_off_is_taken_up_again(clone: Clone) -> None:
    clone.tool("java")
    (clone.toolbox / "pip-breaks").touch()
    broken = clone.set_up()
    assert broken.returncode == 2
    assert "no matching distribution" in broken.stderr
    (clone.toolbox / "pip-breaks").unlink()
    assert clone.set_up().returncode == 0
    assert clone.set_up().stderr == ""


def test_missing_packages_are_one_line_where_apt_may_not_run(clone: Clone) -> None:
    clone.with_apt()
    done = clone.set_up(ORDERBED_APT="never")
    assert done.returncode == 2
    assert done.stderr == "  packages  please install default-jre-headless (for Spark): ORDERBED_APT=never\n"
    assert clone.calls("apt-get") == []


def test_an_old_java_counts_as_missing(clone: Clone) -> None:
    clone.tool("java")
    assert clone.set_up(JAVA_VERSION="11").returncode == 2
    assert clone.set_up(JAVA_VERSION="21").returncode == 0


def test_tests_go_on_without_their_packages_and_say_so(clone: Clone) -> None:
    clone.tool("java")
    done = clone.set_up("--tests")
    assert done.returncode == 0
    assert "please install tshark (for tests of captures), chromium (for tests of the report)" in done.stderr


def test_the_java_classes_are_archived_once_and_only_for_tests(clone: Clone) -> None:
    clone.tool("java")
    clone.set_up()
    assert clone.calls("prepare") == []
    assert "archiving the Java classes" in clone.set_up("--tests").stderr
    assert "archiving" not in clone.set_up("--tests").stderr
    assert len(clone.calls("prepare")) == 1


def test_benchmarks_want_the_tools_that_they_are_measured_beside(clone: Clone) -> None:
    clone.tool("java")
    assert "mininet (for benchmarks of networks)" in clone.set_up("--bench").stderr
    assert "mininet" not in clone.set_up("--tests").stderr


def test_a_browser_that_only_starts_a_snap_is_missing(clone: Clone) -> None:
    for name in ("java", "tshark", "chromedriver"):
        clone.tool(name)
    clone.tool("chromium-browser", "#!/bin/sh\nexec snap run chromium\n")
    assert "please install chromium (for tests of the report)" in clone.set_up("--tests").stderr
    clone.tool("chromium")
    assert "please install" not in clone.set_up("--tests").stderr


@pytest.mark.root
def test_root_installs_what_is_missing_and_only_then_refreshes_the_lists(clone: Clone) -> None:
    clone.with_apt()
    done = clone.set_up("--tests")
    assert done.returncode == 0, done.stderr
    assert "installing openjdk-17-jre-headless tshark chromium chromium-driver" in done.stderr
    update, install = clone.calls("apt-get")
    assert update.endswith(" update")
    assert install.endswith("install --no-install-recommends openjdk-17-jre-headless tshark chromium chromium-driver")
    assert clone.set_up("--tests").stderr == ""
    assert len(clone.calls("apt-get")) == 2


def test_wrong_use_is_one_sentence(clone: Clone) -> None:
    done = clone.set_up("--everything")
    assert (done.returncode, done.stderr) == (2, "  set-up    use: scripts/setup [--tests | --bench]\n")


PYTEST = """#!/usr/bin/env bash
# Stands for both halves; `wired` and `loose` hold what each does.
half=loose
[[ $* != *"-m root "* ]] || half=wired
echo "$half: $*"
source "$(dirname "$0")/$half"
"""

STAYS = "trap 'echo ended; exit 2' INT; touch \"$0.$half\"; while sleep 0.01; do :; done"


class Halves:
    """A clone in which scripts/test starts the pytest above."""

    def __init__(self, folder: Path, *, wired: str, loose: str) -> None:
        shutil.copytree(ROOT / "scripts", folder / "scripts")
        self.bin = folder / ".venv" / "bin"
        self.bin.mkdir(parents=True)
        for name, text in (("pytest", PYTEST), ("wired", wired), ("loose", loose)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.command = [str(folder / "scripts" / "test"), "root", "-k", "a or b"]
        # The suite that runs this test may hold the lock.
        (self.bin / "flock").write_text('#!/usr/bin/env bash\nexec "${@:3}"\n')
        (self.bin / "flock").chmod(0o755)
        self.environment = os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("wired", "loose", "code"), [(0, 0, 0), (5, 0, 0), (0, 5, 0), (1, 0, 1), (0, 2, 2), (1, 5, 1), (3, 2, 2)]
)
def test_all_tests_pass_if_each_half_passes_or_is_empty(tmp_path: Path, wired: int, loose: int, code: int) -> None:
    halves = Halves(tmp_path, wired=f"exit {wired}", loose=f"chrt -p $$; exit {loose}")
    done = subprocess.run(halves.command, env=halves.environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
    first, policy, _priority, second = done.stdout.splitlines()
    assert re.fullmatch(r"loose: -n [2-4] --dist worksteal -m not \(root\) -k a or b", first)
    assert policy.endswith("SCHED_IDLE")
    assert second == "wired: -m root -k a or b"


@pytest.mark.root
def test_the_others_have_a_control_group_of_their_own_as_long_as_they_run(tmp_path: Path) -> None:
    halves = Halves(tmp_path, wired="exit 0", loose="grep -o tests-of-orderbed-.* /proc/self/cgroup; exit 0")
    done = subprocess.run(halves.command, env=halves.environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    _first, group, _second = done.stdout.splitlines()
    assert group not in Path("/proc/self/cgroup").read_text()
    assert list(Path("/sys/fs/cgroup").rglob(group)) == []


@pytest.mark.parametrize(("loose", "count"), [(STAYS, 2), ("exit 0", 1)])
def test_no_test_goes_on_after_the_end_of_the_script(tmp_path: Path, loose: str, count: int) -> None:
    """With SIGINT ignored, as by a job in the background, and in both phases."""
    halves = Halves(tmp_path, wired=STAYS, loose=loose)
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        script = subprocess.Popen(halves.command, env=halves.environment, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, ignored)
    with script:
        wait_until(lambda: len(list(halves.bin.glob("pytest.*"))) == count, "the tests run")
        script.terminate()
        said, _nothing = script.communicate(timeout=60)
    assert script.returncode == 143
    assert said.count("ended") == count


def test_a_suite_that_waits_for_another_one_ends_without_it(tmp_path: Path) -> None:
    halves = Halves(tmp_path, wired="exit 0", loose="exit 0")
    (halves.bin / "flock").write_text('#!/bin/sh\n[ "$1" != --nonblock ] || exit 1\ntouch "$0.waits"\nexec sleep 60\n')
    with subprocess.Popen(halves.command, env=halves.environment, stdout=subprocess.PIPE) as script:
        wait_until((halves.bin / "flock.waits").exists, "it waits")
        script.terminate()
        script.communicate(timeout=30)
    assert script.returncode == 143


def test_no_address_in_what_sets_up() -> None:
    for path in [*(ROOT / "scripts").iterdir(), ROOT / "Makefile", ROOT / ".ci" / "run"]:
        assert "://" not in path.read_text(encoding="utf-8"), path


def test_make_help_lists_every_target_and_fits_a_terminal() -> None:
    done = subprocess.run(["make", "-C", str(ROOT), "--no-print-directory"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    assert {line.split()[1] for line in lines} == set(phony.split()[1:])
    assert max(map(len, lines)) <= 80
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
