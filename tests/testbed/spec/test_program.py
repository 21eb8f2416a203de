"""Placeholders and the block `program`: their values, and their errors."""

from __future__ import annotations

import time
from contextlib import nullcontext
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
from testbed.spec.raw import World, has_match
from testbed.spec.values import Experiment
from tests.waiting import slowness
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
    ("program", "sentence"),
    [
        ("{command: x, files: {../x: a}}", ".files.../x: '../x' leaves the node's directory; name a file within it"),
        ("{command: x, files: {a/../../x: a}}",
         ".files.a/../../x: 'a/../../x' cannot be the name of a file, such as conf/etcd.yaml"),
        ("{command: x, files: {/etc/x: a}}",
         ".files./etc/x: '/etc/x' is absolute and in no private directory of the program (none)"),
        ("{command: x, files: {a: x, a/b: y}}", ".files.a/b: 'a/b' is a file and a directory at once"),
        ("{command: x, files: {a: {from: none}}}", ".files.a.from: none cannot be read (No such file or directory)"),
        ("{command: x, files: {a: {from: tests}}}", ".files.a.from: tests is no regular file"),
        ("{command: x, files: {a: {from: /etc/passwd}}}",
         ".files.a.from: /etc/passwd leaves the folder of the experiment; put a copy beside the experiment"),
        ("{command: x, files: {a: {from: tests/../../x}}}",
         ".files.a.from: tests/../../x leaves the folder of the experiment; put a copy beside the experiment"),
        ("{command: 'x {hots}'}",
         ".command: the placeholder {hots} is unknown; did you mean host? (the text {hots}: {{hots}})"),
        ("{command: 'x \"'}", ".command: cannot be split as a shell does (No closing quotation); give a list"),
        ("{command: ''}", ".command: expected a program and its arguments, got nothing"),
        ("{keep: true}", ": the key command is missing: the program and its arguments"),
        ("{command: x, ready: {port: 1, after: 1 s}}",
         ".ready: expected one of port, line and after, got port and after"),
        ("{command: x, ready: {line: '('}}",
         ".ready.line: '(' is no regular expression (missing ): ()"),
        ("{command: x, ready: {line: '(?=a)'}}",
         ".ready.line: '(?=a)' is no regular expression (invalid perl operator: (?=)"),
        ("{command: x, stop: {signal: STOP}}",
         ".stop.signal: expected one of HUP, INT, QUIT, TERM, USR1, USR2, KILL, got 'STOP'"),
        ("{command: x, promises: fifoo}", ".promises: no property is called 'fifoo'; did you mean fifo?"),
        ("{command: x, promises: fifo, member: false}",
         ".member: a program that promises something is a member; leave member out"),
        ("{command: x, private: var}", ".private: expected an absolute directory such as /var/lib/etcd, got 'var'"),
        ("{command: x, private: [/a, /a/b]}", ".private[1]: /a/b lies in another private directory; leave it out"),
        ("{command: x, private: /proc}", ".private: /proc cannot be a private directory"),
        ("{command: x, environment: {ORDERBED_GROUP: 1}}",
         ".environment.ORDERBED_GROUP: variables that begin with ORDERBED_ are ours to set"),
        ("{command: x, environment: {A: true}}", ".environment.A: expected a text, got true; put it in quotes"),
        ("{command: x, nodes: p1/n9}", ".nodes: 'p1/n9' names no node of one-partition; did you mean p1/n4?"),
        ("[{command: x}, {command: y, nodes: p1/n1}]", "[1].nodes: p1/n1 stands in two programs; a node can run one"),
        ("{command: x, limits: {cpus: 0}}",
         ".limits.cpus: expected a number of processors from 0.001 to 4096, such as 0.5, got 0"),
    ],
)  # fmt: skip
def test_a_mistake_has_a_place_and_a_sentence(program: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(f"program: {program}")
    assert str(caught.value).partition(": ")[2] == f"program{sentence}"


def test_a_link_beside_the_experiment_does_not_lead_to_files_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "theirs").mkdir()
    for name, target in (("link", "../secret"), ("circle", "circle")):
        (tmp_path / "theirs" / name).symlink_to(target)
        with pytest.raises(InputError, match=r"link leaves the folder of the experiment|circle cannot be read"):
            loads(f"program: {{command: x, files: {{a: {{from: {name}}}}}}}", tmp_path / "theirs")


@pytest.mark.parametrize(
    "text",
    ["{each members}" * 18_000, "{members}" * 29_000, "{each nodes}" + "x" * 200_000 + "{end}", "{each " * 40_000],
)
def test_no_text_takes_long_or_grows_without_bound(text: str) -> None:
    topology = "topology: {partitions: {p1: {nodes: 400}}}"
    begun_s = time.process_time()
    with pytest.raises(InputError, match=r"stands alone|more than 4,194,304 characters"):
        spec.loads(
            HEAD.replace("topology: one-partition", topology) + f"program: {{command: x, files: {{a: '{text}'}}}}",
            "x.yaml", protocols=PROTOCOLS,
        )  # fmt: skip
    assert time.process_time() - begun_s < 5 * slowness(time.process_time)


@pytest.mark.parametrize(("expression", "line"), [("^(a+)+$b", "a" * 60_000), ("(a|a)*b", "a" * 60_000)])
def test_no_expression_takes_for_ever(expression: str, line: str) -> None:
    begun_s = time.process_time()
    assert not has_match(expression, line)
    assert time.process_time() - begun_s < 1


@pytest.mark.parametrize(
    ("program", "others", "sentence"),
    [
        ("{command: x}", "world: sim",
         "world: a program of your own cannot run in the simulated world: take netns or docker"),
        ("{image: x}", "world: netns",
         "world: the image x needs the world docker; netns runs what this machine has"),
        ("{command: x, nodes: p1/n1}", "", "the key protocol is missing: p1/n2 runs our program"),
        ("{command: x}", "protocol: {name: sequencer}",
         "protocol: every node runs a program of its own; leave protocol out"),
        ("{command: x}", "workload: {kind: silent}",
         "workload: every node runs a program of its own, which sends; leave workload out"),
        ("{command: x, nodes: p1/n1}", "protocol: {name: sequencer}\nworkload: {kind: silent, senders: p1/n1}",
         "workload.senders: all of these run a program of their own, which no workload tells"),
        ("{command: x, nodes: p1/n1..n3}", OURS, "protocol: sequencer needs a group of at least 2 members"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_a_program_is_refused(program: str, others: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(f"program: {program}\n{others}")
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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{command: no-such-program}", "p1/n1: this machine has no program no-such-program: install it, or"),
        ("{command: ./none}", "this machine has no program ./none"),
        ("{command: 'true'}\nclocks: {p1/n2: {offset: 1 ms}}", "clocks: p1/n2 runs a program of its own, which"),
        ("{command: ./run, files: {run: '#!/bin/sh'}}", ""),
        ("{command: '{dir}/run', files: {run: a}}", ""),
    ],
)
def test_what_this_machine_has_not_is_said_before_anything_starts(text: str, sentence: str) -> None:
    experiment = loads(f"program: {text}")
    with pytest.raises(InputError, match=sentence) if sentence else nullcontext():
        require_runnable(experiment, World.NETNS)


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
    modes = {name: oct((work / name).stat().st_mode & 0o777) for name in ("run", "conf/a", "tool")}
    assert modes == {"run": "0o755", "conf/a": "0o644", "tool": "0o755"}
    assert (program.private["/var/x"] / "key").read_text() == "k"
    assert program.environment["ORDERBED_GROUP"] == "9"
    (work / "state").write_text("kept")
    assert user_program.prepare(2).environment["ORDERBED_INCARNATION"] == "2"
    assert (work / "state").exists()
    forgetful = replace(user_program.place, program=replace(user_program.choice, keep=False))
    UserProgram(forgetful, tmp_path / "log", tmp_path / "hosts").prepare(3)
    assert not (work / "state").exists()
    assert (work / "run").exists()
