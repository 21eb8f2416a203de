"""Probes of this machine: each with its finding and, where something is missing, the remedy.

Each probe tries the thing itself (makes a namespace, asks the daemon, waits for a timer) where that is quick.
`orderbed doctor` shows them; the test suite uses some to report what it could not run.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import docker

from netem import probe as kernel
from netem.errors import FabricError
from netem.probe import REQUESTS, processors_awake
from netem.runtimes.daemon import connect, require_rights
from netem.runtimes.image import Distribution, find_image, ready_tags
from netem.wiring.steps import KernelOption

GIB = 1024**3
DISK_BYTES_MIN = 2 * GIB
"""A run of some minutes at 2,000 multicasts/s writes about 1 GiB, its tables half as much again."""

MEMORY_BYTES_MIN = 3 * GIB
"""Spark takes 2 GiB, a guest kernel and the nodes the rest."""

CPUS_MIN = 2
TIMER_WAIT_S = 0.001
TIMER_SAMPLES = 40
TIMER_LATE_MAX_NS = 500_000
"""Half of the largest delay error that a certified link may have: nodes wake up by the same timers."""

CAPTURE_PROGRAMS = ("tshark", "dumpcap", "capinfos", "tcpdump")
BROWSERS = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
DRIVERS = ("chromedriver", "chromium.chromedriver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one probe. `remedy` is empty when `ok`; a run works without an `optional` one."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """A browser that can be driven without a screen."""

    program: Path
    driver: Path


def checks() -> list[Check]:
    """Probes of `orderbed doctor`, in the order in which a run needs them; about 1 s. A missing thing never raises."""
    return [
        check_root(),
        *check_kernel(),
        check_docker(),
        check_java(),
        check_cpus(),
        check_memory(),
        check_disk(),
        check_awake(),
        check_clock(),
        check_compilers(),
        check_tshark(),
        check_browser(),
    ]


def check_root() -> Check:
    if os.geteuid() == 0:
        return Check(name="root", ok=True, detail="namespaces and network devices may be made")
    return Check(name="root", ok=False, detail=f"user id {os.geteuid()}", remedy="run as root (sudo)")


def check_kernel() -> list[Check]:
    """The kernel that would emulate the links, then every probe that led to it."""
    probes = kernel.probe()
    try:
        choice = kernel.pick(KernelOption.AUTO, probes)
    except FabricError as error:
        wires = Check(name="wires", ok=False, detail="no kernel with netem", remedy=str(error))
    else:
        wires = Check(name="wires", ok=True, detail=f"kernel {choice.picked.value}: {choice.why}")
    return [wires, *(_single(probe) for probe in probes)]


def _single(probe: kernel.Probe) -> Check:
    lacks_netem = not probe.ok and probe.name == "host netem"
    remedy = kernel.NETEM_REMEDY if lacks_netem else ""
    return Check(name=probe.name, ok=probe.ok, detail=probe.detail, remedy=remedy, optional=True)


def check_docker() -> Check:
    """The Docker daemon, and the image of node containers."""
    try:
        client = connect()
    except FabricError as error:
        return _no_docker(error)
    with closing(client):
        try:
            require_rights(client)
        except FabricError as error:
            return _no_docker(error)
        version = client.version()["Version"]
        return Check(name="docker", ok=True, detail=f"daemon {version}, {_image_source(client)}", optional=True)


def _no_docker(error: FabricError) -> Check:
    detail, _, _ = str(error).replace(": point", ";").partition(";")
    return Check(name="docker", ok=False, detail=detail, remedy="make docker, or use the world netns", optional=True)


def _image_source(client: docker.DockerClient) -> str:
    for tag in ready_tags(Distribution.of_this_machine()):
        if find_image(client, tag) is not None:
            return f"base image {tag}"
    return "base image to be pulled or built at the first run"


def check_java() -> Check:
    from analysis.engine.session import require_java
    from analysis.errors import AnalysisError  # here: these bring PySpark in

    try:
        java = require_java()
    except AnalysisError as error:
        return Check(name="java", ok=False, detail=str(error), remedy="install openjdk-17-jre-headless")
    return Check(name="java", ok=True, detail=f"{_first_line([str(java), '-version'])} ({java})")


def check_cpus() -> Check:
    cpus = len(os.sched_getaffinity(0))
    remedy = "" if cpus >= CPUS_MIN else f"give this machine {CPUS_MIN} CPUs: with fewer, nodes delay each other"
    return Check(name="cpus", ok=cpus >= CPUS_MIN, detail=f"{cpus} usable", remedy=remedy)


def check_memory(meminfo: Path = Path("/proc/meminfo")) -> Check:
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    ok = available >= MEMORY_BYTES_MIN
    remedy = "" if ok else f"free {_gib(MEMORY_BYTES_MIN - available)}: Spark needs 2 GiB"
    return Check(name="memory", ok=ok, detail=f"{_gib(available)} available", remedy=remedy)


def check_disk(folder: Path | None = None) -> Check:
    """Free space in `folder` (default: this directory), where runs are kept."""
    folder = folder or Path.cwd()
    free = shutil.disk_usage(folder).free
    ok = free >= DISK_BYTES_MIN
    remedy = "" if ok else f"make room in {folder}, or keep runs elsewhere (ORDERBED_RUNS)"
    return Check(name="disk", ok=ok, detail=f"{_gib(free)} free in {folder}", remedy=remedy)


def check_awake(requests: Path = REQUESTS) -> Check:
    """Whether idle processors can be kept awake while a run lasts."""
    with processors_awake(requests) as processors:
        if processors.awake:
            return Check(name="awake", ok=True, detail="idle processors are kept awake during runs", optional=True)
    detail = f"idle processors sleep during runs, and delays come out longer ({processors.why})"
    remedy = "run as root, on a kernel with /dev/cpu_dma_latency (in a container, pass that device)"
    return Check(name="awake", ok=False, detail=detail, remedy=remedy, optional=True)


def check_clock() -> Check:
    """Lateness of this machine's timers, as in a run, and steps of its wall clock during the probe."""
    lates, steps = [], []
    offset = time.time_ns() - time.monotonic_ns()
    with processors_awake():
        for _ in range(TIMER_SAMPLES):
            due = time.monotonic_ns() + int(TIMER_WAIT_S * 1e9)
            time.sleep(TIMER_WAIT_S)
            lates.append(time.monotonic_ns() - due)
            steps.append(abs(time.time_ns() - time.monotonic_ns() - offset))
    late_ns, step_ns = int(statistics.median(lates)), max(steps)
    detail = f"{_clock_source()}, timers late by {late_ns / 1000:.0f} us, wall clock off by {step_ns / 1000:.0f} us"
    if step_ns > TIMER_LATE_MAX_NS:
        return Check(
            name="clock", ok=False, detail=detail, remedy="the wall clock steps: stop what sets it during runs"
        )
    if late_ns > TIMER_LATE_MAX_NS:
        return Check(name="clock", ok=False, detail=detail, remedy="no high-resolution timers, or a busy machine")
    return Check(name="clock", ok=True, detail=detail)


def check_tshark() -> Check:
    lacking = "captures cannot be checked against other programs"
    return check_programs("tshark", CAPTURE_PROGRAMS, lacking, "install tshark and tcpdump", ["tshark", "--version"])


def check_compilers() -> Check:
    """Compilers of the example trace senders (docs/senders), and what compiled campaigns need beside them."""
    lacking = "trace senders in other languages and compiled campaigns cannot be tested"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        detail = f"Python.h not found: {lacking}"
        return Check(name="compilers", ok=False, detail=detail, remedy="install python3-dev", optional=True)
    return check_programs("compilers", ("cc", "go"), lacking, "install gcc and golang-go", ["go", "version"])


def check_programs(
    name: str, programs: Sequence[str], lacking: str, remedy: str, version: list[str], *, path: str | None = None
) -> Check:
    missing = [program for program in programs if shutil.which(program, path=path) is None]
    if missing:
        detail = f"{', '.join(missing)} not found: {lacking}"
        return Check(name=name, ok=False, detail=detail, remedy=remedy, optional=True)
    return Check(name=name, ok=True, detail=_first_line(version), optional=True)


def check_browser() -> Check:
    browser = find_browser()
    if browser is not None:
        detail = f"{browser.program}, driven by {browser.driver}"
        return Check(name="browser", ok=True, detail=detail, optional=True)
    detail = "no Chromium with its chromedriver: the report cannot be tested in a browser"
    remedy = "install chromium and chromium-driver (on Ubuntu, whose packages are snaps: snap install chromium)"
    return Check(name="browser", ok=False, detail=detail, remedy=remedy, optional=True)


def find_browser() -> Browser | None:
    """A Chromium and its driver; scripts that only start or ask for a snap do not count."""
    programs = (Path(found) for name in BROWSERS if (found := shutil.which(name)) is not None)
    drivers = (Path(found) for name in DRIVERS if (found := shutil.which(name)) is not None)
    program = next((path for path in programs if not is_snap_shim(path)), None)
    driver = next((path for path in drivers if not is_snap_shim(path)), None)
    return Browser(program=program, driver=driver) if program is not None and driver is not None else None


def is_snap_shim(path: Path) -> bool:
    """Whether it is the snap, or Ubuntu's script that starts the snap or, where there is none, asks to install it."""
    if path.is_relative_to("/snap"):
        return False
    with path.open("rb") as file:
        start = file.read(4096)
    return start.startswith(b"#!") and b"snap" in start and not Path("/snap/bin/chromium").exists()


def _clock_source(path: Path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")) -> str:
    return path.read_text(encoding="ascii").strip() if path.is_file() else "unknown clock source"


def _first_line(command: list[str]) -> str:
    """First line of a program's output; `java -version` writes it on standard error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not tell its version ({error})"
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
