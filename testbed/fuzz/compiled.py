"""Copy of this checkout with the group layer, the host and the simulator compiled by mypyc: worlds take half the time.

    python -m testbed.fuzz.compiled build/compiled
    cd build/compiled && python -m testbed.fuzz.campaign --minutes 60

The copy has the committed state. It judges the first worlds of each protocol as this checkout does, or the command
fails. Exit codes: 0 both agree, 1 they differ, or the compiler fails, 2 wrong use.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.fuzz.draw import FUZZED

ROOT = Path(__file__).parents[2]

MODULES = (
    *(
        f"node/group/{name}.py"
        for name in ("change", "codec", "core", "detector", "member", "stack", "transfer", "view")
    ),
    *(f"node/reliable/{name}.py" for name in ("channel", "codec", "core", "stream")),
    *(f"node/host/{name}.py" for name in ("host", "node_clock")),
    *(f"testbed/sim/{name}.py" for name in ("csma", "engine", "line", "member", "network")),
)
"""Where worlds spend most of their time. mypyc does not compile all cores of protocols; they are left out."""

SLOTS = re.compile(r"\(slots=True\)|, slots=True|slots=True, ")
"""Classes that mypyc compiles have slots, and must not be made again with slots."""

BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup
setup(name="compiled", packages=[], ext_modules=mypycify(sys.argv[3:], opt_level="2"), script_args=sys.argv[1:3])
"""


def compile_copy(folder: Path, modules: Sequence[str]) -> None:
    """Copy the committed state to the new `folder`, and compile `modules` there. CalledProcessError: it cannot be."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    for module in modules:
        path = folder / module
        path.write_text(SLOTS.sub("", path.read_text()))
    command = [sys.executable, "-c", BUILD, "build_ext", "--inplace", *modules]
    with (folder / "compiled.log").open("w") as log:
        subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=True)
    subprocess.run(["git", "checkout", "--quiet", "."], cwd=folder, check=True)


def tally_in(root: Path, protocol: str, first: int, count: int) -> bytes:
    """Result of the seeds `first` to `first + count - 1` as a checkout at `root` judges them, as JSON."""
    words = (
        "import json, sys; from testbed.fuzz.hunt import tally_of; "
        "tally = tally_of(sys.argv[1], range(*map(int, sys.argv[2:])), goes_on=True); "
        "print(json.dumps(tally.as_dict(), sort_keys=True))"
    )
    command = [sys.executable, "-c", words, protocol, str(first), str(first + count)]
    return subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True).stdout


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.fuzz.compiled", description="A compiled copy.")
    parser.add_argument("folder", type=Path, help="of the copy: new")
    parser.add_argument("--seeds", type=int, default=20, help="worlds of each protocol that both judge")
    asked = parser.parse_args(words)
    if asked.folder.exists():
        parser.error(f"{asked.folder} exists")
    try:
        compile_copy(asked.folder, MODULES)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{error.cmd[0]} failed: see {asked.folder}/compiled.log") from None
    for protocol in FUZZED:
        if tally_in(ROOT, protocol, 0, asked.seeds) != tally_in(asked.folder, protocol, 0, asked.seeds):
            raise SystemExit(f"{asked.folder} judges worlds of {protocol} differently")


if __name__ == "__main__":
    main(sys.argv[1:])
