"""Experiment files: their values, their errors, sweeps, claims, and the shipped ones."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # publishes no types of its own
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from analysis.checks.properties import EXPECTABLE
from analysis.expression import Unknown, parse
from netem.wiring.steps import KernelOption
from node.host.workload import RateChange, Workload, WorkloadKind
from node.registry import PROTOCOLS as REGISTRY
from testbed.paths import EXPERIMENTS
from testbed.spec import experiment as spec
from testbed.spec.faults import Crash, Impair
from testbed.spec.raw import Dissemination, World
from testbed.spec.values import Experiment, SweepAxis
from topologies import load as topology_files
from topologies.formats.errors import InputError
from topologies.formats.yaml_source import read
from topologies.model import Impairment


@dataclass(frozen=True, kw_only=True)
class NoParameters:
    """Parameters of a protocol without any."""


FIXED = replace(REGISTRY["reliable"], kind=NoParameters, has_views=False)
PROTOCOLS = {**REGISTRY, "fixed": FIXED}

BASE = """\
name: sample
question: What does it cost?
topology: one-partition
protocol: {name: sequencer}
workload: {kind: periodic, rate: 50 /s, size: 512 B}
duration: 20 s
"""


def loads(text: str, folder: Path | None = None) -> Experiment:
    return spec.loads(text, "x.yaml", protocols=PROTOCOLS, folder=folder)


def with_line(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new)


def test_defaults() -> None:
    experiment = loads(BASE)
    assert experiment.name == "sample"
    assert experiment.topology == topology_files.load(topology_files.find("one-partition"))
    assert experiment.dissemination is Dissemination.MULTICAST
    assert (experiment.world, experiment.kernel) == (World.AUTO, KernelOption.AUTO)
    assert (experiment.duration_ns, experiment.drain_ns, experiment.seed) == (20 * 10**9, 10 * 10**9, 1)
    assert (experiment.faults, experiment.expect, experiment.sweep, experiment.claims) == ((), (), (), ())
    assert list(experiment.workloads) == ["p1/n1", "p1/n2", "p1/n3", "p1/n4"]
    assert set(experiment.workloads.values()) == {Workload(kind=WorkloadKind.PERIODIC, rate_per_s=50.0, size_bytes=512)}
    assert experiment.clocks == {}
    assert experiment.text == BASE
    assert experiment.topology_text == topology_files.find("one-partition").read_text(encoding="utf-8")


FULL = """\
name: full
question: Everything once?
topology:
  partitions: {p1: {nodes: 4}, p2: {nodes: [a, b]}}
  links: [{between: [p1, p2], delay: 1 ms}]
impairments: {"*": {to-node: {delay: 5 ms}}}
protocol: {name: amoeba, parameters: {large: 64 kB, outstanding: 32, reliable: {heartbeat: 20 ms, uniform: true}}}
dissemination: unicast
workload:
  - {kind: poisson, rate: 50 /s, size: 512 B, senders: [p1/n1..n2], events: [{at: 5 s, rate: 100 /s}, {at: 9 s, rate: 0 /s}]}
  - {kind: saturating, size: 1 kB, senders: p2/*}
  - {kind: silent, senders: p1/n3}
clocks: {"*": {drift: 50 ppm}, "p1/n2": {offset: -5 ms}, "p1/n3": {drift: -20 ppm}}
duration: 20 s
drain: 5 s
seed: 7
world: netns
kernel: uml
faults:
  - {at: 4 s, for: 3 s, impair: {targets: [p1/*], loss: 10 %}}
  - {at: 12 s, crash: {targets: [p2/a]}}
expect: ["latency.p99_ms <= 80", "properties.total_order.verdict == 'pass'"]
sweep: {seed: [1, 2, 3], workload.0.rate: [50 /s, 100 /s]}
claims:
  - {id: 000-fig7, paper: 000, statement: it grows, value: 3.5, ours: latency.p50_ms, accept: [3, 4], by_construction: true}
  - {id: table-1, paper: "002", statement: it is small, value: small, ours: traffic.dummy_rate, accept: ours < 0.5}
"""  # noqa: E501


def test_reads_every_key() -> None:
    experiment = loads(FULL)
    assert experiment.topology.name == "full"
    assert {node.to_node for node in experiment.topology.nodes()} == {Impairment(delay_ns=5_000_000)}
    assert experiment.protocol.parameters == {
        "large_bytes": 64_000, "outstanding": 32, "reliable": {"heartbeat_ns": 20_000_000, "uniform": True},
    }  # fmt: skip
    assert experiment.dissemination is Dissemination.UNICAST
    assert list(experiment.workloads) == ["p1/n1", "p1/n2", "p1/n3", "p2/a", "p2/b"]
    by_name = {str(name): workload for name, workload in experiment.workloads.items()}
    assert by_name["p1/n2"] == Workload(
        kind=WorkloadKind.POISSON,
        rate_per_s=50.0,
        size_bytes=512,
        events=(RateChange(after_ns=5 * 10**9, rate_per_s=100.0), RateChange(after_ns=9 * 10**9, rate_per_s=0.0)),
    )
    assert (by_name["p2/a"].kind, by_name["p2/a"].size_bytes) == (WorkloadKind.SATURATING, 1000)
    assert {str(name): (clock.offset_ns, clock.drift_ppm) for name, clock in experiment.clocks.items()} == {
        "p1/n1": (0, 50.0), "p1/n2": (-5_000_000, 50.0), "p1/n3": (0, -20.0),
        "p1/n4": (0, 50.0), "p2/a": (0, 50.0), "p2/b": (0, 50.0),
    }  # fmt: skip
    assert (experiment.world, experiment.kernel, experiment.seed) == (World.NETNS, KernelOption.UML, 7)
    assert experiment.drain_ns == 5 * 10**9
    assert [type(fault) for fault in experiment.faults] == [Impair, Impair, Crash]
    assert [str(condition) for condition in experiment.expect] == [
        "latency.p99_ms <= 80", "properties.total_order.verdict == 'pass'",
    ]  # fmt: skip
    assert experiment.sweep[0] == SweepAxis(key="seed", values=(1, 2, 3))
    assert vars(experiment.claims[0]) == {
        "id": "000-fig7", "paper": "000", "statement": "it grows", "value": 3.5, "ours": parse("latency.p50_ms"),
        "accept": (3.0, 4.0), "note": "", "by_construction": True,
    }  # fmt: skip
    assert experiment.claims[1].accept == parse("ours < 0.5")


def test_an_experiment_can_be_run_again_and_sent_to_another_process() -> None:
    """Its topology file is the network with the experiment's own impairments."""
    experiment = loads(FULL)
    assert topology_files.loads(experiment.topology_text) == experiment.topology
    assert loads(experiment.text) == pickle.loads(pickle.dumps(experiment)) == experiment


def test_a_topology_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\npartitions: {p1: {nodes: 2}}\n", encoding="utf-8")
    (tmp_path / "x.yaml").write_text(with_line("one-partition", "mine.yaml"), encoding="utf-8")
    experiment = spec.load(tmp_path / "x.yaml", protocols=PROTOCOLS)
    assert len(experiment.topology) == 2
    (tmp_path / "mine.yaml").write_text("name: mine\npartitions: {p1: {nodes: many}}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        spec.load(tmp_path / "x.yaml", protocols=PROTOCOLS)
    assert str(caught.value) == (
        f"{tmp_path}/mine.yaml:2: partitions.p1.nodes: expected a count from 1 to 1000 or a list of so many names, "
        "got 'many'"
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("duration: 20 s\n", "", "1: the key duration is missing: how long the workload runs, such as 20 s"),
        ("question", "quetsion", "2: quetsion: unknown key; did you mean question? Allowed here: name, question, "
         "topology, impairments, protocol, program, dissemination, workload, clocks, duration, drain, seed, world, "
         "image, kernel, absent, faults, expect, sweep, claims"),
        ("one-partition", "one-partitoin", "3: topology: no topology is called 'one-partitoin'; did you mean "
         "one-partition? Or give a path such as ./mine.yaml"),
        ("one-partition", "./none.yaml", "3: topology: none.yaml: there is no such file"),
        ("one-partition", "{partitions: {p1: {nodes: -3}}}",
         "3: topology.partitions.p1.nodes: expected a count from 1 to 1000 or a list of so many names, got -3"),
        ("one-partition", "{partitions: {a: {nodes: 1}, b: {nodes: 1}}}",
         "3: topology.partitions: no path of links joins a and b; partitions need links between their routers"),
        ("one-partition", "[1]", "3: topology: expected a text of at most 2000 characters, got a list"),
        ("name: sequencer", "name: sequencr",
         "4: protocol.name: no protocol is called 'sequencr'; did you mean sequencer?"),
        ("name: sequencer", "name: x",
         f"4: protocol.name: no protocol is called 'x'; there are {', '.join(sorted(PROTOCOLS))}"),
        ("sequencer}", "sequencer, parameters: {outstandng: 3}}",
         "4: protocol.parameters.outstandng: sequencer has no parameter 'outstandng'; did you mean outstanding?"),
        ("sequencer}", "amoeba, parameters: {large_bytes: 3}}",
         "4: protocol.parameters.large_bytes: amoeba has no parameter 'large_bytes'; did you mean large?"),
        ("sequencer}", "reliable, parameters: {heartbeat: 3}}",
         "4: protocol.parameters.heartbeat: expected a duration such as '20 ms' (units: ns, us, ms, s, min, h), got 3"),
        ("sequencer}", "sequencer, parameters: {outstanding: 0}}",
         "4: protocol: sequencer: outstanding must lie between 1 and 65536, not 0"),
        ("sequencer}", "reliable, parameters: {window: {a: 3}}}",
         "4: protocol.parameters.window: expected a single value, got a block of keys"),
        ("sequencer}", "reliable, parameters: {window: [3]}}",
         "4: protocol.parameters.window: expected a text, a number, true, false or a block of parameters, got a list"),
        ("sequencer}", "sequencer, parameters: {reliable: 3}}",
         "4: protocol.parameters.reliable: expected a block of parameters, got 3"),
        ("sequencer}", "sequencer, parameters: {reliable: {uniforn: 3}}}", "4: protocol.parameters.reliable.uniforn: "
         "sequencer.reliable has no parameter 'uniforn'; did you mean uniform?"),
        ("sequencer}", "sequencer, parameters: {a: 3}}",
         "4: protocol.parameters.a: sequencer has no parameter 'a'; it has outstanding, reliable, replace_server"),
        ("sequencer}", "fixed, parameters: {a: 3}}",
         "4: protocol.parameters.a: fixed has no parameter 'a'; it has none"),
        ("sequencer}", "fixed}\nabsent: p1/n4",
         "5: absent: the members of fixed are fixed: they neither join nor leave"),
        ("sequencer}", "fixed}\nfaults:\n  - {at: 1 s, leave: {targets: p1/n4}}",
         "6: faults[0].leave: the members of fixed are fixed: they neither join nor leave"),
        ("periodic", "peridic", "5: workload.kind: expected one of periodic, poisson, scheduled, saturating, silent, "
         "got 'peridic'; did you mean periodic?"),
        ("rate: 50 /s, ", "", "5: workload: a periodic workload needs a rate, such as 50 /s"),
        ("rate: 50 /s", "rate: 50", "5: workload.rate: expected an event rate such as '50 /s' (units: /s), got 50"),
        ("50 /s", "2000000 /s", "5: workload: expected at most 1000000 messages per second, got 2000000"),
        (", size: 512 B", "", "5: workload: a periodic workload needs a size, such as 512 B"),
        ("512 B", "2 kB", "5: workload.size: expected 8 B to 1.4 kB, got 2 kB"),
        ("512 B", "7 B", "5: workload.size: expected 8 B to 1.4 kB, got 7 B"),
        ("periodic", "saturating", "5: workload: a saturating workload has no rate; leave out rate and events"),
        ("periodic, rate: 50 /s", "scheduled",
         "5: workload: a scheduled workload needs its instants, such as at: [1 ms, 2.5 ms], or else a call"),
        ("periodic", "scheduled, at: 1 s", "5: workload: a scheduled workload has no rate; leave out rate and events"),
        ("512 B", "512 B, at: 1 s", "5: workload.at: a periodic workload has no instants; leave out at"),
        ("512 B", "512 B, call: {of: p1/n2, after: 1 ms}",
         "5: workload.call: a periodic workload has no instants; leave out call"),
        ("periodic, rate: 50 /s", "scheduled, at: 1 s, call: {of: p1/n2, after: 1 ms}",
         "5: workload: a scheduled workload needs its instants, such as at: [1 ms, 2.5 ms], or else a call"),
        ("periodic, rate: 50 /s", "scheduled, call: {of: p1/*, after: 1 ms}",
         "5: workload.call.of: expected one caller, got 4 nodes"),
        ("periodic, rate: 50 /s", "scheduled, call: {of: p1/n2, after: 1 ms}, senders: p1/n1",
         "5: workload.call.of: a silent sender has no schedule that a call could follow"),
        ("periodic, rate: 50 /s", "scheduled, call: {of: p1/n2, after: 1 ms}",
         "5: workload: p1/n2 cannot call p1/n1: it sends after calls itself"),
        ("sequencer}\nworkload: {kind: periodic, rate: 50 /s",
         "objects}\nworkload: {kind: scheduled, call: {of: p1/n2, after: 1 s}",
         "5: workload.call: a program of objects has a schedule that no call can follow"),
        ("periodic, rate: 50 /s", "scheduled, call: {of: p1/n2, after: 1 ms, tells-timestamp: true}",
         "5: workload.call.tells-timestamp: a message of sequencer has no timestamp"),
        ("periodic, rate: 50 /s", "scheduled, at: [2 ms, 1 ms]", "5: workload.at: expected instants in order"),
        ("periodic, rate: 50 /s", "scheduled, at: 20 s",
         "5: workload.at: 20 s does not lie before the end of the workload at 20 s"),
        ("512 B", "512 B, events: [{at: 9 s, rate: 1 /s}, {at: 9 s, rate: 2 /s}]",
         "5: workload.events: expected rate changes in the order of their times, each time once"),
        ("512 B", "512 B, events: {at: 21 s, rate: 1 /s}",
         "5: workload.events: 21 s lies after the end of the workload at 20 s"),
        ("{kind: periodic, rate: 50 /s, size: 512 B}", "[{kind: silent},{kind: silent, senders: p1/n2}]",
         "5: workload[1].senders: p1/n2 stands in two workloads; a node can have one"),
        ("sequencer", "clocks", "5: workload.kind: clocks sends nothing for an application; make it silent"),
        ("512 B", "512 B, senders: p2/*",
         "5: workload.senders: 'p2/*' names no node of one-partition; use *, p1/* or nodes such as p1/n1"),
        ("20 s", "0 s", "6: duration: expected a duration above 0, got 0"),
        ("20 s", "25 h", "6: duration: expected at most 24 h, got 90000 s"),
    ],
)  # fmt: skip
def test_names_every_mistake(old: str, new: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(with_line(old, new))
    assert str(caught.value) == f"x.yaml:{sentence}"


CLAIM = "id: a, paper: 000, statement: s, value: 3, ours: a"


@pytest.mark.parametrize(
    ("added", "sentence"),
    [
        ("clocks: {p1/n9: {drift: 5 ppm}}",
         "7: clocks.p1/n9: 'p1/n9' names no node of one-partition; did you mean p1/n4?"),
        ("clocks: {p1/n1: {drift: 5 ms}}",
         "7: clocks.p1/n1.drift: expected a drift such as '50 ppm' (units: ppm, ppb), got '5 ms'"),
        ("clocks: {p1/n1: {drift: -1000000 ppm}}",
         "7: clocks.p1/n1.drift: expected at most 100000 ppm either way, got -1000000 ppm"),
        ("seed: -1", "7: seed: expected a whole number from 0 to 9223372036854775807, got -1"),
        ("seed: true", "7: seed: expected a whole number from 0 to 9223372036854775807, got true"),
        ("world: mars", "7: world: expected one of auto, netns, docker, sim, got 'mars'"),
        ("expect: mesages.deliveries == 3",
         "7: expect: 'mesages.deliveries == 3': a run has no 'mesages'; did you mean messages?"),
        ("expect: latency.p99ms <= 200",
         "7: expect: 'latency.p99ms <= 200': latency has no 'p99ms'; did you mean p99_ms?"),
        ("expect: properties.total_ordr.verdict == 'pass'", "7: expect: \"properties.total_ordr.verdict == 'pass'\": "
         "properties has no 'total_ordr'; did you mean total_order?"),
        ("expect: max(where(links, nod == 'p1/n1').loss_ratio) < 1",
         "7: expect: \"max(where(links, nod == 'p1/n1').loss_ratio) < 1\": links has no 'nod'; did you mean node?"),
        ("expect: x.p99_ms < 3 or latency.p99_ms < 3", "7: expect: 'x.p99_ms < 3 or latency.p99_ms < 3': "
         f"a run has no 'x'; it has {', '.join(EXPECTABLE)}"),
        ("expect: latency.p99_ms + 3",
         "7: expect: 'latency.p99_ms + 3' is no condition; compare it, such as latency.p99_ms <= 80"),
        ("expect:\n  - health.lag_max_ms < 9\n  - open('x')", "9: expect[1]: only abs, min, max, len, sum, mean, "
         "slope, r_squared, estimate, where can be called, not \"open('x')\""),
        ("expect: estimate(links.loss_ratio).high < 1", "7: expect: 'estimate(links.loss_ratio).high < 1': "
         "an interval is over runs with different seeds, an expectation over one run"),
        (f"claims: {{{CLAIM}, accept: [3, 1]}}",
         "7: claims.accept: expected [low, high] with low at most high, got [3, 1]"),
        (f"claims: {{{CLAIM}, accept: [3]}}",
         "7: claims.accept: expected two numbers [low, high], or a condition over ours and value, got a list"),
        (f"claims: {{{CLAIM}, accept: 3 + ours}}",
         "7: claims.accept: '3 + ours' is no condition; compare it, such as latency.p99_ms <= 80"),
        ("claims:\n" + 2 * f"  - {{{CLAIM}, accept: [1, 3]}}\n", "9: claims[1].id: two claims are called a"),
        ("sweep: {seed: []}", "7: sweep.seed: expected at least one value"),
        ("sweep: {workload.rat: [50 /s]}", "7: workload.rat: unknown key; did you mean rate? Allowed here: kind, "
         "rate, at, call, size, senders, events, rate_churn"),
        ("sweep:\n  workload.rate:\n    - 5 /s\n    - 50 ms",
         "10: workload.rate: expected an event rate such as '50 /s' (units: /s), got '50 ms'"),
        ("sweep: {duration.x: [1]}", "7: sweep.duration.x: there is no x in duration, which is '20 s'"),
        ("sweep: {a.b.c.d.e.f.g.h.i.j.k: [1]}",
         "7: sweep.a.b.c.d.e.f.g.h.i.j.k: expected the path of a key, such as workload.rate or faults.0.impair.loss"),
        ("impairments: {'*': {to-node: {jitter: 1 ms}}}",
         "7: impairments.*.to-node: jitter must not exceed the delay: a frame cannot arrive before it was sent"),
        ("absent: p1/*", "7: absent: nobody is left: the first view needs at least one member"),
        ("absent: p1/n9", "7: absent: 'p1/n9' names no node of one-partition; did you mean p1/n4?"),
        ("absent: p1/n4", "7: absent: p1/n4 never joins: add a fault join, or leave it out of the topology"),
        ("program: {command: x, nodes: p1/n4}\nabsent: p1/n4",
         "8: absent: p1/n4 runs a program of its own, which is there from the start"),
        ("program: {command: x, nodes: p1/n4}\nfaults: {at: 1 s, leave: {targets: p1/n4}}",
         "8: faults.leave.targets: p1/n4 runs a program of its own, which no fault can tell to join or to leave"),
        ("faults: {at: 1 s, crash: {targets: p1/n7}}",
         "7: faults.crash.targets: 'p1/n7' names no node of one-partition; did you mean p1/n4?"),
    ],
)  # fmt: skip
def test_names_every_mistake_in_keys_that_may_be_left_out(added: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(BASE + added)
    assert str(caught.value) == f"x.yaml:{sentence}"


@pytest.mark.parametrize(
    ("accept", "results", "judged"),
    [
        ("[3, 4]", {"a": 3.5}, (3.5, True)),
        ("[3, 4]", {"a": 4.5}, (4.5, False)),
        ("ours < value * 2 and b", {"a": 3.5, "b": True}, (3.5, True)),
        ("ours < value", {"a": 3.5}, (3.5, False)),
        ("[3, 4]", {}, (Unknown(reason="this run has no a"), Unknown(reason="this run has no a"))),
        ("ours < c", {"a": 1}, (1, Unknown(reason="this run has no c"))),
    ],
)
def test_claims_are_judged_over_results(accept: str, results: dict[str, Any], judged: tuple[Any, Any]) -> None:
    (claim,) = loads(BASE + f"claims: {{{CLAIM}, accept: {accept}}}").claims
    assert claim.judge(results) == judged


def test_finds_shipped_names_and_paths(tmp_path: Path) -> None:
    assert spec.find("quickstart") == EXPERIMENTS / "quickstart.yaml"
    (tmp_path / "mine.yaml").write_text(BASE, encoding="utf-8")
    assert spec.find(tmp_path / "mine.yaml") == tmp_path / "mine.yaml"
    for name, sentence in (
        (tmp_path / "none.yaml", f"{tmp_path}/none.yaml: there is no such file"),
        (Path("quickstrat"), "no experiment is called 'quickstrat'; did you mean quickstart? Or give a path such as"),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(sentence)}"):
            spec.find(name)


def test_the_examples_of_the_readme_load() -> None:
    text = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    sample, claims, sweep, linked = (block.split("```")[0] for block in text.split("```yaml\n")[1:])
    experiment = loads(sample + claims)
    assert (experiment.name, len(experiment.faults), experiment.claims[0].id) == ("sample", 2, "000-fig7")
    inline = sample.replace("one-partition ", "{partitions: {p1: {nodes: 2}}} ").replace("p1/n1", "p1/n2")
    assert len(spec.expand_sweep(loads(inline + sweep), protocols=PROTOCOLS)) == 12
    assert len(spec.expand_sweep(loads(sample + linked), protocols=PROTOCOLS)) == 40


def test_the_faults_of_the_readme_load() -> None:
    text = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 12
    topology = "{partitions: {p1: {nodes: 4}, p2: {nodes: 1}}, links: {between: [p1, p2]}}"
    for row in rows:
        absent = "absent: p1/n4\n" if "join:" in row else ""
        experiment = loads(with_line("one-partition", topology) + f"{absent}faults:\n  - at: 4 s\n    {row}\n")
        assert experiment.faults


@pytest.mark.parametrize("name", spec.names())
def test_a_shipped_experiment_loads_and_its_schema_takes_it(name: str) -> None:
    experiment = spec.load(spec.find(name), protocols=PROTOCOLS)
    assert experiment.name == name
    assert experiment.expect or experiment.claims
    assert experiment.text.startswith("# yaml-language-server: $schema=schema.json\n")
    assert spec.expand_sweep(experiment, protocols=PROTOCOLS)
    jsonschema.validate(read(spec.find(name)).value, json.loads(spec.schema()))


def test_the_committed_schema_is_current() -> None:
    committed = (EXPERIMENTS / "schema.json").read_text(encoding="utf-8")
    assert committed == spec.schema(), "write experiments/schema.json again from testbed.spec.experiment.schema()"


def test_absent_members_are_no_founders() -> None:
    text = BASE + "absent: [p1/n4, p1/n2]\nfaults: [{at: 1 s, join: {targets: [p1/n2, p1/n4]}}]\n"
    experiment = loads(text)
    assert experiment.absent == ("p1/n2", "p1/n4")
    assert [node.name for node in experiment.founders] == ["p1/n1", "p1/n3"]
    assert [node.name for node in experiment.members] == ["p1/n1", "p1/n2", "p1/n3", "p1/n4"]


def test_the_schema_refuses_what_the_loader_refuses() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(spec.schema()))
    validator.check_schema(validator.schema)
    valid = yaml.safe_load(FULL)
    valid["claims"][0]["paper"] = "000"  # read as 0 by YAML 1.1; the project's reader keeps the text
    assert validator.is_valid(valid)
    for wrong in (
        {**valid, "quetsion": "?"},
        {**valid, "duration": 20},
        {**valid, "workload": {"kind": "sometimes"}},
        {**valid, "faults": [{"for": "3 s"}]},
        {**valid, "topology": {"partitions": {"p1": {"nodes": 0}}}},
        {**valid, "topology": 3},
        {**valid, "seed": -1},
        {**valid, "world": None},
    ):
        assert not validator.is_valid(wrong)


def test_the_accuracy_experiments_are_what_is_promised() -> None:
    """5 ms under 2,000 multicasts/s to nine; 100,000 frames for each of two ratios; 20 frames at 5 Mbit/s."""
    delay, loss, overrun = (
        spec.load(spec.find(name), protocols=PROTOCOLS) for name in ("accuracy-delay", "accuracy-loss", "overrun")
    )
    assert (len(delay.topology), delay.faults) == (10, ())
    assert {node.to_node.delay_ns for node in delay.topology.nodes()} == {5_000_000}
    (sender,) = delay.workloads.values()
    assert (sender.rate_per_s, sender.size_bytes) == (2000.0, 256)
    frames: dict[float, float] = {}
    (sender,) = loss.workloads.values()
    for node in loss.topology.nodes():
        ratio = node.to_node.loss_ratio
        frames[ratio] = frames.get(ratio, 0) + sender.rate_per_s * loss.duration_ns / 10**9
    assert frames[0.01] >= 100_000
    assert frames[0.1] >= 100_000
    impair = overrun.faults[0]
    assert isinstance(impair, Impair)
    assert {(one.rate_bps, one.queue_frames) for _, one in impair.settings} == {(5_000_000, 20)}


@given(st.text(alphabet="abdefiklnorstuw.[]0123-*_", max_size=25), st.sampled_from(["1 %", "5 s", "9", "[]", "{a: 1}"]))
def test_any_sweep_key_is_taken_or_refused(key: str, value: str) -> None:
    try:
        experiment = loads(FULL.replace("sweep: {", f'sweep: {{"{key}": [{value}], '), EXPERIMENTS)
    except InputError as error:
        assert "\n" not in str(error)
        assert "x.yaml" in str(error)
    else:
        assert experiment.duration_ns > 0
