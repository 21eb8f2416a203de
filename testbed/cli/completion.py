"""Shell completion: names of topologies, experiments, testbeds, nodes, partitions and links.

It runs at every press of a key, so it reads only `owner` and `about.json` of testbeds and lines of shipped files: no
server, no kernel, no validation, no heavy import. Names that cannot be read are not offered; it never prints an error.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import typer

from analysis.files import read_json
from netem.owner import Owner
from testbed.paths import EXPERIMENTS, TOPOLOGIES, live_root
from topologies.formats.errors import InputError

TESTBED_VARIABLE: Final = "ORDERBED_TESTBED"
MANY_NODES: Final = 100
"""A testbed with more nodes offers partitions first, and nodes once the partition has been typed."""

HELP_WIDTH: Final = 70
DESCRIPTION_LINE: Final = re.compile(r"^(?:description|question): *[\"']?(.*?)[\"']? *$", re.MULTILINE)

Offer: TypeAlias = tuple[str, str]
"""A word, and its description in shells that show one."""


def topologies(incomplete: str) -> list[Offer]:
    """Shipped topologies and files of this directory."""
    return [*_shipped(TOPOLOGIES), *_files(incomplete)]


def experiments(incomplete: str) -> list[Offer]:
    """Shipped experiments and files of this directory."""
    return [*_shipped(EXPERIMENTS), *_files(incomplete)]


def shipped(folder: Path) -> Iterator[Offer]:
    """Each YAML file of a folder of the project, with its question or description."""
    for path in sorted(folder.glob("*.yaml")):
        found = DESCRIPTION_LINE.search(path.read_text(encoding="utf-8"))
        yield path.stem, found[1] if found else ""


def worlds() -> list[Offer]:
    return [
        ("auto", "docker if a daemon answers, else netns"),
        ("netns", "processes in namespaces"),
        ("docker", "containers"),
    ]


def kernels() -> list[Offer]:
    return [
        ("auto", "the host's if it has netem, else uml"),
        ("host", "this machine's kernel"),
        ("uml", "a User-Mode Linux guest"),
    ]


def directions() -> list[Offer]:
    """Directions of ports, then of links."""
    return [
        ("to-node", "what the node receives"),
        ("from-node", "what the node sends"),
        ("both", "either way"),
        ("there", "links: from the first partition"),
        ("back", "links: towards the first partition"),
    ]


def testbeds() -> list[Offer]:
    """Testbeds that are up."""
    return [(about["name"], f"topology {about['topology']}") for about in _testbeds()]


def nodes(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Nodes of the testbed of the command."""
    about = _meant(ctx)
    return [] if about is None else [*_node_names(about, incomplete)]


def node_selectors(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Whole partitions, then nodes. The text before the last comma is kept.

    The lone asterisk is not offered: bash would replace it by the files of the directory.
    """
    return _after_commas(incomplete, lambda word: [*_selectors(ctx, word)])


def targets(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Partitions, nodes and links."""
    return _after_commas(incomplete, lambda word: [*_selectors(ctx, word), *_links(ctx)])


def groups(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Names of partitions, which stand for their nodes, then nodes and links."""
    return _after_commas(incomplete, lambda word: [*_partitions(ctx), *targets(ctx, word)])


def _selectors(ctx: typer.Context, word: str) -> Iterator[Offer]:
    about = _meant(ctx)
    if about is not None:
        for name, members in about["partitions"].items():
            yield f"{name}/*", f"the {len(members)} nodes of {name}"
        yield from _node_names(about, word)


def _node_names(about: dict[str, Any], word: str) -> Iterator[Offer]:
    partition, slash, _rest = word.partition("/")
    is_large = sum(map(len, about["partitions"].values())) > MANY_NODES
    for name, members in about["partitions"].items():
        if name == partition if slash else not is_large:
            yield from ((f"{name}/{member}", f"node of {about['name']}") for member in members)


def _partitions(ctx: typer.Context) -> Iterator[Offer]:
    about = _meant(ctx)
    if about is not None:
        yield from ((name, f"the {len(members)} nodes of {name}") for name, members in about["partitions"].items())


def _links(ctx: typer.Context) -> Iterator[Offer]:
    about = _meant(ctx)
    if about is not None:
        yield from ((name, f"link of {about['name']}") for name in about["links"])


def _after_commas(incomplete: str, offers: Any) -> list[Offer]:
    before, comma, word = incomplete.rpartition(",")
    return [(f"{before}{comma}{name}", text) for name, text in offers(word)]


def _meant(ctx: typer.Context) -> dict[str, Any] | None:
    """The testbed of the command: the one named in it, the one named in the environment, or the only one."""
    found = list(_testbeds())
    name = ctx.params.get("testbed") or os.environ.get(TESTBED_VARIABLE)
    chosen = found if name is None else [about for about in found if about["name"] == name]
    return chosen[0] if len(chosen) == 1 else None


def _testbeds() -> Iterator[dict[str, Any]]:
    try:
        root = live_root()
    except InputError:
        return  # others may write there; the command itself reports it
    for path in sorted(root.glob("*/about.json")):
        try:
            owner = Owner.parse((path.parent / "owner").read_text(encoding="ascii"))
            about = read_json(path)
        except (OSError, ValueError):
            continue  # it is being made or removed
        if owner is not None and not owner.is_dead() and _is_sound(about):
            yield about


def _is_sound(about: Any) -> bool:
    """Whether it has the fields that completion reads: another version may have written it."""
    return isinstance(about, dict) and {"name", "topology", "partitions", "links"} <= about.keys()


def _shipped(folder: Path) -> Iterator[Offer]:
    for name, text in shipped(folder):
        yield name, textwrap.shorten(text, HELP_WIDTH, placeholder="…")


def _files(incomplete: str) -> Sequence[Offer]:
    folder = incomplete.rpartition("/")[0]
    at = Path(folder or ("/" if incomplete.startswith("/") else "."))
    prefix = f"{folder}/" if "/" in incomplete else ""
    try:
        entries = sorted(at.iterdir())
    except OSError:
        return []
    files = [(f"{prefix}{path.name}", "a file") for path in entries if path.suffix in (".yaml", ".yml")]
    shown = [path for path in entries if prefix and not path.name.startswith(".")]
    folders = [(f"{prefix}{path.name}/", "") for path in shown if path.is_dir()]
    return files + folders
