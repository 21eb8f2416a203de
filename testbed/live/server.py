"""The server process of a testbed: `python -m testbed.live.server STARTER`, started by testbed.live.starter.

    acceptor thread ── one thread per connection ──> verbs: a queue ──> the main thread, which owns state and network
                                              └────> commands run beside it, without a time limit

It ends on a request `down`, on a signal, and, unless it is to stay, when its starter ends in any way; it then releases
all resources in order, and server.log in its record gives the reason. If it is killed, supervisor and guard end all.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from netem.errors import FabricError
from netem.kernel.framing import ChannelClosedError
from netem.kernel.supervised import ExecRequest
from netem.runtimes.base import Command, NodeHandle
from testbed.live import requests as asks
from testbed.live.controller import Controller
from testbed.live.directory import RuntimeDirectory
from testbed.live.ending import Ending, Stopped, note
from testbed.live.rpc import MalformedFrameError, answer, close_all, receive, refusal
from testbed.live.starter import StartRequest
from testbed.paths import is_directory
from testbed.rundir.store import StoreError
from topologies.formats.errors import InputError

TICK_S = 0.25
REQUEST_TIMEOUT_S = 30.0
HANGUP_GRACE_S = 0.5
MAX_CONNECTIONS = 500
BACKLOG = 64
_CREDENTIALS = struct.Struct("3i")


class Server:
    """One testbed that is up."""

    def __init__(self, controller: Controller, directory: RuntimeDirectory, ending: Ending) -> None:
        self._controller = controller
        self._directory = directory
        self._ending = ending
        # Calls for the main thread with the future of their result; None: end.
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._leaving: list[socket.socket] = []
        """Connections of clients that sent `down` and wait for the end."""
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def listen(self) -> socket.socket:
        """Listen for requests from now on."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with self._directory.socket_path() as path:
            listener.bind(path)
        listener.listen(BACKLOG)
        threading.Thread(target=self._accept, args=(listener,), name="acceptor", daemon=True).start()
        return listener

    def stop(self) -> None:
        """Let `serve` return soon. Safe in a signal handler."""
        self._jobs.put(None)

    def serve(self) -> None:
        """Carry out calls until `stop`."""
        while True:
            try:
                job = self._jobs.get(timeout=TICK_S)
            except queue.Empty:
                with contextlib.suppress(FabricError):  # the next request reports a network that is gone
                    self._controller.notice()
                if not self._directory.is_ours():  # it was removed: no client can reach this server any more
                    self._ending.ask(f"{self._directory.path} was removed")
                continue
            if job is None:
                return
            do, done = job
            try:
                done.set_result(do())
            except Exception as error:
                done.set_exception(error)

    def answer_leaving(self, error: Exception | None) -> None:
        """Answer the clients that sent `down`, and refuse calls that are still queued."""
        reply = {"result": None} if error is None else refusal(error)
        for connection in self._leaving:
            answer(connection, reply)
        while not self._jobs.empty():
            late = self._jobs.get()
            if late is not None:
                late[1].set_exception(FabricError("the testbed is going down"))

    # Connections.

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _address = listener.accept()
            except OSError as error:
                if listener.fileno() < 0:
                    return  # closed: the server is ending
                note(f"a client could not be let in ({error.strerror})")
                time.sleep(TICK_S)  # until other clients have gone: without free descriptors accept fails at once
                continue
            if self._connections.acquire(blocking=False):
                threading.Thread(target=self._attend, args=(connection,), name="client", daemon=True).start()
            else:
                answer(connection, refusal(FabricError(f"more than {MAX_CONNECTIONS} clients at once; end some")))
                connection.close()

    def _attend(self, connection: socket.socket) -> None:
        with ExitStack() as stack:
            stack.callback(self._connections.release)
            if self._serve_one(connection, stack):
                connection.close()

    def _serve_one(self, connection: socket.socket, stack: ExitStack) -> bool:
        """Serve one request; False when its connection is kept open."""
        connection.settimeout(REQUEST_TIMEOUT_S)
        try:
            client = _checked_peer(connection)
            request, descriptors = receive(connection)
            stack.callback(close_all, descriptors)
            verb, words = asks.parse(request)
            connection.settimeout(None)
            if verb == "down":
                self._leaving.append(connection)
                self._ending.ask(f"process {client} said down")
                return False
            if isinstance(words, asks.AskExec):
                self._execute(connection, words, descriptors)
                return True
            answer(connection, {"result": self._ask(lambda: self._controller.perform(verb, words))})
        except (ChannelClosedError, TimeoutError, ConnectionError):
            return True  # the client has gone, or sends nothing
        except MalformedFrameError as error:
            answer(connection, refusal(InputError(f"a request that cannot be read: {error}")))
        except Exception as error:
            if not isinstance(error, InputError | FabricError | StoreError):
                sys.excepthook(type(error), error, error.__traceback__)  # into the server's log
            answer(connection, refusal(error))
        return True

    def _ask(self, do: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self._jobs.put((do, done))
        return done.result()

    # Commands.

    def _execute(self, connection: socket.socket, words: asks.AskExec, descriptors: tuple[int, ...]) -> None:
        """Start a command, pass signals and terminal sizes to it and its exit code back. It ends with its client."""
        if len(descriptors) != 3:
            raise InputError(f"a command needs 3 descriptors with its request, not {len(descriptors)}")
        if words.terminal and not os.isatty(descriptors[0]):
            raise InputError("descriptor 0 is no terminal")
        name, handle = self._ask(lambda: self._controller.enter(words.node))
        command = _start(handle, name, words, descriptors)
        answer(connection, {"started": True})
        waiter = threading.Thread(target=_tell_end, args=(command, connection), name="command", daemon=True)
        waiter.start()
        try:
            _pass_words(command, connection)
        finally:
            _hang_up(command, waiter)
            command.close()


def _start(handle: NodeHandle, name: str, words: asks.AskExec, descriptors: tuple[int, ...]) -> Command:
    directory = Path(words.directory)
    request = ExecRequest(
        argv=words.argv,
        environment={"ORDERBED_NODE": name, **words.environment},
        descriptors=descriptors,
        is_terminal=words.terminal,
        directory=directory if is_directory(directory) else Path("/"),
    )
    return handle.enter(request)


def _pass_words(command: Command, connection: socket.socket) -> None:
    """Pass signals and sizes on until the client or the command has ended."""
    while True:
        try:
            word, _none = receive(connection, max_descriptors=0)
        except (ChannelClosedError, MalformedFrameError, OSError):
            return
        _pass_word(command, word)


def _pass_word(command: Command, word: dict[str, Any]) -> None:
    """Pass on a signal or a terminal size; ignore any other frame."""
    number, size = word.get("signal"), word.get("resize")
    if isinstance(number, int) and number in signal.valid_signals() and number != 0:
        command.signal(signal.Signals(number))
    elif (
        isinstance(size, list) and len(size) == 2 and all(type(one) is int and 0 < one <= asks.MAX_SIZE for one in size)
    ):
        command.resize(size[0], size[1])


def _tell_end(command: Command, connection: socket.socket) -> None:
    try:
        answer(connection, {"ended": command.wait()})
    except (FabricError, ValueError, AssertionError) as error:
        answer(connection, refusal(error))
    with contextlib.suppress(OSError):  # wakes the thread in `_pass_words`; the client may have gone
        connection.shutdown(socket.SHUT_RD)


def _hang_up(command: Command, waiter: threading.Thread) -> None:
    """End a command whose client has gone: by SIGHUP, as a closed terminal does, then by SIGKILL."""
    for number in (signal.SIGHUP, signal.SIGKILL):
        if not waiter.is_alive():
            return
        with contextlib.suppress(FabricError):  # it ended with the testbed
            command.signal(number)
        waiter.join(HANGUP_GRACE_S)


def _checked_peer(connection: socket.socket) -> int:
    """Process id of a client. Raises InputError for other users, which the directory's mode keeps out as well."""
    pid, uid, _gid = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if uid not in (0, os.geteuid()):
        raise InputError(f"user {uid} may not use this testbed")
    return int(pid)


# Process.


def main(starter: int) -> int:
    """Bring up the testbed requested on standard input, serve, and release everything. Returns the exit code."""
    ending = Ending()
    try:
        ending.listen()
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        request = StartRequest.from_json(json.loads(sys.stdin.readline()))
        is_up = threading.Event()
        ending.follow(starter, lambda: request.stays and is_up.is_set())
        with ExitStack() as stack:
            directory = RuntimeDirectory.of(request.name)
            directory.take()
            stack.callback(directory.release)
            controller = Controller(request, lambda line: _say({"progress": line}))
            _run(controller, directory, is_up, ending)
    except (InputError, FabricError, StoreError) as error:
        ending.ignore_requests()  # on a refusal the starter sends SIGTERM to this process, which is ending already
        _say(refusal(error))
        return 1
    except Stopped as stopped:
        _say(refusal(FabricError(f"{stopped}; nothing of it is left")))
        return 1
    except Exception as error:
        ending.ignore_requests()
        _say(refusal(error))
        raise  # the traceback goes to the log
    return 0


def _run(controller: Controller, directory: RuntimeDirectory, is_up: threading.Event, ending: Ending) -> None:
    """Serve until the end is requested, then release everything. An error in that goes to the clients that sent `down`,
    and to the log.
    """
    server = Server(controller, directory, ending)
    ending.call_on_request(server.stop)
    failure: Exception | None = None
    try:
        listener = server.listen()
        directory.publish(controller.description, controller.topology)
        is_up.set()
        _say({"up": controller.about()})
        _detach()
        note(f"{controller.description.name} is up, process {os.getpid()}")
        server.serve()
        listener.close()
    finally:
        note(f"it ends: {ending.reason or f'a bug, {sys.exc_info()[1]!r}'}")
        try:
            controller.close()
        except (FabricError, StoreError) as error:
            failure = error
        directory.release()
        note("it has ended, nothing of it is left" if failure is None else f"it has ended, not well: {failure}")
        server.answer_leaving(failure)


def _say(values: dict[str, Any]) -> None:
    """Write a line to the starter, which may be gone. Not through sys.stdout, which would report at exit what it could
    not write.
    """
    rest = memoryview(json.dumps(values).encode("utf-8") + b"\n")
    with contextlib.suppress(BrokenPipeError):
        while rest:
            rest = rest[os.write(1, rest) :]


def _detach() -> None:
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
