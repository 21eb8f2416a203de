"""Structural rules of the project: imports between packages, length of files, forbidden text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).parents[1]
N = TypeVar("N", bound=ast.AST)

ROOMS = ("node", "topologies", "netem", "collector", "analysis", "testbed")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "node": (),
    "topologies": (),
    "netem": ("topologies",),
    "collector": ("node.wire", "node.trace", "node.errors"),
    "analysis": ("collector", "topologies"),
    "testbed": ("node", "topologies", "netem", "collector", "analysis"),
}
"""Allowed prefixes of modules. A package may always import itself."""

FLOORS: dict[str, tuple[str, ...]] = {
    "node.objects": (
        *("addresses", "parameters", "pipe", "log", "manager", "api", "load", "programs", "application", "alone"),
        *("processes", "space_process"),
    ),
    "netem": ("errors", "owner", "kernel", "wiring", "probe", "fabric", "network", "runtimes"),
    "analysis": (
        *("errors", "files", "tables", "formatting", "svg", "schema", "tasks", "requested_network", "inputs"),
        *("capture", "checks", "network", "metrics", "traffic", "engine", "live", "independent", "spacetime"),
        *("report", "expression", "judgement", "unexplained", "summary", "run"),
    ),
    "testbed": ("paths", "console", "spec", "reference", "rundir", "sim", "run", "live", "fuzz", "cli"),
}
"""The parts of these packages; each may import those before it in its package."""

PURE_CORES_FORBID = {"asyncio", "socket", "time", "os", "logging", "secrets"}
"""A core has no clock, socket, log or entropy of its own."""

PURE = ("node/protocols", "node/reliable", "node/group")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def package_files(package: str) -> list[Path]:
    """All modules of a package but its `__init__`."""
    return [path for path in python_files(package.replace(".", "/")) if module_name(path) != package]


def pure_files() -> list[Path]:
    return [*python_files(*PURE), ROOT / "node/transport.py"]


def tracked_texts() -> list[Path]:
    """Every text file that a clone has or will have: tracked, or new and not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and _is_text(ROOT / name)]


def _is_text(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def nodes_of(files: Iterable[Path], *kinds: type[N]) -> Iterator[tuple[str, N]]:
    """Nodes of these kinds in the syntax of the files, each with its place."""
    for path in files:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, kinds):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules that a file imports. `from a import b` is `a.b` if that is a module."""
    return frozenset(name for node in ast.walk(tree_of(path)) for name in _imported(node, path))


def _imported(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}: relative import; write the whole name"
        assert node.module is not None
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if _module_file(inner) is not None else node.module


def _module_file(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _is_within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def forbidden(files: Iterable[Path], is_forbidden: Callable[[str], bool]) -> list[str]:
    """Imports of the files that are forbidden."""
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in sorted(imports(path))
        if is_forbidden(module)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_import_directions(room: str) -> None:
    allowed = (room, *MAY_IMPORT[room])

    def is_forbidden(module: str) -> bool:
        return module.split(".")[0] in ROOMS and not any(_is_within(module, prefix) for prefix in allowed)

    assert forbidden(python_files(room), is_forbidden) == []


@pytest.mark.parametrize(("package", "floor"), [(package, floor) for package in FLOORS for floor in FLOORS[package]])
def test_packages_are_built_floor_by_floor(package: str, floor: str) -> None:
    floors = FLOORS[package]
    below = [f"{package}.{name}" for name in floors[: floors.index(floor) + 1]]
    files = [path for path in package_files(package) if _is_within(module_name(path), below[-1])]
    assert files

    def is_forbidden(module: str) -> bool:
        return _is_within(module, package) and not any(_is_within(module, prefix) for prefix in below)

    assert forbidden(files, is_forbidden) == []


@pytest.mark.parametrize("package", FLOORS)
def test_every_part_of_a_package_is_on_a_floor(package: str) -> None:
    names = {module_name(path).removeprefix(package).split(".")[1] for path in package_files(package)}
    assert names == set(FLOORS[package])


def test_nodes_need_nothing_but_the_standard_library() -> None:
    known = sys.stdlib_module_names | {"node"}
    assert forbidden(python_files("node"), lambda module: module.split(".")[0] not in known) == []


def test_protocol_cores_are_pure() -> None:
    assert forbidden(pure_files(), PURE_CORES_FORBID.__contains__) == []


def test_protocol_cores_draw_only_from_their_own_seeded_generator() -> None:
    drawn = [
        f"{place}: random.{node.attr}"
        for place, node in nodes_of(pure_files(), ast.Attribute)
        if isinstance(node.value, ast.Name) and node.value.id == "random" and node.attr != "Random"
    ]
    assert drawn == []


def test_the_product_does_not_import_its_tests() -> None:
    assert forbidden(python_files(*ROOMS), lambda module: _is_within(module, "tests")) == []


def test_modules_import_each_other_in_one_direction() -> None:
    """Imports inside functions and for types count, too: they only move the time at which a cycle is met."""
    graph = {
        module_name(path): sorted(name for name in imports(path) if name.split(".")[0] in ROOMS and _module_file(name))
        for path in python_files(*ROOMS)
    }
    cycle = find_cycle(graph)
    assert cycle is None, " -> ".join(cycle or ())


def test_few_imports_stand_inside_functions() -> None:
    """Each has its reason beside it: it loads Spark, Docker, or the code that touches kernels."""
    found = {
        f"{place.partition(':')[0]}:{node.lineno}"
        for place, function in nodes_of(python_files(*ROOMS), ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert 0 < len(found) <= 20, sorted(found)


def find_cycle(graph: dict[str, list[str]]) -> list[str] | None:
    """A cycle as the list of its modules, first and last the same; None when there is none."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str] | None:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        for target in graph.get(module, []):
            if target != module and (found := visit(target, [*path, module])):
                return found
        done.add(module)
        return None

    return next((found for module in graph if (found := visit(module, []))), None)


def test_cycles_are_found() -> None:
    assert find_cycle({"a": ["b"], "b": ["c"], "c": []}) is None
    assert find_cycle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]


def test_the_product_prints_only_through_its_doors() -> None:
    calls = nodes_of(python_files(*ROOMS), ast.Call)
    assert [place for place, call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"] == []


def test_every_module_says_what_it_is_for() -> None:
    modules = [(path, tree_of(path)) for path in python_files(*ROOMS)]
    assert [path for path, tree in modules if tree.body and not ast.get_docstring(tree)] == []


# Split, so that this file does not match itself.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|home|root|Users|mnt)" + r"/\w")


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH], ids=["unfinished", "machine path"])
def test_what_never_appears_in_a_file(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked_texts()
        if path.name not in ("requirements.lock", "LICENSE")
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_every_package_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    found = {
        ".".join(path.parent.relative_to(ROOT).parts) for room in ROOMS for path in (ROOT / room).rglob("__init__.py")
    }
    assert set(listed) == found


def lock_entries() -> list[str]:
    """One string per requirement, its continued lines joined."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return [entry for entry in text.replace("\\\n", " ").splitlines() if entry.strip()]


def test_the_lock_has_no_address_and_hashes_everything() -> None:
    for entry in lock_entries():
        assert re.match(r"[a-z0-9-]+==[\w.+!-]+( ;.*?)?( +--hash=sha256:[0-9a-f]{64})+ *$", entry), entry[:80]
        assert "://" not in entry, entry[:80]


def test_the_lock_pins_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[^A-Za-z0-9_.-]", wish)[0].lower().replace("_", "-") for wish in asked}
    pinned = {entry.split("==")[0] for entry in lock_entries()}
    assert names <= pinned, names - pinned
