"""The modules behind the commands, each loaded when a command first uses it: `lazy.perform.run_experiment(...)`.

Spark, pandas, pydantic and the Docker client take 0.3 to 1.1 s to import; `--help`, completion at every press of a key
and `info` need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis import inputs as inputs
    from analysis.capture import totals as totals
    from analysis.independent import compare as compare
    from analysis.report import page as page
    from analysis.report import terminal as terminal
    from analysis.spacetime import command as _diagrams
    from netem.runtimes import base as _runtimes
    from netem.runtimes import daemon as daemon
    from testbed import live as live
    from testbed.cli import doctor as doctor
    from testbed.cli import listings as listings
    from testbed.fuzz import command as _fuzz
    from testbed.fuzz import listing as _fuzz_listing
    from testbed.live import directory as directory
    from testbed.run import claims as claims
    from testbed.run import dry as dry
    from testbed.run import perform as perform
    from testbed.run import sweep as sweep
    from testbed.run import watch as watch
    from testbed.rundir import manifest as manifest
    from topologies.formats import schema as schema

    diagrams, fuzz, fuzz_listing, runtimes = _diagrams, _fuzz, _fuzz_listing, _runtimes

_MODULES = {
    "claims": "testbed.run.claims",
    "compare": "analysis.independent.compare",
    "daemon": "netem.runtimes.daemon",
    "diagrams": "analysis.spacetime.command",
    "directory": "testbed.live.directory",
    "doctor": "testbed.cli.doctor",
    "dry": "testbed.run.dry",
    "fuzz": "testbed.fuzz.command",
    "fuzz_listing": "testbed.fuzz.listing",
    "inputs": "analysis.inputs",
    "listings": "testbed.cli.listings",
    "live": "testbed.live",
    "manifest": "testbed.rundir.manifest",
    "page": "analysis.report.page",
    "perform": "testbed.run.perform",
    "runtimes": "netem.runtimes.base",
    "schema": "topologies.formats.schema",
    "sweep": "testbed.run.sweep",
    "terminal": "analysis.report.terminal",
    "totals": "analysis.capture.totals",
    "watch": "testbed.run.watch",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """The module of this name; Python calls it for a name that this file does not define."""
    if name not in _MODULES:
        raise AttributeError(name)
    return import_module(_MODULES[name])
