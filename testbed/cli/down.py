"""The verb `down`: testbeds of this user end, and what killed runs left is removed. What others have going on stays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.text import Text

from testbed.cli import completion as complete
from testbed.cli.console import Json, output, print_json, say_done
from topologies.formats.errors import InputError


def down(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The testbed to take down. Default: the only one that is up.",
            envvar=complete.TESTBED_VARIABLE,
            autocompletion=complete.testbeds,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All testbeds of this user.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --all: also containers of runs that go on, whoever started them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take a testbed down, and remove what killed runs left.

    That is containers, by the label that they carry. Network namespaces end with their run, however it ends.
    """
    from netem.runtimes import daemon
    from testbed.live import Testbed, running

    if force and not everything:
        raise InputError("--force removes containers of everybody's living runs; it goes with --all only")
    up_now = [one.name for one in running()]
    if name is None and not everything and len(up_now) > 1:
        raise InputError(
            f"several testbeds are up: {', '.join(up_now)}; say which one (`orderbed down NAME`), or --all"
        )
    chosen = up_now if everything else [Testbed.attach(name).name] if name or up_now else []
    for one in chosen:
        Testbed.attach(one).down()
    remains = daemon.down(force=force) if everything or not name else daemon.Remains()
    if as_json:
        staying = sorted(container for containers in remains.staying.values() for container in containers)
        print_json({"down": chosen, "removed": list(remains.removed), "staying": staying})
        return
    _tell(chosen, remains.removed, remains.staying if everything else {})


def _tell(chosen: Sequence[str], removed: Sequence[str], staying: Mapping[str, Sequence[str]]) -> None:
    from testbed.live.directory import none_up

    for one in chosen:
        say_done("down", Text(f"{one}: nothing of it is left"))
    if removed:
        say_done("down", Text(f"{_containers(len(removed))} removed"))
    if staying:
        output().print(staying_sentence(staying), markup=False)
    elif not chosen and not removed:
        output().print("nothing was left" if os.geteuid() == 0 else none_up(), markup=False)


def staying_sentence(staying: Mapping[str, Sequence[str]]) -> str:
    """That containers stay, whose they are (by owner, as netem.owner.Owner says it), and how they go nevertheless."""
    from netem.owner import Owner

    count = sum(len(containers) for containers in staying.values())
    owners = [Owner.parse(text) for text in staying]
    pids = ", ".join(str(owner.pid) if owner is not None else "unknown" for owner in owners)
    whose = f"a run that lives (process {pids})" if len(owners) == 1 else f"runs that live (processes {pids})"
    stay, them = ("stays", "it") if count == 1 else ("stay", "them")
    return f"{_containers(count)} of {whose} {stay}; --force removes {them}, too"


def _containers(count: int) -> str:
    return f"{count} {'container' if count == 1 else 'containers'}"
