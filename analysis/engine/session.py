"""A small Spark session with a fast start and little output: `with session.open_session() as spark:`.

`SPARK_MASTER` unset: `local[*]`; else that cluster. The start takes much of a run of half a minute. So the JVM has the
serial collector, the C1 compiler only and, if `python -m analysis.engine.prepare` has written one, an archive of the
loaded classes (JEP 350). Measured on two cores: session and first Python job 7.8 s without the archive, 4.5 s with it.

Python workers talk over Unix sockets: over TCP each task waits 40 ms for a delayed acknowledgement.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from analysis.capture.stream import CaptureSource
from analysis.errors import AnalysisError, MachineError, SparkEndedError

OLDEST_JAVA = 17
LOCAL = "local[*]"
DEFAULT_MEMORY = "1g"
STOP_SECONDS = 10
NO_EXECUTOR_SECONDS = 60
"""Longest time that a cluster may be without an executor."""
FIRST_EXECUTOR_SECONDS = 120
"""Longest wait for the first executor, which starts a JVM."""
POLL_SECONDS = 1.0
TRAINING_STOP_SECONDS = 300
"""Longer than STOP_SECONDS, because the archive is written when the JVM stops."""

NO_JAVA = (
    "the analysis needs Java 17 or later, and no `java` was found; install it with: apt install openjdk-17-jre-headless"
)

LONGEST_SOCKET_DIRECTORY = 60
"""A Unix socket's whole path has at most 107 bytes."""

TRAINING = "ORDERBED_ARCHIVE_TO"
"""Environment variable: path to which this process writes an archive of its loaded classes
(analysis.engine.prepare).
"""

_QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LONG_RUN = ("-XX:+UseSerialGC", "-Xshare:auto")
"""Also with the C2 compiler: faster from about a minute of work on."""

_LOGGERS_OF_PY4J = (None, "py4j.java_gateway", "py4j.clientserver")
"""Loggers of py4j, which also writes to the root logger (None)."""

_LOGGING = """status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@contextlib.contextmanager
def open_session(*, long_run: bool = False) -> Iterator[SparkSession]:
    """Session with the data source registered; it and its JVM end with the block.

    The heap of a local session is `SPARK_DRIVER_MEMORY`, else `1g`; `long_run`: minutes of work are expected. Raises
    MachineError when there is no Java or the cluster does not answer, AnalysisError when another session is open in
    this process.
    """
    if SparkContext._active_spark_context is not None:
        raise AnalysisError("a Spark session is open already in this process; pass it on instead of opening another")
    java = require_java()
    with tempfile.TemporaryDirectory(prefix="orderbed-spark-") as directory:
        scratch = Path(directory)
        configuration = _configuration(scratch, java, long_run=long_run)
        with (scratch / "java.log").open("w+") as log:
            spark, gateway = _start(configuration, scratch, log)
            try:
                with _cluster_watch(spark):
                    yield spark
            except BaseException as error:
                if _is_interrupt(error):
                    # Ctrl-C must not wait for the abandoned jobs.
                    _kill(gateway)
                    raise KeyboardInterrupt from error
                if isinstance(error, (PySparkException, Py4JError, ConnectionError)):
                    sentence = analysis_error(error)
                    _stop_lost(spark, gateway)
                    raise sentence from error
                _stop(spark, gateway)
                raise
            _stop(spark, gateway)


@contextlib.contextmanager
def _cluster_watch(spark: SparkSession) -> Iterator[None]:
    """Cancel the jobs of a cluster that lost its last executor: Spark itself would wait for another one for ever."""
    if _is_local(str(spark.sparkContext.master)):
        yield
        return
    has_ended = threading.Event()
    watch = threading.Thread(target=_watch_executors, args=(spark, has_ended), name="cluster", daemon=True)
    watch.start()
    try:
        yield
    finally:
        has_ended.set()
        watch.join()


def _watch_executors(spark: SparkSession, has_ended: threading.Event) -> None:
    missing_s = 0.0
    while not has_ended.wait(POLL_SECONDS):
        try:
            missing_s = 0.0 if _executors(spark) else missing_s + POLL_SECONDS
            if missing_s >= NO_EXECUTOR_SECONDS:
                spark.sparkContext.cancelAllJobs()
        except (Py4JError, OSError):
            # The JVM is gone; the running job reports that itself.
            return


def _executors(spark: SparkSession) -> int:
    """Number of executors without the driver."""
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def _await_executors(spark: SparkSession) -> None:
    """Wait until there are executors and no more come: their number decides how the work is divided."""
    deadline = time.monotonic() + FIRST_EXECUTOR_SECONDS
    known = 0
    while not (found := _executors(spark)) or found > known:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no worker gave an executor of {_executor_memory()} within {FIRST_EXECUTOR_SECONDS} s")
        known = found
        time.sleep(POLL_SECONDS)


def _executor_memory() -> str:
    return os.environ.get("SPARK_EXECUTOR_MEMORY") or DEFAULT_MEMORY


def analysis_error(error: Exception) -> AnalysisError:
    """Error of Spark as one sentence: the text of an AnalysisError or CaptureError within it, if there is one."""
    text = str(error)
    if ours := re.search(r"\b(?:analysis\.errors\.AnalysisError|collector\.records\.CaptureError): (.+)", text):
        return AnalysisError(ours.group(1).strip())
    master = os.environ.get("SPARK_MASTER") or LOCAL
    if _is_local(master):
        return SparkEndedError(f"Spark gave up ({_reason(text)}); set SPARK_DRIVER_MEMORY to more if memory was short")
    return SparkEndedError(
        f"the cluster went away or gave up ({_reason(text)}); "
        f"the run is whole: analyse it again when {master} answers, or unset SPARK_MASTER to use this machine"
    )


def _reason(text: str) -> str:
    """Most informative line of an error text."""
    if "cancellation of all jobs" in text:
        return f"for {NO_EXECUTOR_SECONDS} s it has had no worker"
    for pattern in (r"Job aborted due to stage failure: ([^\n]+)", r"([^\n]*(?:All masters|cancelled because)[^\n]*)"):
        if found := re.search(pattern, text):
            return found.group(1).strip()[:200]
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")[:200]


def require_java() -> Path:
    """Path of the `java` that Spark will use. Raises MachineError when there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise MachineError(NO_JAVA)
    result = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    if version is None or int(version.group(1)) < OLDEST_JAVA:
        output = (result.stderr.strip() or "nothing").splitlines()[0]
        raise MachineError(f"{found}: is not Java {OLDEST_JAVA} or later (it says {output!r}); set JAVA_HOME")
    return Path(found)


def archive_path(java: Path) -> Path:
    """Path of the class archive for this Java and this Spark."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orderbed"
    stamp = f"{java.resolve()} {java.resolve().stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__}"
    return cache / f"spark-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}.jsa"


def _configuration(scratch: Path, java: Path, *, long_run: bool) -> SparkConf:
    master = os.environ.get("SPARK_MASTER") or LOCAL
    log_settings = scratch / "log4j2.properties"
    log_settings.write_text(_LOGGING, encoding="utf-8")
    quick = _LONG_RUN if long_run else _QUICK_START
    flags = [*quick, *_archive_flags(java)]
    flags.append(f"-Dlog4j2.configurationFile={log_settings}")
    # Spark creates directories there and does not remove all of them.
    flags.append(f"-Djava.io.tmpdir={scratch}")
    settings = _SETTINGS | {
        "spark.master": master,
        "spark.driver.memory": os.environ.get("SPARK_DRIVER_MEMORY") or DEFAULT_MEMORY,
        "spark.driver.extraJavaOptions": " ".join(flags),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if not _is_local(master):
        settings |= _CLUSTER_SETTINGS | {"spark.executor.memory": _executor_memory()}
        settings |= {"spark.executor.extraJavaOptions": " ".join(quick)}
    else:
        # One task per core: each costs 30 ms.
        cores = str(max(2, os.cpu_count() or 1))
        settings |= {"spark.sql.shuffle.partitions": cores, "spark.default.parallelism": cores}
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Each user of this machine reaches that address: Spark makes a secret, without which it hears nobody.
        settings["spark.authenticate"] = "true"
        if len(str(scratch)) < LONGEST_SOCKET_DIRECTORY:
            settings["spark.python.unix.domain.socket.enabled"] = "true"
            settings["spark.python.unix.domain.socket.dir"] = str(scratch)
    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


_SETTINGS = {
    "spark.app.name": "orderbed",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # No `_SUCCESS` file in each table.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


_CLUSTER_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    # A dead worker is detected at once by its closed connections; these settings bound a hanging one.
    "spark.network.timeout": "60s",
    "spark.executor.heartbeatInterval": "5s",
    # Data of a dead worker is computed again as soon as one fetch of it is refused.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
}

_TASKS_PER_CORE = 2
"""Tasks per core of a cluster: small tasks lose less work when a worker dies."""


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _archive_flags(java: Path) -> list[str]:
    if target := os.environ.get(TRAINING):
        return [f"-XX:ArchiveClassesAtExit={target}"]
    archive = archive_path(java)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def _start(configuration: SparkConf, scratch: Path, log: IO[str]) -> tuple[SparkSession, JavaGateway]:
    for name in _LOGGERS_OF_PY4J:
        logging.getLogger(name).addFilter(_is_news)
    # Workers run this interpreter, whatever `python3` is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    gateway = None
    handler = signal.getsignal(signal.SIGINT)
    try:
        gateway = _launch(configuration, log)
        spark = SparkSession(SparkContext(conf=configuration, gateway=gateway))
        if not _is_local(str(spark.sparkContext.master)):
            spark.sparkContext.addPyFile(str(_packages(scratch)))
            _await_executors(spark)
            tasks = _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
            spark.conf.set("spark.sql.shuffle.partitions", str(tasks))
    except BaseException as error:
        if gateway is not None:
            _kill(gateway)
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        if not isinstance(error, (PySparkException, Py4JError, OSError, RuntimeError)):
            raise
        log.seek(0)
        reason = _first_error(log.read()) or str(error)
        raise MachineError(f"Spark did not start ({reason}); {_remedy(configuration)}") from error
    if threading.current_thread() is threading.main_thread():
        # PySpark has installed a handler that calls the JVM before it interrupts this process.
        signal.signal(signal.SIGINT, handler)
    spark.dataSource.register(CaptureSource)
    return spark, gateway


def _launch(configuration: SparkConf, log: IO[str]) -> JavaGateway:
    """Start the JVM in a thread of its own: an interrupt in `launch_gateway` would leave a JVM that waits for ever. One
    that comes meanwhile is raised when the JVM has started and was killed.
    """
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(launch_gateway, configuration, {"stdout": log, "stderr": log})
        try:
            gateway: JavaGateway = launched.result()
        except KeyboardInterrupt:
            _kill(launched.result())
            raise
    return gateway


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error was caused by an interrupt: py4j wraps one that comes during a call to the JVM in its own
    error.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _is_news(record: logging.LogRecord) -> bool:
    """Filter of log records: py4j logs a traceback for Ctrl-C, and one for a JVM that is gone. Its callers get both as
    exceptions, but for finalizers, which tell the JVM of objects that went with it.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, Py4JNetworkError) and not _is_interrupt(error)


def _packages(scratch: Path) -> Path:
    """Archive of the packages that a cluster's workers import."""
    target = scratch / "orderbed.zip"
    root = Path(__file__).parents[2]
    with zipfile.ZipFile(target, "w") as archive:
        for package in ("analysis", "collector", "node", "testbed", "topologies"):
            for path in sorted((root / package).rglob("*.py")):
                archive.write(path, path.relative_to(root))
    return target


def _first_error(log: str) -> str:
    """First line of the JVM's output that reports an error; the lines after it are the stack trace."""
    lines = [line.strip() for line in log.splitlines() if "rror" in line or "xception" in line]
    first = next((line for line in lines if not line.startswith("at ")), "")
    return re.sub(r'^Exception in thread "[^"]*" ', "", first)


def _remedy(configuration: SparkConf) -> str:
    master = os.environ.get("SPARK_MASTER")
    if master:
        return f"SPARK_MASTER is {master!r}; correct it, or unset it to use this machine"
    return (
        f"is there room for {configuration.get('spark.driver.memory')} of memory? Set SPARK_DRIVER_MEMORY to use less"
    )


def _stop(spark: SparkSession, gateway: JavaGateway) -> None:
    spark.stop()
    gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin is not None
    # The JVM ends when its standard input is closed.
    process.stdin.close()
    try:
        process.wait(TRAINING_STOP_SECONDS if TRAINING in os.environ else STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _forget()


def _stop_lost(spark: SparkSession, gateway: JavaGateway) -> None:
    """Stop a session whose cluster or JVM may not answer any more."""
    try:
        _stop(spark, gateway)
    except (Py4JError, OSError):
        _kill(gateway)


def _kill(gateway: JavaGateway) -> None:
    """Kill the JVM: for Ctrl-C, and when it does not answer."""
    context = SparkContext._active_spark_context
    if context is not None and context._accumulatorServer is not None:
        # It would print a traceback about the JVM's last output.
        context._accumulatorServer.handle_error = _say_nothing  # type: ignore[method-assign,assignment]
    gateway.proc.kill()
    gateway.proc.wait()
    gateway.proc.stdin.close()
    _forget()


def _say_nothing(*_: object) -> None:
    pass


def _forget() -> None:
    """Clear PySpark's references to its JVM, which it keeps for the next session of the process: this one is gone."""
    context = SparkContext._active_spark_context
    if context is not None and context._accumulatorServer is not None:
        context._accumulatorServer.shutdown()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
