"""Runs of a module under several hash seeds: the order of a set of strings depends on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

from testbed.paths import ROOT


def said_under(module: str, *words: str, seeds: Iterable[str] = ("0", "4711")) -> set[str]:
    """Outputs of `python -m module words` under these hash seeds."""
    found = set()
    for seed in seeds:
        command = [sys.executable, "-m", module, *words]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout.strip())
    return found
