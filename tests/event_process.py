"""A program of ours that is told lines on its standard input and says its events as lines of JSON."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.paths import ROOT

PATIENCE_S = 20.0


class EventProcess:
    """The program as a process, controlled as by the conductor."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.pid = self._process.pid
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, event: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next line with this event; those before it are kept in `said`."""
        end = time.monotonic() + timeout_s
        while True:
            said = self._lines.get(timeout=max(0.01, end - time.monotonic()))
            self.said.append(said)
            if said["event"] == event:
                return said

    def close_output(self) -> None:
        """Close the reading end of its standard output; a read that is under way still gets the next line."""
        assert self._process.stdout is not None
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, self._process.stdout.fileno(), inheritable=False)
        os.close(nothing)
        self._reader.join(PATIENCE_S)

    def exit_code(self, timeout_s: float = PATIENCE_S) -> int:
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        while not self._lines.empty():
            self.said.append(self._lines.get())
        return code

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def errors(self) -> str:
        """Standard error, after the end."""
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def close(self) -> None:
        """Kill it in any state, and wait for its end."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # its unread input does not matter any more

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
