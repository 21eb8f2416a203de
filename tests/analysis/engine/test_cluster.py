"""SPARK_MASTER: a real standalone cluster, master and two workers on loopback, that loses a worker and is then stopped.

It is slow (six JVMs), so one cluster serves both tests; the second stops it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
import pytest
from pyspark.sql import SparkSession

from analysis.summary import analyze
from tests.analysis.runs import MadeRun, ordered

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
TIMEOUT_S = 300.0

SCRIPT = """
    import sys
    from analysis import summary
    from analysis.engine import session
    session.NO_EXECUTOR_SECONDS = {patience}
    quiet = summary.analyze

    def loud(run, *, spark=None, on_progress):
        return quiet(run, spark=spark, on_progress=lambda text: print(text, flush=True))

    summary.analyze = loud
    from testbed.cli.main import main
    sys.argv = ["orderbed", "analyze", {run!r}]
    main()
"""


class Cluster:
    """The processes of the cluster, each ended by its own handle."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = os.environ | {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_WORKER_DIR": str(directory / "work"),
            "SPARK_LOCAL_DIRS": str(directory / "local"),
        }
        self.workers: list[subprocess.Popen[bytes]] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.master = self._start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._wait("Master", r"Starting Spark master at (spark://\S+)")
        for number in (1, 2):
            options = ("--cores", "1", "--memory", "600m", "--host", "127.0.0.1", "--webui-port", "0")
            self.workers.append(self._start("Worker", *options, self.url, log=f"Worker{number}"))
        for number in (1, 2):
            self._wait(f"Worker{number}", r"Successfully registered with master (\S+)")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                self.kill(process)
        deadline = time.monotonic() + 30
        while left := self.executors():
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.2)

    def executors(self) -> list[int]:
        """Processes that work in the directory of the cluster: they end with their worker."""
        found = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            try:
                if link.readlink().is_relative_to(self.directory):
                    found.append(int(link.parent.name))
            except OSError:
                continue
        return found

    def _start(self, kind: str, *options: str, log: str = "") -> subprocess.Popen[bytes]:
        name = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        with (self.directory / f"{log or kind}.log").open("wb") as out:
            process = subprocess.Popen(
                [str(SPARK_CLASS), name, *options], env=self._environment, stdout=out, stderr=out, cwd="/"
            )
        self.processes.append(process)
        return process

    def _wait(self, log: str, pattern: str) -> str:
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := re.search(pattern, (self.directory / f"{log}.log").read_text())):
            assert time.monotonic() < deadline, (self.directory / f"{log}.log").read_text()
            time.sleep(0.1)
        return found.group(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Known(NamedTuple):
    """A run that was analysed on this machine, and its summary."""

    run: Path
    summary: dict[str, Any]

    def copy(self, path: Path) -> Path:
        return Path(shutil.copytree(self.run, path))


@pytest.fixture(scope="module")
def known(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Known:
    made = MadeRun()
    ordered(made, messages=200)
    run = made.write(tmp_path_factory.mktemp("known") / "run")
    return Known(run, analyze(run, spark=spark, on_progress=lambda _: None))


def analyze_there(cluster: Cluster, run: Path, *, patience: int) -> subprocess.Popen[str]:
    """`orderbed analyze` on the cluster; it prints its progress line by line."""
    environment = os.environ | {
        "SPARK_MASTER": cluster.url,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_EXECUTOR_MEMORY": "512m",
    }
    script = textwrap.dedent(SCRIPT).format(patience=patience, run=str(run))
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(process.communicate()[1])


def test_an_analysis_there_is_the_same_as_here_though_a_worker_dies(
    known: Known, cluster: Cluster, tmp_path: Path
) -> None:
    run = known.copy(tmp_path / "run")
    (run / "summary.json").unlink()
    with analyze_there(cluster, run, patience=60) as process:
        read_until(process, "judging")
        cluster.kill(cluster.workers[0])
        _, stderr = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0, stderr
    assert json.loads((run / "summary.json").read_text()) == known.summary


def test_a_cluster_that_goes_away_is_one_sentence_and_harms_nothing(
    spark: SparkSession, known: Known, cluster: Cluster, tmp_path: Path
) -> None:
    run = known.copy(tmp_path / "run")
    files = contents(run)
    with analyze_there(cluster, run, patience=2) as process:
        read_until(process, "judging")
        for part in (cluster.master, *cluster.workers):
            cluster.kill(part)
        _, stderr = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 3, stderr
    assert stderr.startswith("orderbed: the cluster went away or gave up (")
    assert stderr.endswith(f"analyse it again when {cluster.url} answers, or unset SPARK_MASTER to use this machine\n")
    assert stderr.count("\n") == 1
    assert contents(run) == files
    assert not list(run.glob(".tables*"))
    assert analyze(run, spark=spark, on_progress=lambda _: None) == known.summary


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
