"""Commands inside nodes, as whoever started them holds them: poll, wait, signal, and what came out."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from netem.errors import FabricError
from netem.kernel.framing import readable
from testbed.live.rpc import RpcClient, raise_refusal

KILL_CODE = -int(signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that has ended. `code` is negative when a signal ended it."""

    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", errors="replace")


class Running:
    """A command in a node. It is killed when it is left (`with`), closed, or its starter ends."""

    def __init__(
        self,
        connection: socket.socket,
        argv: Sequence[str],
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        self.argv = tuple(argv)
        self.stdin = stdin
        """What the command reads, when it was asked for as a pipe."""
        self.stdout = stdout
        self.stderr = stderr
        self._connection = connection
        self._code: int | None = None
        self._reading = threading.Lock()
        self._sending = threading.Lock()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self) -> int | None:
        """Exit code once it has ended (negative: the signal), else None. Raises FabricError when its testbed is
        gone.
        """
        return self._take(0.0)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code. Raises TimeoutError, or FabricError when its testbed is gone."""
        code = self._take(timeout_s)
        if code is None:
            raise TimeoutError(f"{self.argv[0]} is still running after {timeout_s} s")
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its process group; none to a command that has ended."""
        self._say({"signal": int(number)})

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def resize(self, rows: int, columns: int) -> None:
        """The terminal has another size now."""
        self._say({"resize": [rows, columns]})

    def close(self) -> None:
        """Kill it if it still runs, wait for its end, and close its pipes."""
        try:
            if self._code is None:
                self.kill()
                self.wait()
        except FabricError:
            self._code = KILL_CODE  # its testbed took it along
        finally:
            self._connection.close()
            for pipe in (self.stdin, self.stdout, self.stderr):
                if pipe is not None:
                    _close_quietly(pipe)

    def fileno(self) -> int:
        """Readable once it has ended."""
        return self._connection.fileno()

    def _say(self, word: dict[str, Any]) -> None:
        with self._sending:
            if self._code is None:
                RpcClient.tell(self._connection, word)

    def _take(self, timeout_s: float | None) -> int | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._reading:
            while self._code is None:
                left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not readable([self._connection], left_s):
                    return None
                self._code = int(raise_refusal(RpcClient.hear(self._connection))["ended"])
            return self._code


def _close_quietly(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return  # what was left in its buffer has no reader any more
