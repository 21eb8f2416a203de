"""Benchmarks: `python -m benchmarks [SUBJECT …] [--quick] [--json FILE] [--page docs/benchmarks.md]`.

Without a subject, all of them run. A subject that fails is reported, the others go on, and the exit code is 3; an
invalid subject or path is refused before anything starts, with exit code 2. `make bench` installs the peers first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from analysis.files import replace_json
from benchmarks import page
from benchmarks.rows import Row
from topologies.formats.errors import InputError, did_you_mean

SUBJECTS = {
    "fabric": "Networks without nodes, beside Mininet",
    "worlds": "Networks with nodes",
    "namespaces": "Many namespaces",
    "accuracy": "Accuracy of delay, loss and rate",
    "collector": "Recording and parsing, beside dumpcap, scapy and tshark",
    "analysis": "From a capture to a summary",
    "memory": "Captures larger than memory",
    "stream": "A capture that is still being written",
    "node": "What a node costs",
    "rates": "Message rates",
}
"""Subject (module `bench_SUBJECT`) and heading, in the page's order."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        subjects = _chosen(options.subjects)
        if options.page:
            page.check(options.page)
        modules = {subject: import_module(f"benchmarks.bench_{subject}") for subject in subjects}
        _require_programs(modules)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return _measure_all(modules, options)


def _parser() -> argparse.ArgumentParser:
    told = "\n".join(f"  {name:12} {title}" for name, title in SUBJECTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure speed beside other tools.",
        epilog=f"subjects:\n{told}", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="what to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewest rounds, smallest sizes: to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write this run's rows here")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the rows into this page and the .json beside it")
    return parser


def _chosen(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in SUBJECTS:
            hint = did_you_mean(name, SUBJECTS)
            raise InputError(f"there is no benchmark {name}: choose from {', '.join(SUBJECTS)}{hint}")
    return tuple(dict.fromkeys(names)) or tuple(SUBJECTS)


def _require_programs(modules: dict[str, Any]) -> None:
    os.environ["PATH"] += os.pathsep + "/usr/sbin" + os.pathsep + "/sbin"
    wanted = {program: subject for subject, module in modules.items() for program in getattr(module, "PROGRAMS", ())}
    missing = [f"{program} (for {subject})" for program, subject in wanted.items() if not shutil.which(program)]
    if missing:
        raise InputError(f"please install {', '.join(missing)}: `scripts/setup --bench` does it")


def _measure_all(modules: dict[str, Any], options: argparse.Namespace) -> int:
    rows: list[Row] = []
    failed = False
    for subject, module in modules.items():
        print(f"{SUBJECTS[subject]} ({subject})", flush=True)
        began, found = time.monotonic(), len(rows)
        failed |= not _measure(module.measure, options.quick, rows)
        if options.page and len(rows) > found:
            page.update(options.page, rows[found:], SUBJECTS)
        if options.json:
            replace_json(options.json, [row.as_json() for row in rows])
        print(f"  {time.monotonic() - began:.0f} s\n", flush=True)
    return 3 if failed else 0


def _measure(measure: Callable[..., Iterable[Row]], quick: bool, rows: list[Row]) -> bool:
    """Measure one subject; False after a failure. Rows from before a failure are kept."""
    try:
        for row in measure(quick=quick):
            rows.append(row)
            print(page.line_for_terminal(row), flush=True)
    except Exception as error:  # reported; the other subjects go on: any error may occur
        print(f"  failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
