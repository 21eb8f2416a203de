"""The sweep of an experiment file (docs/experiments.md): its axes, its seeds, and the setting of a value at its key.
Every combination is a run.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from random import Random

import yaml

from testbed.spec.nodes import derive_seed
from testbed.spec.raw import MAX_SEEDS, RawExperiment
from testbed.spec.values import SweepAxis
from topologies.formats.units import shown
from topologies.formats.yaml_source import Document, KeyPath, Value

MAX_KEYS = 10
"""Longest path of a sweep's key; the deepest key of a file has 6."""

SEEDS = "seeds"
SEED_BITS = 32
"""Bits of a derived seed: short enough to be read and typed."""


def axes(raw: RawExperiment, document: Document) -> tuple[SweepAxis, ...]:
    """The axes in the file's order, without the seeds. Raises InputError."""
    found: list[SweepAxis] = []
    seen: set[str] = set()
    for key, values in raw.sweep.items():
        if key == SEEDS:
            continue
        at: KeyPath = ("sweep", key)
        if not isinstance(values, list):
            raise document.error(at, f"expected a list of values, got {shown(values)}")
        if not values:
            raise document.error(at, "expected at least one value")
        axis = SweepAxis(key=key, values=tuple(values))
        _check_keys(axis, seen, document, at)
        if len(axis.keys) > 1:
            _check_rows(axis, document, at)
        found.append(axis)
    return tuple(found)


def seeds(raw: RawExperiment, document: Document) -> int:
    """Number of seeds of each combination; 0: the experiment's own. Raises InputError."""
    count = raw.sweep.get(SEEDS, 0)
    is_whole = isinstance(count, int) and not isinstance(count, bool)
    if SEEDS in raw.sweep and not (is_whole and 1 <= count <= MAX_SEEDS):
        raise document.error(("sweep", SEEDS), f"expected a whole number from 1 to {MAX_SEEDS}, got {shown(count)}")
    if count and any("seed" in key.replace(" ", "").split(",") for key in raw.sweep):
        raise document.error(("sweep", SEEDS), "expected either seed, with a list of seeds, or seeds, with a number")
    return int(count)


def derived_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Different seeds in a fixed order; the first ones do not depend on `count`."""
    rng = Random(derive_seed(seed, "sweep"))  # noqa: S311 (repeatable, not secret)
    found: dict[int, None] = {}
    while len(found) < count:
        found[rng.getrandbits(SEED_BITS)] = None
    return tuple(found)


def put(whole: dict[str, Value], key: str, value: Value, document: Document, at: KeyPath) -> KeyPath:
    """Set one key (`workload.rate`, `faults.0.impair.loss`) and return its path; missing blocks are made.

    Raises InputError at `at`, the place in the sweep.
    """
    parts = split(key)
    if not 1 <= len(parts) <= MAX_KEYS:
        raise document.error(at[:2], "expected the path of a key, such as workload.rate or faults.0.impair.loss")
    holder: Value = whole
    path: KeyPath = ()
    for number, part in enumerate(parts, start=1):
        last = number == len(parts)
        if isinstance(holder, dict):
            path = (*path, part)
            if last:
                holder[part] = copy.deepcopy(value)
            holder = holder.setdefault(part, {})
        elif isinstance(holder, list) and part.isdecimal() and int(part) < len(holder):
            path = (*path, int(part))
            if last:
                holder[int(part)] = copy.deepcopy(value)
            holder = holder[int(part)]
        else:
            what = f"a list of {len(holder)}" if isinstance(holder, list) else shown(holder)
            above = ".".join(parts[: number - 1])
            raise document.error(at[:2], f"there is no {part} in {above}, which is {what}")
    return path


def outermost_first(settings: Mapping[str, tuple[Value, KeyPath]]) -> list[tuple[str, Value, KeyPath]]:
    """Settings in the order in which they are applied: a whole block before changes of its parts."""
    ordered = sorted(settings, key=lambda key: len(split(key)))
    return [(key, *settings[key]) for key in ordered]


def split(key: str) -> list[str]:
    """The parts of a key's path; `faults[0].impair.loss` and `faults.0.impair.loss` are the same."""
    return [part for part in re.split(r"\.|\[(\d+)\]", key) if part]


def _check_keys(axis: SweepAxis, seen: set[str], document: Document, at: KeyPath) -> None:
    for key in axis.keys:
        if key.split(".")[0] in ("name", "sweep"):
            raise document.error(at, f"{key} cannot be swept")
        if key in seen:
            raise document.error(at, f"{key} is swept twice")
        seen.add(key)


def _check_rows(axis: SweepAxis, document: Document, at: KeyPath) -> None:
    for position, row in enumerate(axis.values):
        if not isinstance(row, list) or len(row) != len(axis.keys):
            got = f"{len(row)} values" if isinstance(row, list) else shown(row)
            expected = f"a row of {len(axis.keys)} values, for {', '.join(axis.keys)}"
            raise document.error((*at, position), f"expected {expected}, got {got}")


def setting(value: object) -> str:
    """One value of a sweep as text: a block as in a file, a protocol without parameters by its name."""
    if isinstance(value, dict) and list(value) == ["name"]:
        return str(value["name"])
    if isinstance(value, dict | list):
        return str(yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)).strip()
    return str(value)
