"""The commands of `orderbed` around a testbed that stays up: flags and printing; `testbed.live` does the work."""

from __future__ import annotations

import codecs
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer
from rich.console import Console as RichConsole
from rich.text import Text

from netem.errors import CannotStartError, FabricError
from netem.owner import Owner
from testbed.cli import completion as complete
from testbed.cli import lazy
from testbed.cli import live_tables as tables
from testbed.console import DEFAULT_RUNS, Console, Json, Panel, Runs, output, print_json, say_done
from topologies.formats.errors import InputError
from topologies.formats.units import printable

if TYPE_CHECKING:
    from testbed.live import Testbed

T = TypeVar("T")

EXIT_OF_SIGNAL: Final = 128
"""Shells add this to the number of the signal that ended a command."""

WATCH_PERIOD_S: Final = 1.0
FOLLOW_PERIOD_S: Final = 0.1
PING: Final = "ping -c 3"

SHELL: Final = "if command -v bash >/dev/null; then exec bash --noprofile --norc; else exec sh; fi"
"""Without start-up files: these would replace the prompt that names the node."""

TestbedName = Annotated[
    str | None,
    typer.Option(
        "--testbed",
        envvar=complete.TESTBED_VARIABLE,
        autocompletion=complete.testbeds,
        help="Name of the testbed. Default: the only one that is up.",
    ),
]
NodeWord = Annotated[str, typer.Argument(metavar="node", help="Such as p1/n3.", autocompletion=complete.nodes)]
NodeWords = Annotated[
    list[str],
    typer.Argument(metavar="nodes", help="Such as p1/n3, p1/n1..n2 or p1.", autocompletion=complete.node_selectors),
]


NODE_VERBS: Final = {
    "crash": "Kill all processes of nodes at once.",
    "restart": "Start nodes again that have crashed or ended.",
    "pause": "Freeze nodes; their kernels go on receiving.",
    "resume": "Resume paused nodes.",
    "join": "Let absent members, and members that have left, join the group.",
    "leave": "Let members leave the group; they may join again.",
}
"""Commands that apply one fault to nodes, each a method of Testbed."""


class CommandEndedError(Exception):
    """A command in a node has ended, or could not start; its exit code becomes that of `orderbed`."""

    def __init__(self, code: int, sentence: str = "") -> None:
        super().__init__(sentence)
        self.code = code if code >= 0 else EXIT_OF_SIGNAL - code


def register(app: typer.Typer) -> None:
    """Add the commands, in the order in which the help lists them."""
    in_panel = partial(app.command, rich_help_panel=Panel.INTERACTIVE)
    in_panel()(up)
    in_panel()(ps)
    # Words after the node belong to the command that is to run there.
    in_panel("exec", context_settings={"allow_interspersed_args": False})(execute)
    changes: tuple[Callable[..., None], ...] = (shell, impair, restore, cut, heal)
    others: tuple[Callable[..., None], ...] = (capture, counters, logs, down)
    for command in changes:
        in_panel()(command)
    for verb, text in NODE_VERBS.items():
        in_panel(verb, help=text)(_node_command(verb))
    for command in others:
        in_panel()(command)


def up(
    topology: Annotated[
        str | None,
        typer.Argument(help="A shipped topology such as wan, or a YAML file.", autocompletion=complete.topologies),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            "--experiment",
            help="In place of a topology: its nodes run its protocol and workload, without its faults and its end.",
            autocompletion=complete.experiments,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the testbed. Default: as the topology.")] = None,
    world: Annotated[
        str, typer.Option("--world", help="auto, netns or docker.", autocompletion=complete.worlds)
    ] = "auto",
    kernel: Annotated[
        str, typer.Option("--kernel", help="auto, host or uml.", autocompletion=complete.kernels)
    ] = "auto",
    image: Annotated[
        str | None, typer.Option("--image", help="World docker: the image of the nodes, such as debian:12.")
    ] = None,
    program: Annotated[
        str | None, typer.Option("--program", help="Program of each node, such as 'iperf -s'. Default: an idle one.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when it is ready; it stays up.")] = False,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Bring a testbed up and keep it up, in the foreground or, with -d, in the background.

    Ctrl-C ends it in the foreground, `orderbed down` in the background. `exec` and `shell` run commands in its nodes.
    """
    console = Console(quiet=as_json)
    console.title("orderbed up", topology or experiment or "")
    with console.stage("testbed", "starting") as stage:
        testbed = lazy.live.Testbed(
            topology,
            experiment=experiment,
            name=name,
            world=world,
            kernel=kernel,
            image=image,
            program=_program(program),
            runs=runs,
            stays=detach,
            on_progress=stage.say,
        )
        stage.result = _summary(testbed)
    if as_json:
        print_json(testbed.description.as_json())
        sys.stdout.flush()
    else:
        _say_what_next(testbed, is_detached=detach, is_alone=len(lazy.live.running()) == 1)
    if not detach:
        _stay(testbed, console)


def ps(
    name: Annotated[
        str | None, typer.Argument(help="Name of the testbed, as for --testbed.", autocompletion=complete.testbeds)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show all testbeds that are up, one line each.")
    ] = False,
    each: Annotated[
        bool, typer.Option("--each", help="Show a row for each node, also for nodes in the same state.")
    ] = False,
    testbed: TestbedName = None,
    as_json: Json = False,
) -> None:
    """Show the nodes and links of a testbed, their faults, and the running capture."""
    if everything:
        testbeds = lazy.live.running()
        if as_json:
            print_json([one.as_json() for one in testbeds])
        elif testbeds:
            output().print(tables.testbeds_table(testbeds))
        else:
            output().print(lazy.directory.none_up(), markup=False)
        return
    found = lazy.live.Testbed.attach(name or testbed)
    nodes, links, capturing = found.nodes(), found.links(), found.capturing()
    if as_json:
        about = found.description.as_json()
        about |= {"nodes": [one.as_json() for one in nodes], "links": [one.as_json() for one in links]}
        print_json(about | {"capture": None if capturing is None else capturing.as_json()})
        return
    out = output()
    out.print(Text.assemble((found.name, "bold"), f"  {_summary(found)}, up for {tables.age(found.description.since)}"))
    out.print(Text(f"record {found.directory}", "dim"), soft_wrap=True)
    if capturing is not None:
        out.print(tables.capture_line(capturing), soft_wrap=True)
    out.print(tables.nodes_table(nodes, found.topology, each=each))
    if links:
        out.print(tables.links_table(links))


def execute(
    node: NodeWord,
    command: Annotated[list[str], typer.Argument(metavar="-- command", help="The command and its arguments.")],
    testbed: TestbedName = None,
    as_json: Json = False,
) -> None:
    """Run a command in a node; its exit code is passed on.

    Options of `orderbed exec` come before the node. The command runs as root in the node's network, beside its program.
    """
    argv = command[1:] if command[0] == "--" else command
    if not argv:
        raise InputError(f"no command was given; write it after --, such as `orderbed exec {node} -- ip addr`")
    found = lazy.live.Testbed.attach(testbed)
    name = tables.one_node(node, found.topology).name
    _tell_of_the_crashed(found, name)
    if not as_json:
        raise CommandEndedError(_end_of(lambda: found.terminal(name, argv)))
    done = _end_of(lambda: found.run(name, argv))
    streams = {key: getattr(done, key).decode("utf-8", errors="replace") for key in ("stdout", "stderr")}
    print_json({"node": name, "argv": argv, "code": done.code, **streams})
    raise CommandEndedError(done.code)


def shell(node: NodeWord, testbed: TestbedName = None) -> None:
    """Open a shell in a node; its prompt names the node."""
    found = lazy.live.Testbed.attach(testbed)
    name = tables.one_node(node, found.topology).name
    _tell_of_the_crashed(found, name)
    prompt = {"PS1": f"{found.name}:{name}# "}
    raise CommandEndedError(_end_of(lambda: found.terminal(name, ["sh", "-c", SHELL], environment=prompt)))


def impair(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="targets", help="Nodes such as 'p1/*', or links.", autocompletion=complete.targets),
    ],
    loss: Annotated[str | None, typer.Option(help="Share of frames lost, such as 10%.")] = None,
    burst: Annotated[str | None, typer.Option(help="Mean length of a loss burst, such as '4 frames'.")] = None,
    delay: Annotated[str | None, typer.Option(help="One way, such as 20ms.")] = None,
    jitter: Annotated[str | None, typer.Option(help="Deviation of single delays from --delay, such as 2ms.")] = None,
    distribution: Annotated[
        str | None, typer.Option(help="Shape of the jitter: uniform, normal, pareto or paretonormal.")
    ] = None,
    duplicate: Annotated[str | None, typer.Option(help="Share of frames that arrive twice, such as 1%.")] = None,
    reorder: Annotated[str | None, typer.Option(help="Share of frames that skip the delay, such as 1%.")] = None,
    corrupt: Annotated[str | None, typer.Option(help="Share of frames with one wrong bit, such as 1%.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="Rate of the queue's output, such as 10Mbit/s, or unlimited.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Capacity of the queue: '20 frames', 64kB or unlimited.")] = None,
    direction: Annotated[
        str | None,
        typer.Option(
            help="At nodes to-node (default), from-node or both; on links there, back or both (default).",
            autocompletion=complete.directions,
        ),
    ] = None,
    testbed: TestbedName = None,
    as_json: Json = False,
) -> None:
    """Change loss, delay, rate, … at nodes' ports or on links.

    Values that are not named stay. `orderbed restore` sets those of the topology again.
    """
    given = {
        "loss": loss, "burst": burst, "delay": delay, "jitter": jitter, "distribution": distribution,
        "duplicate": duplicate, "reorder": reorder, "corrupt": corrupt, "rate": rate, "queue": queue,
    }  # fmt: skip
    # As in a file: 0 needs no unit.
    changes: dict[str, Any] = {key: 0 if value == "0" else value for key, value in given.items() if value is not None}
    if not changes:
        raise InputError(
            f"nothing is to change; say what, with one or more of {', '.join('--' + key for key in given)}"
        )
    found = lazy.live.Testbed.attach(testbed)
    what = tables.named(targets, found.topology)
    way = {} if direction is None else {"direction": direction}
    change = (
        found.impair_link(what.links, **way, **changes) if what.links else found.impair(what.nodes, **way, **changes)
    )
    _tell("impair", found, change, as_json=as_json)


def restore(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="targets", help="Nodes or links. Default: all nodes and links.", autocompletion=complete.targets
        ),
    ] = None,
    testbed: TestbedName = None,
    as_json: Json = False,
) -> None:
    """Set the topology's values again at nodes' ports or on links."""
    found = lazy.live.Testbed.attach(testbed)
    if not targets:
        change = found.restore()
    else:
        what = tables.named(targets, found.topology)
        change = found.restore(links=what.links) if what.links else found.restore(what.nodes)
    _tell("restore", found, change, as_json=as_json)


def cut(
    groups: Annotated[
        list[str],
        typer.Argument(
            metavar="groups",
            help="Partitions, nodes with commas between, or links.",
            autocompletion=complete.groups,
        ),
    ],
    one_way: Annotated[
        bool, typer.Option("--one-way", help="Two groups: frames of the first no longer reach the second.")
    ] = False,
    testbed: TestbedName = None,
    as_json: Json = False,
) -> None:
    """Cut groups of nodes off from each other, or cut links.

    `cut p1 p2`, `cut p1/n1,p1/n2 p1/n3`, `cut p1--p2`, `cut --one-way p1/n1 p1/n2`.

    One group alone (`cut p1/n3`) is cut off from all others.
    """
    found = lazy.live.Testbed.attach(testbed)
    what = tables.named(groups, found.topology)
    sides = () if what.links else tables.groups_named(groups, found.topology)
    if one_way:
        if len(sides) != 2:
            raise InputError(
                "--one-way needs two groups of nodes: the senders, and the receivers that they no longer reach"
            )
        change = found.cut_one_way(*sides)
    elif what.links:
        change = found.cut(links=what.links)
    else:
        change = found.cut(*sides, *([tables.rest_of(sides[0], found.topology)] if len(sides) == 1 else []))
    _tell("cut", found, change, as_json=as_json)


def heal(testbed: TestbedName = None, as_json: Json = False) -> None:
    """End all cuts."""
    found = lazy.live.Testbed.attach(testbed)
    ended = found.heal()
    _tell("heal", found, ended, as_json=as_json)
    if not ended and not as_json:
        output().print("nothing was cut")


def capture(
    action: Annotated[Literal["start", "stop"], typer.Argument(help="start or stop")],
    path: Annotated[
        Path | None, typer.Argument(help="File to write (start). Default: in the record of the testbed.")
    ] = None,
    testbed: TestbedName = None,
    as_json: Json = False,
) -> None:
    """Record every frame at every switch port, both ways, as pcapng."""
    if action == "stop" and path is not None:
        raise InputError(f"`capture stop` takes no path, got {path}; give it to `capture start`")
    found = lazy.live.Testbed.attach(testbed)
    if action == "start":
        began = str(found.start_capture(path))
        if as_json:
            print_json({"path": began})
        else:
            say_done("capture", Text(f"every frame goes to {began}"))
        return
    counts = found.stop_capture()
    if as_json:
        print_json(counts)
        return
    dropped = counts["kernel_dropped_frames"]
    lost = f"{dropped:,} lost by the collector" if dropped else "none lost by the collector"
    say_done("capture", Text(f"{counts['frames']:,} frames, {lost}: {counts['path']}"))


def counters(testbed: TestbedName = None, as_json: Json = False) -> None:
    """Show the kernel's counters: frames that passed, and frames that were dropped."""
    found = lazy.live.Testbed.attach(testbed)
    counted = found.counters()
    if as_json:
        print_json(counted.as_json())
        return

    for table in tables.counters_tables(counted):
        output().print(table)


def logs(
    node: NodeWord,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C, or until the testbed is down.")
    ] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Number of last lines to print. Default: all.")
    ] = None,
    testbed: TestbedName = None,
    as_json: Json = False,
) -> None:
    """Print the output of a node's program."""
    if follow and as_json:
        raise InputError("--follow has no end that could be printed as JSON; leave one of the two out")
    found = lazy.live.Testbed.attach(testbed)
    name = tables.one_node(node, found.topology).name
    path = found.log_path(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    text = content.decode("utf-8", errors="replace")
    shown = text if lines is None else "\n".join(text.split("\n")[-lines - text.endswith("\n") :] if lines else [])
    if as_json:
        print_json({"node": name, "path": str(path), "text": shown})
        return
    _print_log(shown)
    if not text:
        sys.stderr.write(f"{name} has written nothing so far\n")
    if follow:
        _follow(found, path, len(content))


def down(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The testbed to take down. Default: the only one that is up.",
            envvar=complete.TESTBED_VARIABLE,
            autocompletion=complete.testbeds,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take down all testbeds of this user.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="With --all: also remove containers of runs that still run, also of other users."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Take a testbed down, and remove the containers that killed runs have left.

    Containers are found by their label. Network namespaces end with their run, however it ends.
    """
    if force and not everything:
        raise InputError("--force removes containers of all runs that still run, also of other users; it needs --all")
    up_now = [one.name for one in lazy.live.running()]
    if name is None and not everything and len(up_now) > 1:
        raise InputError(
            f"several testbeds are up: {', '.join(up_now)}; say which one (`orderbed down NAME`), or --all"
        )
    chosen = up_now if everything else [lazy.live.Testbed.attach(name).name] if name or up_now else []
    for one in chosen:
        lazy.live.Testbed.attach(one).down()
    remains = lazy.daemon.down(force=force) if everything or not name else lazy.daemon.Remains()
    if as_json:
        staying = sorted(container for containers in remains.staying.values() for container in containers)
        print_json({"down": chosen, "removed": list(remains.removed), "staying": staying})
        return
    _say_down(chosen, remains.removed, remains.staying if everything else {})


def _node_command(verb: str) -> Callable[..., None]:
    def command(targets: NodeWords, testbed: TestbedName = None, as_json: Json = False) -> None:
        found = lazy.live.Testbed.attach(testbed)
        _tell(verb, found, getattr(found, verb)(tables.nodes_named(targets, found.topology)), as_json=as_json)

    return command


def _tell_of_the_crashed(testbed: Testbed, name: str) -> None:
    """Warn that a node has crashed: in world netns its network is left and may be entered; docker leaves nothing."""
    if testbed.description.world == "docker":
        return
    if any(one.name == name and one.state is lazy.live.NodeState.CRASHED for one in testbed.nodes()):
        sys.stderr.write(
            f"{name} has crashed: the command finds its network and nothing else; `orderbed restart {name}`\n"
        )


def _end_of(do: Callable[[], T]) -> T:
    """The result of `do`. A program that cannot start gives the code of shells: 127 if it does not exist, else 126."""
    try:
        return do()
    except CannotStartError as error:
        raise CommandEndedError(error.exit_code, str(error)) from error


def _program(text: str | None) -> Any:
    """The program of `--program`, split as a shell would. Raises InputError."""
    if text is None:
        return None
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise InputError(f"--program: {text!r} cannot be split into words ({error})") from None
    if not argv:
        raise InputError("--program: expected a command such as 'iperf -s', got nothing")
    return lazy.runtimes.Program(argv=argv)


def _summary(testbed: Testbed) -> str:
    """`9 nodes of three-partitions, world netns, kernel uml`."""
    about = testbed.description
    nodes = f"{about.node_count} {'node' if about.node_count == 1 else 'nodes'}"
    return f"{nodes} of {about.topology}, world {about.world}, kernel {about.kernel}"


def _say_what_next(testbed: Testbed, *, is_detached: bool, is_alone: bool) -> None:
    """Example commands, with names that exist."""
    first, *others = testbed.topology.nodes()
    peer = others[-1] if others else first
    partitions = [partition.name for partition in testbed.topology.partitions]
    halves = " ".join(partitions[:2]) if len(partitions) > 1 else first.name
    hints = (
        *(
            ()
            if is_alone
            else ((f"export {complete.TESTBED_VARIABLE}={testbed.name}", "selects this testbed: several are up"),)
        ),
        (f"orderbed exec {first.name} -- {PING} {peer.ip}", f"a command in a node ({peer.ip} is {peer.name})"),
        (f"orderbed shell {first.name}", "a shell in a node"),
        (f"orderbed impair {partitions[0]} --loss 10% --delay 20ms", "loss and delay at nodes' ports"),
        (f"orderbed cut {halves}", "a cut; `orderbed heal` ends it"),
        ("orderbed ps", "the state of nodes and links"),
        (f"orderbed down {testbed.name}" if is_detached else "Ctrl-C", "takes the testbed down"),
    )
    width = max(len(command) for command, _text in hints)
    out = RichConsole(stderr=True, highlight=False, soft_wrap=True)
    for command, text in hints:
        out.print(Text.assemble("    ", (command.ljust(width), "bold"), f"  {text}"))


def _stay(testbed: Testbed, console: Console) -> None:
    """Keep the testbed up until Ctrl-C or a `down` from another process, and show its status meanwhile."""
    try:
        with testbed, console.stage("up", "ready; Ctrl-C ends it") as stage:
            try:
                _watch(testbed, stage.say)
            except FabricError:
                if any(one.name == testbed.name for one in lazy.live.running()):
                    raise
                stage.result = "another process took it down"
            except KeyboardInterrupt:
                stage.say("taking it down")
                testbed.close()
                stage.result = "taken down; nothing of it is left"
    finally:
        sys.stdout.flush()


def _watch(testbed: Testbed, say: Any) -> None:
    """Show the status until FabricError: the testbed is no longer up, or its network is gone."""
    while True:
        failure = testbed.failure()
        if failure is not None:
            raise FabricError(failure)
        stands = tables.status_line(testbed.nodes(), testbed.links(), testbed.topology)
        say(f"{stands.plain} · {tables.age(testbed.description.since, datetime.now(UTC))}")
        time.sleep(WATCH_PERIOD_S)


def _print_log(text: str) -> None:
    """Print output of a program, which may be of a stranger: no control character but tabs reaches a terminal."""
    if sys.stdout.isatty():
        text = "\t".join(map(printable, text.split("\t")))
    sys.stdout.write(text)
    sys.stdout.flush()


def _follow(testbed: Testbed, path: Path, offset: int) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with path.open("rb") as log:
        log.seek(offset)
        is_up = True
        while is_up:
            is_up = any(one.name == testbed.name for one in lazy.live.running())
            _print_log(decoder.decode(log.read()))
            time.sleep(FOLLOW_PERIOD_S)


def _tell(verb: str, testbed: Testbed, changes: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(list(changes))
        return
    for change in changes:
        for line in tables.change_lines(verb, change, testbed.topology):
            say_done(verb, line)


def _say_down(chosen: Sequence[str], removed: Sequence[str], staying: Mapping[str, Sequence[str]]) -> None:
    for one in chosen:
        say_done("down", Text(f"{one}: nothing of it is left"))
    if removed:
        say_done("down", Text(f"{_containers(len(removed))} removed"))
    if staying:
        output().print(staying_sentence(staying), markup=False)
    elif not chosen and not removed:
        output().print("nothing was left" if os.geteuid() == 0 else lazy.directory.none_up(), markup=False)


def staying_sentence(staying: Mapping[str, Sequence[str]]) -> str:
    """Sentence on containers that stay, by the text of their owner (netem.owner.Owner), and on how to remove them."""
    count = sum(len(containers) for containers in staying.values())
    owners = [Owner.parse(text) for text in staying]
    pids = ", ".join(str(owner.pid) if owner is not None else "unknown" for owner in owners)
    whose = f"a run that lives (process {pids})" if len(owners) == 1 else f"runs that live (processes {pids})"
    stay, them = ("stays", "it") if count == 1 else ("stay", "them")
    return f"{_containers(count)} of {whose} {stay}; --force removes {them}, too"


def _containers(count: int) -> str:
    return f"{count} {'container' if count == 1 else 'containers'}"
