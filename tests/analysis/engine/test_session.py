"""Start and end of Spark: without Java, with an old one, twice, and by an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from analysis.engine import session
from analysis.errors import AnalysisError, MachineError
from tests.collector.captures import pcapng, traffic
from tests.testbed.live.testbeds import processes_with
from tests.waiting import wait_until


def fake_java(path: Path, says: str) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "java").write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    (path / "bin" / "java").chmod(0o755)
    return path


def test_no_java_is_one_sentence_that_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(MachineError, match="apt install openjdk-17-jre-headless"):
        session.require_java()


def test_what_the_machine_lacks_is_no_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 3: the user's input is correct."""
    capture = tmp_path / "some.pcapng"
    capture.write_bytes(pcapng(traffic(5)))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    script = "from testbed.cli.main import main; main()"
    result = subprocess.run([sys.executable, "-c", script, "watch", str(capture)], capture_output=True, text=True)

    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == f"orderbed: {session.NO_JAVA}\n"


@pytest.mark.parametrize("says", ['openjdk version "11.0.2"', 'java version "1.8.0_292"', "no idea"])
def test_an_old_java_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", says)))

    with pytest.raises(MachineError, match="is not Java 17 or later") as caught:
        session.require_java()
    assert says in str(caught.value)


@pytest.mark.parametrize("says", ['openjdk version "17.0.15"', 'openjdk version "21" 2023-09-19'])
def test_a_recent_java_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    home = fake_java(tmp_path / "java", says)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert session.require_java() == home / "bin" / "java"


@pytest.mark.spark
def test_only_one_session_at_a_time(spark: SparkSession) -> None:
    assert spark.version.startswith("4.")
    with pytest.raises(AnalysisError, match="open already"), session.open_session():
        pass


@pytest.mark.spark
def test_the_session_is_set_up_for_small_work(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == str(max(2, os.cpu_count() or 1))
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


@pytest.mark.spark
def test_nobody_without_its_secret_gets_to_the_driver(spark: SparkSession) -> None:
    """Another user of this machine reaches its address, and could otherwise give it results of tasks."""
    java = spark.sparkContext._jvm
    assert java is not None
    classes, none, settings = java.org.apache.spark, java.scala.Option.empty(), java.org.apache.spark.SparkConf(False)
    constants = getattr(getattr(classes.internal.config, "package$"), "MODULE$")
    without_secret = classes.SecurityManager(settings, none, constants.AUTH_SECRET_FILE())
    stranger = classes.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, settings, without_secret, True)
    port = spark.sparkContext.getConf().get("spark.driver.port")
    driver = classes.rpc.RpcAddress("127.0.0.1", int(str(port)))
    try:
        with pytest.raises(Py4JJavaError, match="Exception thrown in awaitResult"):
            stranger.setupEndpointRef(driver, "LocalSchedulerBackendEndpoint")
    finally:
        stranger.shutdown()


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.spark
def test_nothing_is_left_behind_and_a_second_session_starts() -> None:
    result = run_script("""
        import os
        from analysis.engine import session

        def children():
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                return file.read().split()

        for _ in range(2):
            with session.open_session() as spark:
                assert spark.range(5).count() == 5
                assert len(children()) == 1
            assert not children(), children()
        print("good")
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "good\n", "")


@pytest.mark.spark
def test_an_interrupt_ends_a_long_job_at_once() -> None:
    script = """
        import time
        from analysis.engine import session
        try:
            with session.open_session() as spark:
                print("go", flush=True)
                spark.range(10**13).selectExpr("sum(id % 7)").collect()
        except KeyboardInterrupt:
            print("stopped", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=3)

    assert (process.returncode, out) == (0, "stopped\n"), err
    assert "Traceback" not in err


@pytest.mark.spark
def test_an_interrupt_while_the_jvm_starts_leaves_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from analysis.engine import session as s\nwith s.open_session(): pass"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        wait_until(lambda: any("SparkSubmit" in one for one in processes_with(str(tmp_path))), "a JVM", within_s=60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert (processes_with(str(tmp_path)), list(tmp_path.iterdir())) == ([], [])


@pytest.mark.spark
def test_a_cluster_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MASTER", "nonsense://here")
    result = run_script("""
        from analysis.engine import session
        from analysis.errors import MachineError
        try:
            with session.open_session():
                pass
        except MachineError as error:
            print(error)
    """)
    assert result.stdout.startswith("Spark did not start (")
    assert result.stdout.endswith("SPARK_MASTER is 'nonsense://here'; correct it, or unset it to use this machine\n")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Job 7 cancelled as part of cancellation of all jobs", "for 60 s it has had no worker"),
        ("x\nJob aborted due to stage failure: Task 0 failed 4 times\nat java.lang", "Task 0 failed 4 times"),
        ("An error\nAll masters are unresponsive! Giving up.\nmore", "All masters are unresponsive! Giving up."),
        ("", "no reason given"),
    ],
)
def test_a_cluster_that_gave_up_is_one_sentence(monkeypatch: pytest.MonkeyPatch, text: str, reason: str) -> None:
    monkeypatch.setenv("SPARK_MASTER", "spark://host:7077")
    error = session.analysis_error(PySparkException(text))

    assert isinstance(error, MachineError)
    assert str(error) == (
        f"the cluster went away or gave up ({reason}); the run is whole: analyse it again when spark://host:7077 "
        "answers, or unset SPARK_MASTER to use this machine"
    )


def test_what_a_worker_found_wrong_with_a_capture_stays_wrong_input() -> None:
    error = session.analysis_error(
        PySparkException("Traceback\nanalysis.errors.AnalysisError: a.pcap: is damaged\nat line 3")
    )

    assert not isinstance(error, MachineError)
    assert str(error) == "a.pcap: is damaged"
