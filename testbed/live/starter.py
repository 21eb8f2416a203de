"""Starting a testbed's server: what is asked for goes in, lines of progress and at last a description come out.

The server is a process of its own with a session of its own, so that Ctrl-C and a closed terminal are not for it. It
reads one JSON line from its standard input and writes JSON lines to its standard output until it is up:

    {"progress": "booting …"} … {"up": {…}}     or     {"error": {"kind": …, "text": …}}
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem.errors import FabricError
from netem.runtimes.base import Program
from netem.runtimes.cgroups import Limits
from testbed.live.rpc import raise_refusal
from testbed.paths import ROOT

if TYPE_CHECKING:
    from testbed.spec.values import Experiment

END_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """What a server is to bring up. `stays`: it does not end with the process that started it."""

    name: str
    topology_text: str
    topology_source: str
    world: str
    kernel: str
    image: str | None
    """World docker: what the nodes' containers start from; None: ours."""
    program: Program | None
    runs: Path
    stays: bool
    experiment_text: str | None = None
    """What the nodes are members of, as an experiment file has it; None: of nothing."""
    experiment_folder: Path | None = None
    """Where its relative paths begin."""

    def members(self) -> Experiment | None:
        """The experiment whose members the nodes are. Raises InputError."""
        if self.experiment_text is None:
            return None
        from node.registry import PROTOCOLS
        from testbed.spec import experiment as spec

        return spec.loads(self.experiment_text, self.name, protocols=PROTOCOLS, folder=self.experiment_folder)

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` undoes it."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        folder = None if self.experiment_folder is None else str(self.experiment_folder)
        return values | {
            "runs": str(self.runs),
            "program": _program_values(self.program),
            "experiment_folder": folder,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StartRequest:
        program = None if values["program"] is None else _program(values["program"])
        folder = None if values["experiment_folder"] is None else Path(values["experiment_folder"])
        return cls(**{**values, "runs": Path(values["runs"]), "program": program, "experiment_folder": folder})


def start_server(request: StartRequest, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Start a server and wait until its testbed is up; what `describe` says of it. Raises what the server met with,
    after it has ended.
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
        # Whenever it ends while we live: a zombie would look alive to whoever asks for the owner of its place.
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


def _program_values(program: Program | None) -> dict[str, Any] | None:
    if program is None:
        return None
    private = {place: str(source) for place, source in program.private.items()}
    limits = None if program.limits is None else dataclasses.asdict(program.limits)
    return {
        "argv": list(program.argv),
        "environment": dict(program.environment),
        "work": None if program.work is None else str(program.work),
        "private": private,
        "image": program.image,
        "limits": limits,
    }


def _program(values: Mapping[str, Any]) -> Program:
    return Program(
        argv=tuple(values["argv"]),
        environment=values["environment"],
        work=None if values["work"] is None else Path(values["work"]),
        private={place: Path(source) for place, source in values["private"].items()},
        image=values["image"],
        limits=None if values["limits"] is None else Limits(**values["limits"]),
    )
