"""Start of a testbed's server: a request goes in, lines of progress and at last a description come out.

The server is a process in a session of its own, so that Ctrl-C and a closed terminal do not reach it. It reads one JSON
line from its standard input and writes JSON lines to its standard output until it is up:

    {"progress": "booting …"} … {"up": {…}}     or     {"error": {"kind": …, "text": …}}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem.errors import FabricError
from netem.runtimes.base import Program
from node.registry import PROTOCOLS
from testbed.live.rpc import raise_refusal
from testbed.live.status import Plain
from testbed.paths import ROOT

if TYPE_CHECKING:
    from testbed.spec.values import Experiment

END_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest(Plain):
    """Request to bring up a testbed. `stays`: it does not end with the process that started it."""

    name: str
    topology_text: str
    topology_source: str
    world: str
    kernel: str
    image: str | None
    """World docker: image of the nodes' containers; None: the project's."""
    program: Program | None
    runs: Path
    stays: bool
    experiment_text: str | None = None
    """Text of the experiment file whose members the nodes are; None: of no experiment."""
    experiment_folder: Path | None = None
    """Folder of its relative paths."""

    def members(self) -> Experiment | None:
        """The experiment whose members the nodes are. Raises InputError."""
        if self.experiment_text is None:
            return None
        from testbed.spec import experiment as spec  # here: it brings pydantic in

        return spec.loads(self.experiment_text, self.name, protocols=PROTOCOLS, folder=self.experiment_folder)


def start_server(request: StartRequest, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Start a server and wait until its testbed is up. Returns its answer to `describe`; raises the server's error
    after the server has ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "testbed.live.server", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": _search_path()},
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request.as_json()).encode("utf-8") + b"\n")
        process.stdin.close()
        with process.stdout:
            return _await_up(process.stdout, on_progress)
    except BaseException:
        process.terminate()
        process.wait(END_TIMEOUT_S)
        raise
    finally:
        # Reap it whenever it ends: a zombie would look like a living owner of the runtime directory.
        threading.Thread(target=process.wait, name=f"end of {request.name}", daemon=True).start()


def _await_up(lines: Any, on_progress: Callable[[str], None]) -> dict[str, Any]:
    for line in lines:
        said = raise_refusal(json.loads(line))
        if "up" in said:
            found: dict[str, Any] = said["up"]
            return found
        on_progress(said["progress"])
    raise FabricError("the testbed's server ended before it was up; server.log in its record may say why")


def _search_path() -> str:
    others = os.environ.get("PYTHONPATH")
    return str(ROOT) if not others else f"{ROOT}{os.pathsep}{others}"
