"""Placeholders and the block `program`: their values, and their errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.runtimes.cgroups import Limits
from node.registry import PROTOCOLS
from testbed.run.program import UserProgram, require_runnable, user_programs
from testbed.spec import experiment as spec
from testbed.spec.nodes import configuration
from testbed.spec.program import Place, PlaceholderError
from testbed.spec.raw import World
from testbed.spec.values import Experiment
from topologies.formats.errors import InputError

HEAD = """\
name: sample
question: What does it do?
topology: one-partition
duration: 2 s
"""
OURS = "protocol: {name: sequencer}\nworkload: {kind: periodic, rate: 50 /s, size: 64 B}\n"


def loads(text: str, folder: Path | None = None) -> Experiment:
    return spec.loads(HEAD + text, "x.yaml", protocols=PROTOCOLS, folder=folder)


def place(text: str = "program: {command: x}") -> Place:
    experiment = loads(text)
    node = experiment.topology.node("p1/n2")
    return Place(topology=experiment.topology, node=node, program=experiment.programs[node.name], directory=Path("/d"))


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{name} {host} {ip} {index} {number} {partition}", "p1/n2 p1-n2 10.1.0.2 1 2 p1"),
        ("{dir}/a {first} {ip:p1/n4}", "/d/a 10.1.0.1 10.1.0.4"),
        ("{members} {peers}", "10.1.0.1,10.1.0.2,10.1.0.3,10.1.0.4 10.1.0.1,10.1.0.3,10.1.0.4"),
        ("{each peers ,}{host}=http://{ip}:2380{end}!", "p1-n1=http://10.1.0.1:2380,p1-n3=http://10.1.0.3:2380,"
         "p1-n4=http://10.1.0.4:2380!"),
        ("{each members}\n  node {\n    id: {number}\n  }\n{end}}",
         "".join(f"  node {{\n    id: {number}\n  }}\n" for number in (1, 2, 3, 4)) + "}"),
        ('{"a": {}, "b": "${HOME} ${name} {{name}} {Name} { name }"}',
         '{"a": {}, "b": "${HOME} ${name} {name} {Name} { name }"}'),
        ("{each members ;}{{name}}{end}", "{name};{name};{name};{name}"),
    ],
)  # fmt: skip
def test_placeholders(text: str, filled: str) -> None:
    assert place().fill(text) == filled


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{hots}", r"the placeholder \{hots\} is unknown; did you mean host\?"),
        ("{ip:p1/n9}", r"the placeholder \{ip:p1/n9\} is unknown"),
        ("{each members ,}x", r"\{each members ,\} stands alone"),
        ("x{end}", r"\{end\} stands alone"),
        ("{each people}x{end}", r"\{each people\} is unknown; there are members, peers, nodes"),
    ],
)
def test_what_stands_for_nothing_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(PlaceholderError, match=sentence):
        place().fill(text)


@given(st.text(st.characters(exclude_characters="{}")))
def test_a_text_without_braces_stays_as_it_is(text: str) -> None:
    assert place().fill(text) == text


@given(st.text(st.sampled_from("{}$ea chmbrsnd,:/p1")))
def test_any_text_is_filled_or_refused(text: str) -> None:
    try:
        assert isinstance(place().fill(text), str)
    except PlaceholderError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "program: {command: x, files: {../x: a}}",
            "program.files.../x: '../x' leaves the node's directory; name a file within it",
        ),
        (
            "program: {command: x, files: {a/../../x: a}}",
            "program.files.a/../../x: 'a/../../x' cannot be the name of a file, such as conf/etcd.yaml",
        ),
        (
            "program: {command: x, files: {/etc/x: a}}",
            "program.files./etc/x: '/etc/x' is absolute and in no private directory of the program (none)",
        ),
        ("program: {command: x, files: {a: x, a/b: y}}", "program.files.a/b: 'a/b' is a file and a directory at once"),
        (
            "program: {command: x, files: {a: {from: none}}}",
            "program.files.a.from: none cannot be read (No such file or directory)",
        ),
        (
            "program: {command: x, files: {a: {from: /dev/zero}}}",
            "program.files.a.from: /dev/zero is no regular file",
        ),
        (
            "program: {command: 'x {hots}'}",
            "program.command: the placeholder {hots} is unknown; did you mean host? (the text {hots}: {{hots}})",
        ),
        (
            "program: {command: 'x \"'}",
            "program.command: cannot be split as a shell does (No closing quotation); give a list",
        ),
        ("program: {command: ''}", "program.command: expected a program and its arguments, got nothing"),
        ("program: {keep: true}", "program: the key command is missing: the program and its arguments"),
        (
            "program: {command: x, ready: {port: 1, after: 1 s}}",
            "program.ready: expected one of port, line and after, got port and after",
        ),
        (
            "program: {command: x, ready: {line: '('}}",
            "program.ready.line: '(' is no regular expression (missing ), unterminated subpattern at position 0)",
        ),
        (
            "program: {command: x, stop: {signal: STOP}}",
            "program.stop.signal: expected one of HUP, INT, QUIT, TERM, USR1, USR2, KILL, got 'STOP'",
        ),
        (
            "program: {command: x, promises: fifoo}",
            "program.promises: no property is called 'fifoo'; did you mean fifo?",
        ),
        (
            "program: {command: x, promises: fifo, member: false}",
            "program.member: a program that promises something is a member; leave member out",
        ),
        (
            "program: {command: x, private: var}",
            "program.private: expected an absolute directory such as /var/lib/etcd, got 'var'",
        ),
        (
            "program: {command: x, private: [/a, /a/b]}",
            "program.private[1]: /a/b lies in another private directory; leave it out",
        ),
        ("program: {command: x, private: /proc}", "program.private: /proc cannot be a private directory"),
        (
            "program: {command: x, environment: {ORDERBED_GROUP: 1}}",
            "program.environment.ORDERBED_GROUP: variables that begin with ORDERBED_ are ours to set",
        ),
        (
            "program: {command: x, environment: {A: true}}",
            "program.environment.A: expected a text, got true; put it in quotes",
        ),
        (
            "program: {command: x, nodes: p1/n9}",
            "program.nodes: 'p1/n9' names no node of one-partition; did you mean p1/n4?",
        ),
        (
            "program:\n  - {command: x}\n  - {command: y, nodes: p1/n1}",
            "program[1].nodes: p1/n1 stands in two programs; a node can run one",
        ),
        (
            "program: {command: x, limits: {cpus: 0}}",
            "program.limits.cpus: expected a number of processors from 0.001 to 4096, such as 0.5, got 0",
        ),
        (
            "program: {command: x}\nworld: sim",
            "world: a program of your own cannot run in the simulated world: take netns or docker",
        ),
        (
            "program: {image: x}\nworld: netns",
            "world: the image x needs the world docker; netns runs what this machine has",
        ),
        ("program: {command: x, nodes: p1/n1}", "the key protocol is missing: p1/n2 runs our program"),
        (
            "program: {command: x}\nprotocol: {name: sequencer}",
            "protocol: every node runs a program of its own; leave protocol out",
        ),
        (
            "program: {command: x}\nworkload: {kind: silent}",
            "workload: every node runs a program of its own, which sends; leave workload out",
        ),
        (
            "program: {command: x, nodes: p1/n1}\nprotocol: {name: sequencer}\n"
            "workload: {kind: silent, senders: p1/n1}",
            "workload.senders: all of these run a program of their own, which no workload tells",
        ),
        ("program: {command: x, nodes: p1/n1..n3}\n" + OURS, "protocol: sequencer needs a group of at least 2 members"),
    ],
)
def test_a_mistake_has_a_place_and_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(text)
    assert str(caught.value).partition(": ")[2] == sentence


COLLISIONS = "{name: t, partitions: {p1: {nodes: 2, bus: {rate: 10 Mbit/s, access: csma-cd}}}}"
TELLS = """
protocol: {name: lamport}
workload:
  - {kind: periodic, rate: 5 /s, size: 64 B, senders: p1/n1}
  - {kind: scheduled, call: {of: p1/n1, after: 1 ms, tells-timestamp: true}, size: 64 B, senders: p1/n2}
"""


@pytest.mark.parametrize("world", [World.NETNS, World.DOCKER])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD.replace("one-partition", COLLISIONS) + OURS, "a bus with CSMA/CD needs the world sim"),
        (HEAD + OURS + "dissemination: routers\n", "dissemination: routers needs the world sim"),
        (HEAD + TELLS, "tells-timestamp needs the world sim"),
    ],
)
def test_networks_that_only_the_simulator_has_are_refused_elsewhere(world: World, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        spec.loads(text + f"world: {world.value}\n", protocols=PROTOCOLS)
    experiment = spec.loads(text, protocols=PROTOCOLS)
    with pytest.raises(InputError, match=sentence):
        require_runnable(experiment, world)
    require_runnable(spec.loads(text + "world: sim\n", protocols=PROTOCOLS), World.SIM)


def test_a_node_does_not_learn_that_routers_copy() -> None:
    experiment = loads(OURS + "dissemination: routers\n")
    sent = configuration(experiment, experiment.topology.node("p1/n1"), incarnation=1, group=7, elapsed_ns=0)
    assert sent["dissemination"] == "unicast", "it sends to each member"


def test_a_program_is_a_value_with_everything_in_it() -> None:
    experiment = loads(
        "program: {command: [etcd, --name, '{host}'], private: /var/lib/x, files: {/var/lib/x/key: a, conf: b},"
        " keep: false, ready: {port: 2379, within: 9 s}, stop: {signal: SIGINT, grace: 1 s},"
        " promises: [fifo, fifo, total_order], limits: {memory: 64 MiB, processes: 9, cpus: 0.5}}"
    )
    program = experiment.programs[experiment.topology.node("p1/n3").name]
    assert program.command == ("etcd", "--name", "{host}")
    assert program.promises == ("fifo", "total_order")
    assert program.is_member
    assert program.limits == Limits(memory_bytes=64 << 20, processes=9, cpu_ratio=0.5)
    assert (program.ready.port, program.ready.within_ns, program.stop.grace_ns) == (2379, 9 * 10**9, 10**9)
    assert (experiment.protocol.name, experiment.has_protocol, experiment.workloads) == ("etcd", False, {})
    assert len(experiment.members) == 4


def test_in_a_mixed_group_our_nodes_are_told_of_members_only() -> None:
    experiment = loads("program: {command: x, nodes: p1/n2}\n" + OURS)
    assert [node.name for node in experiment.members] == ["p1/n1", "p1/n3", "p1/n4"]
    assert list(experiment.workloads) == ["p1/n1", "p1/n3", "p1/n4"]
    line = configuration(experiment, experiment.topology.node("p1/n1"), incarnation=1, group=7, elapsed_ns=0)
    assert [member["index"] for member in line["members"]] == [0, 2, 3]
    member = loads("program: {command: x, nodes: p1/n2, member: true}\n" + OURS)
    assert len(member.members) == 4


def test_what_this_machine_has_not_is_said_before_anything_starts(tmp_path: Path) -> None:
    for text, sentence in (
        ("program: {command: no-such-program}", "p1/n1: this machine has no program no-such-program: install it, or"),
        (
            "program: {command: 'true'}\nclocks: {p1/n2: {offset: 1 ms}}",
            "clocks: p1/n2 runs a program of its own, which",
        ),
        ("program: {command: ./none}", r"this machine has no program ./none"),
    ):
        with pytest.raises(InputError, match=sentence):
            require_runnable(loads(text), World.NETNS)
    for text in (
        "program: {command: ./run, files: {run: '#!/bin/sh'}}",
        "program: {command: '{dir}/run', files: {run: a}}",
    ):
        require_runnable(loads(text), World.NETNS)


def test_directories_are_made_once_or_each_time(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("binary")
    (tmp_path / "tool").chmod(0o755)
    files = "files: {run: '#!/bin/sh {name}', conf/a: '{ip}', tool: {from: tool}, /var/x/key: k}"
    experiment = loads(f"program: {{command: ./run, private: /var/x, {files}}}", tmp_path)
    user_program = next(iter(user_programs(experiment, tmp_path / "nodes", group=9).values()))
    program = user_program.prepare(1)
    work = tmp_path / "nodes" / "p1.n1"
    assert program.work == work
    assert program.hosts == tmp_path / "nodes" / "hosts"
    assert program.private == {"/var/x": tmp_path / "nodes" / "p1.n1.private" / "var" / "x"}
    assert (work / "run").read_text() == "#!/bin/sh p1/n1"
    assert [oct((work / name).stat().st_mode & 0o777) for name in ("run", "conf/a", "tool")] == [
        "0o755",
        "0o644",
        "0o755",
    ]
    assert (program.private["/var/x"] / "key").read_text() == "k"
    assert program.environment["ORDERBED_GROUP"] == "9"
    (work / "state").write_text("kept")
    assert user_program.prepare(2).environment["ORDERBED_INCARNATION"] == "2"
    assert (work / "state").exists()
    fresh = UserProgram(
        replace(user_program.place, program=replace(user_program.choice, keep=False)),
        tmp_path / "log",
        tmp_path / "hosts",
    )
    fresh.prepare(3)
    assert not (work / "state").exists()
    assert (work / "run").exists()
